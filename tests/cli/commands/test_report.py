"""`sharpmax report`: results of any kind as one HTML file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

RESULTS = Path(__file__).parents[3] / "results"


def test_results_of_several_kinds(tmp_path, succeed):
    out = tmp_path / "new" / "page.html"
    files = [RESULTS / name for name in ("scan.json", "figure5.json", "calibration-answers.json")]
    finished = succeed("report", *files, "--out", out)
    assert finished.err == ""
    assert "3 results" in finished.out
    assert "3 results of sharpmax" in out.read_text("utf-8")
    assert [path.name for path in out.parent.iterdir()] == ["page.html"]


def test_an_existing_file_is_kept(tmp_path, succeed, fail, monkeypatch):
    monkeypatch.chdir(tmp_path)
    succeed("report", RESULTS / "figure1.json")
    before = Path("report.html").read_bytes()
    assert "report.html exists already" in fail("report", RESULTS / "figure3.json")
    assert Path("report.html").read_bytes() == before
    succeed("report", RESULTS / "figure3.json", "--overwrite")
    assert Path("report.html").read_bytes() != before


def change(path: Path, folder: Path, **fields) -> Path:
    """Copy a result or a calibration with other fields; the value "gone" deletes a field."""
    for beside in path.parent.glob(f"{path.stem}.*.npz"):
        shutil.copy(beside, folder)
    content = json.loads(path.read_text()) | fields
    copy = folder / path.name
    copy.write_text(json.dumps({key: value for key, value in content.items() if value != "gone"}))
    return copy


def write(folder: Path, content: bytes) -> Path:
    (folder / "file.json").write_bytes(content)
    return folder / "file.json"


def without_arrays(folder: Path) -> Path:
    return shutil.copy(RESULTS / "scan.json", folder / "scan.json")


def damaged_arrays(folder: Path) -> Path:
    copy = change(RESULTS / "scan.json", folder)
    next(folder.glob("*.npz")).write_bytes(b"PK")
    return copy


SCAN, TABLE, CALIBRATION = (
    RESULTS / name for name in ("scan.json", "table1.json", "calibration-entropy.json")
)
HEAD = {"layer": 1, "head": 0, "rate": 0.1, "short_entropy": 1.0, "long_entropy": 2.0}
BAD = {
    "nothing there": (lambda at: at / "none.json", "none.json does not exist"),
    "a folder": (lambda at: at, "is a folder: give the JSON file in it"),
    "not text": (
        lambda at: write(at, b"\xff\xfe\x00"),
        "file.json is not a sharpmax result: it is not text",
    ),
    "samples of a training": (
        lambda at: write(at, b'{"format": 1}\n{"step": 1}\n').rename(at / "file.jsonl"),
        "file.jsonl is not a sharpmax result, but lines of JSON: if it holds the statistics of a",
    ),
    "half a file": (
        lambda at: write(at, SCAN.read_bytes()[:500]),
        "file.json is damaged: not JSON",
    ),
    "empty": (lambda at: write(at, b""), "file.json is damaged: not JSON"),
    "another program's": (
        lambda at: write(at, b'{"a": 1}'),
        'file.json is not a sharpmax result: it has no "format"',
    ),
    "a list": (lambda at: write(at, b"[1]"), "file.json is not a sharpmax result"),
    "from the future": (
        lambda at: change(TABLE, at, schema_version=2),
        "table1.json has schema version 2, this sharpmax reads up to 1: upgrade it",
    ),
    "without provenance": (
        lambda at: change(TABLE, at, provenance="gone"),
        "table1.json is damaged: provenance: Field required",
    ),
    "without arrays": (without_arrays, "which is missing: copy both files"),
    "damaged arrays": (
        damaged_arrays,
        "is damaged: its hash is not the one that scan.json records",
    ),
    "a scan without layers": (
        lambda at: change(SCAN, at, measurements={}),
        "scan.json is damaged: not what a result of kind 'scan' holds (tokens: Field required)",
    ),
    "a table without sizes": (
        lambda at: change(TABLE, at, measurements={}),
        "table1.json is damaged: not what a result of kind 'table1' holds (mean: Field required",
    ),
    "unknown": (
        lambda at: change(TABLE, at, kind="poem"),
        "table1.json: no report for results of kind 'poem': expected evaluate, ",
    ),
    "a later calibration": (
        lambda at: change(CALIBRATION, at, version=3),
        "calibration-entropy.json has version 3, this sharpmax reads up to 2",
    ),
    "a calibration without a model": (
        lambda at: change(CALIBRATION, at, model="gone"),
        "calibration-entropy.json is damaged: model: Field required",
    ),
    "a calibration beyond its model": (
        lambda at: change(CALIBRATION, at, heads=[HEAD | {"layer": 30}]),
        "layer 30, head 0 is not in its architecture",
    ),
    "a calibration with half a head": (
        lambda at: change(CALIBRATION, at, heads=[{"layer": 1, "head": 0}]),
        "calibration-entropy.json is damaged: heads.0.rate: Field required",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_one_line_and_no_report(case, tmp_path, fail):
    make, message = BAD[case]
    folder, out = tmp_path / "in", tmp_path / "out" / "page.html"
    folder.mkdir()
    assert message in fail("report", RESULTS / "figure1.json", make(folder), "--out", out)
    assert not out.exists()


def test_a_folder_as_output(tmp_path, fail):
    error = fail("report", TABLE, "--out", tmp_path, "--overwrite")
    assert "is a folder: name the HTML file to write in it" in error


def test_no_result(fail):
    assert "Missing argument" in fail("report")
