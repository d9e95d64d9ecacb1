"""Fused kernels that return the log-sum-exp of each row beside the output.

They are private operators of torch: what they accept and return may change with any release. So
each is tried once per process on a small case, against logsumexp in double precision, and left
alone if value, base or shape is not what this file expects.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

MASKED_ROWS = 1 << 24
"""Entries of a boolean mask turned into the kernels' additive one at a time: 64 MB of float32."""

HALF = (torch.float16, torch.bfloat16)

Call = Callable[[Tensor, Tensor, Tensor, "Tensor | None", bool, float], tuple[Tensor, Tensor]]
"""(query, key, value, additive mask, causal, scale) -> (output, log-sum-exp of any shape)"""


@dataclass(frozen=True)
class Kernel:
    """One operator, and what may be given to it."""

    name: str
    device: str
    dtypes: tuple[torch.dtype, ...]
    call: Call
    takes_mask: bool = True
    shares_keys: bool = True
    """Whether query heads may share key heads; otherwise the keys are repeated for it."""
    dim_multiple: int = 1

    def refusal(self, query: Tensor, dtype: torch.dtype, mask: Tensor | None) -> str | None:
        """Why this kernel cannot serve these queries in this type; None if it can."""
        if query.device.type != self.device:
            return f"{self.name} runs on {self.device}"
        if dtype not in self.dtypes:
            return f"{self.name} does not take {dtype}"
        if mask is not None and not self.takes_mask:
            return f"{self.name} takes no mask"
        if query.shape[-1] % self.dim_multiple:
            return f"{self.name} needs a head size that is a multiple of {self.dim_multiple}"
        return trial(self, query.device.type, dtype)


def find(query: Tensor, dtype: torch.dtype, mask: Tensor | None) -> Kernel | str:
    """The first kernel that serves these queries in this type, or why none does."""
    reasons = []
    for kernel in KERNELS:
        reason = kernel.refusal(query, dtype, mask)
        if reason is None:
            return kernel
        if kernel.device == query.device.type:
            reasons.append(reason)
    return "; ".join(reasons) or f"there is no kernel for {query.device.type} tensors"


def run(
    kernel: Kernel,
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    value: Float[Tensor, "batch kv_heads key dim"],
    mask: Bool[Tensor, "batch|1 heads|1 query|1 key"] | None,
    causal: bool,
    scale: float,
) -> tuple[Float[Tensor, "batch heads query dim"], Float[Tensor, "batch heads query"]]:
    """Attention and the log-sum-exp of its logits, at least one query and one key."""
    if not kernel.shares_keys and key.shape[1] != query.shape[1]:
        group = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    # The CPU operator reads a last axis with a stride as if it had none, and says nothing.
    query, key, value = (_last_axis_dense(tensor) for tensor in (query, key, value))
    if mask is None or mask.shape[2] == 1:
        bias = None if mask is None else additive(mask, query)
        return _call(kernel, query, key, value, bias, causal, scale)
    outputs, sums = [], []
    for part in row_parts(mask, query.shape[2]):
        rows, seen = query[:, :, part], mask[:, :, part]
        if causal:
            seen = seen & earlier(part, mask.shape[3], mask.device)
        bias = additive(seen, rows)
        output, total = _call(kernel, rows, key, value, bias, False, scale)
        outputs.append(output)
        sums.append(total)
    return torch.cat(outputs, 2), torch.cat(sums, 2)


