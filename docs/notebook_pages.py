"""A notebook that was run, as a page of the site: its prose, its code and what that printed and
drew.

By hand: what the notebooks put out are text and pictures only, and converters bring a second theme.
"""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import nbformat

FENCE = "~~~~"  # not what code may hold


def page(path: Path) -> str:
    """Markdown, with the pictures in it; the notebook itself lies beside it in the site."""
    cells = nbformat.read(path, as_version=4).cells
    title, *rest = (_cell(cell) for cell in cells)
    about = (
        f'*A notebook, as it was run:* <a href="{path.name}" download>{path.name}</a>'
        "*, to run it yourself.*"
    )
    return "\n\n".join([title, about, *rest]) + "\n"


def _cell(cell: Any) -> str:
    if cell.cell_type == "markdown":
        return str(cell.source)
    return "\n\n".join([_fenced(cell.source, "python"), *map(_output, cell.outputs)])


def _output(output: Any) -> str:
    if output.output_type == "stream":
        return _fenced(output.text, "text")
    if "image/png" in output.data:
        said = html.escape(output.data.get("text/plain", ""), quote=True)
        picture = output.data["image/png"].replace("\n", "")
        return f'<img alt="{said}" src="data:image/png;base64,{picture}">'
    if set(output.data) == {"text/plain"}:
        return _fenced(output.data["text/plain"], "text")
    raise ValueError(f"cannot show an output of {', '.join(output.data)}: text and PNG only")


def _fenced(text: str, language: str) -> str:
    return f"{FENCE}{language}\n{text.rstrip()}\n{FENCE}"
