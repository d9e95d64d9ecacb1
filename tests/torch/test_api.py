"""What is not supported is named; an implementation requested by name runs or raises."""

from __future__ import annotations

import re
import weakref

import pytest
import torch

import sharpmax as sx
from sharpmax.torch import (
    attention,
    attention_stats,
    cpu,
    fused,
    reference,
    scaled_dot_product_attention,
    sdpa,
    streaming,
)

QUERY = torch.ones(2, 4, 5, 8)
KEY = torch.ones(2, 4, 7, 8)
BIAS = torch.zeros(5, 7)


@pytest.fixture
def chosen(monkeypatch):
    """Which implementation ran."""
    ran = []
    for module in (reference, streaming, fused, sdpa, cpu):
        attend = module.attend

        def spy(*args, module=module, attend=attend):
            ran.append(module.__name__.rpartition(".")[2])
            return attend(*args)

        monkeypatch.setattr(module, "attend", spy)
    return ran


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"softcap": 5.0}, "softcap=5.0"),
        ({"window": 3}, "window=3"),
        ({"attn_mask": BIAS}, "an additive attn_mask"),
        ({"dropout_p": 0.1}, "dropout_p=0.1"),
        ({"value": torch.ones(2, 4, 7, 3)}, "keys and values of different sizes (8 and 3)"),
        ({"query": QUERY[:, :, :0]}, "an empty query or key"),
        ({"key": KEY[:, :, :0], "value": KEY[:, :, :0]}, "an empty query or key"),
        (
            {"sinks": torch.zeros(4), "query": QUERY.clone().requires_grad_()},
            "gradients with sinks",
        ),
        (
            {name: QUERY.to("meta") for name in ("query", "key", "value")},
            "there is no kernel for meta tensors",
        ),
    ],
)
def test_fused_names_what_it_cannot_do(options, name, chosen):
    call = {"query": QUERY, "key": KEY, "value": KEY} | options
    with pytest.raises(NotImplementedError, match=re.escape(name)) as caught:
        scaled_dot_product_attention(**call, impl="fused")
    assert "\n" not in str(caught.value)
    scaled_dot_product_attention(**call)
    assert chosen in (["cpu"], ["streaming"])


def test_one_query_per_head_is_one_pass(chosen):
    """Decoding: `fused` would read the keys twice."""
    query = QUERY[:, :, :1]
    scaled_dot_product_attention(query, KEY, KEY, impl="fused")
    attention_stats(query, KEY, impl="fused")
    assert chosen == ["streaming", "fused"]


@pytest.fixture(params=[None, "numba"], ids=["with numba", "without numba"])
def missing(request, monkeypatch):
    monkeypatch.setattr(cpu, "missing_package", lambda: request.param)
    return request.param


def test_auto_follows_its_rules(chosen, missing):
    first = "streaming" if missing else "cpu"
    numbers = "fused" if missing else "cpu"
    needs = QUERY.clone().requires_grad_()
    scaled_dot_product_attention(QUERY, KEY, KEY)
    scaled_dot_product_attention(needs, KEY, KEY)
    with torch.no_grad():
        scaled_dot_product_attention(needs, KEY, KEY)
    attention_stats(QUERY, KEY)
    attention_stats(QUERY, KEY, softcap=3.0)
    scaled_dot_product_attention(QUERY, KEY, KEY, normaliser=sx.softmax)
    gradients = "fused" if missing else "cpu"
    assert chosen == [first, gradients, first, numbers, first, "reference"]
    del chosen[:]
    scaled_dot_product_attention(QUERY, KEY, KEY, policy=sx.Constant(1.0))
    attention(QUERY, KEY, KEY, policy=sx.Constant(1.0))
    scaled_dot_product_attention(needs, KEY, KEY, policy=sx.LogLength(3))
    scaled_dot_product_attention(QUERY, KEY, KEY, policy=sx.LogLength(3), softcap=3.0)
    assert chosen == ["sdpa", first, "sdpa", "streaming"]  # where nobody asks for the entropy


