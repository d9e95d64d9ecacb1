"""Options that the commands of `sharpmax clrs` share."""

from __future__ import annotations

from typing import Annotated

import typer

DATA = "The folder that `sharpmax clrs generate` wrote, or tomg-group-umd/CLRS-Text-{}."

Algorithm = Annotated[
    list[str] | None,
    typer.Option("--algorithm", help="Repeat for several. Default: all.", show_default=False),
]
Sizes = Annotated[str | None, typer.Option(help="Only these, such as 4-16,32.", show_default=False)]
Limit = Annotated[
    int | None,
    typer.Option(
        help="Use at most so many for each algorithm, size and seed.", min=1, show_default=False
    ),
]
