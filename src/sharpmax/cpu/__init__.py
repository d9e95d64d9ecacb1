"""Attention on a CPU, in NumPy arrays: adaptive temperature at nearly the price of ordinary
attention, and how dispersed each row is, for less.

Compiled by numba on the first call, which takes some seconds, and kept for the next. For PyTorch
this is `impl="cpu"` of `sharpmax.torch`.
"""

from __future__ import annotations

from sharpmax._errors import MissingExtraError

try:
    import numba as _numba  # noqa: F401
    import scipy as _scipy  # noqa: F401
    import threadpoolctl as _threadpoolctl  # noqa: F401
except ModuleNotFoundError as error:
    raise MissingExtraError(error.name or "numba", "cpu", "sharpmax.cpu") from error

from sharpmax.cpu.arrays import Attended, Stats, attention, attention_stats

__all__ = ["Attended", "Stats", "attention", "attention_stats"]
