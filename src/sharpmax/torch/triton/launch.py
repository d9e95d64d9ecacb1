"""How the Triton kernels are called: their arguments, block sizes and number of programs.

The kernels are imported at the first call, so that only those who use them need triton.
"""

from __future__ import annotations

import functools
import math
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from sharpmax import _array
from sharpmax.torch.interface import Inputs

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

SMALLEST = 16
"""The smallest side of a product on tensor cores; heads and blocks are padded to it."""


class Blocks(NamedTuple):
    """A tile of query rows by keys, and the threads that work on it."""

    rows: int
    keys: int
    warps: int
    stages: int


BLOCKS = {
    64: (Blocks(128, 64, 4, 2), Blocks(64, 64, 4, 2), Blocks(64, 32, 4, 2)),
    128: (Blocks(128, 64, 8, 2), Blocks(64, 64, 4, 2), Blocks(32, 32, 4, 2)),
    256: (Blocks(64, 32, 4, 2), Blocks(32, 32, 4, 2), Blocks(32, 16, 4, 1)),
    512: (Blocks(32, 32, 4, 1), Blocks(32, 16, 4, 1)),
    1024: (Blocks(32, 16, 4, 1), Blocks(16, 16, 4, 1)),
}
"""Block sizes to try, by the size of a head. A head in float32 counts as four times as large,
because it takes twice the memory and cannot use tensor cores. The last choice fits every GPU of
compute capability 8 or more."""

FEW_ROWS = 16
"""Up to this many queries, as in decoding, larger blocks would be mostly empty."""


class Settings(NamedTuple):
    """The part of a call that autograd does not differentiate."""

    mask: Bool[Tensor, "#batch #heads #query #key"] | None
    scale: float
    softcap: float | None
    before: int
    """Query i sees keys from i - before"""
    after: int
    """to i + after."""
    stats_dtype: torch.dtype

    @classmethod
    def of(cls, inputs: Inputs) -> Settings:
        """Return the settings of a call."""
        far = inputs.query.shape[3] + inputs.key.shape[2]
        reach = far if inputs.window is None else min(far, inputs.window - 1)
        before, after = reach + inputs.first_key, -inputs.first_key
        after += 0 if inputs.causal else reach
        mask = None if inputs.mask is None else inputs.mask.flatten(1, 2)
        return cls(mask, inputs.scale, inputs.softcap, before, after, inputs.stats_dtype)


class Modules(NamedTuple):
    """The modules with the kernels, which need triton."""

    kernels: ModuleType
    gradients: ModuleType
    interpreted: bool
    """Whether TRITON_INTERPRET=1 was set when triton was imported."""


@functools.cache
def find_modules() -> Modules | None:
    """Import the kernels; None without triton."""
    try:
        from sharpmax.torch.triton import gradients, kernels
    except ImportError:
        return None
    return Modules(kernels, gradients, bool(kernels.INTERPRETED.value))


def modules() -> Modules:
    """Return the kernels, which `refusal` has found to be there."""
    found = find_modules()
    assert found is not None, "call refusal() first"
    return found


def arguments(
    settings: Settings,
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    bias: Float[Tensor, "#batch #heads #query #key"] | None,
) -> dict[str, Any]:
    """Return the arguments of every kernel; the last axes of query and key must be contiguous."""
    batch, heads, queries, dim = query.shape
    kv_heads, keys = key.shape[1:3]
    return {
        "query": query,
        "key": key,
        "heads": heads,
        "group": heads // max(1, kv_heads),
        "queries": queries,
        "keys": keys,
        "before": settings.before,
        "after": settings.after,
        "scale": settings.scale,
        "cap": 1.0 if settings.softcap is None else settings.softcap,
        "CAPPED": settings.softcap is not None,
        "DIM": dim,
        "PADDED_DIM": _padded(dim),
        **_strides("q", query),
        **_strides("k", key),
        **mask_arguments(settings, bias, (batch, heads, queries, keys)),
    }


def mask_arguments(
    settings: Settings, bias: Tensor | None, shape: tuple[int, ...]
) -> dict[str, Any]:
    """Return the mask or bias, its kind and its strides, 0 for broadcast axes."""
    if bias is not None:
        mask, kind, lowest = bias.detach(), 2, _array.hiding_bias(torch.finfo(bias.dtype).min)
        if mask.dtype == torch.float64 and settings.stats_dtype != torch.float64:
            mask = mask.to(settings.stats_dtype)
    elif settings.mask is not None:
        mask, kind, lowest = settings.mask.view(torch.uint8), 1, 0.0
    else:
        no_strides = dict.fromkeys(("m_batch", "m_head", "m_row", "m_column"), 0)
        return {"mask": None, "MASK": 0, "LOWEST": 0.0, **no_strides}
    strides = _strides("m", mask.expand(shape), last=True)
    return {"mask": mask, "MASK": kind, "LOWEST": lowest, **strides}


