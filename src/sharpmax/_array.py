"""Hide the differences between array libraries; no other module of the formulas knows them.

The formulas are written once, against the array API standard, and run on NumPy, PyTorch and JAX
arrays and on any other library that `array_api_compat` recognises. The library is taken from the
arguments, so there is no global backend, and nothing is imported that the caller has not imported.

The helpers exist for four reasons:

- bfloat16 and float16 are not part of the standard, so floating types are recognised by name.
- The standard can neither stop a gradient nor trace a loop; PyTorch and JAX can.
- A 0-D torch tensor does not promote as the standard says, so scalars stay Python numbers for as
  long as possible.
- `asarray` may detach a torch tensor from its graph, so inputs never pass through it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import array_api_compat
import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped

Array: TypeAlias = Any
"""An array of any supported library. Signatures add the shape, as in `Float[Array, "..."]`."""

LOG2_E = math.log2(math.e)

STATISTICS_DTYPE = {
    "float16": "float32",
    "bfloat16": "float32",
    "float32": "float32",
    "float64": "float64",
}
"""The floating types accepted as logits, each with the type used for its statistics."""


HIDES = -9.9e37
"""A bias of this or less hides its key: -1e38, also as bfloat16 rounds it. Below, a logit could
overflow in float32: it would then be hidden in one implementation and counted in another."""


def namespace(**arrays: Array) -> Any:
    """Return the array library that the named arguments share, ignoring those that are None.

    Raises:
        TypeError: if an argument is no array, or the arrays come from different libraries.
    """
    given = {name: array for name, array in arrays.items() if array is not None}
    if all(is_torch(array) for array in given.values()):
        from array_api_compat import torch

        return torch
    for name, array in given.items():
        if not array_api_compat.is_array_api_obj(array):
            raise TypeError(
                f"{name} must be a NumPy, PyTorch or JAX array, got {type(array).__name__}"
            )
    try:
        return array_api_compat.array_namespace(*given.values())
    except TypeError as error:
        kinds = ", ".join(
            f"{name} from {type(array).__module__.partition('.')[0]}"
            for name, array in given.items()
        )
        raise TypeError(
            f"the arrays must come from one library, got {kinds}; convert one of them"
        ) from error


def is_torch(array: Array) -> bool:
    """Say whether this is a torch tensor, without importing torch."""
    # Not by array_api_compat, whose cached look-ups make torch.compile warn.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def is_jax(array: Array) -> bool:
    """Say whether this is a JAX array, without importing JAX."""
    return "jax" in sys.modules and array_api_compat.is_jax_array(array)


def is_compiling() -> bool:
    """Say whether torch.compile is tracing, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.compiler.is_compiling())


def is_concrete(array: Array) -> bool:
    """Say whether the numbers of an array exist: not while a function is traced or vectorised."""
    if is_torch(array):
        torch = sys.modules["torch"]
        if torch.compiler.is_compiling() or array.is_meta:
            return False
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return False
        return type(array) in (torch.Tensor, torch.nn.Parameter)
    if is_jax(array):
        import jax

        return not isinstance(array, jax.core.Tracer)
    return True


def is_readable(*arrays: Array, wait: bool = False) -> bool:
    """Say whether arrays (or numbers) can be read at once, or, with `wait`, at all."""
    for array in arrays:
        if isinstance(array, np.ndarray) or is_number(array):
            continue
        if not is_concrete(array):
            return False
        if wait:
            continue
        if is_torch(array) and array.device.type != "cpu":
            return False
        if is_jax(array) and any(device.platform != "cpu" for device in array.devices()):
            return False
    return True


def evaluate_now(array: Array) -> AbstractContextManager[Any]:
    """Compute what follows at once and without gradients, even where the array's library traces."""
    if is_torch(array):
        return sys.modules["torch"].no_grad()
    if is_jax(array):
        import jax

        return jax.ensure_compile_time_eval()
    return nullcontext()


