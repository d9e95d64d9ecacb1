"""How the kernels of `impl="triton"` are called: which arguments, how large the blocks, how many
programs. The kernels are imported at the first call, so that nobody needs triton who does not ask.
"""

from __future__ import annotations

import functools
import math
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from sharpmax.torch.problem import Problem

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
"""What is tried, by the size of a head; one in float32 counts as four times as large, because it
takes twice the memory and tensor cores would round it. The last fits every GPU of compute
capability 8 or more."""

FEW_ROWS = 16
"""Up to so many queries, as in decoding, a block of more rows would be empty."""


class Scene(NamedTuple):
    """What of a problem is no input of autograd."""

    mask: Bool[Tensor, "batch|1 heads|1 query|1 key|1"] | None
    scale: float
    softcap: float | None
    before: int
    """Query i sees keys from i - before ..."""
    after: int
    """... to i + after."""
    wide: torch.dtype

    @classmethod
    def of(cls, problem: Problem) -> Scene:
        far = problem.query.shape[3] + problem.key.shape[2]
        reach = far if problem.window is None else min(far, problem.window - 1)
        before, after = reach + problem.first_key, -problem.first_key
        after += 0 if problem.causal else reach
        mask = None if problem.mask is None else problem.mask.flatten(1, 2)
        return cls(mask, problem.scale, problem.softcap, before, after, problem.wide)


class Modules(NamedTuple):
    kernels: ModuleType
    gradients: ModuleType
    interpreted: bool
    """Whether TRITON_INTERPRET=1 was set when triton was imported."""


@functools.cache
def find() -> Modules | None:
    """The kernels; None without triton."""
    try:
        from sharpmax.torch import triton_gradients, triton_kernels, triton_tiles
    except ImportError:
        return None
    return Modules(triton_kernels, triton_gradients, bool(triton_tiles.INTERPRETED.value))


def modules() -> Modules:
    found = find()
    assert found is not None, "refusal() was not asked"
    return found


def arguments(
    scene: Scene,
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    bias: Float[Tensor, "batch|1 heads|1 query|1 key|1"] | None,
) -> dict[str, Any]:
    """What every kernel wants to know; the last axes of query and key have no gaps."""
    batch, heads, queries, dim = query.shape
    kv_heads, keys = key.shape[1:3]
    return {
        "query": query,
        "key": key,
        "heads": heads,
        "group": heads // max(1, kv_heads),
        "queries": queries,
        "keys": keys,
        "before": scene.before,
        "after": scene.after,
        "scale": scene.scale,
        "cap": 1.0 if scene.softcap is None else scene.softcap,
        "CAPPED": scene.softcap is not None,
        "DIM": dim,
        "PADDED_DIM": _padded(dim),
        **_strides("q", query),
        **_strides("k", key),
        **mask_arguments(scene, bias, (batch, heads, queries, keys)),
    }


def mask_arguments(scene: Scene, bias: Tensor | None, shape: tuple[int, ...]) -> dict[str, Any]:
    if bias is not None:
        mask, kind, lowest = bias.detach(), 2, torch.finfo(bias.dtype).min
        if mask.dtype == torch.float64 and scene.wide != torch.float64:
            mask, lowest = mask.to(scene.wide), torch.finfo(scene.wide).min
    elif scene.mask is not None:
        mask, kind, lowest = scene.mask.view(torch.uint8), 1, 0.0
    else:
        nothing = dict.fromkeys(("m_batch", "m_head", "m_row", "m_column"), 0)
        return {"mask": None, "MASK": 0, "LOWEST": 0.0, **nothing}
    strides = _strides("m", mask.expand(shape), last=True)
    return {"mask": mask, "MASK": kind, "LOWEST": lowest, **strides}


def value_arguments(value: Float[Tensor, "batch kv_heads key size"]) -> dict[str, Any]:
    size = value.shape[3]
    return {"value": value, "SIZE": size, "PADDED_SIZE": _padded(size), **_strides("v", value)}


