"""Fused kernels of torch that return the log-sum-exp of each row with the output.

They are private operators, whose arguments and results may change with any release. So each is
tried once per process on small cases, against logsumexp in double precision, and not used if a
value, the base of the logarithm or a shape is not what this file expects.
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

MAX_MASK = 1 << 24
"""Entries of a boolean mask that are converted to an additive mask at a time: 64 MB of float32."""

HALF = (torch.float16, torch.bfloat16)

Call = Callable[[Tensor, Tensor, Tensor, "Tensor | None", bool, float], tuple[Tensor, Tensor]]
"""(query, key, value, additive mask, causal, scale) -> (output, log-sum-exp of any shape)"""


@dataclass(frozen=True)
class Kernel:
    """One operator, and which arguments it takes."""

    name: str
    device: str
    dtypes: tuple[torch.dtype, ...]
    call: Call
    takes_mask: bool = True
    shares_keys: bool = True
    """Whether query heads may share key heads; if not, the keys are repeated."""
    dim_multiple: int = 1

    def refusal(self, query: Tensor, dtype: torch.dtype, mask: Tensor | None) -> str | None:
        """Return why this kernel cannot be used for these queries in this type, or None."""
        if query.device.type != self.device:
            return f"{self.name} runs on {self.device}"
        if dtype not in self.dtypes:
            return f"{self.name} does not take {dtype}"
        if mask is not None and not self.takes_mask:
            return f"{self.name} takes no mask"
        if query.shape[-1] % self.dim_multiple:
            return f"{self.name} needs a head size that is a multiple of {self.dim_multiple}"
        return trial(self, query.device.type, dtype)


def find_kernel(query: Tensor, dtype: torch.dtype, mask: Tensor | None) -> Kernel | str:
    """Return the first kernel that takes these queries in this type, or why none does."""
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
    mask: Bool[Tensor, "#batch #heads #query key"] | None,
    causal: bool,
    scale: float,
) -> tuple[Float[Tensor, "batch heads query dim"], Float[Tensor, "batch heads query"]]:
    """Return attention and the log-sum-exp of its logits, for at least one query and key."""
    if not kernel.shares_keys and key.shape[1] != query.shape[1]:
        group = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    query, scale = _with_positive_scale(query, scale)
    # The CPU operator silently ignores the stride of the last axis.
    query, key, value = (_with_dense_last_axis(tensor) for tensor in (query, key, value))
    if mask is None or mask.shape[2] == 1:
        bias = None if mask is None else additive_mask(mask, query)
        return _call(kernel, query, key, value, bias, causal, scale)
    outputs, log_sum_exps = [], []
    for rows in split_rows(mask, query.shape[2]):
        queries, visible = query[:, :, rows], mask[:, :, rows]
        if causal:
            visible = visible & causal_mask(rows, mask.shape[3], mask.device)
        bias = additive_mask(visible, queries)
        output, log_sum_exp = _call(kernel, queries, key, value, bias, False, scale)
        outputs.append(output)
        log_sum_exps.append(log_sum_exp)
    return torch.cat(outputs, 2), torch.cat(log_sum_exps, 2)


def _call(
    kernel: Kernel,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    output, log_sum_exp = kernel.call(query, key, value, bias, causal, scale)
    # Some operators pad the rows, some add an axis of length 1.
    return output, log_sum_exp.reshape(*query.shape[:2], -1)[..., : query.shape[2]]


def additive_mask(
    mask: Bool[Tensor, "#batch #heads #query key"], query: Float[Tensor, "batch heads query dim"]
) -> Tensor:
    """Return 0 where a key is visible and -inf elsewhere, in the type of the queries."""
    length = mask.shape[3]
    padded = -(-length // 16) * 16  # GPU kernels need rows that begin at aligned addresses
    shape = (*mask.shape[:3], padded)
    bias = torch.zeros(shape, dtype=query.dtype, device=query.device)[..., :length]
    bias.masked_fill_(~mask, -torch.inf)
    return bias.expand(*query.shape[:3], -1) if query.is_cuda else bias


def split_rows(mask: Bool[Tensor, "*lead query key"], rows: int) -> Iterator[slice]:
    """Yield blocks of rows whose additive mask has at most MAX_MASK entries, or one row."""
    step = max(1, MAX_MASK * mask.shape[-2] // max(1, mask.numel()))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def causal_mask(rows: slice, keys: int, device: torch.device) -> Bool[Tensor, "rows keys"]:
    """Return True where query i sees key j: j <= i."""
    row = torch.arange(rows.start, rows.stop, device=device)
    return torch.arange(keys, device=device) <= row[:, None]


def _with_positive_scale(query: Tensor, scale: float) -> tuple[Tensor, float]:
    """Return queries and a positive scale with the same logits.

    Kernels write -inf where a key is hidden and multiply by the scale afterwards, so that a scale
    of 0, or one that is 0 in their type, gives NaN and a negative one +inf.
    """
    smallest = torch.finfo(torch.float32).tiny
    if scale >= smallest:
        return query, scale
    if scale <= -smallest:
        return -query, -scale
    return query * scale, 1.0


def _with_dense_last_axis(tensor: Tensor) -> Tensor:
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


def flex_attention_with_lse(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    causal: bool,
    scale: float,
    compiled: bool = True,
) -> tuple[Tensor, Tensor]:
    """Call flex_attention: compiled, because it would hold the whole matrix otherwise.

    On a CPU the compiled form does not return the log-sum-exp.
    """
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
    Kernel("flex_attention", "cuda", (*HALF, torch.float32), flex_attention_with_lse),
)
"""In order of preference. Only the first has ever run: no GPU was available."""


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def trial(kernel: Kernel, device: str, dtype: torch.dtype) -> str | None:
    """Return what is wrong with a kernel, or None; runs once, also under torch.compile."""
    return _trial(kernel, device, dtype)


@functools.cache
def _trial(kernel: Kernel, device: str, dtype: torch.dtype) -> str | None:
    try:
        with torch.no_grad():
            for shared in (False, True):
                for causal in (False, True):
                    for masked in (False, True) if kernel.takes_mask else (False,):
                        mistake = _compare(kernel, device, dtype, shared, causal, masked)
                        if mistake is not None:
                            return f"{kernel.name} failed its trial: {mistake}"
    except Exception as error:  # a private operator may raise anything
        reason = str(error).strip().partition("\n")[0]
        return f"{kernel.name} failed its trial: {reason or type(error).__name__}"
    return None


def _compare(
    kernel: Kernel, device: str, dtype: torch.dtype, shared: bool, causal: bool, masked: bool
) -> str | None:
    """Try one case with odd lengths, fewer queries than keys and a row without visible keys."""
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
    output, log_sum_exp = run(kernel, query, key, value, mask, causal, scale)

    group = heads // kv_heads
    wide = (query.double(), *(x.double().repeat_interleave(group, 1) for x in (key, value)))
    logits = scale * wide[0] @ wide[1].mT
    visible = torch.ones(queries, keys, dtype=torch.bool, device=device)
    visible = visible.tril() if causal else visible
    visible = visible if mask is None else visible & mask
    logits = logits.masked_fill(~visible, -torch.inf)
    occupied = visible.any(-1).expand(log_sum_exp.shape)
    expected = (logits.softmax(-1).nan_to_num(0.0) @ wide[2], logits.logsumexp(-1))
    if output.shape != expected[0].shape or log_sum_exp.shape != expected[1].shape:
        return f"shapes {tuple(output.shape)} and {tuple(log_sum_exp.shape)}"
    # Outputs and sums are below 4 in size; a few roundings of each.
    tolerance = 32 * torch.finfo(dtype).eps
    if not (output.double() - expected[0]).abs().max() <= tolerance:
        return "the output is not attention, or a row without visible keys is not zero"
    # The log-sum-exp of a row without visible keys is not used, so it is not compared.
    if not (log_sum_exp.double() - expected[1])[occupied].abs().max() <= tolerance:
        return "its log-sum-exp is not log(sum(exp(logits)))"
    return None
