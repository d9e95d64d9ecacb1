"""Random attention calls for property tests, with their right answers.

`calls(impl)` is a hypothesis strategy over shapes, shared heads, masks, windows, softcap, sinks,
scales and policies: everything that an implementation supports, in one space.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import sharpmax as sx
import truth
from sharpmax.policies import needs_entropy
from sharpmax.torch import attention

STATS = (
    *("entropy", "log_sum_exp", "max_logit", "min_logit", "count", "inverse_temperature"),
    "varentropy",
)
ON_GPU = torch.cuda.is_available()
SMOOTH = sx.Polynomial((0.1, 0.3, 0.9), threshold=0.2)
"""Differentiable at the entropies of these calls, unlike PAPER."""

TRITON = pytest.param(
    "triton",
    marks=[
        pytest.mark.slow,
        # The interpreter computes both sides of a choice; NumPy warns of the one not taken.
        pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    ],
)
ALL = ("reference", "streaming", "fused", "cpu", TRITON)
EVERY_OPTION = ("reference", "streaming", "cpu", TRITON)
"""Implementations with softcap, bias and windows."""
DIFFERENTIABLE = ("reference", "streaming", "fused", TRITON)


def widest(impl: str) -> torch.dtype:
    """The most exact type that an implementation takes."""
    return torch.float32 if impl == "cpu" or (impl == "triton" and ON_GPU) else torch.float64


def tensor(array: Any, impl: str, dtype: torch.dtype | None = None) -> torch.Tensor:
    """An array on the device of an implementation, by default in its widest type."""
    device = "cuda" if impl == "triton" and ON_GPU else "cpu"
    return torch.tensor(np.asarray(array)).to(device, dtype or widest(impl))


def policy_for_tensors(entropy: Any, count: Any) -> Any:
    """A user's function, which looks at both."""
    return 1 + entropy / (1 + count)


POLICIES = (
    sx.PAPER,
    SMOOTH,
    sx.Saturating(sx.PAPER),
    sx.LogLength(2),
    sx.Constant(1.0),
    sx.Constant(2.5),
    policy_for_tensors,
)
BY_LENGTH = tuple(policy for policy in POLICIES if not needs_entropy(policy))