def array_like(array: Array, numbers: Shaped[np.ndarray, "..."]) -> Array:
    """Convert NumPy numbers to the library, type and device of an array."""
    xp = namespace(array=array)
    device = array.device if is_torch(array) else None
    return xp.asarray(numbers.tolist(), dtype=array.dtype, device=device)


def extremes(array: Array) -> tuple[float, float]:
    """Return the smallest and the largest number, NaN if any is; (1, 1) of an empty array."""
    if math.prod(array.shape) == 0:
        return 1.0, 1.0
    if isinstance(array, np.ndarray):
        # Not by its methods, which take twice as long.
        low, high = np.minimum.reduce(array, axis=None), np.maximum.reduce(array, axis=None)
        return float(low), float(high)
    if is_torch(array):
        low, high = array.detach().aminmax()
        return float(low), float(high)
    xp = namespace(array=array)
    return float(xp.min(array)), float(xp.max(array))


def dtype_name(array: Array) -> str:
    """Return the plain name of an array's type: "float32" for torch.float32 and NumPy's float32."""
    if isinstance(array.dtype, np.dtype):
        return _numpy_dtype_name(array.dtype)
    return str(array.dtype).rpartition(".")[2]


@cache
def _numpy_dtype_name(dtype: np.dtype[Any]) -> str:
    # Cached: NumPy builds the name anew each time, which takes as long as a small computation.
    return dtype.name  # not str, which is ">f8" for float64 in the other byte order


def statistics_dtype(name: str, array: Array, xp: Any) -> Any:
    """Return the type for statistics: float32 for half and single precision, float64 for double.

    Raises:
        TypeError: if the array has another type; the message calls the array `name`.
    """
    wide = STATISTICS_DTYPE.get(dtype_name(array))
    if wide is None:
        expected = ", ".join(STATISTICS_DTYPE)
        raise TypeError(
            f"{name} must have a floating type ({expected}), got {dtype_name(array)}; cast it first"
        )
    return getattr(xp, wide)


def negative_axis(axis: int, array: Array, name: str = "logits") -> int:
    """Return the axis counted from the end, which stays valid when broadcasting adds leading axes.

    Raises:
        TypeError: if `axis` is not an integer.
        ValueError: if the array has no such axis.
    """
    if isinstance(axis, bool) or not isinstance(axis, int):
        raise TypeError(f"axis must be one integer, got {axis!r}")
    if not -array.ndim <= axis < array.ndim:
        shape = tuple(array.shape)
        expected = f"expected {-array.ndim} to {array.ndim - 1}" if array.ndim else "it has no axis"
        raise ValueError(f"axis {axis} is out of range for {name} of shape {shape}: {expected}")
    return axis if axis < 0 else axis - int(array.ndim)


def stop_gradient(array: Array) -> Array:
    """Return the same values, detached from the gradient graph."""
    if is_torch(array):
        return array.detach()
    if is_jax(array):
        import jax

        return jax.lax.stop_gradient(array)
    return array


def clamp(array: Array, low: float, high: float, xp: Any) -> Array:
    """Limit an array to [low, high]. NaN stays NaN, and both ends keep the gradient of the inside.

    JAX's `clip` halves the gradient at the ends, where the maximum of every row lies.
    """
    if is_torch(array):
        return array.clamp(low, high)
    if isinstance(array, np.ndarray):
        return np.clip(array, low, high)
    return xp.where(array < low, low, xp.where(array > high, high, array))


def bounded_offset(array: Array, low: float, xp: Any) -> Array:
    """Make offsets below a row's maximum finite: at least `low`, and 0 for +inf.

    JAX arrays are not limited to 0 from above. A compiler may compute a logit a second time and
    round it differently than the maximum; limiting the top item to 0 would then drop its gradient
    (seen with jax.jit 0.10 on the CPU).
    """
    if is_torch(array):
        return array.nan_to_num(nan=math.nan, posinf=0.0, neginf=low)
    if isinstance(array, np.ndarray):
        return np.clip(array, low, 0.0)
    return xp.where(array < low, low, xp.where(array == math.inf, 0.0, array))


