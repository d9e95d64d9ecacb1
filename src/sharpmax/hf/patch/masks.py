"""The masks of patched models.

transformers calls the mask function that belongs to a model's attention function once per forward
pass and kind of layer. Ours makes no matrix for a sliding window over one whole sequence, and notes
how many keys the queries see.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from transformers.masking_utils import (
    prepare_padding_mask,
    sdpa_mask,
    sliding_window_bidirectional_mask_function,
    sliding_window_causal_mask_function,
)

if TYPE_CHECKING:
    from jaxtyping import Int

_GETTERS: tuple[Any, ...] = (Tensor.shape, Tensor.dtype, Tensor.device, Tensor.ndim, Tensor.layout)
_METADATA = {Tensor.dim, Tensor.size} | {getter.__get__ for getter in _GETTERS}
"""What can be read from a mask without its content."""


class WindowMask(torch.Tensor):
    """The mask of a sliding window, [batch, 1, query, key], stored as two numbers.

    The attention function reads the numbers. Any other operation, such as a model that slices or
    inverts its mask, acts on the boolean matrix that this stands for.

    Attributes:
        window: Query i sees key j if |i - j| < window,
        causal: and j <= i, if this is true.
        dense: Makes the matrix.
    """

    window: int
    causal: bool
    dense: Callable[[], Tensor | None]
    _matrix: Tensor | None

    @staticmethod
    def create(
        shape: tuple[int, int, int, int],
        device: torch.device | str,
        window: int,
        causal: bool,
        dense: Callable[[], Tensor | None],
    ) -> WindowMask:
        """Return the mask of this shape without allocating it."""
        scalar = torch.zeros((), dtype=torch.bool, device=device)
        mask = torch.Tensor._make_subclass(WindowMask, scalar.expand(shape))
        mask.window, mask.causal, mask.dense, mask._matrix = window, causal, dense, None
        return mask

    def matrix(self) -> Tensor | None:
        """Return the matrix, which is made once for all layers. It must not be changed."""
        if self._matrix is None:
            self._matrix = self.dense()
        return self._matrix

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            if func not in _METADATA:
                args, kwargs = tree_map(_as_matrix, (args, kwargs))
            return func(*args, **kwargs)


def _as_matrix(value: Any) -> Any:
    return value.dense() if isinstance(value, WindowMask) else value


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
    """Make the mask for one kind of layer; transformers calls this once per forward pass and kind.

    transformers' own `sdpa_mask` makes it, except for a sliding window over one whole sequence, for
    which that would allocate a matrix of tokens by tokens.

    Returns:
        None for attention that is causal or bidirectional without exception, as `module.is_causal`
        says; a `WindowMask`; or the boolean matrix, True where a key may be seen, whose attribute
        `visible` is the smallest and the largest number of keys that a query sees.
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
    compiling = torch.compiler.is_compiling()
    # A window that covers everything is left to sdpa_mask, which then makes no mask.
    if (
        (allow_is_causal_skip or allow_is_bidirectional_skip)
        and local_size is not None
        and q_length == kv_length > 1
        and not compiling
        and kv_length >= local_size
        and int(q_offset) == int(kv_offset) == 0
        and _hides_nothing(prepare_padding_mask(attention_mask, kv_length, kv_offset))
    ):
        unskipped = functools.partial(
            dense, allow_is_causal_skip=False, allow_is_bidirectional_skip=False
        )
        shape = (batch_size, 1, q_length, kv_length)
        function = others.get("mask_function")
        # transformers counts the token itself in a causal window, but not in a bidirectional one.
        if _same_function(function, sliding_window_causal_mask_function(local_size)):
            return WindowMask.create(shape, device, local_size, True, unskipped)
        if _same_function(function, sliding_window_bidirectional_mask_function(local_size)):
            return WindowMask.create(shape, device, local_size + 1, False, unskipped)
    mask = dense(
        allow_is_causal_skip=allow_is_causal_skip,
        allow_is_bidirectional_skip=allow_is_bidirectional_skip,
    )
    if type(mask) is Tensor and not compiling and not mask.is_meta:
        # Counted here, once for all layers. The keys are no such bound: a static cache has room for
        # more than there is, and padding hides some. `generate` copies masks that are not
        # contiguous, and the copy would not have the attribute.
        mask = mask.contiguous() if q_length == 1 else mask
        fewest, most = mask.sum(-1).aminmax()
        mask.visible = int(fewest), int(most)  # type: ignore[attr-defined]
    return mask


def _hides_nothing(padding: Tensor | None) -> bool:
    return padding is None or bool(padding.all())


def _same_function(first: Any, second: Any) -> bool:
    """Return whether two mask functions have the same code and close over the same numbers.

    Chunked attention has a local size too, but other code than a window.
    """
    if isinstance(first, tuple) and isinstance(second, tuple):
        return len(first) == len(second) and all(map(_same_function, first, second))
    if not isinstance(first, FunctionType) or not isinstance(second, FunctionType):
        return type(first) is type(second) is int and first == second
    closures = [
        tuple(cell.cell_contents for cell in function.__closure__ or ())
        for function in (first, second)
    ]
    return first.__code__ is second.__code__ and _same_function(*closures)


def bound_visible(mask: Tensor | None, causal: bool, queries: int, keys: int) -> tuple[int, int]:
    """Return bounds of the number of keys that any query sees, from below and above."""
    if mask is None:
        return (1, min(queries, keys)) if causal and queries > 1 else (keys, keys)
    if torch.compiler.is_compiling():
        return 0, keys
    if isinstance(mask, WindowMask):
        return 1, min(keys, mask.window if mask.causal else 2 * mask.window - 1)
    bounds: tuple[int, int] = getattr(mask, "visible", (0, keys))
    return bounds


def count_visible(
    mask: Tensor | None, causal: bool, queries: int, keys: int, device: torch.device
) -> Int[Tensor, "#batch #heads query"]:
    """Return how many keys each query sees.

    The count of a matrix is kept with it, since all layers share it.
    """
    if isinstance(mask, WindowMask):
        place = torch.arange(1, queries + 1, dtype=torch.int32, device=device)
        count = place.clamp(max=mask.window)
        if not mask.causal:
            count = count + (keys - place).clamp(max=mask.window - 1)
        return count[None, None]
    if mask is not None:
        kept: Tensor | None = getattr(mask, "counts", None)
        if kept is None:
            kept = mask.sum(-1, dtype=torch.int32)
            if not torch.compiler.is_compiling():
                mask.counts = kept  # type: ignore[attr-defined]
        return kept
    if causal and queries > 1:
        place = torch.arange(1, queries + 1, dtype=torch.int32, device=device)
        return place.clamp(max=keys)[None, None]
    return torch.full((1, 1, queries), keys, dtype=torch.int32, device=device)