@dataclass(frozen=True)
class Call:
    """Arguments of one attention call in float64."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    visible: np.ndarray | None = None
    bias: np.ndarray | None = None
    sinks: np.ndarray | None = None
    causal: bool = False
    window: int | None = None
    scale: float | None = None
    softcap: float | None = None
    policy: Any = sx.PAPER

    @cached_property
    def truth(self) -> truth.Truth:
        return truth.attention(**vars(self))

    def rounded(self, dtype: torch.dtype) -> Call:
        """The same call with the numbers that this type can hold."""

        def round_array(array):
            return None if array is None else torch.tensor(array).to(dtype).double().numpy()

        names = ("query", "key", "value", "bias", "sinks")
        return replace(self, **{name: round_array(getattr(self, name)) for name in names})

    def options(self, impl: str, dtype: torch.dtype | None = None) -> dict[str, Any]:
        """Everything but query, key and value, as `attention` takes it."""
        mask = None
        if self.visible is not None:
            mask = tensor(self.visible, impl, torch.bool)
        elif self.bias is not None:
            mask = tensor(self.bias, impl, dtype)
        return {
            "attn_mask": mask,
            "sinks": None if self.sinks is None else tensor(self.sinks, impl, dtype),
            "is_causal": self.causal,
            "window": self.window,
            "scale": self.scale,
            "softcap": self.softcap,
            "policy": self.policy,
            "enable_gqa": True,
            "impl": impl,
        }

    def tensors(self, impl: str, dtype: torch.dtype | None = None) -> list[torch.Tensor]:
        return [tensor(array, impl, dtype) for array in (self.query, self.key, self.value)]

    def run(self, impl: str, dtype: torch.dtype | None = None) -> Any:
        return attention(*self.tensors(impl, dtype), **self.options(impl, dtype))


@st.composite
def calls(draw: Any, impl: str, longest: int = 12) -> Call:
    """Calls that an implementation supports."""
    plain = impl in ("fused", "sdpa")
    batch, kv_heads = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    heads = kv_heads * draw(st.integers(1, 3))
    queries, keys = draw(st.integers(1, longest)), draw(st.integers(1, longest))
    dim = draw(st.integers(1, 5))
    size = dim if plain else draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    shapes = {
        "key": (keys,),
        "padding": (batch, 1, 1, keys),
        "rows": (queries, keys),
        "heads": (1, heads, queries, keys),
        "batch": (batch, 1, queries, keys),
    }
    mask = draw(st.sampled_from(["none", "boolean"] if plain else ["none", "boolean", "bias"]))
    shape = shapes[draw(st.sampled_from(sorted(shapes)))]
    seen = rng.random(shape) < 0.7
    if len(shape) > 1:
        seen[..., 0, :] &= draw(st.booleans())  # perhaps a row that sees nothing
    bias = np.where(seen, rng.normal(size=shape), -np.inf)
    softcap = None if plain else draw(st.sampled_from([None, None, 0.7, 3.0]))
    return Call(
        query=rng.normal(size=(batch, heads, queries, dim)) * 3,
        key=rng.normal(size=(batch, kv_heads, keys, dim)),
        value=rng.normal(size=(batch, kv_heads, keys, size)),
        visible=seen if mask == "boolean" else None,
        bias=bias if mask == "bias" else None,
        sinks=rng.normal(size=heads) if impl != "sdpa" and draw(st.booleans()) else None,
        causal=draw(st.booleans()),
        window=None if plain else draw(st.none() | st.integers(1, longest + 1)),
        scale=draw(st.sampled_from([None, 0.2, 1.0])),
        softcap=softcap,
        policy=draw(st.sampled_from(BY_LENGTH if impl == "sdpa" else POLICIES)),
    )


def assert_right(answer: Any, call: Call, dtype: torch.dtype) -> None:
    """Compare with the truth, within what the type of the statistics and the output allow.

    A logit of size L is wrong by a few eps * L; entropy and log-sum-exp too. The policies here have
    slopes up to 5, and a factor that is off by d moves the logits, and so the output, by d * L.
    """
    expected, (output, stats) = call.truth, answer
    finite = expected.count > 0
    assert output.dtype == dtype
    ends = (expected.max_logit, expected.min_logit)
    largest = 1 + max((np.abs(end[finite]).max(initial=0.0) for end in ends), default=0.0)
    eps = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    tolerance = 40 * eps * largest**2
    for name in STATS:
        ours, right = getattr(stats, name).double().cpu().numpy(), getattr(expected, name)
        np.testing.assert_allclose(ours, right, rtol=0, atol=tolerance, err_msg=name)
    size = np.abs(call.value).max(initial=0.0)
    tolerance = (tolerance + 4 * torch.finfo(dtype).eps) * size
    np.testing.assert_allclose(output.double().cpu(), expected.output, rtol=0, atol=tolerance)


@pytest.fixture(autouse=True, scope="module")
def small_blocks():
    """Blocks so small that most calls have several, of uneven sizes. Import it to use it."""
    from sharpmax.cpu import blockwise as cpu_blockwise
    from sharpmax.cpu import gradients as cpu_gradients
    from sharpmax.torch import blockwise
    from sharpmax.torch.triton import launch

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blockwise, "MAX_LOGITS", 60)
        patch.setattr(blockwise, "MAX_ROWS", 4)
        patch.setattr(blockwise, "MIN_WORKSPACE", 20)
        patch.setattr(cpu_blockwise, "BLOCK_ROWS", 5)
        patch.setattr(cpu_blockwise, "MIN_BLOCK_ROWS", 5)
        patch.setattr(cpu_blockwise, "TILE", 7)
        patch.setattr(cpu_gradients, "BLOCK_ROWS", 5)
        patch.setattr(cpu_gradients, "MIN_BLOCK_ROWS", 5)
        patch.setattr(cpu_gradients, "TILE", 7)
        patch.setattr(launch, "block_choices", lambda *_: (launch.Blocks(16, 16, 4, 1),))
        yield


class Largest(TorchDispatchMode):
    """The largest array that any operation made, in numbers."""

    def __init__(self):
        super().__init__()
        self.made = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        answer = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(answer):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage().nbytes() // leaf.element_size()
                self.made = max(self.made, min(leaf.numel(), storage))
        return answer
