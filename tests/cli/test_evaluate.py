"""`sharpmax evaluate` and `sharpmax calibrate` on a model in a folder; a mistake is one line and
leaves nothing.
"""

from __future__ import annotations

import shutil
from importlib import import_module

import numpy as np
import pytest

import sharpmax.hf as shf
from hf.small import llama, tokenizer
from sharpmax import PAPER, Constant, cli
from sharpmax.cli.policies import arm_named
from sharpmax.hf.evaluate.scoring import score_answers

SMALL = ["--lengths", "2,3", "--prompts", "6", "--questions", "1"]


def model():
    """With a head whose sharpening helps a little."""
    return llama(context=700, initializer_range=0.2)


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "tiny"
    model().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "model")


def run(capsys, *arguments):
    code = cli.main([*map(str, arguments)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_an_evaluation_is_a_table_a_result_and_a_picture(folder, tmp_path, capsys):
    out = tmp_path / "out"
    options = [*SMALL, "--policy", "paper", "--policy", "constant:1.5@1-2", "--out", out]
    code, printed, errors = run(capsys, "evaluate", folder, *options)
    assert code == 0, errors
    found = shf.Evaluation.load(out / "evaluate_lookup.json")
    assert found.conditions == ["plain", "paper", "constant:1.5@1-2"]
    direct = shf.evaluate(
        model(),
        tokenizer(),
        "lookup",
        {"paper": PAPER, "band": shf.Condition(Constant(1.5), layers=[1, 2])},
        lengths=[2, 3],
        prompts=6,
        questions=1,
    )
    np.testing.assert_allclose(found.log_probability, direct.log_probability, atol=1e-4)
    row = direct.row(3, "band")["log_probability_compared"]
    assert f"{row['difference']:+.2f}" in printed
    assert "With 80 % power a difference of" in printed
    names = sorted(path.name for path in out.iterdir())
    assert names == sorted(
        [found.arrays_file, *(f"evaluate_lookup.{end}" for end in ("json", "png", "svg"))]
    )
    code, printed, errors = run(capsys, "evaluate", folder, *options)
    assert (code, printed) == (2, "")
    assert "exists already" in errors


def test_stopped_it_goes_on_when_repeated(folder, tmp_path, capsys, monkeypatch):
    module, done = import_module("sharpmax.hf.evaluate.evaluate"), []
    monkeypatch.setattr(module, "SECONDS_BETWEEN_SAVES", 0.0)

    def stopping(*arguments):
        if len(done) == 9:
            raise KeyboardInterrupt
        done.append(1)
        return score_answers(*arguments)

    out = tmp_path / "out"
    monkeypatch.setattr(module, "score_answers", stopping)
    code, _, _ = run(capsys, "evaluate", folder, *SMALL, "--out", out)
    assert code == 130
    assert (out / "evaluate_lookup.part.json").exists()
    monkeypatch.setattr(module, "score_answers", score_answers)
    code, _, errors = run(capsys, "evaluate", folder, *SMALL, "--out", out)
    assert code == 0, errors
    assert not list(out.glob("*.part*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "poem"], "unknown task 'poem': expected one of max, passkey, lookup"),
        (["--policy", "softest"], "unknown policy 'softest': expected one of paper"),
        (["--policy", "paper@x"], "--policy x: expected whole numbers"),
        (["--policy", "paper@7"], "layers: no 7 among 3"),
        (["--policy", "none.json"], "none.json does not exist"),
        (["--policy", "paper", "--policy", "paper"], "have the same name"),
        (["--lengths", "2,90"], "90 names make"),
        (["--prompts", "5"], "prompts=5: no outcome of a paired test is significant"),
        (["--questions", "3"], "asks for 3 different names of 2"),
        (["--task", "max", "--questions", "2"], "'max' has one question per prompt"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(folder, tmp_path, capsys, arguments, message):
    out = tmp_path / "out"
    code, printed, errors = run(capsys, "evaluate", folder, *SMALL, *arguments, "--out", out)
    assert (code, printed) == (2, "")
    assert message in errors
    assert len(errors.strip().splitlines()) == 1
    assert not out.exists()


def test_a_calibration_is_made_and_used(folder, tmp_path, capsys):
    out = tmp_path / "out"
    options = ["--short", "2,3", "--long", "8", "--prompts", "4", "--questions", "2"]
    code, printed, errors = run(capsys, "calibrate", folder, *options, "--out", out)
    assert code == 0, errors
    path = out / "calibration-answers.json"
    found = shf.Calibration.load(path)
    assert f"{len(found.heads)} of 12 heads are sharpened" in " ".join(printed.split())
    for one in found.heads:
        assert f"{one.benefit:.2f} ± {one.benefit_error:.2f}" in printed
    code, _, errors = run(capsys, "calibrate", folder, *options, "--out", out)
    assert code == 2
    assert "calibration-answers.json exists already" in errors
    code, _, errors = run(
        capsys, "evaluate", folder, *SMALL[2:], "--lengths", "8", "--policy", path, "--out", out
    )
    assert code == 0, errors
    used = shf.Evaluation.load(out / "evaluate_lookup.json")
    assert used.conditions == ["plain", "calibration-answers"]
    change = used.row(8, "calibration-answers")["log_probability_compared"]["difference"]
    assert abs(change) > 1e-6


def test_an_interrupted_calibration_resumes(folder, tmp_path, capsys, monkeypatch):
    module, out = import_module("sharpmax.hf.tune.calibrate"), tmp_path / "out"
    monkeypatch.setattr(module, "SECONDS_BETWEEN_SAVES", 0.0)
    options = ["--short", "2,3", "--long", "8", "--prompts", "4", "--questions", "2", "--out", out]
    scored = []

    def stop_at_the_second(*arguments):
        if scored:
            raise KeyboardInterrupt
        scored.append(arguments)
        return score_answers(*arguments)

    monkeypatch.setattr(module, "score_answers", stop_at_the_second)
    code, _, _ = run(capsys, "calibrate", folder, *options)
    assert code == 130
    assert (out / "calibration-answers.part.json").exists()
    # The resumed command neither measures heads again nor asks what has been answered.
    monkeypatch.setattr(module, "measure_entropies", None)
    monkeypatch.setattr(module, "measure_benefits", None)
    monkeypatch.setattr(module, "score_answers", score_answers)
    code, _, errors = run(capsys, "calibrate", folder, *options)
    assert code == 0, errors
    assert [path.name for path in out.iterdir()] == ["calibration-answers.json"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--choose", "luck"], "choose='luck': expected one of answers, entropy"),
        (["--short", "4", "--long", "2"], "give longer long lengths"),
        (["--prompts", "2"], "prompts=2: give at least 4"),
    ],
)
def test_a_calibration_that_cannot_be(folder, tmp_path, capsys, arguments, message):
    out = tmp_path / "out"
    code, _, errors = run(capsys, "calibrate", folder, *arguments, "--questions", "1", "--out", out)
    assert code == 2
    assert message in errors
    assert not out.exists()


def test_arms_by_name(tmp_path):
    name, arm = arm_named("constant:1.2@0,4-6")
    assert (name, arm.policy, arm.layers) == ("constant:1.2@0,4-6", Constant(1.2), [0, 4, 5, 6])
    assert arm_named("paper")[1] == shf.Condition(PAPER)
