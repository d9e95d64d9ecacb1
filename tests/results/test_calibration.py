"""The calibration file, without any framework: read back as written, refused if damaged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sharpmax import UserError
from sharpmax.policies import _answers
from sharpmax.results import Calibration
from sharpmax.results.calibration import (
    LARGEST,
    Head,
    Law,
    TaskGain,
    TextCost,
    is_calibration,
)

FILE = Path(__file__).parents[2] / "results" / "calibration-answers.json"


def damage(tmp_path: Path, **changes: object) -> Path:
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps(json.loads(FILE.read_text("utf-8")) | changes), "utf-8")
    return path


def test_a_file_of_version_1_is_read_with_the_law_it_was_made_for(tmp_path):
    assert json.loads(FILE.read_text("utf-8"))["version"] == 1
    calibration = Calibration.load(FILE)
    assert (calibration.version, calibration.law) == (2, Law(name="log-length", low=0, high=2))
    path = calibration.save(tmp_path / "copy.json")
    assert Calibration.load(path) == calibration
    assert json.loads(path.read_text("utf-8"))["version"] == 2
    with pytest.raises(UserError, match="exists already"):
        calibration.save(path)


def test_a_file_of_version_2_has_rates_of_any_sign_gains_and_costs(tmp_path):
    gain = TaskGain(
        task="lookup",
        unit="names",
        length=32,
        tokens=400,
        tuned_on=True,
        questions=8,
        right_before=0.25,
        right_after=0.75,
        nats_before=-3.0,
        nats_after=-1.0,
    )
    calibration = Calibration.load(FILE).model_copy(
        update={
            "law": Law(low=0.3, high=3),
            "gains": (gain, gain),
            "text_cost": TextCost(tokens=100, nats_before=2.0, nats_after=2.01),
            "heads": (Head(layer=3, head=2, rate=-0.25), Head(layer=4, head=0, rate=0.5)),
        }
    )
    path = calibration.save(tmp_path / "tuned.json")
    assert Calibration.load(path) == calibration
    assert calibration.text_cost.relative == pytest.approx(0.005)
    assert len(path.read_text("utf-8").splitlines()) == 19  # a line per field, gain and head
    assert calibration.rates()[3] == (0, 0, -0.25, 0, 0, 0, 0, 0, 0)


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
        ({"version": 3}, "has version 3, this sharpmax reads up to 2"),
        ({"law": {"low": 0.3, "high": 0.9}}, r"is damaged: law\.high"),
        ({"law": {"name": "cubic"}}, r"is damaged: law\.name"),
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


def changed_head(**changes: object) -> dict[str, object]:
    heads = json.loads(FILE.read_text("utf-8"))["heads"]
    return {"heads": [heads[0] | changes, *heads[1:]]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (changed_head(rate=1e39), r"heads\.0\.rate: Input should be less than or equal to 1000"),
        (changed_head(rate=-1e19), r"heads\.0\.rate: Input should be greater than or equal to -1"),
        (changed_head(head=True), r"heads\.0\.head: Input should be a valid integer"),
        (changed_head(head="1"), r"heads\.0\.head: Input should be a valid integer"),
        ({"law": {"high": 1e19}}, r"law\.high: Input should be less than or equal to 1000"),
        ({"from_tokens": 10**400}, "from_tokens: Input should be less than or equal to 10000"),
        ({"from_tokens": "128"}, "from_tokens: Input should be a valid integer"),
        ({"version": True}, "version: expected a whole number"),
    ],
)
def test_numbers_that_would_overflow_or_are_none_are_refused(tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        Calibration.load(damage(tmp_path, **changes))


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ([9.5] * 30, r"architecture\.heads\.0: Input should be a valid integer"),
        (["9"] * 30, r"architecture\.heads\.0: Input should be a valid integer"),
        ([True] * 30, r"architecture\.heads\.0: Input should be a valid integer"),
        ([0] * 30, r"architecture\.heads\.0: Input should be greater than or equal to 1"),
        ([10**12] * 30, r"architecture\.heads\.0: Input should be less than or equal to 1000"),
        ([9] * 29, "architecture: Value error, heads of 29 layers, 30 expected"),
    ],
)
def test_an_architecture_that_no_model_has_is_refused(tmp_path, heads, message):
    architecture = {"model_type": "llama", "layers": 30, "heads": heads}
    with pytest.raises(UserError, match=message):
        Calibration.load(damage(tmp_path, architecture=architecture))


def test_the_largest_rate_is_the_largest_answer_of_a_policy():
    assert LARGEST == _answers.LARGEST
    calibration = Calibration.load(FILE)
    with pytest.raises(ValueError, match=r"gives a rate of .*e\+\d+, at most 1e\+18 are allowed"):
        calibration.scaled(1e20)
