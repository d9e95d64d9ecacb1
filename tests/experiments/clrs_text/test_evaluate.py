"""Figure 8: exact match by algorithm, size and seed, under every condition; resumable."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from clrs_text.small import SAMPLE, job

import sharpmax as sx
from sharpmax import UserError, report
from sharpmax.experiments.clrs_text import evaluate, evaluate_model, train
from sharpmax.experiments.clrs_text.conditions import CONDITIONS, Condition
from sharpmax.experiments.clrs_text.data import Sample, load_samples
from sharpmax.experiments.clrs_text.evaluate import Config
from sharpmax.experiments.clrs_text.model import open_decoder
from sharpmax.hf import sharpen
from sharpmax.hf.scan.forward import Selection, measure_forward_pass

ROOT = Path(__file__).parents[3]
TEST = load_samples(SAMPLE / "test", "test")


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Test both attentions, and a second seed of one of them."""
    out = tmp_path_factory.mktemp("trained")
    for attention, seed in (("softmax", 0), ("softmax", 1), ("adaptive", 0)):
        train.run(job(out, seed, attention=attention))
    return Config(str(SAMPLE / "test"), str(out), device="cpu", entropy_samples=2)


@pytest.fixture(scope="module")
def result(config):
    return evaluate.run(config)


def test_exact_match_is_counted_by_algorithm_size_and_seed(config, monkeypatch):
    """The model knows the answers of one seed of `minimum`, and only those."""
    tokenizer = open_decoder(f"{config.trained}/softmax-seed0/model").tokenizer
    known = {
        tokenizer.encode([sample])[0]
        for sample in TEST.samples
        if sample.algorithm == "minimum" and sample.seed == 3
    }

    def answers(model, examples, end, **_):
        return [list(example.answer) if example in known else [end] for example in examples]

    monkeypatch.setattr(evaluate_model, "generate_answers", answers)
    changed = replace(config, conditions=("softmax",), samples=2, entropy_samples=0)
    measured = evaluate.run(changed).measurements
    curves = {name: each["arms"]["softmax"] for name, each in measured["algorithms"].items()}
    assert curves["minimum"]["accuracy"] == [[[1.0, 1.0], [0.0, 0.0]]] * 2  # two trainings
    assert curves["minimum"]["mean"] == [0.5, 0.5]
    assert curves["minimum"]["std_tests"] == pytest.approx([2**-0.5] * 2)
    assert curves["minimum"]["std_trainings"] == [0.0, 0.0]
    assert curves["bfs"]["mean"] == [0.0, 0.0]
    assert curves["bfs"]["mean_entropy"] == [None, None]
    assert tokenizer.name.endswith("softmax-seed0/model")


def test_familiar_answers_are_counted_separately(config, monkeypatch):
    """The model always answers the first item."""
    tokenizer = open_decoder(f"{config.trained}/softmax-seed0/model").tokenizer
    (first,) = tokenizer.encode([Sample("minimum", 4, 0, "?", "0\n\n")])
    monkeypatch.setattr(
        evaluate_model,
        "generate_answers",
        lambda _, examples, *a, **k: [list(first.answer)] * len(examples),
    )
    chosen = replace(config, conditions=("softmax",), algorithms=("minimum",), entropy_samples=0)
    measured = evaluate.run(chosen).measurements["algorithms"]["minimum"]
    for index, size in enumerate(measured["sizes"]):
        answers = [row.answer for row in TEST.samples if row[:2] == ("minimum", size)]
        known = [answer for answer in answers if int(answer) < 5]
        assert measured["familiar"][index] == pytest.approx(len(known) / len(answers))
        expected = sum(int(answer) == 0 for answer in known) / len(known)
        curve = measured["arms"]["softmax"]
        assert curve["mean_familiar"][index] == pytest.approx(expected)
    assert measured["familiar"][0] == 1 > measured["familiar"][1]  # trained up to 5, tested at 6


def test_a_result_has_all_conditions_sizes_and_entropies(result):
    measured = result.measurements
    assert result.kind == "figure8"
    assert result.config["arms"] == ["softmax", "adaptive", "inference"]
    assert "conditions" not in result.config
    assert list(measured["labels"]) == ["softmax", "adaptive", "inference"]
    assert measured["test_seeds"] == [3, 14]
    bfs = measured["algorithms"]["bfs"]
    assert (bfs["sizes"], bfs["train_sizes"]) == ([4, 6], [4, 5])
    shapes = {name: np.shape(curve["entropy"]) for name, curve in bfs["arms"].items()}
    assert shapes == {"softmax": (2, 2, 2, 2), "adaptive": (1, 2, 2, 2), "inference": (2, 2, 2, 2)}
    assert bfs["arms"]["adaptive"]["std_trainings"] is None
    assert {row["attention"] for row in measured["trainings"]} == {"softmax", "adaptive"}


