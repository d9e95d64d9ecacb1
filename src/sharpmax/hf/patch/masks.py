"""Who may see whom in a Hugging Face model, without a matrix of tokens by tokens.

An attention function that is registered without a mask function gets no mask at all, for every
model and without a word: padding, windows and causality would be lost. transformers' own
`sdpa_mask` is asked for it, which leaves plain causal and plain bidirectional attention without a
mask. A sliding window over one whole sequence, for which it would make a matrix, is a `Window`
here: a mask that is not held in memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from transformers.masking_utils import (
    prepare_padding_mask,
    sdpa_mask,
    sliding_window_bidirectional_mask_function,
    sliding_window_causal_mask_function,
)

_GETTERS: tuple[Any, ...] = (Tensor.shape, Tensor.dtype, Tensor.device, Tensor.ndim, Tensor.layout)
_LOOKS = {Tensor.dim, Tensor.size} | {getter.__get__ for getter in _GETTERS}
"""What can be asked of a mask without its content."""


class Window(torch.Tensor):
    """The mask of a sliding window, [batch, 1, query, key], as two numbers.

    The attention function reads them. Whoever else does something with it, a model that cuts or
    inverts its mask, gets the boolean matrix that it stands for.
    """

    window: int
    causal: bool
    dense: Callable[[], Tensor | None]

    @staticmethod
    def of(
        shape: tuple[int, int, int, int],
        device: torch.device | str,
        window: int,
        causal: bool,
        dense: Callable[[], Tensor | None],
    ) -> Window:
        """Query i sees key j if |i - j| < window, and j <= i if causal; `dense` is that matrix."""
        one = torch.zeros((), dtype=torch.bool, device=device)
        mask = torch.Tensor._make_subclass(Window, one.expand(shape))
        mask.window, mask.causal, mask.dense = window, causal, dense
        return mask

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            if func not in _LOOKS:
                args, kwargs = tree_map(_as_matrix, (args, kwargs))
            return func(*args, **kwargs)


def _as_matrix(value: Any) -> Any:
    return value.dense() if isinstance(value, Window) else value


def make_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    *,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    device: torch.device | str = "cpu",
    **others: Any,
) -> Tensor | None:
    """What transformers calls once a forward pass for each kind of layer: None for attention that
    is plainly causal or plainly bidirectional, as `module.is_causal` says; a `Window`; or the
    boolean matrix, True = may be seen.
    """
    dense = functools.partial(
        sdpa_mask,
        batch_size,
        q_length,
        kv_length,
        q_offset,
        kv_offset,
        attention_mask=attention_mask,
        local_size=local_size,
        device=device,
        **others,
    )
    padding = prepare_padding_mask(attention_mask, kv_length, kv_offset)
    # A window that covers everything is left to sdpa_mask, which then makes no mask.
    whole = q_length == kv_length > 1 and not torch.compiler.is_compiling()
    if (
        (allow_is_causal_skip or allow_is_bidirectional_skip)
        and local_size is not None
        and whole
        and kv_length >= local_size
        and _is_zero(q_offset)
        and _is_zero(kv_offset)
        and (padding is None or bool(padding.all()))
    ):
        unskipped = functools.partial(
            dense, allow_is_causal_skip=False, allow_is_bidirectional_skip=False
        )
        shape = (batch_size, 1, q_length, kv_length)
        rule = others.get("mask_function")
        # transformers counts the token itself in a causal window, and not in a bidirectional one.
        if _same(rule, sliding_window_causal_mask_function(local_size)):
            return Window.of(shape, device, local_size, True, unskipped)
        if _same(rule, sliding_window_bidirectional_mask_function(local_size)):
            return Window.of(shape, device, local_size + 1, False, unskipped)
    return dense(
        allow_is_causal_skip=allow_is_causal_skip,
        allow_is_bidirectional_skip=allow_is_bidirectional_skip,
    )


def _is_zero(offset: int | Tensor) -> bool:
    return int(offset) == 0


def _same(one: Any, other: Any) -> bool:
    """Whether two of transformers' rules are one rule: the same code on the same numbers. Chunked
    attention has a local size too, but not the code of a window.
    """
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if not isinstance(one, FunctionType) or not isinstance(other, FunctionType):
        return type(one) is type(other) is int and one == other
    return one.__code__ is other.__code__ and _same(_held(one), _held(other))


def _held(function: FunctionType) -> tuple[Any, ...]:
    return tuple(cell.cell_contents for cell in function.__closure__ or ())
