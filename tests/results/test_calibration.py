"""The calibration file, without any framework: read back as written, refused if damaged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sharpmax import UserError
from sharpmax.results import Calibration
from sharpmax.results.calibration import is_calibration

FILE = Path(__file__).parents[2] / "results" / "calibration-answers.json"


def damage(tmp_path: Path, **changes: object) -> Path:
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps(json.loads(FILE.read_text("utf-8")) | changes), "utf-8")
    return path


def test_the_committed_file_is_written_as_it_was_read(tmp_path):
    calibration = Calibration.load(FILE)
    path = calibration.save(tmp_path / "copy.json")
    assert path.read_text("utf-8") == FILE.read_text("utf-8")
    with pytest.raises(UserError, match="exists already"):
        calibration.save(path)


def test_rates_are_those_of_the_heads():
    calibration = Calibration.load(FILE)
    rates = calibration.rates()
    assert set(rates) == {head.layer for head in calibration.heads}
    assert sum(map(len, rates.values())) == 9 * len(rates)
    for head in calibration.heads:
        assert rates[head.layer][head.head] == head.rate
    assert sum(rate > 0 for row in rates.values() for rate in row) == len(calibration.heads)


def test_scaled_multiplies_every_rate():
    calibration = Calibration.load(FILE)
    half = calibration.scaled(0.5)
    assert [head.rate for head in half.heads] == [head.rate / 2 for head in calibration.heads]
    for factor in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="must be a positive number"):
            calibration.scaled(factor)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "other"}, "is not a calibration"),
        ({"version": 2}, "has version 2, this sharpmax reads up to 1"),
        ({"from_tokens": 0}, "is damaged: from_tokens"),
        (
            {"heads": [{"layer": 0, "head": 9, "rate": 1, "short_entropy": 1, "long_entropy": 1}]},
            "layer 0, head 9 is not in its architecture",
        ),
        (
            {"heads": [{"layer": 30, "head": 0, "rate": 1, "short_entropy": 1, "long_entropy": 1}]},
            "layer 30, head 0 is not in its architecture",
        ),
        ({"unknown": 1}, "is damaged: unknown"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        Calibration.load(damage(tmp_path, **changes))


def test_other_files_are_not_calibrations(tmp_path):
    assert is_calibration(FILE)
    assert not is_calibration(FILE.with_name("figure1.json"))
    assert not is_calibration(tmp_path / "missing.json")
    assert not is_calibration(damage(tmp_path, format=None))


def test_results_and_reports_need_no_framework():
    source = (
        "import sys\nimport sharpmax.report\nfrom sharpmax.results import Calibration\n"
        "assert not {'torch', 'jax', 'transformers'} & set(sys.modules), 'a framework is loaded'"
    )
    subprocess.run([sys.executable, "-c", source], check=True)
