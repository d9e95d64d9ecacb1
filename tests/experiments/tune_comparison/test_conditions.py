"""Conditions: the tuning of the library, the same prompts for all, resumed to the same numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tune_comparison.tiny import accept_any_gain, loaded, small

import sharpmax.hf as shf
from hf.small import assert_nothing_is_patched, random_tokens
from sharpmax._errors import UserError
from sharpmax.experiments.tune_comparison import conditions
from sharpmax.experiments.tune_comparison.conditions import prepare, require_files
from sharpmax.experiments.tune_comparison.config import CONDITIONS
from sharpmax.hf.tune import learning


def ignore(share: float) -> None:
    pass


def test_tuning_is_that_of_the_library(monkeypatch, tmp_path):
    accept_any_gain(monkeypatch)
    small_model = loaded()
    condition = prepare("tune-1", small(), small_model, tmp_path, ignore)
    expected = shf.tune(
        small_model.model, small_model.tokenizer, steps=4, check_prompts=0, name="tiny"
    )
    assert shf.Calibration.load(tmp_path / "tune-1.calibration.json") == expected
    assert condition.facts["numbers"] == 8
    assert condition.facts["changed_heads"] == len(expected.heads)


def learned_from(monkeypatch, name, folder) -> list:
    """Return the prompts and chunks of text that a condition was trained on."""
    seen = []
    answers, text = learning.Tuning._answer_losses, learning.text_logits

    def watch_answers(run, prompt):
        if torch.is_grad_enabled():
            seen.append(prompt)
        return answers(run, prompt)

    def watch_text(model, chunk, positions):
        if torch.is_grad_enabled():
            seen.append(tuple(chunk))
        return text(model, chunk, positions)

    with monkeypatch.context() as patch:
        patch.setattr(learning.Tuning, "_answer_losses", watch_answers)
        patch.setattr(learning, "text_logits", watch_text)
        prepare(name, small(lora_learning_rates=(1e-3,)), loaded(), folder, ignore)
    return seen


def test_everything_is_trained_on_the_same_prompts_and_text(monkeypatch, tmp_path):
    pytest.importorskip("peft")
    seen = {
        name: learned_from(monkeypatch, name, tmp_path)
        for name in ("tune-1", "lora-1", "law-offset", "tune-2")
    }
    assert len(seen["tune-1"]) == 6  # four prompts, and text in the first and the fourth step
    assert seen["tune-1"] == seen["lora-1"] == seen["law-offset"]
    assert seen["tune-1"] != seen["tune-2"]


@pytest.mark.parametrize("name", ["tune-1", "law-power", "lora-1"])
def test_a_stopped_training_resumes_to_the_same_numbers(monkeypatch, tmp_path, name):
    if name == "lora-1":
        pytest.importorskip("peft")
    accept_any_gain(monkeypatch)
    monkeypatch.setattr(learning, "SECONDS_BETWEEN_SAVES", 0.0)
    whole = prepare(name, small(), loaded(), tmp_path / "whole", ignore)

    def stop(share: float) -> None:
        if share > 0.7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(name, small(), loaded(), tmp_path / "stopped", stop)
    small_model = loaded()
    resumed = prepare(name, small(), small_model, tmp_path / "stopped", ignore)
    assert resumed.sha256 == whole.sha256
    again = prepare(name, small(), small_model, tmp_path / "stopped", stop)  # nothing to train
    assert again.facts == resumed.facts
    model, tokens = small_model.model, random_tokens(1, 300)
    with torch.no_grad():
        plain, plain_short = model(tokens).logits, model(tokens[:, :128]).logits
        with again.apply():
            changed, short = model(tokens).logits, model(tokens[:, :128]).logits
        assert torch.equal(model(tokens).logits, plain)
    assert (changed - plain).abs().max() > 1e-5
    assert torch.equal(short, plain_short) == (name != "lora-1")
    assert_nothing_is_patched()


def test_validation_chooses_the_learning_rate_of_lora(monkeypatch, tmp_path):
    pytest.importorskip("peft")
    accept_any_gain(monkeypatch)
    facts = prepare("lora-1", small(), loaded(), tmp_path, ignore).facts
    objectives = {rate: tried["objective"] for rate, tried in facts["tried"].items()}
    assert set(objectives) == {"0.001", "0.01"}
    assert f"{facts['learning_rate']:g}" == min(objectives, key=objectives.get)
    assert facts["objective"] == min(objectives.values())


def test_a_training_without_gain_leaves_the_model_plain(monkeypatch, tmp_path):
    monkeypatch.setattr(learning, "MIN_STANDARD_ERRORS", 1e9)
    small_model = loaded()
    condition = prepare("law-power", small(), small_model, tmp_path, ignore)
    assert condition.facts["failure"].startswith("nothing to gain")
    tokens = random_tokens(1, 300)
    with torch.no_grad():
        plain = small_model.model(tokens).logits
        with condition.apply():
            assert torch.equal(small_model.model(tokens).logits, plain)


def test_other_settings_are_refused(monkeypatch, tmp_path):
    accept_any_gain(monkeypatch)
    prepare("tune-1", small(), loaded(), tmp_path, ignore)
    with pytest.raises(UserError, match="is the checkpoint of another tune"):
        prepare("tune-1", small(steps=3), loaded(), tmp_path, ignore)


def test_what_is_missing_is_named_before_any_work(monkeypatch):
    config = small(calibration="gone.json")
    monkeypatch.setattr(conditions, "find_spec", lambda module: None)
    require_files(["plain", "tune-1"], config)
    with pytest.raises(UserError, match=r"no file gone\.json: write it with `sharpmax calibrate`"):
        require_files(["plain", "calibrate"], config)
    with pytest.raises(UserError, match=r"LoRA needs peft.*pip install 'sharpmax\[comparison\]'"):
        require_files(["plain", "lora-1"], config)


def test_a_calibration_is_applied(monkeypatch, tmp_path):
    accept_any_gain(monkeypatch)
    small_model, tokens = loaded(), random_tokens(1, 200)
    tuned = prepare("tune-1", small(), small_model, tmp_path, ignore)
    config = small(calibration=str(tmp_path / "tune-1.calibration.json"))
    calibrated = prepare("calibrate", config, small_model, tmp_path, ignore)
    logits = []
    for condition in (tuned, calibrated):
        with torch.no_grad(), condition.apply():
            logits.append(small_model.model(tokens).logits)
    assert torch.equal(*logits)


def test_policies_need_no_training(tmp_path):
    small_model, tokens = loaded(), random_tokens(1, 200)
    with torch.no_grad():
        plain = small_model.model(tokens).logits
        for name in ("paper", "log-length:128"):
            condition = prepare(name, small(), small_model, tmp_path, ignore)
            with condition.apply():
                assert not np.allclose(small_model.model(tokens).logits, plain)
    assert not list(tmp_path.iterdir())


def test_the_plain_model_comes_first():
    assert next(iter(CONDITIONS)) == "plain"
