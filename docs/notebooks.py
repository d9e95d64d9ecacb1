"""The notebooks of docs/notebooks, run from top to bottom: what one reads in them is what the code
prints. `make notebooks` after the library or a notebook has changed.

    python docs/notebooks.py [--out FOLDER] [NAME ...]

Nothing of the machine stays in them: no times, no paths, no warnings. A cell whose output has one
of the last two is refused by name.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from sharpmax._errors import UserError
from sharpmax._files import write_atomically

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "notebooks"
PATIENCE = 600
"""Seconds that a kernel may take to start, and a cell to run, on a busy machine."""

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
ABSOLUTE = re.compile(r"(?<![\w.:/<])(?:~|[A-Z]:)?[/\\][\w.-]+[/\\][\w./\\-]+|0x[0-9a-f]{6,}")
"""Two folders deep, or an address in memory: of one machine, or of one run."""

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # the debugger's word about frozen modules
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "PYTHONWARNINGS": "ignore:IProgress not found",  # by tqdm, whose bars are not shown here
}


def executed(notebook: nbformat.NotebookNode, folder: Path) -> nbformat.NotebookNode:
    """The notebook with fresh outputs. It runs as if in docs/notebooks of a clone made of `folder`,
    so that what it writes goes there.
    """
    here = folder / "docs" / "notebooks"
    here.mkdir(parents=True)
    (folder / "results").symlink_to(ROOT / "results")
    fresh = nbformat.from_dict(notebook)
    client = NotebookClient(
        fresh,
        timeout=PATIENCE,
        startup_timeout=PATIENCE,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(here)}},
    )
    # Through files of this folder: no port is opened for others to find.
    manager = client.create_kernel_manager()
    manager.transport, manager.connection_file = "ipc", str(folder / "kernel.json")
    # Without the settings and the history of whoever runs it.
    own = {"IPYTHONDIR": str(folder / "ipython")}
    try:
        client.execute(env={**os.environ, **ENVIRONMENT, **own})
    except CellExecutionError as error:
        source = " ".join(fresh.cells[_failed(fresh)].source.split())
        raise UserError(f"{error.ename}: {error.evalue}, in {source[:60]!r}…") from error
    return fresh


def _failed(notebook: nbformat.NotebookNode) -> int:
    """The place of the cell with an error."""
    return next(
        place
        for place, cell in enumerate(notebook.cells)
        if any(output.output_type == "error" for output in cell.get("outputs", []))
    )


def cleaned(notebook: nbformat.NotebookNode, name: str) -> nbformat.NotebookNode:
    """Without what differs from run to run; an output that should not be there is refused."""
    notebook.metadata = nbformat.from_dict(METADATA)
    for number, cell in enumerate(notebook.cells, start=1):
        cell.metadata = nbformat.from_dict({})
        cell.id = f"cell-{number}"
        for output in cell.get("outputs", []):
            output.pop("metadata", None)
            if output.output_type in ("display_data", "execute_result"):
                output.metadata = nbformat.from_dict({})
            if output.output_type == "error" or output.get("name") == "stderr":
                text = output.get("evalue") or output.get("text", "")
                raise UserError(f"{name}, cell {number} has a warning or an error: {text.strip()}")
            if found := ABSOLUTE.search(shown(output)):
                raise UserError(f"{name}, cell {number} shows {found.group()!r}, of this machine")
    return notebook


def shown(output: nbformat.NotebookNode) -> str:
    """What an output says in words."""
    if output.output_type == "stream":
        return str(output.text)
    return "\n".join(
        str(value) for kind, value in output.get("data", {}).items() if kind.startswith("text/")
    )


def run(path: Path, target: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        fresh = cleaned(executed(notebook, Path(folder)), path.name)
    nbformat.validate(fresh)
    content = nbformat.writes(fresh).rstrip("\n") + "\n"
    write_atomically(target, content.encode())
    print(f"Written: {target.name} ({len(content) / 1e3:.0f} kB)")


def main() -> None:
    parser = argparse.ArgumentParser(description="Run the notebooks of docs/notebooks.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="such as the_paper; default: all")
    parser.add_argument("--out", type=Path, default=FOLDER, help="where to write them")
    asked = parser.parse_args()
    there = {path.stem: path for path in sorted(FOLDER.glob("*.ipynb"))}
    for name in asked.names or there:
        if name not in there:
            raise UserError(f"no notebook {name!r}: expected one of {', '.join(there)}")
        run(there[name], asked.out / there[name].name)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
