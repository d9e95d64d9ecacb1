"""Testing: greedy answers, exact match by algorithm, size and seed, and an arm is one entry."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from clrs_text.small import SAMPLE, TINY, gemma_folder, job
from sharpmax.experiments.clrs_text.arms import ARMS, Arm, Subject, by_head

import sharpmax as sx
from sharpmax import UserError, plot
from sharpmax.cli import tables
from sharpmax.experiments.clrs_text import decode, evaluate, exam, generate, train
from sharpmax.experiments.clrs_text.data import Sample, read
from sharpmax.experiments.clrs_text.evaluate import Config
from sharpmax.experiments.clrs_text.model import begun, opened
from sharpmax.hf import sharpen
from sharpmax.hf.scan.forward import Selection, measure_forward_pass

TEST = read(SAMPLE / "test", "test")
calibrate = sys.modules["sharpmax.hf.tune.calibrate"]  # its function has the same name


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Both attentions, and a second seed of one of them."""
    out = tmp_path_factory.mktemp("trained")
    for attention, seed in (("softmax", 0), ("softmax", 1), ("adaptive", 0)):
        train.run(job(out, seed, attention=attention))
    return out


@pytest.fixture(scope="module")
def config(trained):
    return Config(str(SAMPLE / "test"), str(trained), device="cpu", entropy_samples=2)


@pytest.fixture(scope="module")
def result(config):
    return evaluate.run(config)


def test_answers_are_what_generate_says():
    ready = begun(TINY, seed=0)
    model = ready.model.eval()
    examples = ready.tokens.examples(TEST.samples)
    longest = max(len(one.answer) for one in examples) + decode.MARGIN
    for said, one in zip(decode.answers(model, examples, ready.tokens.end), examples, strict=True):
        whole = model.generate(
            torch.tensor([one.question]),
            attention_mask=torch.ones(1, len(one.question), dtype=torch.long),
            max_new_tokens=longest,
            do_sample=False,
        )[0, len(one.question) :].tolist()
        assert said == whole[: len(said)]
        assert said[-1] == ready.tokens.end or len(said) > len(one.answer)


def test_batches_hold_questions_of_one_length_and_change_no_answer():
    ready = begun(TINY, seed=0)
    examples = ready.tokens.examples(TEST.samples)
    groups = decode.by_length(examples, 2)
    assert sorted(place for some in groups for place in some) == list(range(len(examples)))
    lengths = [{len(examples[place].question) for place in some} for some in groups]
    assert all(len(one) == 1 for one in lengths)
    assert [one.pop() for one in lengths] == sorted(
        len(examples[some[0]].question) for some in groups
    )
    with sharpen(ready.model.eval()):
        few = decode.answers(ready.model, examples, ready.tokens.end, batch=1)
        many = decode.answers(ready.model, examples, ready.tokens.end, batch=64)
    assert [one[:3] for one in few] == [one[:3] for one in many]


def test_exact_match_is_counted_by_algorithm_size_and_seed(config, monkeypatch):
    """A model that knows the answers of one seed of `minimum`, and only those."""
    ready = opened(str(config.trained) + "/softmax-seed0/model")
    knows = {
        ready.tokens.examples([sample])[0]
        for sample in TEST.samples
        if sample.algorithm == "minimum" and sample.seed == 3
    }

    def answers(model, examples, end, **_):
        return [list(one.answer) if one in knows else [end] for one in examples]

    monkeypatch.setattr(decode, "answers", answers)
    found = evaluate.run(replace(config, arms=("softmax",), samples=2, entropy_samples=0))
    curves = {
        name: one["arms"]["softmax"] for name, one in found.measurements["algorithms"].items()
    }
    assert curves["minimum"]["accuracy"] == [[[1.0, 1.0], [0.0, 0.0]]] * 2  # two trainings
    assert curves["minimum"]["mean"] == [0.5, 0.5]
    assert curves["minimum"]["std_tests"] == pytest.approx([2**-0.5] * 2)
    assert curves["minimum"]["std_trainings"] == [0.0, 0.0]
    assert curves["bfs"]["mean"] == [0.0, 0.0]
    assert curves["bfs"]["mean_entropy"] == [None, None]
    assert ready.tokens.name.endswith("softmax-seed0/model")


@pytest.mark.parametrize(
    ("answer", "familiar"),
    [
        ("15", True),
        ("16", False),
        ("3, 16", False),
        ("[0 15 160]", False),
        ("[0.16 0.0 -0.99]", True),
    ],
)
def test_an_answer_is_familiar_if_problems_in_training_had_all_its_items(answer, familiar):
    assert exam.is_familiar(Sample("minimum", 32, 3, "?", f"{answer}\n\n"), 16) is familiar