def _call(
    kernel: Kernel,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    output, total = kernel.call(query, key, value, bias, causal, scale)
    # Some pad the rows, some add an axis of length 1.
    return output, total.reshape(*query.shape[:2], -1)[..., : query.shape[2]]


def additive(mask: Bool[Tensor, "batch|1 heads|1 rows|1 key"], query: Tensor) -> Tensor:
    """0 where a key is visible and -inf elsewhere, in the type of the queries."""
    length = mask.shape[3]
    padded = -(-length // 16) * 16  # GPU kernels want rows that begin at aligned addresses
    shape = (*mask.shape[:3], padded)
    bias = torch.zeros(shape, dtype=query.dtype, device=query.device)[..., :length]
    bias.masked_fill_(~mask, -torch.inf)
    return bias.expand(*query.shape[:3], -1) if query.is_cuda else bias


def row_parts(mask: Bool[Tensor, "*lead rows key"], rows: int) -> Iterator[slice]:
    """Blocks of rows small enough to make an additive mask for; at least one row each."""
    step = max(1, MASKED_ROWS * mask.shape[-2] // max(1, mask.numel()))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def earlier(rows: slice, keys: int, device: torch.device) -> Bool[Tensor, "rows key"]:
    """Query i sees keys 0 to i."""
    row = torch.arange(rows.start, rows.stop, device=device)
    return torch.arange(keys, device=device) <= row[:, None]


def _last_axis_dense(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _cpu_flash(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    return operator(query, key, value, is_causal=causal, attn_mask=bias, scale=scale)


def _cuda_flash(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    operator = torch.ops.aten._scaled_dot_product_flash_attention.default
    return operator(query, key, value, is_causal=causal, scale=scale)[:2]


def _cuda_cudnn(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    operator = torch.ops.aten._scaled_dot_product_cudnn_attention.default
    return operator(query, key, value, bias, True, is_causal=causal, scale=scale)[:2]


def _cuda_efficient(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    operator = torch.ops.aten._scaled_dot_product_efficient_attention.default
    return operator(query, key, value, bias, True, is_causal=causal, scale=scale)[:2]


def flex(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    causal: bool,
    scale: float,
    compiled: bool = True,
) -> tuple[Tensor, Tensor]:
    """Compiled, or it would hold the whole matrix; on CPUs its compiled form has no log-sum-exp."""
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

    if bias is not None:
        bias = bias.expand(*query.shape[:3], -1)

    def score(logit: Tensor, batch: Any, head: Any, row: Any, column: Any) -> Tensor:
        if bias is not None:
            logit = logit + bias[batch, head, row, column]
        return torch.where(row >= column, logit, -torch.inf) if causal else logit

    function = torch.compile(flex_attention) if compiled else flex_attention
    output, extra = function(
        query,
        key,
        value,
        score_mod=score if causal or bias is not None else None,
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
        return_aux=AuxRequest(lse=True),  # type: ignore[arg-type]  # its overloads miss this one
    )
    return output, extra.lse


KERNELS = (
    Kernel("CPU flash", "cpu", (torch.float32, torch.float64), _cpu_flash),
    Kernel("CUDA flash", "cuda", HALF, _cuda_flash, takes_mask=False, dim_multiple=8),
    Kernel("CUDA cuDNN", "cuda", HALF, _cuda_cudnn, shares_keys=False, dim_multiple=8),
    Kernel(
        "CUDA memory-efficient",
        "cuda",
        (*HALF, torch.float32),
        _cuda_efficient,
        shares_keys=False,
        dim_multiple=8,
    ),
    Kernel("flex_attention", "cuda", (*HALF, torch.float32), flex),
)
"""In order of preference. Nothing but the first has been run: there was no GPU to run it on."""


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def trial(kernel: Kernel, device: str, dtype: torch.dtype) -> str | None:
    """What is wrong with a kernel, or None; tried once, also while torch.compile is tracing."""
    return _trial(kernel, device, dtype)


@functools.cache
def _trial(kernel: Kernel, device: str, dtype: torch.dtype) -> str | None:
    try:
        with torch.no_grad():
            for shared in (False, True):
                for causal in (False, True):
                    for masked in (False, True) if kernel.takes_mask else (False,):
                        wrong = _compare(kernel, device, dtype, shared, causal, masked)
                        if wrong is not None:
                            return f"{kernel.name} failed its trial: {wrong}"
    except Exception as error:  # whatever a private operator raises, it is not to be used
        reason = str(error).strip().partition("\n")[0]
        return f"{kernel.name} failed its trial: {reason or type(error).__name__}"
    return None


def _compare(
    kernel: Kernel, device: str, dtype: torch.dtype, shared: bool, causal: bool, masked: bool
) -> str | None:
    """One small case: odd lengths, fewer queries than keys, one row that sees nothing."""
    generator = torch.Generator().manual_seed(0)
    heads, kv_heads, queries, keys, dim = 4, 2 if shared else 4, 5, 7, 16
    query = torch.randn(1, heads, queries, dim, generator=generator).to(device, dtype)
    key = torch.randn(1, kv_heads, keys, dim, generator=generator).to(device, dtype)
    value = torch.randn(1, kv_heads, keys, dim, generator=generator).to(device, dtype)
    mask = None
    if masked:
        mask = torch.rand(1, 1, queries, keys, generator=generator).to(device) < 0.7
        mask[..., 2, :] = False
        mask[..., 3, 0] = True
    scale = 0.3
    output, total = run(kernel, query, key, value, mask, causal, scale)

    group = heads // kv_heads
    wide = (query.double(), *(x.double().repeat_interleave(group, 1) for x in (key, value)))
    logits = scale * wide[0] @ wide[1].mT
    seen = torch.ones(queries, keys, dtype=torch.bool, device=device)
    seen = seen.tril() if causal else seen
    seen = seen if mask is None else seen & mask
    logits = logits.masked_fill(~seen, -torch.inf)
    full = seen.any(-1).expand(total.shape)
    expected = (logits.softmax(-1).nan_to_num(0.0) @ wide[2], logits.logsumexp(-1))
    if output.shape != expected[0].shape or total.shape != expected[1].shape:
        return f"shapes {tuple(output.shape)} and {tuple(total.shape)}"
    # Values and sums are below 4 in size; a few roundings of each.
    tolerance = 32 * torch.finfo(dtype).eps
    if not (output.double() - expected[0]).abs().max() <= tolerance:
        return "the output is not attention, or a row that sees nothing is not zero"
    # What it gives for a row that sees nothing is not looked at, here or in use.
    if not (total.double() - expected[1])[full].abs().max() <= tolerance:
        return "its log-sum-exp is not log(sum(exp(logits)))"
    return None
