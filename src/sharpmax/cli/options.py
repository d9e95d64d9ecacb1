"""Options that several commands share, so that they read the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

Out: TypeAlias = Annotated[
    Path, typer.Option("--out", "-o", help="Folder to write into; made if missing.")
]
Overwrite: TypeAlias = Annotated[
    bool, typer.Option("--overwrite", help="Replace results that are there already.")
]