def bias_arguments(d_bias: Tensor | None, given: dict[str, Any]) -> dict[str, Any]:
    """Where the gradient of the bias is added up; axes of length 1 are stepped over in place."""
    if d_bias is None:
        nothing = dict.fromkeys(("g_batch", "g_head", "g_row", "g_column"), 0)
        return {"d_bias": None, "BIAS_GRADIENT": False, **nothing}
    shape = (*given["query"].shape[:3], given["keys"])
    return {
        "d_bias": d_bias,
        "BIAS_GRADIENT": True,
        **_strides("g", d_bias.expand(shape), last=True),
    }


def over_rows(kernel: Any, given: dict[str, Any]) -> None:
    """Run a kernel whose programs have a block of query rows each."""
    _launch(kernel, given["query"], "BLOCK_ROWS", given)


def over_keys(kernel: Any, given: dict[str, Any]) -> None:
    """Run a kernel whose programs have a block of keys each."""
    _launch(kernel, given["key"], "BLOCK_KEYS", given)


def count(
    scene: Scene, bias: Tensor | None, queries: int, keys: int
) -> Int[Tensor, "batch|1 heads|1 query"]:
    """How many keys each row can see under a mask, for as many heads as the mask has."""
    mask = scene.mask if bias is None else bias
    assert mask is not None
    batch, heads = mask.shape[:2]
    found = torch.empty(batch, heads, queries, dtype=torch.int32, device=mask.device)
    given = mask_arguments(scene, bias, (batch, heads, queries, keys))
    given |= {"count_out": found, "heads": heads, "queries": queries, "keys": keys}
    given |= {"before": scene.before, "after": scene.after}
    _launch(modules().kernels.count, found, "BLOCK_ROWS", given)
    return found


def choices(size: int, dtype: torch.dtype, queries: int) -> tuple[Blocks, ...]:
    """Blocks worth trying for heads of this padded size."""
    counted = size if dtype.itemsize == 2 else 4 * size
    some = next(some for largest, some in BLOCKS.items() if counted <= largest)
    if queries > FEW_ROWS:
        return some
    return tuple(dict.fromkeys(blocks._replace(rows=SMALLEST) for blocks in some))


def _launch(kernel: Any, along: Tensor, block: str, given: dict[str, Any]) -> None:
    pairs, length = along.shape[0] * along.shape[1], along.shape[2]
    if pairs * length == 0:
        return
    own = {name: given[name] for name in kernel.arg_names if name in given}
    widest = max(given.get("PADDED_DIM", SMALLEST), given.get("PADDED_SIZE", SMALLEST))
    tried = choices(widest, given.get("query", along).dtype, given["queries"])

    def grid(meta: dict[str, Any]) -> tuple[int]:
        return (pairs * math.ceil(length / meta[block]),)

    own["enable_fp_fusion"] = True  # its default depends on the version of triton
    with torch.cuda.device_of(along):
        # Trying runs a kernel many times over, which may not be done to sums.
        if modules().interpreted or "DIM" not in own or own.get("BIAS_GRADIENT"):
            one = tried[0] if modules().interpreted else tried[-1]
            own |= {"BLOCK_ROWS": one.rows, "BLOCK_KEYS": one.keys}
            kernel[grid](**own, num_warps=one.warps, num_stages=one.stages)
        else:
            _tuned(kernel, tried)[grid](**own)


@functools.cache
def _tuned(kernel: Any, tried: tuple[Blocks, ...]) -> Any:
    import triton

    configs = [
        triton.Config(
            {"BLOCK_ROWS": blocks.rows, "BLOCK_KEYS": blocks.keys},
            num_warps=blocks.warps,
            num_stages=blocks.stages,
        )
        for blocks in tried
    ]
    return triton.autotune(configs=configs, key=["MASK", "CAPPED"])(kernel)


def _padded(size: int) -> int:
    """Blocks have sides that are powers of two."""
    return max(SMALLEST, 1 << max(0, size - 1).bit_length())


def _strides(name: str, tensor: Tensor, *, last: bool = False) -> dict[str, int]:
    axes = ("batch", "head", "row", "column") if last else ("batch", "head", "row")
    return {f"{name}_{axis}": step for axis, step in zip(axes, tensor.stride(), strict=False)}