def value_arguments(value: Float[Tensor, "batch kv_heads key size"]) -> dict[str, Any]:
    """Return the arguments of kernels that read values."""
    size = value.shape[3]
    return {"value": value, "SIZE": size, "PADDED_SIZE": _padded(size), **_strides("v", value)}


def bias_arguments(d_bias: Tensor | None, given: dict[str, Any]) -> dict[str, Any]:
    """Return where the gradient of the bias is added up; broadcast axes have stride 0."""
    if d_bias is None:
        no_strides = dict.fromkeys(("g_batch", "g_head", "g_row", "g_column"), 0)
        return {"d_bias": None, "BIAS_GRADIENT": False, **no_strides}
    shape = (*given["query"].shape[:3], given["keys"])
    return {
        "d_bias": d_bias,
        "BIAS_GRADIENT": True,
        **_strides("g", d_bias.expand(shape), last=True),
    }


def launch_over_rows(kernel: Any, given: dict[str, Any]) -> None:
    """Run a kernel with one program per block of query rows."""
    _launch(kernel, given["query"], "BLOCK_ROWS", given)


def launch_over_keys(kernel: Any, given: dict[str, Any]) -> None:
    """Run a kernel with one program per block of keys."""
    _launch(kernel, given["key"], "BLOCK_KEYS", given)


def count_visible(
    settings: Settings, bias: Tensor | None, queries: int, keys: int
) -> Int[Tensor, "mask_batch mask_heads query"]:
    """Count the keys that each row can see under a mask, for as many heads as the mask has."""
    mask = settings.mask if bias is None else bias
    assert mask is not None
    batch, heads = mask.shape[:2]
    count = torch.empty(batch, heads, queries, dtype=torch.int32, device=mask.device)
    given = mask_arguments(settings, bias, (batch, heads, queries, keys))
    given |= {"count_out": count, "heads": heads, "queries": queries, "keys": keys}
    given |= {"before": settings.before, "after": settings.after}
    _launch(modules().kernels.count, count, "BLOCK_ROWS", given)
    return count


def block_choices(size: int, dtype: torch.dtype, queries: int) -> tuple[Blocks, ...]:
    """Return the block sizes to try for heads of this padded size."""
    effective = size if dtype.itemsize == 2 else 4 * size
    choices = next(blocks for largest, blocks in BLOCKS.items() if effective <= largest)
    if queries > FEW_ROWS:
        return choices
    return tuple(dict.fromkeys(blocks._replace(rows=SMALLEST) for blocks in choices))


def _launch(kernel: Any, along: Tensor, block: str, given: dict[str, Any]) -> None:
    """Run a kernel with one program per block of axis 2 of `along`, for each batch and head."""
    pairs, length = along.shape[0] * along.shape[1], along.shape[2]
    if pairs * length == 0:
        return
    passed = {name: given[name] for name in kernel.arg_names if name in given}
    widest = max(given.get("PADDED_DIM", SMALLEST), given.get("PADDED_SIZE", SMALLEST))
    choices = block_choices(widest, given.get("query", along).dtype, given["queries"])

    def grid(meta: dict[str, Any]) -> tuple[int]:
        return (pairs * math.ceil(length / meta[block]),)

    passed["enable_fp_fusion"] = True  # its default depends on the version of triton
    with torch.cuda.device_of(along):
        # Autotuning runs a kernel many times, which would add to a sum many times.
        if modules().interpreted or "DIM" not in passed or passed.get("BIAS_GRADIENT"):
            blocks = choices[0] if modules().interpreted else choices[-1]
            passed |= {"BLOCK_ROWS": blocks.rows, "BLOCK_KEYS": blocks.keys}
            kernel[grid](**passed, num_warps=blocks.warps, num_stages=blocks.stages)
        else:
            _autotune(kernel, choices)[grid](**passed)


@functools.cache
def _autotune(kernel: Any, choices: tuple[Blocks, ...]) -> Any:
    import triton

    configs = [
        triton.Config(
            {"BLOCK_ROWS": blocks.rows, "BLOCK_KEYS": blocks.keys},
            num_warps=blocks.warps,
            num_stages=blocks.stages,
        )
        for blocks in choices
    ]
    return triton.autotune(configs=configs, key=["MASK", "CAPPED"])(kernel)


def _padded(size: int) -> int:
    """Return the next power of two, which the sides of a block must be."""
    return max(SMALLEST, 1 << max(0, size - 1).bit_length())


def _strides(name: str, tensor: Tensor, *, last: bool = False) -> dict[str, int]:
    axes = ("batch", "head", "row", "column") if last else ("batch", "head", "row")
    return {f"{name}_{axis}": step for axis, step in zip(axes, tensor.stride(), strict=False)}
