"""The only file that knows array libraries.

Everything above it is written once, against the array-API standard, and runs on whatever the
caller's arrays are: NumPy, PyTorch, JAX, or any other library that `array_api_compat` recognises.
The library is taken from the arguments, so there is no global backend and nothing is imported that
the caller has not imported already.

Four facts shape the helpers:

- bfloat16 and float16 are outside the standard, so floating types are recognised by name here.
- The standard has no "stop the gradient" and no loop that may be traced; torch and JAX spell both
  differently.
- A 0-D torch tensor promotes unlike the standard says, so scalars stay Python numbers for as long
  as possible.
- `asarray` on a torch tensor may leave its graph, so inputs are never passed through it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import array_api_compat
import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float

Array: TypeAlias = Any
"""An array of any supported library; signatures say its shape, as in `Float[Array, "..."]`."""

LOG2_E = math.log2(math.e)

STATISTICS_DTYPE = {
    "float16": "float32",
    "bfloat16": "float32",
    "float32": "float32",
    "float64": "float64",
}
"""Floating types accepted as logits, and the type in which their statistics are computed."""


def namespace(**arrays: Array) -> Any:
    """The array library that the named arguments share; None is an argument not given."""
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
    """Asked without array_api_compat, whose cached look-ups make torch.compile warn."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def is_jax(array: Array) -> bool:
    """Not even asked while JAX is not loaded."""
    return "jax" in sys.modules and array_api_compat.is_jax_array(array)


def dtype_name(array: Array) -> str:
    """The plain name of an array's type: torch.float32 and NumPy's float32 are both "float32"."""
    if isinstance(array.dtype, np.dtype):
        return _named(array.dtype)
    return str(array.dtype).rpartition(".")[2]


@cache
def _named(dtype: np.dtype[Any]) -> str:
    """NumPy puts a type's name together anew each time, in as long as a small computation takes."""
    return str(dtype)


def statistics_dtype(name: str, array: Array, xp: Any) -> Any:
    """float32 for half and single precision, float64 for double; all else is refused by name."""
    wide = STATISTICS_DTYPE.get(dtype_name(array))
    if wide is None:
        expected = ", ".join(STATISTICS_DTYPE)
        raise TypeError(
            f"{name} must have a floating type ({expected}), got {dtype_name(array)}; cast it first"
        )
    return getattr(xp, wide)


def negative_axis(axis: int, array: Array, name: str = "logits") -> int:
    """The axis counted from the end: it names the same one after broadcasting adds leading axes."""
    if isinstance(axis, bool) or not isinstance(axis, int):
        raise TypeError(f"axis must be one integer, got {axis!r}")
    if not -array.ndim <= axis < array.ndim:
        shape = tuple(array.shape)
        expected = f"expected {-array.ndim} to {array.ndim - 1}" if array.ndim else "it has no axis"
        raise ValueError(f"axis {axis} is out of range for {name} of shape {shape}: {expected}")
    return axis if axis < 0 else axis - int(array.ndim)


def stop_gradient(array: Array) -> Array:
    """The same values as a constant of the graph; the standard has no such function."""
    if is_torch(array):
        return array.detach()
    if is_jax(array):
        import jax

        return jax.lax.stop_gradient(array)
    return array


def clamp(array: Array, low: float, high: float, xp: Any) -> Array:
    """The array cut to [low, high]; NaN stays NaN, and the gradient at both ends is that of inside.

    The standard's `clip` is not used: JAX's halves the gradient at the ends, and every row's
    maximum lies at one.
    """
    if is_torch(array):
        return array.clamp(low, high)
    if isinstance(array, np.ndarray):
        return np.clip(array, low, high)
    return xp.where(array < low, low, xp.where(array > high, high, array))


def bounded_offset(array: Array, low: float, xp: Any) -> Array:
    """Logits minus their row's maximum, made finite: `low` at the least, and 0 for +inf.

    Not cut at 0, although none should be above: a compiler may compute a logit anew, rounded
    otherwise than the maximum was, and cutting the top item at 0 would drop its gradient (seen
    with jax.jit 0.10 on the CPU).
    """
    if is_torch(array):
        return array.nan_to_num(nan=math.nan, posinf=0.0, neginf=low)
    if isinstance(array, np.ndarray):
        return np.clip(array, low, 0.0)
    return xp.where(array < low, low, xp.where(array == math.inf, 0.0, array))


def exp(array: Array, xp: Any) -> Array:
    """exp, by way of exp2 for torch.

    torch's exp on CPUs takes 10 to 50 times as long where the answer underflows (2.13, float32:
    below -87), which is every masked item; its exp2 does not. The product costs a rounding of the
    argument, the same as the argument's own.
    """
    return xp.exp2(array * LOG2_E) if is_torch(array) else xp.exp(array)


def while_loop(
    condition: Callable[[Any], Array], body: Callable[[Any], Any], state: tuple[Array, ...]
) -> Any:
    """Repeat `body` while `condition` holds: `lax.while_loop` for JAX, a plain loop elsewhere."""
    if is_jax(state[0]):
        import jax

        return jax.lax.while_loop(condition, body, state)
    while bool(condition(state)):
        state = body(state)
    return state


def to_numpy(array: Array) -> Float[np.ndarray, "..."]:
    """A float64 NumPy copy, off the graph and off the device."""
    if is_torch(array):
        array = array.detach().cpu().double().numpy()
    return np.asarray(array, dtype=np.float64)


def is_number(value: object) -> bool:
    """True for a Python (or NumPy scalar) number, which can be checked and needs no library."""
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def logit_scale(scale: float | None, dim: int) -> float:
    """What a product of query and key is multiplied by: 1/sqrt(dim) unless something is given."""
    if scale is None:
        return 1 / math.sqrt(dim) if dim else 1.0
    if not is_number(scale) or not math.isfinite(scale):
        raise ValueError(f"scale must be a finite number, got {scale!r}")
    return float(scale)


def whole(name: str, number: int | None) -> int | None:
    """A count of 1 or more, or none."""
    if number is None:
        return None
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ValueError(f"{name} must be a whole number, 1 or more, got {number!r}")
    return number


def floating(**values: Array | float) -> tuple[Any, list[Array], bool]:
    """Numbers and arrays of one library as floating arrays that work together.

    Returns the library, the arrays in order, and whether all of them were plain numbers; those are
    computed in NumPy's float64, and `restored` turns the answer back into a Python float.
    """
    arrays = {name: value for name, value in values.items() if not is_number(value)}
    if not arrays:
        return np, [np.asarray(float(value)) for value in values.values()], True
    xp = namespace(**arrays)
    dtype = _common_dtype(arrays, xp)
    # Only torch needs telling: its new tensors are on the CPU wherever the others are.
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
    """The widest statistics type of the floating arrays; the default if all hold whole numbers."""
    dtypes = [
        statistics_dtype(name, array, xp)
        for name, array in arrays.items()
        if not dtype_name(array).startswith(("int", "uint"))
    ]
    if not dtypes:
        return xp.asarray(1.0).dtype
    return xp.float64 if xp.float64 in dtypes else dtypes[0]


def restored(answer: Array, was_number: bool) -> Any:
    """The answer to plain numbers is a plain number."""
    return float(answer) if was_number else answer


def positive_number(name: str, value: float) -> float:
    """Check a Python number that must be positive and finite."""
    if not is_number(value) or not (0 < value < math.inf):
        raise ValueError(f"{name} must be a positive finite number, got {value!r}")
    return float(value)
