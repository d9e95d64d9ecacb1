"""Elementary functions for kernels that numba compiles, and how they are compiled.

Logits are in bits, and a weight is 2**(factor * (logit - maximum)): underflow is not slow in base
2.

Numba's cache notices changes in the file of the function that Python calls only. After an edit of
this file delete the caches, or set NUMBA_CACHE_DIR as `tests/conftest.py` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

LOG_2 = math.log(2)
BITS = 1 / LOG_2
"""One nat in bits."""

SUMS = {"reassoc", "nsz", "contract"}
"""Flags that let a sum be vectorised. Not `nnan` or `ninf`: NaN and infinities have a meaning."""
FUSED = {"contract"}

Float32 = np.float32
Function = TypeVar("Function", bound=Callable[..., Any])


def inner(**options: Any) -> Callable[[Function], Function]:
    """Return `njit` without Python wrappers, which would double the compile time."""
    compiled: Any = njit(**options, no_cpython_wrapper=True, no_cfunc_wrapper=True)  # type: ignore[call-overload]
    return cast(Callable[[Function], Function], compiled)


def outer(signature: Any) -> Callable[[Function], Function]:
    """Return `njit` for a function that Python calls, for these types only, with a cache."""
    compiled: Any = njit(signature, nogil=True, cache=True, no_cfunc_wrapper=True)  # type: ignore[call-overload]
    return cast(Callable[[Function], Function], compiled)


def array_type(kind: Any, axes: int, layout: Any = "C") -> Any:
    """Return the type of a read-only array, which accepts writable arrays too."""
    return types.Array(kind, axes, layout, readonly=True)


# 2**f for f in [-0.5, 0.5], interpolated at Chebyshev's points. With the rounding of float32 the
# error is at most 0.97 units in the last place, see the tests.
C0, C1, C2, C3, C4, C5, C6 = (
    Float32(coefficient)
    for coefficient in np.polynomial.Chebyshev.interpolate(np.exp2, 6, domain=[-0.5, 0.5])
    .convert(kind=np.polynomial.Polynomial)
    .coef
)
LOWEST = Float32(-127.0)
"""From half above this on, the power is 0: subnormal numbers would be slow."""
ONE = np.int32(127 << 23)
"""The bits of 1.0; adding n to the exponent makes them those of 2**n."""
ROUNDING = Float32(1.5 * 2**23)
"""Added to a number, it leaves the nearest integer in the last bits."""
ALL_BUT_SIGN = np.int32(0x7FFFFFFF)


def _reinterpret(source: Any, target: Any, kind: ir.Type) -> Any:
    """Return a function that reinterprets the bits of a number as another type."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], kind)

    def typed(typing: Any, number: Any) -> Any:
        return target(source), build

    return intrinsic(typed)


to_bits: Any = _reinterpret(types.float32, types.int32, ir.IntType(32))
from_bits: Any = _reinterpret(types.int32, types.float32, ir.FloatType())


@njit(fastmath=FUSED, forceinline=True)
def exp2(x: Any) -> Any:
    """Return 2**x for x <= 0, to 1 unit in the last place; NaN stays NaN.

    A call of the C library would prevent vectorisation.
    """
    clipped = LOWEST if x < LOWEST else x
    shifted = clipped + ROUNDING
    f = clipped - (shifted - ROUNDING)
    p = C6
    p = p * f + C5
    p = p * f + C4
    p = p * f + C3
    p = p * f + C2
    p = p * f + C1
    p = p * f + C0
    return p * from_bits((to_bits(shifted) << 23) + ONE)


@njit(fastmath=FUSED, forceinline=True)
def tanh(x: Any) -> Any:
    """Return tanh(x), to 2 units in the last place of 1.

    Near 0, where (1 - e) / (1 + e) would lose digits, it is computed by its series.
    """
    size = abs(x)
    e = exp2(Float32(-2 * BITS) * size)
    far = (Float32(1) - e) / (Float32(1) + e)
    s = x * x
    p = Float32(62 / 2835)
    p = p * s - Float32(17 / 315)
    p = p * s + Float32(2 / 15)
    p = p * s - Float32(1 / 3)
    near = x + x * s * p
    return near if size < Float32(0.25) else (far if x > 0 else -far)


@inner(forceinline=True)
def ordered(x: Any) -> Any:
    """Return an integer with the order of the number.

    A maximum of integers is vectorised; one of floats is not, because of NaN.
    """
    b = to_bits(x)
    return b ^ ((b >> 31) & ALL_BUT_SIGN)


@inner(forceinline=True)
def maximum(a: Any, b: Any) -> Any:
    """Return the larger number; NaN if either is NaN."""
    return a if a >= b or a != a else b
