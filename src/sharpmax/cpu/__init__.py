"""Attention on a CPU for NumPy arrays: adaptive temperature, and statistics of each row.

It costs nearly as much as ordinary attention; the statistics alone cost less. Numba compiles it at
the first call, which takes some seconds, and keeps the result for later processes. For PyTorch this
is `impl="cpu"` of `sharpmax.torch`.
"""

from __future__ import annotations

from sharpmax._errors import MissingExtraError

try:
    import numba as _numba  # noqa: F401
    import scipy as _scipy  # noqa: F401
    import threadpoolctl as _threadpoolctl  # noqa: F401
except ModuleNotFoundError as error:
    raise MissingExtraError(error.name or "numba", "cpu", "sharpmax.cpu") from error

from sharpmax.cpu.api import Attended, Stats, attention, attention_stats

__all__ = ["Attended", "Stats", "attention", "attention_stats"]
