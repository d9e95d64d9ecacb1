"""The calibrated condition: fitted at sizes trained at, sharp only beyond them."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from clrs_text.small import SAMPLE, TINY, job

from sharpmax import UserError
from sharpmax.experiments.clrs_text import conditions, evaluate, generate, train
from sharpmax.experiments.clrs_text.conditions import Subject, calibrate_heads
from sharpmax.experiments.clrs_text.data import load_samples
from sharpmax.experiments.clrs_text.evaluate import Config
from sharpmax.experiments.clrs_text.model import initial_decoder, open_decoder
from sharpmax.hf.tune.calibrate import NothingToGain

calibrate = sys.modules["sharpmax.hf.tune.calibrate"]  # its function has the same name


@pytest.fixture(scope="module")
def subject():
    decoder = initial_decoder(TINY, seed=0)
    samples = load_samples(SAMPLE / "test", "test", algorithms=("bfs",)).samples
    return Subject(decoder.model, decoder.tokenizer, "bfs", 4, tuple(samples))


def test_the_calibration_reads_the_samples_at_sizes_up_to_those_trained_at_and_beyond(
    subject, monkeypatch
):
    seen = {}

    def fit(model, tokenizer, task, **named):
        prompt = task.make_prompt(tokenizer, 6, 1, np.random.default_rng(0))
        seen.update(named, prompt=prompt, name=task.name)
        raise NothingToGain("no head helps")

    monkeypatch.setattr(conditions, "calibrate", fit)
    assert isinstance(calibrate_heads(subject), nullcontext)
    assert (seen["short"], seen["long"], seen["name"]) == ([4], [6], "bfs")
    assert subject.notes == {"nothing": "no head helps"}
    prompt = seen["prompt"]
    questions = [subject.tokenizer.encode([sample])[0] for sample in subject.calibration]
    tokens = (*prompt.context, *prompt.questions[0])
    assert (tokens, prompt.answers[0]) in {(each.question, each.answer) for each in questions}


def test_the_heads_and_rates_of_a_calibration_are_noted(subject, monkeypatch):
    calibration = SimpleNamespace(
        heads=[SimpleNamespace(layer=1, head=0, rate=0.5)],
        from_tokens=40,
        method={"log_probability_of_long": -2.0, "by_rate": {"0.5": -1.0}},
    )
    monkeypatch.setattr(conditions, "calibrate", lambda *given, **named: calibration)
    monkeypatch.setattr(conditions, "sharpen", lambda model, policy: (model, policy))
    subject.notes.clear()
    assert calibrate_heads(subject) == (subject.model, calibration)
    assert subject.notes == {
        "heads": [[1, 0]],
        "rate": 0.5,
        "from_tokens": 40,
        "by_rate": {"0": -2.0, "0.5": -1.0},
    }


def test_calibration_samples_of_one_side_only_are_refused(subject):
    small = [sample for sample in subject.calibration if sample.size == 4]
    one_sided = Subject(subject.model, subject.tokenizer, "bfs", 4, tuple(small))
    with pytest.raises(UserError, match=r"have sizes \[4\] of bfs: expected one up to 4, the"):
        calibrate_heads(one_sided)


@pytest.fixture(scope="module")
def both(inline_jobs, tmp_path_factory):
    """Two trainings, and calibration data of another seed at a size trained at and one beyond."""
    out = tmp_path_factory.mktemp("trained")
    for seed in (0, 1):
        train.run(job(out, seed))
    folder = tmp_path_factory.mktemp("data") / "calibration"
    settings = generate.Config("test", {"bfs": (5, 8)}, (1,), 12)
    generate.generate_dataset(settings, folder, processes=1)
    return Config(
        str(SAMPLE / "test"),
        str(out),
        str(folder),
        conditions=("softmax", "calibrated"),
        algorithms=("bfs",),
        device="cpu",
        entropy_samples=2,
    )


@pytest.mark.slow
def test_the_chosen_heads_are_sharper_beyond_the_sizes_trained_at(both, monkeypatch):
    """As `sharpmax.hf.calibrate` chooses them for the same questions; up to there all is plain."""
    monkeypatch.setattr(
        calibrate, "MIN_STANDARD_ERRORS", -1e9
    )  # after six steps of training all is chance,
    monkeypatch.setattr(calibrate, "MIN_SHARE_OF_BEST", -1e9)  # so every head is taken
    measured = evaluate.run(both).measurements["algorithms"]["bfs"]
    plain, fitted = (measured["arms"][name] for name in both.conditions)
    assert measured["sizes"] == [4, 6]
    calibrated = [index for index, notes in enumerate(fitted["notes"]) if "heads" in notes]
    assert calibrated  # of two trainings, one at least gains
    for index in calibrated:
        notes = fitted["notes"][index]
        assert notes["heads"] == [[0, 0], [0, 1], [1, 0], [1, 1]]
        assert max(notes["by_rate"].values()) >= notes["by_rate"]["0"]  # to four digits
        decoder = open_decoder(f"{both.trained}/softmax-seed{index}/model")
        samples = load_samples(both.calibration, "test").samples
        subject = Subject(decoder.model, decoder.tokenizer, "bfs", 5, tuple(samples))
        longest = max(each.length for each in decoder.tokenizer.encode(samples) if each.size == 5)
        assert notes["from_tokens"] == longest
        with calibrate_heads(subject):
            assert subject.notes == notes
        np.testing.assert_allclose(fitted["entropy"][index][0], plain["entropy"][index][0], 1e-6)
        assert np.mean(fitted["entropy"][index][1]) < np.mean(plain["entropy"][index][1])


@pytest.mark.slow
def test_where_no_head_helps_nothing_changes_and_the_reason_is_noted(both, monkeypatch):
    monkeypatch.setattr(calibrate, "MIN_STANDARD_ERRORS", 1e9)
    config = replace(both, samples=1)  # not the finished tests of another test
    curves = evaluate.run(config).measurements["algorithms"]["bfs"]["arms"]
    assert curves["calibrated"]["accuracy"] == curves["softmax"]["accuracy"]
    assert curves["calibrated"]["entropy"] == curves["softmax"]["entropy"]
    for notes in curves["calibrated"]["notes"]:
        assert "no head whose sharpening clearly helps" in notes["nothing"]
