"""Table 1: the whole way, small; what is published, and that it says what it should."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from sharpmax import UserError, report
from sharpmax.cli.commands import reproduce
from sharpmax.experiments.max_retrieval import heads, paper, table1
from sharpmax.experiments.max_retrieval.settings import Training
from sharpmax.experiments.max_retrieval.table1 import Config
from sharpmax.report.numbers import p_value, share
from sharpmax.results import Result

ROOT = Path(__file__).parents[3]
SMALL = Config(Training(steps=300, batch=32, kept_at=()), seeds=(0, 1), sizes=(16, 64), sets=50)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """By the command's own function, on all cores."""
    folder = tmp_path_factory.mktemp("table1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table1, "QUICK", SMALL)
        result, files = reproduce.run_experiment("table1", folder, False, quick=True)
    return folder, result, files


def test_what_is_written(written):
    folder, result, files = written
    assert [path.name for path in files] == [
        f"table1-quick.{suffix}" for suffix in ("json", "png", "svg", "safetensors")
    ]
    assert Result.load(folder / "table1-quick.json").measurements == result.measurements
    assert heads.load(files[1]).sha256 == result.measurements["heads_sha256"]
    assert heads.load(files[1]).training == SMALL.training
    assert result.arrays["losses"].shape == (2, 3)
    assert result.provenance.packages["jax"]
    assert len(result.measurements["training_seconds"]) == 2


def test_every_answer_is_right_or_lost_to_one_cause(written):
    found = written[1].measurements
    for name, causes in found["attribution"].items():
        lost = np.asarray(causes["dispersion"]) + np.asarray(causes["ranking"])
        np.testing.assert_allclose(np.asarray(found["mean"][name]) + lost, 1)
    accuracy = np.asarray(found["accuracy"]["baseline"])
    assert accuracy.shape == (2, 2)
    assert accuracy[:, 0].mean() > 0.5  # it has learned something in 300 steps


def test_a_finished_training_is_not_repeated(written):
    folder, result, _ = written
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("seed*.safetensors")}
    assert len(before) == 2
    again = table1.run(SMALL, folder / "training")
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert again.measurements["accuracy"] == result.measurements["accuracy"]
    np.testing.assert_array_equal(again.arrays["losses"], result.arrays["losses"])


def test_results_are_not_replaced_unasked(written):
    with pytest.raises(UserError, match=r"table1-quick\.json.* exists already"):
        reproduce.run_experiment("table1", written[0], False, quick=True)


def test_the_table_in_the_terminal_has_the_papers_numbers(written, capsys):
    report.show(written[1])
    shown = capsys.readouterr().out
    assert "98.6" in shown
    assert "confirmed" in shown
    assert "2 heads" in shown
    assert "to dispersion" in " ".join(shown.split())


def test_the_papers_table_is_whole():
    assert tuple(paper.TABLE1) == paper.SIZES
    assert {row.sure for row in paper.TABLE1.values()} <= set(paper.SURE)
    for row in paper.TABLE1.values():
        assert row.adaptive >= row.baseline


@pytest.fixture(scope="module")
def published():
    return Result.load(ROOT / "results" / "table1.json")


def test_the_published_run_is_the_full_one(published):
    assert published.config["training"]["steps"] == 100_000
    assert published.seeds == tuple(range(10))
    assert tuple(published.config["sizes"]) == paper.SIZES
    assert published.arrays["losses"].shape == (10, 1_000)
    assert max(published.measurements["sampling_error"]) <= 0.005
    assert min(published.measurements["training_seconds"]) > 60
    assert "+changes" not in published.provenance.commit


def test_adaptive_temperature_helps_where_the_paper_says(published):
    found = published.measurements
    gain = np.asarray(found["mean"]["adaptive"]) - np.asarray(found["mean"]["baseline"])
    for place, size in enumerate(found["sizes"]):
        if 256 <= size <= 4_096:
            assert gain[place] > 0
            assert found["p"][place] < 0.05


def test_the_page_shows_what_was_measured(published):
    page = (ROOT / "docs" / "max_retrieval.md").read_text("utf-8")
    found = published.measurements
    for place, size in enumerate(found["sizes"]):
        (line,) = re.findall(rf"^\| {size:,} \|(.*)\|$", page, re.M)
        cells = [cell.strip() for cell in line.split("|")]
        expected = [
            share(found["mean"][name][place], found["std"][name][place])
            for name in ("baseline", "adaptive")
        ]
        assert cells[:2] == expected
        p = found["p"][place]
        assert cells[2] == ("-" if p is None else p_value(p))
