"""Results as data: what was asked for, what was measured, and where the numbers come from.

Every experiment returns a `Result`; reports, pictures and tables only read it. A result is one JSON
file, checked when it is read and when it is written. Larger arrays lie beside it in an `.npz` file
whose hash the JSON carries. `sharpmax.results.schemas` has the fields of each kind of result,
`Calibration` the file that `sharpmax calibrate` writes.
"""

from __future__ import annotations

from sharpmax._errors import MissingExtraError

try:
    import pydantic  # noqa: F401
except ModuleNotFoundError as error:
    raise MissingExtraError("pydantic", "cli", "reading and writing results") from error

from sharpmax.results.calibration import Calibration
from sharpmax.results.provenance import Provenance, Stopwatch
from sharpmax.results.result import Result

__all__ = ["Calibration", "Provenance", "Result", "Stopwatch"]
