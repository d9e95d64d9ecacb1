"""Deprecated: pictures of results are drawn by `sharpmax.report`.

`plot.draw(result)` is `report.draw(result)`, and `plot.style.save` is `report.save_picture`.
"""

from __future__ import annotations

import warnings

from sharpmax.report import draw as draw
from sharpmax.report.kinds import KINDS as KINDS

warnings.warn(
    "sharpmax.plot is deprecated: use sharpmax.report.draw and sharpmax.report.save_picture",
    DeprecationWarning,
    stacklevel=2,
)
