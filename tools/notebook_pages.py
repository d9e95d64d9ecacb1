"""Convert an executed notebook to a Markdown page of the site.

Written by hand because our notebooks hold only text and pictures, and nbconvert would bring a
second theme.
"""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import nbformat

FENCE = "~~~~"  # code may contain ```


def page(path: Path) -> str:
    """Return the notebook as Markdown with its pictures inlined."""
    cells = nbformat.read(path, as_version=4).cells
    title, *rest = (_cell(cell) for cell in cells)
    about = (
        f'*Executed notebook. Download it to run it yourself:* <a href="{path.name}" download>'
        f"{path.name}</a>"
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
        description = html.escape(output.data.get("text/plain", ""), quote=True)
        picture = output.data["image/png"].replace("\n", "")
        return f'<img alt="{description}" src="data:image/png;base64,{picture}">'
    if set(output.data) == {"text/plain"}:
        return _fenced(output.data["text/plain"], "text")
    raise ValueError(f"cannot show an output of {', '.join(output.data)}: text and PNG only")


def _fenced(text: str, language: str) -> str:
    return f"{FENCE}{language}\n{text.rstrip()}\n{FENCE}"