def test_familiar_answers_are_counted_apart(config, monkeypatch):
    """A model that answers the first item always: right where that is the answer."""
    ready = opened(f"{config.trained}/softmax-seed0/model")
    (first,) = ready.tokens.examples([Sample("minimum", 4, 0, "?", "0\n\n")])
    monkeypatch.setattr(
        decode, "answers", lambda _, some, *a, **k: [list(first.answer)] * len(some)
    )
    chosen = replace(config, arms=("softmax",), algorithms=("minimum",), entropy_samples=0)
    one = evaluate.run(chosen).measurements["algorithms"]["minimum"]
    for place, size in enumerate(one["sizes"]):
        answers = [row.answer for row in TEST.samples if row[:2] == ("minimum", size)]
        known = [answer for answer in answers if int(answer) < 5]
        curve = one["arms"]["softmax"]
        assert one["familiar"][place] == pytest.approx(len(known) / len(answers))
        expected = sum(int(answer) == 0 for answer in known) / len(known)
        assert curve["mean_familiar"][place] == pytest.approx(expected)
    assert one["familiar"][0] == 1 > one["familiar"][1]  # trained up to 5, the test has 6


def test_a_figure_has_all_arms_sizes_and_entropies(result):
    found = result.measurements
    assert result.kind == "figure8"
    assert list(found["labels"]) == ["softmax", "adaptive", "inference"]
    assert found["test_seeds"] == [3, 14]
    one = found["algorithms"]["bfs"]
    assert (one["sizes"], one["train_sizes"]) == ([4, 6], [4, 5])
    shapes = {name: np.shape(curve["entropy"]) for name, curve in one["arms"].items()}
    assert shapes == {"softmax": (2, 2, 2, 2), "adaptive": (1, 2, 2, 2), "inference": (2, 2, 2, 2)}
    assert one["arms"]["adaptive"]["std_trainings"] is None
    assert {row["attention"] for row in found["trainings"]} == {"softmax", "adaptive"}


def test_the_entropy_is_that_of_the_arm_s_own_weights(config, result):
    """Of the same model: sharpened by the paper's policy, it is lower."""
    curves = result.measurements["algorithms"]["minimum"]["arms"]
    assert np.all(
        np.array(curves["inference"]["entropy"]) <= np.array(curves["softmax"]["entropy"])
    )
    assert curves["inference"]["mean_entropy"][0] < curves["softmax"]["mean_entropy"][0] - 0.01
    ready = opened(f"{config.trained}/softmax-seed0/model")
    some = [one for one in TEST.samples if one[:2] == ("minimum", 4)][:2]
    selection = Selection.create(ready.model)
    expected = np.mean(
        [
            measure_forward_pass(ready.model, selection, list(one.question), sx.PAPER).arrays[
                "last_entropy"
            ]
            for one in ready.tokens.examples(some)
        ],
        axis=0,
    )
    np.testing.assert_allclose(curves["inference"]["entropy"][0][0], expected, rtol=1e-5)


def test_one_more_arm_is_one_more_entry(config):
    seen = []

    @contextlib.contextmanager
    def mine(subject):
        seen.append((subject.algorithm, subject.trained_to, subject.model.training))
        subject.notes["factor"] = 2.0
        with sharpen(subject.model, sx.Constant(2.0), heads=[0]):
            yield

    arms = ARMS | {"mine": Arm("softmax", mine, "twice as sharp")}
    chosen = replace(config, arms=("mine",), sizes=(4,), samples=1, entropy_samples=1)
    found = evaluate.run(chosen, arms=arms)
    assert seen == [("minimum", 5, False), ("bfs", 5, False)] * 2
    assert found.measurements["labels"] == {"mine": "twice as sharp"}
    curve = found.measurements["algorithms"]["bfs"]["arms"]["mine"]
    assert curve["notes"] == [{"factor": 2.0}] * 2
    assert len(plot.draw(found).axes) >= 2


@pytest.fixture(scope="module")
def calibration(tmp_path_factory):
    """Of another seed, at a size trained at and one beyond."""
    folder = tmp_path_factory.mktemp("data") / "calibration"
    sizes = {"minimum": (5, 8), "bfs": (5, 8)}
    generate.run(generate.Config("test", sizes, (1,), 12), folder, processes=1)
    return str(folder)