def test_the_entropy_is_that_of_the_condition_s_own_weights(config, result):
    """The paper's policy makes the same model sharper, so its entropy is lower."""
    curves = result.measurements["algorithms"]["minimum"]["arms"]
    assert np.all(
        np.array(curves["inference"]["entropy"]) <= np.array(curves["softmax"]["entropy"])
    )
    assert curves["inference"]["mean_entropy"][0] < curves["softmax"]["mean_entropy"][0] - 0.01
    decoder = open_decoder(f"{config.trained}/softmax-seed0/model")
    samples = [sample for sample in TEST.samples if sample[:2] == ("minimum", 4)][:2]
    selection = Selection.create(decoder.model)
    passes = [
        measure_forward_pass(decoder.model, selection, list(example.question), sx.PAPER)
        for example in decoder.tokenizer.encode(samples)
    ]
    expected = np.mean([each.arrays["last_entropy"] for each in passes], axis=0)
    np.testing.assert_allclose(curves["inference"]["entropy"][0][0], expected, rtol=1e-5)


def test_a_condition_can_be_added(config):
    seen = []

    @contextlib.contextmanager
    def twice_as_sharp(subject):
        seen.append((subject.algorithm, subject.trained_to, subject.model.training))
        subject.notes["factor"] = 2.0
        with sharpen(subject.model, sx.Constant(2.0), heads=[0]):
            yield

    conditions = CONDITIONS | {"mine": Condition("softmax", twice_as_sharp, "twice as sharp")}
    chosen = replace(config, conditions=("mine",), sizes=(4,), samples=1, entropy_samples=1)
    result = evaluate.run(chosen, conditions=conditions)
    assert seen == [("minimum", 5, False), ("bfs", 5, False)] * 2
    assert result.measurements["labels"] == {"mine": "twice as sharp"}
    curve = result.measurements["algorithms"]["bfs"]["arms"]["mine"]
    assert curve["notes"] == [{"factor": 2.0}] * 2
    assert len(report.draw(result).axes) >= 2


def test_finished_tests_are_not_repeated(config, result, monkeypatch):
    def fail(*_):
        raise AssertionError

    monkeypatch.setattr(evaluate, "evaluate_model", fail)
    calls = []
    again = evaluate.run(config, progress=lambda *call: calls.append(call))
    assert again.measurements == result.measurements
    assert calls == [("testing", 5, index, 1.0) for index in range(5)]
    with pytest.raises(AssertionError):
        evaluate.run(replace(config, samples=1))


def test_missing_models_samples_and_conditions_are_refused(config, tmp_path):
    for changes, message in (
        (
            {"conditions": ("sharp",)},
            "unknown condition 'sharp': expected one of softmax, adaptive, inference",
        ),
        ({"trained": str(tmp_path)}, "holds no finished training: run sharpmax clrs train first"),
        ({"algorithms": ("heapsort",)}, "has no samples of"),
        ({"conditions": ("calibrated",)}, "condition 'calibrated' needs calibration samples"),
        (
            {"conditions": ("calibrated",), "calibration": config.data},
            "has the seed 3 of the test set: calibrate on others",
        ),
    ):
        with pytest.raises(UserError, match=message):
            evaluate.run(replace(config, **changes))
    train.run(job(tmp_path, steps=1))
    with pytest.raises(UserError, match="'adaptive' needs a model trained with adaptive attent"):
        evaluate.run(replace(config, trained=str(tmp_path)))


def test_the_table_has_a_line_per_algorithm_and_condition(result, capsys):
    report.show(result)
    out = capsys.readouterr().out
    assert "minimum" in out
    assert out.count("adaptive") >= 2


@pytest.mark.parametrize("name", ["models", "tuned"])
def test_the_published_models_are_found_and_answer(name):
    """One question of the smallest size; nothing is written beside the models."""
    samples = [sample for sample in TEST.samples if sample[:2] == ("minimum", 4)][:1]
    models = evaluate_model.find_trained_models(ROOT / "results" / "clrs" / name)
    assert {model.attention for model in models} == {"softmax", "adaptive"}
    settings = evaluate_model.EvaluationSettings(samples, entropy_samples=0, device="cpu")
    outcome = evaluate_model.evaluate_model(
        settings, CONDITIONS["softmax"], models[-1], lambda share: None
    )
    assert outcome["right"] == {"minimum": {"4": {"3": [1, 1, 1, 1]}}}
