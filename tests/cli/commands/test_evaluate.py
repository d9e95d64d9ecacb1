"""`sharpmax evaluate` and `sharpmax calibrate` on a model in a folder."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest

import sharpmax.hf as shf
from hf.small import llama, tokenizer
from sharpmax import PAPER, Constant
from sharpmax.hf.evaluate import marks
from sharpmax.hf.evaluate.scoring import answers

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
    assert result.arms == ["plain", "paper", "constant:1.5@1-2"]
    direct = shf.evaluate(
        model(),
        tokenizer(),
        "lookup",
        {"paper": PAPER, "band": shf.Arm(Constant(1.5), layers=[1, 2])},
        lengths=[2, 3],
        prompts=6,
        questions=1,
    )
    np.testing.assert_allclose(result.log_probability, direct.log_probability, atol=1e-4)
    row = direct.row(3, "band")["log_probability_compared"]
    assert f"{row['difference']:+.2f}" in printed
    assert "detects with 80 % power" in " ".join(printed.split())
    names = {path.name for path in out.iterdir()}
    pictures = {f"evaluate_lookup.{suffix}" for suffix in ("json", "png", "svg")}
    assert names == {result.arrays_file, *pictures}
    assert "exists already" in fail("evaluate", folder, *options)


def test_an_interrupted_evaluation_resumes(folder, tmp_path, run, succeed, monkeypatch):
    monkeypatch.setattr(marks, "KEEP_EVERY", 0.0)
    module, calls = import_module("sharpmax.hf.evaluate.evaluate"), []

    def interrupt(*arguments):
        if len(calls) == 9:
            raise KeyboardInterrupt
        calls.append(1)
        return answers(*arguments)

    out = tmp_path / "out"
    monkeypatch.setattr(module, "answers", interrupt)
    assert run("evaluate", folder, *SMALL, "--out", out).code == 130
    assert (out / "evaluate_lookup.part.json").exists()
    monkeypatch.setattr(module, "answers", answers)
    succeed("evaluate", folder, *SMALL, "--out", out)
    assert not list(out.glob("*.part*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "poem"], "unknown task 'poem': expected one of max, passkey, lookup"),
        (["--policy", "softest"], "unknown policy 'softest': expected one of paper"),
        (["--policy", "paper@x"], "--policy: expected whole numbers such as 0,4-7, got 'x'"),
        (["--policy", "paper@7"], "layers: no 7 among 3"),
        (["--policy", "none.json"], "none.json does not exist"),
        (["--policy", "paper", "--policy", "paper"], "have the same name"),
        (["--lengths", "2,90"], "90 names are"),
        (["--prompts", "5"], "prompts=5: a paired test can tell nothing"),
        (["--questions", "3"], "asks for 3 different names, and there are 2"),
        (["--task", "max", "--questions", "2"], "'max' asks one question a prompt"),
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
    assert f"{len(calibration.heads)} of 12 heads are sharpened" in " ".join(printed.split())
    for head in calibration.heads:
        assert f"{head.benefit:.2f} ± {head.benefit_error:.2f}" in printed
    assert "calibration-answers.json exists already" in fail("calibrate", folder, *options)

    options = [*SMALL[2:], "--lengths", "8", "--policy", path, "--out", out]
    succeed("evaluate", folder, *options)
    result = shf.Evaluation.load(out / "evaluate_lookup.json")
    assert result.arms == ["plain", "calibration-answers"]
    change = result.row(8, "calibration-answers")["log_probability_compared"]["difference"]
    assert abs(change) > 1e-6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--choose", "luck"], "choose='luck': expected one of answers, entropy"),
        (["--short", "4", "--long", "2"], "give longer long inputs"),
        (["--prompts", "2"], "prompts=2: give at least 4"),
    ],
)
def test_a_calibration_that_is_refused(folder, tmp_path, fail, arguments, message):
    options = [*arguments, "--questions", "1", "--out", tmp_path / "out"]
    assert message in fail("calibrate", folder, *options)
    assert not (tmp_path / "out").exists()
