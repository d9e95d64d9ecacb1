"""The notebooks run from top to bottom, and say what the committed ones say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import notebooks
import pytest

from sharpmax import UserError

ROOT = Path(__file__).parents[2]
COMMITTED = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
NUMBER = re.compile(r"-?\d[\d,]*(?:\.(\d+))?(?:e[+-]?\d+)?")
LARGEST = 1.2e6  # bytes
SLACK = 1e-9  # of the difference of two printed numbers


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def differs(old: str, new: str) -> bool:
    """Other words, or other numbers by more than one unit of the last decimal: a machine may round
    otherwise. Whole numbers must be equal.
    """
    if NUMBER.sub("#", old) != NUMBER.sub("#", new):
        return True
    for before, after in zip(NUMBER.finditer(old), NUMBER.finditer(new), strict=True):
        unit = 10.0 ** -len(before.group(1)) if before.group(1) else 0.0
        values = [float(found.group().replace(",", "")) for found in (before, after)]
        if abs(values[0] - values[1]) > unit + SLACK:
            return True
    return False


def words(cell: nbformat.NotebookNode) -> str:
    return "\n".join(notebooks.output_text(output) for output in cell.get("outputs", []))


def pictures(cell: nbformat.NotebookNode) -> int:
    return sum("image/png" in output.get("data", {}) for output in cell.get("outputs", []))


@pytest.mark.slow
@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_a_notebook_says_what_the_committed_one_says(path, tmp_path):
    """If this fails after a change of the library or of a result: make notebooks."""
    command = [
        sys.executable,
        str(ROOT / "tools" / "notebooks.py"),
        "--out",
        str(tmp_path),
        path.stem,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    old, new = read(path), read(tmp_path / path.name)
    for before, after in zip(old.cells, new.cells, strict=True):
        assert before.source == after.source
        assert pictures(before) == pictures(after), before.source
        assert not differs(words(before), words(after)), f"{words(after)!r} for {words(before)!r}"


def test_there_are_two():
    assert [path.stem for path in COMMITTED] == ["the_paper", "your_model"]


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_committed_outputs_are_clean(path):
    """Executed in order, with pictures, and with nothing of a machine in them."""
    notebook = read(path)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert sum(map(pictures, code)) >= 3
    assert notebooks.clean(read(path), path.name) == notebook  # which refuses paths and errors
    assert path.stat().st_size < LARGEST
    for before, cell in zip(notebook.cells, notebook.cells[1:], strict=False):
        if cell.cell_type == "markdown":
            assert before.cell_type == "code", "prose in one piece"


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_links_of_notebooks_exist(path):
    text = "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not link.startswith("http")]
    assert links
    for link in links:
        assert (path.parent / link.partition("#")[0]).exists(), link


def with_output(**output: object) -> nbformat.NotebookNode:
    cell = nbformat.v4.new_code_cell("1", outputs=[nbformat.v4.new_output(**output)])
    return nbformat.v4.new_notebook(cells=[cell])


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (
            {"output_type": "stream", "name": "stdout", "text": "in /home/ann/x.json"},
            "'/home/ann/x",
        ),
        ({"output_type": "stream", "name": "stdout", "text": "<Thing at 0x7f3a2b1c>"}, "'0x7f3a"),
        ({"output_type": "stream", "name": "stdout", "text": r"in C:\Users\ann\x"}, "C:"),
        ({"output_type": "stream", "name": "stderr", "text": "FutureWarning: x"}, "FutureWarning"),
        ({"output_type": "error", "ename": "ValueError", "evalue": "no", "traceback": []}, "no"),
        ({"output_type": "execute_result", "data": {"text/plain": "/srv/a/b"}}, "'/srv/a/b'"),
    ],
)
def test_what_is_of_one_machine_is_refused(output, said):
    with pytest.raises(UserError, match=r"x\.ipynb, cell 1 ") as caught:
        notebooks.clean(with_output(**output), "x.ipynb")
    assert said in str(caught.value)


def test_what_is_of_every_machine_stays():
    text = "docs/reproduce.md, 3/4 of 1e-5, https://arxiv.org/abs/2410.01104, ../../results/x.json"
    kept = notebooks.clean(with_output(output_type="stream", name="stdout", text=text), "x.ipynb")
    assert words(kept.cells[0]) == text


@pytest.mark.parametrize(
    ("old", "new"),
    [("0.25 nats", "0.27 nats"), ("9 heads", "8 heads"), ("a 1.0", "b 1.0"), ("1.0", "1.0 2.0")],
)
def test_a_difference_is_found(old, new):
    assert differs(old, new)


def test_rounding_is_no_difference():
    assert not differs("2,507 tokens: 0.25, -1.5", "2,507 tokens: 0.26, -1.4")
