"""evaluate: all conditions answer the same questions, and a resumed run gives the same numbers."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest

import sharpmax.hf as shf
from hf.small import llama, tokenizer
from sharpmax import PAPER, Constant
from sharpmax._errors import UserError
from sharpmax.hf.evaluate import stats
from sharpmax.hf.evaluate.scoring import Scores, score_answers
from sharpmax.hf.evaluate.tasks import TASKS, make_prompts

# sharpmax.hf.evaluate is the function, so the module needs an explicit import.
module = import_module("sharpmax.hf.evaluate.evaluate")


def evaluate(model=None, policies=None, **changes):
    options = {"lengths": [2, 3], "prompts": 6, "questions": 2} | changes
    return shf.evaluate(
        model or llama(), tokenizer(), "lookup", policies or {"paper": PAPER}, **options
    )


@pytest.fixture(scope="module")
def evaluation():
    policies = {
        "paper": PAPER,
        "none": Constant(1.0),
        "band": shf.Condition(Constant(3.0), layers=[1], heads=[0, 2]),
    }
    return evaluate(policies=policies, name="tiny", notes=["a note"])


def test_every_condition_answers_the_same_questions(evaluation):
    model = llama()
    prompts = make_prompts(model, TASKS["lookup"], tokenizer(), [2, 3], 6, 2, 0)
    assert evaluation.conditions == ["plain", "paper", "none", "band"]
    assert evaluation.lengths == [2, 3]
    for number, prompt in enumerate(prompts[3]):
        plain = score_answers(model, tokenizer(), prompt)
        np.testing.assert_allclose(evaluation.log_probability[1, 0, number], plain.log_probability)
        np.testing.assert_array_equal(evaluation.right[1, 0, number], plain.right)
        with shf.sharpen(model, Constant(3.0), layers=[1], heads=[0, 2]):
            band = score_answers(model, tokenizer(), prompt)
        np.testing.assert_allclose(evaluation.log_probability[1, 3, number], band.log_probability)


def test_a_policy_of_one_makes_no_difference(evaluation):
    row = evaluation.row(2, "none")
    assert (row["compared"]["gained"], row["compared"]["lost"]) == (0, 0)
    assert row["log_probability_compared"]["difference"] == pytest.approx(0, abs=1e-5)
    assert abs(evaluation.row(2, "paper")["log_probability_compared"]["difference"]) > 0.01


def test_rows_follow_from_the_arrays(evaluation):
    assert evaluation.right.shape == evaluation.log_probability.shape == (2, 4, 6, 2)
    assert set(np.unique(evaluation.right)) <= {0, 1}
    right = evaluation.right == 1
    for index, length in enumerate(evaluation.lengths):
        for column, condition in enumerate(evaluation.conditions):
            row = evaluation.row(length, condition)
            assert row["accuracy"] == stats.accuracy(right[index, column])
            assert row["log_probability"] == evaluation.log_probability[index, column].mean()
            assert ("compared" in row) == (condition != "plain")
            if condition != "plain":
                expected = stats.compare_answers(right[index, 0], right[index, column])
                assert expected.items() <= row["compared"].items()
                difference = np.subtract(*evaluation.log_probability[index, [column, 0]]).mean()
                found = row["log_probability_compared"]["difference"]
                assert found == pytest.approx(difference, abs=1e-12)
    compared = [row["compared"] for row in evaluation.measurements["rows"] if "compared" in row]
    adjusted = stats.adjust_p_values([values["p"] for values in compared])
    assert [values["p_adjusted"] for values in compared] == adjusted
    with pytest.raises(KeyError, match="no condition 'poem' at length 2"):
        evaluation.row(2, "poem")


def test_a_better_condition_gains_and_its_p_value_is_adjusted(monkeypatch):
    """The tiny model is never right, so that the scores are made up."""
    generator = np.random.default_rng(0)
    always_right = iter([False, True, False] * 40)  # plain, good, same

    def score(model, tokenizer, prompt):
        right = np.full(2, True) if next(always_right) else generator.random(2) < 0.2
        return Scores(right, np.where(right, -0.1, -3.0))

    monkeypatch.setattr(module, "score_answers", score)
    policies = {"good": Constant(2.0), "same": Constant(1.0)}
    evaluation = evaluate(policies=policies, prompts=20)
    for length in (2, 3):
        good, same = (evaluation.row(length, name)["compared"] for name in ("good", "same"))
        assert good["gained"] > 20
        assert good["lost"] == 0
        assert good["low"] > 0.5
        assert good["p"] < good["p_adjusted"] < 0.001
        assert same["gained"] > 0
        assert same["lost"] > 0
        assert same["p_adjusted"] > 0.05
        assert evaluation.row(length, "good")["accuracy"]["mean"] == 1


def test_old_names_are_deprecated(evaluation):
    with pytest.warns(DeprecationWarning, match="use 'conditions'"):
        assert evaluation.arms == evaluation.conditions
    with pytest.warns(DeprecationWarning, match="use 'condition'"):
        assert evaluation.row(2, arm="paper") == evaluation.row(2, "paper")
    with pytest.warns(DeprecationWarning, match="Arm is deprecated: use Condition"):
        assert shf.Arm is shf.Condition
    with pytest.raises(AttributeError, match="no attribute 'Leg'"):
        _ = shf.Leg


def test_it_says_what_it_measured_and_is_read_back(evaluation, tmp_path):
    config = evaluation.config
    assert (config["model"], config["notes"]) == ("tiny", ["a note"])
    assert config["arms"]["band"] == {"policy": repr(Constant(3.0)), "layers": [1], "heads": [0, 2]}
    again = shf.Evaluation.load(evaluation.save(tmp_path / "e.json"))
    np.testing.assert_array_equal(again.right, evaluation.right)
    assert again.measurements == evaluation.measurements


def stop_after(monkeypatch, number):
    """Count the scored prompts, and interrupt after this many."""
    counted = {"done": 0}

    def counting(*arguments):
        if counted["done"] == number:
            raise KeyboardInterrupt
        counted["done"] += 1
        return score_answers(*arguments)

    monkeypatch.setattr(module, "score_answers", counting)
    return counted


def test_an_interrupted_evaluation_resumes_to_the_same_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SECONDS_BETWEEN_SAVES", 0.0)
    path, model = tmp_path / "part.json", llama()
    whole = evaluate(model)
    stop_after(monkeypatch, 7)
    with pytest.raises(KeyboardInterrupt):
        evaluate(model, resume=path)
    counted = stop_after(monkeypatch, None)
    shares = []
    resumed = evaluate(model, resume=path, progress=shares.append)
    assert counted["done"] == 24 - 6  # one of two conditions of the interrupted prompt is repeated
    np.testing.assert_array_equal(resumed.right, whole.right)
    np.testing.assert_array_equal(resumed.log_probability, whole.log_probability)
    assert resumed.measurements == whole.measurements
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)
    shf.forget(path)
    assert list(tmp_path.iterdir()) == []


def test_the_checkpoint_of_another_evaluation_is_refused(tmp_path):
    path = tmp_path / "part.json"
    evaluate(resume=path, lengths=[2])
    for changes, reason in (
        ({"seed": 1}, "seed, inputs_sha256 differ"),
        ({"policies": {"paper": Constant(2.0)}}, "arms differ"),
        ({"model": llama(seed=1)}, "weights_sha256 differ"),
    ):
        with pytest.raises(UserError, match=reason):
            evaluate(resume=path, **({"lengths": [2]} | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompts": 5}, "prompts=5: no outcome of a paired test is significant.*fewer than 6"),
        ({"policies": {"plain": PAPER}}, "'plain' is reserved for the plain model"),
        ({"lengths": [2, 90]}, "90 names make a prompt of .* tokens with its answer"),
        ({"policies": {"far": shf.Condition(PAPER, layers=[7])}}, "layers: no 7 among 3"),
        ({"policies": {"file": "none.json"}}, r"none\.json does not exist"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_before_any_work(monkeypatch, changes, message):
    stop_after(monkeypatch, 0)
    with pytest.raises(UserError, match=message):
        evaluate(**changes)


def test_no_policies_and_no_language_model():
    with pytest.raises(UserError, match="no policies: give at least one"):
        shf.evaluate(llama(), tokenizer(), "lookup", {}, lengths=[2], prompts=6, questions=1)
    with pytest.raises(UserError, match="LlamaModel does not predict the next token"):
        evaluate(llama().model)