def exp(array: Array, xp: Any) -> Array:
    """Return the exponential, computed by exp2 for torch.

    On CPUs, torch's exp takes 10 to 50 times as long where the result underflows (version 2.13,
    float32, below -87), as it does for every masked item. exp2 does not. The extra product rounds
    the argument once more.
    """
    return xp.exp2(array * LOG2_E) if is_torch(array) else xp.exp(array)


def while_loop(
    condition: Callable[[Any], Array], body: Callable[[Any], Any], state: tuple[Array, ...]
) -> Any:
    """Repeat `body` while `condition` holds, by `lax.while_loop` for JAX arrays."""
    if is_jax(state[0]):
        import jax

        return jax.lax.while_loop(condition, body, state)
    while bool(condition(state)):
        state = body(state)
    return state


def to_numpy(array: Array) -> Float[np.ndarray, "..."]:
    """Copy an array of any library to NumPy, in float64."""
    if is_torch(array):
        array = array.detach().cpu().double().numpy()
    return np.asarray(array, dtype=np.float64)


def is_number(value: object) -> bool:
    """Say whether this is a plain number (Python's or a NumPy scalar), which can be checked."""
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def logit_scale(scale: float | None, dim: int) -> float:
    """Return the factor on the product of query and key: `scale`, by default 1/sqrt(dim).

    Raises:
        ValueError: if `scale` is not a finite number.
    """
    if scale is None:
        return 1 / math.sqrt(dim) if dim else 1.0
    if not is_number(scale) or not math.isfinite(scale):
        raise ValueError(f"scale must be a finite number, got {scale!r}")
    return float(scale)


def hiding_bias(lowest: float) -> float:
    """Return the largest bias that hides its key, given the lowest number of the bias' type.

    Some libraries write the lowest number instead of -inf; that of float16 is above `HIDES`.
    """
    return max(lowest, HIDES)


def optional_count(name: str, number: int | None) -> int | None:
    """Check an option that is None or an integer of 1 or more, and return it."""
    if number is None:
        return None
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ValueError(f"{name} must be a whole number, 1 or more, got {number!r}")
    return number


def to_floating(**values: Array | float) -> tuple[Any, list[Array], bool]:
    """Convert numbers and arrays of one library to floating arrays of one type.

    Returns:
        The library, the arrays in order, and whether all values were plain numbers. Plain numbers
        become NumPy float64 arrays; `from_floating` turns the answer back into a Python float.
    """
    arrays = {name: value for name, value in values.items() if not is_number(value)}
    if not arrays:
        return np, [np.asarray(float(value)) for value in values.values()], True
    xp = namespace(**arrays)
    dtype = _common_dtype(arrays, xp)
    # torch puts new tensors on the CPU, wherever the others are.
    first: Array = next(iter(arrays.values()))
    device = first.device if is_torch(first) else None
    converted = [
        xp.astype(value, dtype, copy=False)
        if name in arrays
        else xp.asarray(float(value), dtype=dtype, device=device)
        for name, value in values.items()
    ]
    return xp, converted, False


def _common_dtype(arrays: dict[str, Array], xp: Any) -> Any:
    """Return the widest statistics type of the floating arrays, or the library's default."""
    dtypes = [
        statistics_dtype(name, array, xp)
        for name, array in arrays.items()
        if not dtype_name(array).startswith(("int", "uint"))
    ]
    if not dtypes:
        return xp.asarray(1.0).dtype
    return xp.float64 if xp.float64 in dtypes else dtypes[0]


def from_floating(answer: Array, was_number: bool) -> Any:
    """Return an answer as a Python float if the question was plain numbers (see `to_floating`)."""
    return float(answer) if was_number else answer


def positive_number(name: str, value: float) -> float:
    """Check a number that must be positive and finite, and return it as a float."""
    if not is_number(value) or not (0 < value < math.inf):
        raise ValueError(f"{name} must be a positive finite number, got {value!r}")
    return float(value)