def test_the_calibrated_arm_sharpens_the_chosen_heads_beyond_the_sizes_trained_at(
    config, calibration, monkeypatch
):
    """As `sharpmax.hf.calibrate` finds them on the same questions; up to there nothing changes."""
    monkeypatch.setattr(calibrate, "ERRORS", -1e9)  # after six steps of training all is chance,
    monkeypatch.setattr(calibrate, "SHARE", -1e9)  # so every head is taken
    both = replace(config, calibration=calibration, arms=("softmax", "calibrated"))
    found = evaluate.run(both).measurements["algorithms"]["bfs"]
    plain, fitted = (found["arms"][name] for name in both.arms)
    sizes = found["sizes"]
    assert sizes == [4, 6]
    calibrated = [place for place, notes in enumerate(fitted["notes"]) if "heads" in notes]
    assert calibrated  # of two trainings, one at least gains
    for place in calibrated:
        notes = fitted["notes"][place]
        assert notes["heads"] == [[0, 0], [0, 1], [1, 0], [1, 1]]
        assert max(notes["by_rate"].values()) >= notes["by_rate"]["0"]  # to four digits
        ready = opened(f"{config.trained}/softmax-seed{place}/model")
        samples = [one for one in read(calibration, "test").samples if one.algorithm == "bfs"]
        subject = Subject(ready.model, ready.tokens, "bfs", 5, tuple(samples))
        longest = max(one.length for one in ready.tokens.examples(samples) if one.size == 5)
        assert notes["from_tokens"] == longest
        with by_head(subject):
            assert subject.notes == notes
        np.testing.assert_allclose(fitted["entropy"][place][0], plain["entropy"][place][0], 1e-6)
        assert np.mean(fitted["entropy"][place][1]) < np.mean(plain["entropy"][place][1])


def test_where_no_head_helps_nothing_is_changed_and_the_reason_is_kept(
    config, calibration, monkeypatch
):
    monkeypatch.setattr(calibrate, "ERRORS", 1e9)
    both = replace(config, calibration=calibration, arms=("softmax", "calibrated"), samples=1)
    found = evaluate.run(both).measurements["algorithms"]["minimum"]["arms"]
    assert found["calibrated"]["accuracy"] == found["softmax"]["accuracy"]
    assert found["calibrated"]["entropy"] == found["softmax"]["entropy"]
    for notes in found["calibrated"]["notes"]:
        assert notes["nothing"].startswith("no head whose sharpening clearly helps")


def test_a_calibration_without_the_right_samples_is_refused(config, calibration, tmp_path):
    fitted = replace(config, arms=("calibrated",))
    with pytest.raises(UserError, match="arm 'calibrated' needs samples of its own"):
        evaluate.run(fitted)
    with pytest.raises(UserError, match="has the seed 3 of the test set: calibrate on others"):
        evaluate.run(replace(fitted, calibration=config.data))
    generate.run(generate.Config("test", {"minimum": (5,)}, (1,), 4), tmp_path / "d", processes=1)
    here = replace(fitted, calibration=str(tmp_path / "d"), algorithms=("minimum",))
    with pytest.raises(UserError, match=r"have sizes \[5\] of minimum: expected one up to 5, the"):
        evaluate.run(here)


def test_what_is_finished_is_not_tested_again(config, result, monkeypatch):
    def fail(*_):
        raise AssertionError

    monkeypatch.setattr(exam.Exam, "of", fail)
    assert evaluate.run(config).measurements == result.measurements
    with pytest.raises(AssertionError):
        evaluate.run(replace(config, samples=1))


def test_what_cannot_be_tested_is_refused(config, tmp_path):
    for changes, message in (
        ({"arms": ("sharp",)}, "unknown arm 'sharp': expected one of softmax, adaptive, inference"),
        ({"trained": str(tmp_path)}, "holds no finished training: run sharpmax clrs train first"),
        ({"algorithms": ("heapsort",)}, "has no samples of"),
    ):
        with pytest.raises(UserError, match=message):
            evaluate.run(replace(config, **changes))
    train.run(job(tmp_path))
    with pytest.raises(
        UserError, match="arm 'adaptive' needs a model trained with adaptive attent"
    ):
        evaluate.run(replace(config, trained=str(tmp_path)))


def test_a_model_that_is_no_decoder_of_text_is_refused(tmp_path):
    folder = gemma_folder(tmp_path / "gemma")
    path = folder / "tokenizer_config.json"
    path.write_text(path.read_text().replace('"eos_token": "\\u0001",', ""))
    with pytest.raises(UserError, match="a tokenizer without an end of text"):
        opened(str(folder))


def test_the_table_has_a_line_an_algorithm_and_arm(result, capsys):
    tables.show(result)
    out = capsys.readouterr().out
    assert "minimum" in out
    assert out.count("adaptive") >= 2
