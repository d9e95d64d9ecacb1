"""Deprecated: the look of pictures is in `sharpmax.report.renderers.matplotlib`."""

from __future__ import annotations

from sharpmax.report.palette import LIGHT, SERIES
from sharpmax.report.renderers.matplotlib import house_style as house_style
from sharpmax.report.renderers.matplotlib import save as save

INK, MUTED, GRID = LIGHT["ink"], LIGHT["muted"], LIGHT["faint"]
MEASURED, BOUND, PRINTED = LIGHT["series-2"], LIGHT["series-1"], LIGHT["series-3"]
SHADE = "#dbe5fb"
CYCLE = tuple(LIGHT[name] for name in SERIES)
