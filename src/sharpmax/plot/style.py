"""One look for all pictures, and the two files that each is saved as."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sharpmax._errors import MissingExtraError
from sharpmax._files import refuse_overwriting, write_atomically

try:
    import matplotlib as mpl
    from cycler import cycler
    from matplotlib.figure import Figure
except ModuleNotFoundError as error:
    raise MissingExtraError("matplotlib", "cli", "drawing a picture") from error

INK = "#22262e"
MUTED = "#6b7280"
GRID = "#e3e6ea"
MEASURED = "#c2410c"
BOUND = "#1d4ed8"
PRINTED = "#0f766e"
SHADE = "#dbe5fb"
# Okabe and Ito's colours: distinguishable with any colour vision.
CYCLE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")

SETTINGS: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": MUTED,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.prop_cycle": cycler(color=CYCLE),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "figure.constrained_layout.use": True,
    "figure.dpi": 100,
    "font.size": 10,
    "grid.color": GRID,
    "legend.frameon": False,
    "savefig.dpi": 200,
    "svg.fonttype": "path",
    "svg.hashsalt": "sharpmax",
    "text.color": INK,
    "xtick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.color": MUTED,
    "ytick.labelcolor": INK,
}


@contextmanager
def house_style() -> Iterator[None]:
    """Draw with our settings, and leave the caller's as they were."""
    with mpl.rc_context(SETTINGS):
        yield


def save(figure: Figure, stem: Path, *, overwrite: bool = False) -> list[Path]:
    """Write the picture as PNG and as SVG, the same bytes for the same picture."""
    paths = [stem.with_suffix(".png"), stem.with_suffix(".svg")]
    refuse_overwriting(paths, overwrite)
    with house_style():
        for path in paths:
            buffer = io.BytesIO()
            undated = {"Date": None} if path.suffix == ".svg" else {"Software": None}
            figure.savefig(buffer, format=path.suffix[1:], metadata=undated)
            write_atomically(path, buffer.getvalue())
    return paths