@pytest.mark.parametrize("impl", ["reference", "streaming", "fused", "cpu"])
def test_a_name_asked_for_runs(impl, chosen):
    scaled_dot_product_attention(QUERY, KEY, KEY, impl=impl)
    assert chosen == [impl]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"impl": "flash"}, ValueError, "impl must be one of 'auto', 'reference', 'streaming', "),
        ({"policy": 2.0}, TypeError, "policy must be a function of (entropy, count), got 2.0"),
        (
            {"policy": lambda entropy, count: entropy[..., 0]},
            ValueError,
            "expected one inverse temperature",
        ),
    ],
)
def test_mistakes_are_explained_in_one_sentence(options, error, message):
    with pytest.raises(error, match=re.escape(message)) as caught:
        scaled_dot_product_attention(QUERY, KEY, KEY, **options)
    assert "\n" not in str(caught.value)


def test_a_normaliser_replaces_softmax(rng):
    query, key, value = (torch.tensor(rng.normal(size=(2, 3, n, 8))) for n in (5, 7, 7))
    mask = torch.tensor(rng.random((5, 7)) < 0.7)

    def uniform(logits, *, where=None, axis=-1):
        assert axis == -1
        return where / where.sum(-1, keepdim=True).clamp(min=1)

    output, stats = attention(query, key, value, attn_mask=mask, normaliser=uniform)
    weights = (mask / mask.sum(-1, keepdim=True).clamp(min=1)).double()
    torch.testing.assert_close(output, weights @ value)
    plain = attention_stats(query, key, attn_mask=mask, impl="reference")
    torch.testing.assert_close(stats.entropy, plain.entropy)
    assert (stats.inverse_temperature == 1).all()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"impl": "streaming"},
            NotImplementedError,
            'impl="streaming" does not support a normaliser',
        ),
        ({"impl": "fused"}, NotImplementedError, 'impl="fused" does not support a normaliser'),
        ({"policy": sx.Constant(1.0)}, ValueError, "pass only one of them"),
        ({"sinks": torch.zeros(4)}, NotImplementedError, "sinks are part of softmax"),
    ],
)
def test_what_does_not_go_with_a_normaliser(options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        scaled_dot_product_attention(QUERY, KEY, KEY, normaliser=sx.softmax, **options)


def test_statistics_let_go_of_the_keys_once_read():
    key = torch.ones(1, 2, 7, 8)
    held = weakref.ref(key)
    stats = attention_stats(QUERY[:1, :2], key, impl="fused")
    del key
    assert held() is not None, "max_logit is yet to be found"
    assert stats.max_logit.shape == (1, 2, 5)
    assert held() is None


def test_statistics_print_briefly():
    stats = attention_stats(QUERY, KEY)
    assert repr(stats).startswith("AttentionStats(entropy=tensor(")


def test_under_torch_compile(rng):
    """Private kernels and the choice of one are left to run as they are."""
    query, key, value = (torch.tensor(rng.normal(size=(1, 2, n, 8))) for n in (5, 7, 7))
    compiled = torch.compile(scaled_dot_product_attention, backend="eager")
    for impl in ("reference", "streaming", "fused"):
        plain = scaled_dot_product_attention(query, key, value, impl=impl)
        torch.testing.assert_close(compiled(query, key, value, impl=impl), plain)
    with pytest.raises(NotImplementedError, match=r"tracing by torch\.compile"):
        compiled(query.float(), key.float(), value.float(), impl="cpu")


@pytest.mark.parametrize("impl", ["reference", "streaming", "fused"])
@pytest.mark.parametrize("needs_gradient", [False, True])
def test_autocast_does_not_round_the_logits(rng, impl, needs_gradient):
    query, key, value = (
        torch.tensor(rng.normal(size=(2, 3, n, 8)), dtype=torch.float32) for n in (5, 7, 7)
    )
    query.requires_grad_(needs_gradient)
    plain = attention(query, key, value, impl=impl)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = attention(query, key, value, impl=impl)
        assert cast.stats.max_logit.dtype == torch.float32
    assert torch.equal(cast.output, plain.output)
    assert torch.equal(cast.stats.entropy, plain.stats.entropy)
    if needs_gradient:
        (ours,) = torch.autograd.grad(cast.output.sum(), query)
        (theirs,) = torch.autograd.grad(plain.output.sum(), query)
        torch.testing.assert_close(ours, theirs)
