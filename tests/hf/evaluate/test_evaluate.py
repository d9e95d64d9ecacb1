"""Does it help? Every way on the same questions, resumed to the same numbers."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest

import sharpmax.hf as shf
from hf.small import llama, tokenizer
from sharpmax import PAPER, Constant
from sharpmax._errors import UserError
from sharpmax.hf.evaluate import marks, stats
from sharpmax.hf.evaluate.scoring import answers
from sharpmax.hf.evaluate.tasks import TASKS, cases

module = import_module(
    "sharpmax.hf.evaluate.evaluate"
)  # the package has the function under this name


def run(model=None, policies=None, **changes):
    options = {"lengths": [2, 3], "prompts": 6, "questions": 2} | changes
    return shf.evaluate(
        model or llama(), tokenizer(), "lookup", policies or {"paper": PAPER}, **options
    )


@pytest.fixture(scope="module")
def found():
    policies = {
        "paper": PAPER,
        "none": Constant(1.0),
        "band": shf.Arm(Constant(3.0), layers=[1], heads=[0, 2]),
    }
    return run(policies=policies, name="tiny", notes=["a note"])


def test_each_arm_answers_the_same_questions(found):
    model = llama()
    made = cases(model, TASKS["lookup"], tokenizer(), [2, 3], 6, 2, 0)
    assert found.arms == ["plain", "paper", "none", "band"]
    assert found.lengths == [2, 3]
    for number, case in enumerate(made[3]):
        plain = answers(model, tokenizer(), case)
        np.testing.assert_allclose(found.log_probability[1, 0, number], plain.log_probability)
        np.testing.assert_array_equal(found.right[1, 0, number], plain.right)
        with shf.sharpen(model, Constant(3.0), layers=[1], heads=[0, 2]):
            band = answers(model, tokenizer(), case)
        np.testing.assert_allclose(found.log_probability[1, 3, number], band.log_probability)


def test_an_arm_that_changes_nothing_changes_nothing(found):
    row = found.row(2, "none")
    assert (row["compared"]["gained"], row["compared"]["lost"]) == (0, 0)
    assert row["log_probability_compared"]["difference"] == pytest.approx(0, abs=1e-5)
    assert abs(found.row(2, "paper")["log_probability_compared"]["difference"]) > 0.01


def test_rows_are_made_of_the_arrays(found):
    assert found.right.shape == found.log_probability.shape == (2, 4, 6, 2)
    assert set(np.unique(found.right)) <= {0, 1}
    right = found.right == 1
    for place, length in enumerate(found.lengths):
        for column, arm in enumerate(found.arms):
            row = found.row(length, arm)
            assert row["accuracy"] == stats.share(right[place, column])
            assert ("compared" in row) == (arm != "plain")
    p = [row["compared"]["p"] for row in found.measurements["rows"] if "compared" in row]
    adjusted = [
        row["compared"]["p_adjusted"] for row in found.measurements["rows"] if "compared" in row
    ]
    assert adjusted == stats.holm(p)
    with pytest.raises(KeyError, match="no arm 'poem' at length 2"):
        found.row(2, "poem")


def test_it_says_what_it_measured_and_is_read_back(found, tmp_path):
    config = found.config
    assert (config["model"], config["notes"]) == ("tiny", ["a note"])
    assert config["arms"]["band"] == {"policy": repr(Constant(3.0)), "layers": [1], "heads": [0, 2]}
    again = shf.Evaluation.load(found.save(tmp_path / "e.json"))
    np.testing.assert_array_equal(again.right, found.right)
    assert again.measurements == found.measurements


def stop_after(monkeypatch, number):
    """Answers, of which the one after so many fails."""
    counted = {"done": 0}

    def counting(*arguments):
        if counted["done"] == number:
            raise KeyboardInterrupt
        counted["done"] += 1
        return answers(*arguments)

    monkeypatch.setattr(module, "answers", counting)
    return counted


def test_killed_it_goes_on_to_the_same_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(marks, "KEEP_EVERY", 0.0)
    part, model = tmp_path / "part.json", llama()
    whole = run(model)
    stop_after(monkeypatch, 7)
    with pytest.raises(KeyboardInterrupt):
        run(model, resume=part)
    counted = stop_after(monkeypatch, None)
    found = run(model, resume=part)
    assert counted["done"] == 24 - 6  # of the interrupted prompt one answer is asked for again
    np.testing.assert_array_equal(found.right, whole.right)
    np.testing.assert_array_equal(found.log_probability, whole.log_probability)
    assert found.measurements == whole.measurements
    shf.forget(part)
    assert list(tmp_path.iterdir()) == []


def test_what_another_evaluation_left_is_not_mixed_in(tmp_path, monkeypatch):
    monkeypatch.setattr(marks, "KEEP_EVERY", 0.0)
    part = tmp_path / "part.json"
    run(resume=part, lengths=[2])
    for changes, reason in (
        ({"seed": 1}, "inputs_sha256, seed differ|seed, inputs_sha256 differ"),
        ({"policies": {"paper": Constant(2.0)}}, "arms differ"),
        ({"model": llama(seed=1)}, "weights_sha256 differ"),
    ):
        with pytest.raises(UserError, match=reason):
            run(resume=part, **({"lengths": [2]} | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompts": 5}, "prompts=5: a paired test can tell nothing.*fewer than 6"),
        ({"policies": {"plain": PAPER}}, "'plain' is the model as it is"),
        ({"lengths": [2, 90]}, "90 names are .* tokens with the answer"),
        ({"policies": {"far": shf.Arm(PAPER, layers=[7])}}, "layers: no 7 among 3"),
        ({"policies": {"file": "none.json"}}, r"none\.json does not exist"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_before_any_work(monkeypatch, changes, message):
    stop_after(monkeypatch, 0)
    with pytest.raises(UserError, match=message):
        run(**changes)


def test_no_policies_and_no_language_model():
    with pytest.raises(UserError, match="no policies: give at least one"):
        shf.evaluate(llama(), tokenizer(), "lookup", {}, lengths=[2], prompts=6, questions=1)
    with pytest.raises(UserError, match="LlamaModel does not predict the next token"):
        run(llama().model)
