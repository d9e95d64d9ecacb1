"""Execute the notebooks in docs/notebooks. Run `make notebooks` after changing the library or one.

    python tools/notebooks.py [--out FOLDER] [NAME ...]

Outputs hold nothing that depends on the machine: timings are removed, and a cell that prints a path
or a warning is refused.
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
"""Time limit in seconds for a kernel to start and for a cell to run, on a busy machine."""

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
ABSOLUTE = re.compile(r"(?<![\w.:/<])(?:~|[A-Z]:)?[/\\][\w.-]+[/\\][\w./\\-]+|0x[0-9a-f]{6,}")
"""A path of two or more folders, or a memory address."""

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # no warning about frozen modules
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "PYTHONWARNINGS": "ignore:IProgress not found",  # tqdm's bars are not shown here
}


def execute(notebook: nbformat.NotebookNode, folder: Path) -> nbformat.NotebookNode:
    """Return the notebook with fresh outputs, run in a scratch clone so that its files go there."""
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
    # Sockets in this folder instead of ports that other users could reach.
    manager = client.create_kernel_manager()
    manager.transport, manager.connection_file = "ipc", str(folder / "kernel.json")
    # Ignore the IPython settings and history of the user.
    settings = {"IPYTHONDIR": str(folder / "ipython")}
    try:
        client.execute(env={**os.environ, **ENVIRONMENT, **settings})
    except CellExecutionError as error:
        source = " ".join(fresh.cells[_failed_cell(fresh)].source.split())
        raise UserError(f"{error.ename}: {error.evalue}, in {source[:60]!r}…") from error
    return fresh


def _failed_cell(notebook: nbformat.NotebookNode) -> int:
    """Return the index of the cell that raised."""
    return next(
        index
        for index, cell in enumerate(notebook.cells)
        if any(output.output_type == "error" for output in cell.get("outputs", []))
    )


def clean(notebook: nbformat.NotebookNode, name: str) -> nbformat.NotebookNode:
    """Remove what differs from run to run; refuse an output that depends on the machine."""
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
                raise UserError(
                    f"{name}, cell {number} printed a warning or an error: {text.strip()}"
                )
            if match := ABSOLUTE.search(output_text(output)):
                raise UserError(
                    f"{name}, cell {number} prints {match.group()!r}, which depends on the machine"
                )
    return notebook


def output_text(output: nbformat.NotebookNode) -> str:
    """Return the text of an output."""
    if output.output_type == "stream":
        return str(output.text)
    return "\n".join(
        str(value) for kind, value in output.get("data", {}).items() if kind.startswith("text/")
    )


def update(path: Path, target: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        fresh = clean(execute(notebook, Path(folder)), path.name)
    nbformat.validate(fresh)
    content = nbformat.writes(fresh).rstrip("\n") + "\n"
    write_atomically(target, content.encode())
    print(f"Written: {target.name} ({len(content) / 1e3:.0f} kB)")


def main() -> None:
    parser = argparse.ArgumentParser(description="Run the notebooks of docs/notebooks.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="such as the_paper; default: all")
    parser.add_argument("--out", type=Path, default=FOLDER, help="where to write them")
    options = parser.parse_args()
    available = {path.stem: path for path in sorted(FOLDER.glob("*.ipynb"))}
    for name in options.names or available:
        if name not in available:
            raise UserError(f"no notebook {name!r}: expected one of {', '.join(available)}")
        update(available[name], options.out / available[name].name)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
