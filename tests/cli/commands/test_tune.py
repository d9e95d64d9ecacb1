"""`sharpmax tune` on a model in a folder: a calibration, a report, the next command."""

from __future__ import annotations

import pytest

import sharpmax.hf as shf
from hf.small import llama, tokenizer
from sharpmax.hf.tune import learning

SMALL = ["--task", "max", "--from-tokens", "64", "--steps", "4", "--check-prompts", "1"]
SMALL += ["--guard-weight", "0", "--max-text-cost", "9"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "tiny"
    llama(context=700).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def test_a_tuning_is_a_table_a_calibration_and_a_report(folder, tmp_path, succeed, fail):
    out = tmp_path / "out"
    finished = succeed("tune", folder, *SMALL, "--out", out)
    calibration = shf.Calibration.load(out / "tuned.json")
    direct = shf.tune(
        shf.load(str(folder)).model,
        tokenizer(),
        ["max"],
        from_tokens=64,
        steps=4,
        check_prompts=1,
        guard_weight=0,
        max_text_cost=9,
        name=str(folder),
    )
    assert calibration.text() == direct.text()
    assert "Answers before and after, on fresh prompts" in finished.out
    assert f"Next: sharpmax evaluate {folder} --policy {out / 'tuned.json'}" in finished.err
    assert "checking: log p of an answer's token" in finished.err
    assert {path.name for path in out.iterdir()} == {"tuned.json", "tuned.html"}
    page = (out / "tuned.html").read_text("utf-8")
    assert "Ordinary text costs" in page
    assert "exists already" in fail("tune", folder, *SMALL, "--out", out)
    # The file is what evaluate takes.
    options = ["--lengths", "3", "--prompts", "6", "--task", "max", "--out", tmp_path / "e"]
    assert "tuned" in succeed("evaluate", folder, "--policy", out / "tuned.json", *options).out


def test_an_interrupted_tuning_resumes(folder, tmp_path, run, succeed, monkeypatch):
    monkeypatch.setattr(learning, "SECONDS_BETWEEN_SAVES", 0.0)
    take_step, calls = learning.Tuning._take_step, []

    def interrupt(tuning):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(tuning.step)
        take_step(tuning)

    monkeypatch.setattr(learning.Tuning, "_take_step", interrupt)
    words = ["tune", folder, *SMALL, "--out", tmp_path]
    assert run(*words).code == 130
    assert (tmp_path / "tuned.part.json").exists()
    monkeypatch.setattr(
        learning.Tuning, "_take_step", lambda self: (calls.append(self.step), take_step(self))
    )
    succeed(*words)
    assert calls == [0, 1, 2, 3]
    assert not list(tmp_path.glob("*part*"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--task", "poem"], "unknown task 'poem'"),
        (["--guard", "missing.txt"], "cannot read the guard text missing.txt"),
        (["--learning-rate", "-1"], "learning_rate=-1"),
        (["--steps", "0"], "--steps"),
        (["--task", "passkey"], "768 tokens do not fit the context"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(folder, tmp_path, fail, words, message):
    out = tmp_path / "out"
    error = fail("tune", folder, *SMALL, *words, "--out", out, last_line_only=True)
    assert message in error
    assert not out.exists() or not list(out.iterdir())


def test_nothing_to_gain_is_one_line_with_exit_code_2(folder, tmp_path, fail):
    words = ["tune", folder, *SMALL, "--learning-rate", "0", "--out", tmp_path]
    assert "nothing to gain" in fail(*words, last_line_only=True)
    assert list(tmp_path.iterdir()) == []


def test_a_model_without_a_shipped_calibration_is_told_to_tune(folder, tmp_path, fail):
    words = ["--policy", "tuned", "--lengths", "3", "--prompts", "6", "--task", "max"]
    error = fail("evaluate", folder, *words, "--out", tmp_path, last_line_only=True)
    assert "no tuned calibration comes with sharpmax for these weights" in error
