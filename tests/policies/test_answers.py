"""A policy whose answer cannot be an inverse temperature is named at its first use."""

from __future__ import annotations

import dataclasses
import gc
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import sharpmax as sx
import sharpmax.jax
import sharpmax.torch
from sharpmax import cpu
from sharpmax._errors import UserError
from sharpmax.policies import _answers

RNG = np.random.default_rng(0)
ARRAYS = [RNG.normal(size=(1, 2, 9, 4)).astype(np.float32) for _ in range(3)]
TENSORS = [torch.from_numpy(array) for array in ARRAYS]
ROWS_FIRST = [jnp.asarray(array.swapaxes(1, 2)) for array in ARRAYS]


def with_tensors(impl, gradients=False, **options):
    def attend(policy):
        tensors = [tensor.clone().requires_grad_(gradients) for tensor in TENSORS]
        return sharpmax.torch.attention(*tensors, policy=policy, impl=impl, **options)

    return attend


def under_jit(policy):
    return jax.jit(lambda query: sharpmax.jax.attention(query, *ROWS_FIRST[1:], policy=policy))(
        ROWS_FIRST[0]
    )


USES = {
    "reference": with_tensors("reference"),
    "streaming": with_tensors("streaming"),
    "fused": with_tensors("fused"),
    "cpu": with_tensors("cpu"),
    "auto with gradients": with_tensors("auto", gradients=True),
    "statistics": lambda policy: sharpmax.torch.attention_stats(*TENSORS[:2], policy=policy),
    "NumPy": lambda policy: cpu.attention(*ARRAYS, policy=policy),
    "JAX": lambda policy: sharpmax.jax.attention(*ROWS_FIRST, policy=policy),
    "jax.jit": under_jit,
    "softmax": lambda policy: sx.adaptive_temperature_softmax(ARRAYS[0], policy=policy),
}
uses = pytest.mark.parametrize("use", USES.values(), ids=USES)


class WithoutReferences:
    __slots__ = ()

    def __call__(self, entropy, count):
        return -1.0


BAD = {
    "NaN": (lambda: lambda h, n: h * math.nan, "returned nan for a row"),
    "infinite": (lambda: lambda h, n: h + math.inf, "returned inf"),
    "zero": (lambda: lambda h, n: 0.0, "returned 0 for a row of 2 items"),
    "negative": (lambda: lambda h, n: 1 - h, "returned -"),
    "zero where sharp": (lambda: lambda h, n: h, "returned 0 for a row of 2 items with an entropy of 0 nats"),
    "huge": (lambda: lambda h, n: h + 1e30, r"returned 1e\+30 .* at most 1e\+18"),
    "huge constant": (lambda: sx.Constant(1e39), r"Constant\(inverse_temperature=1e\+39\) returned 1e\+39"),
    "huge polynomial": (lambda: sx.Polynomial((1e39, 0.0)), r"Polynomial\(.* returned"),
    "held": (lambda: sx.Saturating(sx.Polynomial((1e39, 0.0))), r"Saturating\(.* returned"),
    "slots": (WithoutReferences, "WithoutReferences object .* returned -1"),
}  # fmt: skip


@uses
@pytest.mark.parametrize(("make", "message"), BAD.values(), ids=BAD)
def test_a_bad_answer_is_named_at_every_use(use, make, message):
    policy = make()
    for _ in range(2):  # a refused policy does not count as checked
        with pytest.raises(UserError, match=message):
            use(policy)


@dataclasses.dataclass(frozen=True)
class Falling:
    """Fixed, and right only up to 2,000 items."""

    slope: float = 1e-3
    learned = False

    def __call__(self, entropy, count):
        items = count.astype(entropy.dtype) if hasattr(count, "astype") else count
        return entropy * 0 + 2 - self.slope * items


@uses
def test_a_fixed_policy_is_asked_about_long_rows_too(use):
    with pytest.raises(UserError, match=r"returned -0\.04\d+ for a row of 2048 items"):
        use(Falling())
    use(Falling(1e-7))


@pytest.mark.parametrize("use", [name for name in USES if "jit" not in name])
def test_another_policy_only_about_as_many_items_as_the_call_has(use):
    """It may be a table with an end."""
    table = torch.linspace(1, 2, 10)

    def look_up(entropy, count):
        kind = type(count)
        if kind is torch.Tensor:
            return table[count.long()]
        rows = np.asarray(table)[np.asarray(count)]
        return rows if kind is np.ndarray or isinstance(count, np.generic) else jnp.asarray(rows)

    USES[use](look_up)


