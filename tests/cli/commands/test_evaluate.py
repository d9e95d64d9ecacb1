"""`sharpmax evaluate` and `sharpmax calibrate` on a model in a folder."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest

import sharpmax.hf as shf
from hf.small import llama, tokenizer
from sharpmax import PAPER, Constant
from sharpmax.hf.evaluate.scoring import score_answers, score_reference

PAPER_OPTION = ["--policy", "paper"]
SMALL = ["--lengths", "2,3", "--prompts", "6", "--questions", "1"]


def model():
    """Return a model with a head whose sharpening helps a little."""
    return llama(context=700, initializer_range=0.2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "tiny"
    model().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def test_an_evaluation_is_a_table_a_result_and_a_picture(folder, tmp_path, succeed, fail):
    out = tmp_path / "out"
    options = [*SMALL, "--policy", "paper", "--policy", "constant:1.5@1-2", "--out", out]
    printed = succeed("evaluate", folder, *options).out
    result = shf.Evaluation.load(out / "evaluate_lookup.json")
    assert result.conditions == ["plain", "paper", "constant:1.5@1-2"]
    direct = shf.evaluate(
        model(),
        tokenizer(),
        "lookup",
        {"paper": PAPER, "band": shf.Condition(Constant(1.5), layers=[1, 2])},
        lengths=[2, 3],
        prompts=6,
        questions=1,
    )
    np.testing.assert_allclose(result.log_probability, direct.log_probability, atol=1e-4)
    row = direct.row(3, "band")["log_probability_compared"]
    assert f"{row['difference']:.2f}" in printed
    assert "exact sign-flip test over texts" in " ".join(printed.split())
    names = {path.name for path in out.iterdir()}
    pictures = {f"evaluate_lookup.{suffix}" for suffix in ("json", "png", "svg")}
    assert names == {result.arrays_file, *pictures}
    assert "exists already" in fail("evaluate", folder, *options)


def test_an_interrupted_evaluation_resumes(folder, tmp_path, run, succeed, monkeypatch):
    module, calls = import_module("sharpmax.hf.evaluate.evaluate"), []
    monkeypatch.setattr(module, "SECONDS_BETWEEN_SAVES", 0.0)

    def interrupt(*arguments):
        if len(calls) == 9:
            raise KeyboardInterrupt
        calls.append(1)
        return score_answers(*arguments)

    out = tmp_path / "out"
    monkeypatch.setattr(module, "score_answers", interrupt)
    assert run("evaluate", folder, *SMALL, *PAPER_OPTION, "--out", out).code == 130
    assert (out / "evaluate_lookup.part.json").exists()
    monkeypatch.setattr(module, "score_answers", score_answers)
    succeed("evaluate", folder, *SMALL, *PAPER_OPTION, "--out", out)
    assert not list(out.glob("*.part*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "poem"], "unknown task 'poem': expected one of max, passkey, lookup"),
        ([], "no tuned calibration comes with sharpmax for these weights"),
        (["--policy", "softest"], "unknown policy 'softest': expected one of paper"),
        (["--policy", "paper@x"], "--policy: expected whole numbers such as 0,4-7, got 'x'"),
        (["--policy", "paper@7"], "layers: no 7 among 3"),
        (["--policy", "none.json"], "none.json does not exist"),
        (["--policy", "paper", "--policy", "paper"], "have the same name"),
        (["--lengths", "2,90", *PAPER_OPTION], "90 names make"),
        (
            ["--prompts", "5", *PAPER_OPTION],
            "prompts=5: no outcome of a paired test is significant",
        ),
        (["--questions", "3", *PAPER_OPTION], "asks for 3 different names of 2"),
        (["--task", "max", "--questions", "2", *PAPER_OPTION], "'max' has one question per prompt"),
    ],
)
def test_an_error_leaves_nothing(folder, tmp_path, fail, arguments, message):
    assert message in fail("evaluate", folder, *SMALL, *arguments, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_calibration_is_made_and_used(folder, tmp_path, succeed, fail):
    out = tmp_path / "out"
    options = ["--short", "2,3", "--long", "8", "--prompts", "4", "--questions", "2", "--out", out]
    printed = succeed("calibrate", folder, *options).out
    path = out / "calibration-answers.json"
    calibration = shf.Calibration.load(path)
    assert f"{len(calibration.heads)} of 12 heads were chosen on the task" in " ".join(
        printed.split()
    )
    for head in calibration.heads:
        assert f"{head.benefit:.3f} ± {head.benefit_error:.3f}" in printed
    assert "calibration-answers.json exists already" in fail("calibrate", folder, *options)

    options = [*SMALL[2:], "--lengths", "8", "--policy", path, "--out", out]
    succeed("evaluate", folder, *options)
    result = shf.Evaluation.load(out / "evaluate_lookup.json")
    assert result.conditions == ["plain", "calibration-answers"]
    change = result.row(8, "calibration-answers")["log_probability_compared"]["difference"]
    assert abs(change) > 1e-6


def test_an_interrupted_calibration_resumes(folder, tmp_path, run, succeed, monkeypatch):
    module, out = import_module("sharpmax.hf.tune.calibrate"), tmp_path / "out"
    monkeypatch.setattr(module, "SECONDS_BETWEEN_SAVES", 0.0)
    options = ["--short", "2,3", "--long", "8", "--prompts", "4", "--questions", "2", "--out", out]
    calls = []

    def interrupt_the_second(*arguments):
        if calls:
            raise KeyboardInterrupt
        calls.append(arguments)
        return score_reference(*arguments)

    monkeypatch.setattr(module, "score_reference", interrupt_the_second)
    assert run("calibrate", folder, *options).code == 130
    assert (out / "calibration-answers.part.json").exists()
    # The resumed command neither measures heads again nor repeats answered questions.
    monkeypatch.setattr(module, "measure_entropies", None)
    monkeypatch.setattr(module, "measure_benefits", None)
    monkeypatch.setattr(module, "score_reference", score_reference)
    succeed("calibrate", folder, *options)
    assert [path.name for path in out.iterdir()] == ["calibration-answers.json"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--choose", "luck"], "choose='luck': expected one of answers, entropy"),
        (["--short", "4", "--long", "2"], "give longer long lengths"),
        (["--prompts", "2"], "prompts=2: give at least 4"),
    ],
)
def test_a_calibration_that_is_refused(folder, tmp_path, fail, arguments, message):
    options = [*arguments, "--questions", "1", "--out", tmp_path / "out"]
    assert message in fail("calibrate", folder, *options)
    assert not (tmp_path / "out").exists()
