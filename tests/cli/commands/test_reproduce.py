"""`sharpmax reproduce` and `sharpmax demo`: files, tables, and refusing to overwrite."""

from __future__ import annotations

import json

import numpy as np
import pytest

from report import synthetic_study
from report.synthetic_comparison import comparison
from sharpmax.experiments.study import experiment as study
from sharpmax.experiments.tune_comparison import experiment
from sharpmax.hf import Evaluation
from sharpmax.results import Result


def test_reproduce_writes_three_files_and_keeps_existing_ones(tmp_path, succeed, fail):
    finished = succeed("reproduce", "figure1", "--out", tmp_path)
    files = [tmp_path / f"figure1.{suffix}" for suffix in ("json", "png", "svg")]
    assert finished.out.splitlines()[-3:] == [*map(str, files)]
    assert files[1].read_bytes().startswith(b"\x89PNG")
    assert files[2].read_text().lstrip().startswith("<?xml")
    assert Result.load(files[0]).kind == "figure1"

    picture = files[1].read_bytes()
    files[0].unlink()
    assert "figure1.png" in (error := fail("reproduce", "figure1", "--out", tmp_path))
    assert "exists already" in error
    assert files[1].read_bytes() == picture
    assert not files[0].exists()
    succeed("reproduce", "figure1", "--out", tmp_path, "--overwrite")
    assert files[0].exists()


def test_figure_3_of_another_model(model_folder, tmp_path, succeed, fail):
    command = ["reproduce", "figure3", "--model", model_folder, "--out", tmp_path / "out"]
    assert "the context of this model is 512" in fail(*command)  # 512 numbers do not fit
    config = json.loads((model_folder / "config.json").read_text())
    config["max_position_embeddings"] = 4096
    (model_folder / "config.json").write_text(json.dumps(config))
    succeed(*command)
    measurements = Result.load(tmp_path / "out" / "figure3.json").measurements
    assert measurements["model"] == str(model_folder)
    assert np.shape(measurements["entropy"]) == (5, 7, 4)
    succeed(*command, "--layer", "1")
    second = Result.load(tmp_path / "out" / "figure3-layer-1.json")
    assert second.config["layer"] == 1
    assert not np.allclose(second.measurements["entropy"], measurements["entropy"])
    assert "layers: no 9 among 3" in fail(*command, "--layer", "9")


def test_the_comparison_takes_some_conditions_and_threads(monkeypatch, tmp_path, succeed, fail):
    error = fail("reproduce", "figure1", "--only", "plain", "--out", tmp_path)
    assert "--only plain goes with tune-comparison, study, train-normalisers, not" in error
    command = ["reproduce", "tune-comparison", "--out", tmp_path]
    error = fail(*command, "--only", "plain,tuna")
    assert "unknown condition 'tuna': expected one of plain, tune-1" in error

    given = {}

    def run(config, **arguments):
        given.update(arguments, model=config.model)
        return comparison("plain", "tune-1")

    monkeypatch.setattr(experiment, "run", run)
    finished = succeed(*command, "--only", "plain, tune-1", "--threads", "2", "--model", "mine")
    assert given.pop("progress")
    assert given == {
        "only": ["plain", "tune-1"],
        "threads": 2,
        "folder": tmp_path / "training",
        "model": "mine",
    }
    assert "the plain model answers 16.0 %" in finished.out
    assert Result.load(tmp_path / "tune-comparison.json").kind == "tune-comparison"


def test_the_study_takes_a_model_and_keeps_its_measurements_beside_the_result(
    monkeypatch, tmp_path, succeed, fail
):
    error = fail("reproduce", "study", "--model", "gpt2", "--out", tmp_path)
    assert "model 'gpt2': the study measures smollm2, gemma-3-270m, qwen2.5-coder-1.5b" in error
    given = {}

    def run(config, **arguments):
        given.update(arguments, model=config.model)
        return synthetic_study.study()

    monkeypatch.setattr(study, "run", run)
    command = ["reproduce", "study", "--out", tmp_path, "--model", "smollm2", "--only", "plain"]
    finished = succeed(*command)
    assert given.pop("progress")
    assert given == {
        "only": ["plain"],
        "threads": None,
        "folder": tmp_path / "study",
        "model": "smollm2",
    }
    assert "For smollm2, tune helps." in finished.out
    assert "exists already" in fail(*command)  # without the measurements that it holds
    (tmp_path / "study").mkdir()
    succeed("reproduce", "study", "--out", tmp_path, "--only", "")
    assert given["only"] == []
    assert Result.load(tmp_path / "study.json").kind == "study"


def test_demo_refuses_before_it_writes_anything(tmp_path, fail):
    (tmp_path / "demo.html").touch()
    assert "demo.html exists already" in fail("demo", "--out", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["demo.html"]


@pytest.mark.slow
def test_demo_shows_the_loss_and_the_fix_on_a_real_model(tmp_path, succeed):
    out = succeed("demo", "--out", tmp_path).out
    scan = Result.load(tmp_path / "scan.json")
    assert scan.config["lengths"] == [8, 16, 32, 64, 128, 256, 512]
    assert scan.arrays["last_entropy"].shape == (7, 30, 9)
    assert f"{scan.arrays['last_entropy'][-1].mean():.2f}" in out
    evaluation = Evaluation.load(tmp_path / "evaluate_lookup.json")
    assert evaluation.conditions == ["plain", "tuned"]
    for length in (32, 64):
        compared = evaluation.row(length, "tuned")["compared"]
        # 48 questions: less than half of the gain that was measured on hundreds.
        assert compared["difference"] > 0.25
        assert compared["p_adjusted"] < 0.05
        assert f"{100 * evaluation.row(length, 'tuned')['accuracy']['mean']:.1f}" in out
    assert "On this task, use tuned, which gains most." in " ".join(out.split())
    page = (tmp_path / "demo.html").read_text("utf-8")
    assert page.index("Correct answers") < page.index("The steepest heads")
    for name in ("scan.png", "scan.html", "evaluate_lookup.png"):
        assert (tmp_path / name).stat().st_size > 0
    assert not list(tmp_path.glob("*part*"))