@pytest.mark.parametrize("use", ["reference", "streaming", "cpu", "NumPy", "JAX", "softmax"])
def test_a_policy_that_changes_is_checked_again(use):
    factor = [2.0]

    def policy(entropy, count):
        return entropy * 0 + factor[0]

    USES[use](policy)
    factor[0] = -2.0
    with pytest.raises(UserError, match="returned -2"):
        USES[use](policy)


def test_rows_that_do_not_depend_on_the_answer_are_not_judged():
    """Rows without items, with one item, and rows that are NaN already."""

    def log_length(entropy, count):
        return torch.log(count.float()) + 0 * entropy  # -inf, 0, ...

    query, key, value = (tensor.clone() for tensor in TENSORS)
    query[:, :, 3] = math.nan
    mask = torch.ones(9, 9, dtype=torch.bool)
    mask[5] = False
    for impl in ("reference", "streaming", "cpu"):
        output = sharpmax.torch.scaled_dot_product_attention(
            query, key, value, mask, is_causal=True, policy=log_length, impl=impl
        )
        assert output[:, :, 3].isnan().all()
        assert (output[:, :, 5] == 0).all()
        assert output[:, :, [0, 1, 2, 4, 6, 7, 8]].isfinite().all()


def test_a_policy_is_asked_about_examples_once():
    calls = []

    class Counting:
        def __call__(self, entropy, count):
            calls.append(tuple(entropy.shape))
            return entropy * 0 + 1.5

        def method(self, entropy, count):
            return self(entropy, count)

    for policy in (Counting(), Counting().method):
        del calls[:]
        for _ in range(3):
            with_tensors("reference")(policy)
        assert sorted(calls)[0][:3] == (1, 1, 1)  # about any head
        assert sum(shape[:3] == (1, 1, 1) for shape in calls) == 1


def test_equal_constants_are_checked_once(monkeypatch):
    USES["fused"](sx.Constant(1.375))
    monkeypatch.setattr(_answers, "check_examples", None)
    USES["fused"](sx.Constant(1.375))


def test_nothing_keeps_a_policy_alive():
    policy = nn.Linear(1, 1)

    def ask(use):
        class Learned(nn.Module):
            def __init__(self):
                super().__init__()
                self.slope = nn.Parameter(torch.tensor(0.5))

            def forward(self, entropy, count):
                return 1 + self.slope * entropy

        policy = Learned()
        use(policy)
        return id(policy)

    key = ask(with_tensors("streaming")), None
    gc.collect()
    assert key not in _answers._objects
    del policy


def test_gradients_of_a_learned_policy_are_untouched():
    slope = torch.tensor(0.5, requires_grad=True)
    output = sharpmax.torch.scaled_dot_product_attention(
        *TENSORS, policy=lambda h, n: 1 + slope * h, impl="streaming"
    )
    (gradient,) = torch.autograd.grad(output.square().sum(), slope)
    assert gradient != 0


def test_a_traced_parameter_cannot_be_read():
    def loss(slope):
        policy = lambda h, n: 1 + slope * h  # noqa: E731
        return sharpmax.jax.dot_product_attention(*ROWS_FIRST, policy=policy).sum()

    assert jax.jit(jax.grad(loss))(0.5) != 0


def test_torch_s_transformations_are_left_alone():
    def attend(query):
        return sharpmax.torch.scaled_dot_product_attention(
            query, *TENSORS[1:], policy=lambda h, n: 1 + h, impl="reference"
        )

    queries = torch.stack([TENSORS[0], 2 * TENSORS[0]])
    expected = torch.stack([attend(query) for query in queries])
    torch.testing.assert_close(torch.func.vmap(attend)(queries), expected)


def test_policies_that_differ_by_head_are_asked_for_all_heads():
    class ByHead:
        by_head = True

        def __call__(self, entropy, count):
            assert entropy.shape[1:3] == (2, 1)
            return entropy * 0 + torch.tensor([1.0, -3.0])[:, None, None]

    with pytest.raises(UserError, match="returned -3"):
        with_tensors("streaming")(ByHead())


def test_an_unhashable_policy():
    @dataclasses.dataclass(frozen=True)
    class Table:
        factors: list
        learned = False

        def __call__(self, entropy, count):
            return entropy * 0 + self.factors[0]

    with_tensors("streaming")(Table([1.5]))
    with pytest.raises(UserError, match="returned -1"):
        with_tensors("streaming")(Table([-1.0]))
