"""A notebook as a page: all of its cells, in order, and nothing that is not shown."""

from __future__ import annotations

import base64
from pathlib import Path

import nbformat
import notebook_pages
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

COMMITTED = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb"))
PICTURE = base64.b64encode(b"a picture").decode()


def page(tmp_path, *outputs):
    cells = [new_markdown_cell("# Title"), new_code_cell("print(1)", outputs=list(outputs))]
    path = tmp_path / "one.ipynb"
    nbformat.write(new_notebook(cells=cells), path)
    return notebook_pages.page(path)


def test_prose_code_text_and_pictures_follow_each_other(tmp_path):
    made = page(
        tmp_path,
        new_output("stream", name="stdout", text="1\n```\n"),
        new_output("execute_result", data={"text/plain": "<two>"}),
        new_output("display_data", data={"image/png": PICTURE, "text/plain": '<a "picture">'}),
    )
    places = [
        made.index(part)
        for part in (
            "# Title",
            '<a href="one.ipynb" download>',
            "~~~~python\nprint(1)\n~~~~",
            "~~~~text\n1\n```\n~~~~",
            "~~~~text\n<two>\n~~~~",
            f'<img alt="&lt;a &quot;picture&quot;&gt;" src="data:image/png;base64,{PICTURE}">',
        )
    ]
    assert places == sorted(places)


def test_what_cannot_be_shown_is_refused(tmp_path):
    with pytest.raises(ValueError, match="cannot show an output of text/html"):
        page(tmp_path, new_output("display_data", data={"text/html": "<b>"}))


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_every_cell_of_the_committed_ones_is_shown(path):
    made, cells = notebook_pages.page(path), nbformat.read(path, as_version=4).cells
    assert all(cell.source.rstrip() in made for cell in cells)
    pictures = sum(
        "image/png" in output.get("data", {})
        for cell in cells
        for output in cell.get("outputs", [])
    )
    assert made.count("<img ") == pictures > 0
