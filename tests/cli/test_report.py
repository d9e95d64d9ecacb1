"""`sharpmax report`: any results as one page; a file that cannot be read is one line and no page."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from sharpmax import cli

RESULTS = Path(__file__).parents[2] / "results"


def run(capsys, *arguments):
    capsys.readouterr()
    code = cli.main(["report", *map(str, arguments)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_results_of_several_kinds(tmp_path, capsys):
    out = tmp_path / "new" / "page.html"
    files = [RESULTS / name for name in ("scan.json", "figure5.json", "calibration-answers.json")]
    code, printed, errors = run(capsys, *files, "--out", out)
    assert (code, errors) == (0, "")
    assert "3 results" in printed
    html = out.read_text("utf-8")
    assert "3 results of sharpmax" in html
    assert [one.name for one in out.parent.iterdir()] == ["page.html"]


def test_a_page_is_not_replaced_unasked(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(capsys, RESULTS / "figure1.json")[0] == 0
    before = Path("report.html").read_bytes()
    code, printed, errors = run(capsys, RESULTS / "figure3.json")
    assert (code, printed) == (2, "")
    assert "report.html exists already" in errors
    assert Path("report.html").read_bytes() == before
    assert run(capsys, RESULTS / "figure3.json", "--overwrite")[0] == 0
    assert Path("report.html").read_bytes() != before


def changed(path: Path, folder: Path, **fields) -> Path:
    """A copy of a result, or of a calibration, with other fields."""
    for beside in path.parent.glob(f"{path.stem}.*.npz"):
        shutil.copy(beside, folder)
    content = json.loads(path.read_text()) | fields
    made = folder / path.name
    made.write_text(json.dumps({key: value for key, value in content.items() if value != "gone"}))
    return made


def text(folder: Path, content: bytes) -> Path:
    (folder / "file.json").write_bytes(content)
    return folder / "file.json"


def without_arrays(folder: Path) -> Path:
    return shutil.copy(RESULTS / "scan.json", folder / "scan.json")


def damaged_arrays(folder: Path) -> Path:
    made = changed(RESULTS / "scan.json", folder)
    next(folder.glob("*.npz")).write_bytes(b"PK")
    return made


SCAN, TABLE, CALIBRATION = (
    RESULTS / name for name in ("scan.json", "table1.json", "calibration-entropy.json")
)
HEAD = {"layer": 1, "head": 0, "rate": 0.1, "short_entropy": 1.0, "long_entropy": 2.0}
BAD = {
    "nothing there": (lambda at: at / "none.json", "none.json does not exist"),
    "a folder": (lambda at: at, "is a folder: give the JSON file in it"),
    "not text": (
        lambda at: text(at, b"\xff\xfe\x00"),
        "file.json is not a sharpmax result: it is not text",
    ),
    "half a file": (lambda at: text(at, SCAN.read_bytes()[:500]), "file.json is damaged: not JSON"),
    "empty": (lambda at: text(at, b""), "file.json is damaged: not JSON"),
    "another program's": (
        lambda at: text(at, b'{"a": 1}'),
        'file.json is not a sharpmax result: it has no "format"',
    ),
    "a list": (lambda at: text(at, b"[1]"), "file.json is not a sharpmax result"),
    "from the future": (
        lambda at: changed(TABLE, at, schema_version=2),
        "table1.json has schema version 2, this sharpmax reads up to 1: upgrade it",
    ),
    "without provenance": (
        lambda at: changed(TABLE, at, provenance="gone"),
        "table1.json is damaged: provenance: Field required",
    ),
    "without arrays": (without_arrays, "which is missing: copy both files"),
    "damaged arrays": (
        damaged_arrays,
        "is damaged: its hash is not the one that scan.json records",
    ),
    "a scan without layers": (
        lambda at: changed(SCAN, at, measurements={}),
        "scan.json is damaged: not what a result of kind 'scan' holds (tokens: Field required)",
    ),
    "a table without sizes": (
        lambda at: changed(TABLE, at, measurements={}),
        "table1.json is damaged: not what a result of kind 'table1' holds (sizes: Input should be",
    ),
    "unknown": (
        lambda at: changed(TABLE, at, kind="poem"),
        "table1.json: no report for results of kind 'poem': expected bench-jax",
    ),
    "a later calibration": (
        lambda at: changed(CALIBRATION, at, version=2),
        "calibration-entropy.json has version 2, this sharpmax reads up to 1",
    ),
    "a calibration without a model": (
        lambda at: changed(CALIBRATION, at, model="gone"),
        "calibration-entropy.json is damaged: model: Field required",
    ),
    "a calibration beyond its model": (
        lambda at: changed(CALIBRATION, at, heads=[HEAD | {"layer": 30}]),
        "layer 30, head 0 is not in its architecture",
    ),
    "a calibration with half a head": (
        lambda at: changed(CALIBRATION, at, heads=[{"layer": 1, "head": 0}]),
        "calibration-entropy.json is damaged: heads.0.rate: Field required",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_file_that_cannot_be_used_is_one_line_and_no_page(case, tmp_path, capsys):
    make, message = BAD[case]
    folder, out = tmp_path / "in", tmp_path / "out" / "page.html"
    folder.mkdir()
    code, printed, errors = run(capsys, RESULTS / "figure1.json", make(folder), "--out", out)
    assert (code, printed) == (2, "")
    assert message in errors
    assert errors.count("\n") == 1
    assert not out.exists()


def test_a_folder_to_write_to_is_asked_for_a_file(tmp_path, capsys):
    code, _, errors = run(capsys, TABLE, "--out", tmp_path, "--overwrite")
    assert code == 2
    assert "is a folder: name the HTML file to write in it" in errors


def test_no_result_is_a_mistake(capsys):
    code, _, errors = run(capsys)
    assert code == 2
    assert "Missing argument" in errors
