"""Options that the `sharpmax clrs` commands share."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

TrainData: TypeAlias = Annotated[
    str,
    typer.Argument(
        help="Folder written by `sharpmax clrs generate`, or tomg-group-umd/CLRS-Text-train.",
        metavar="DATA",
    ),
]
TestData: TypeAlias = Annotated[
    str,
    typer.Argument(
        help="Folder written by `sharpmax clrs generate --split test`, or "
        "tomg-group-umd/CLRS-Text-test.",
        metavar="DATA",
    ),
]
Algorithm: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--algorithm", help="Algorithm to use. Repeat for several. Default: all.", metavar="NAME"
    ),
]
Sizes: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Problem sizes to use, such as 4-16,32. Default: all.", metavar="LIST"),
]
