"""diagnose: causes that are known, parts that sum to the loss, and jobs that resume."""

from __future__ import annotations

import hypothesis.extra.numpy as arrays
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import sharpmax.hf as shf
from hf.needles import LENGTHS, diagnosis, module
from hf.small import assert_nothing_is_patched, llama, tokenizer
from sharpmax import Constant
from sharpmax._errors import UserError
from sharpmax.hf.tune.needle_rows import NEEDLE, WINNERS
from sharpmax.theory import growth_power, name_law
from sharpmax.theory.growth import GAPS

SMALL = {"lengths": [2, 4], "prompts": 3, "questions": 2}


@given(
    weight=arrays.arrays(np.float64, (3, 2, 2, 2), elements=st.floats(0, 1)),
    winner=arrays.arrays(np.int8, (3, 2, 2, 2), elements=st.integers(0, len(WINNERS) - 1)),
)
def test_the_parts_sum_to_the_loss(weight, winner):
    winner[0, 0, 0] = NEEDLE  # each head finds it once
    losses = module.split_loss(weight, winner)
    expected = weight[0].mean() - weight.mean((1, 2, 3))
    np.testing.assert_allclose(losses.sum(-1), expected, atol=1e-14)
    np.testing.assert_array_equal(losses[0], 0)


def test_a_head_that_always_ranks_it_first_loses_by_dispersion_alone(monkeypatch):
    result = diagnosis(monkeypatch, (0.9, 0.5, 0.2), (1, 1, 1))
    assert result.cause == "dispersion"
    assert result.retrieval_heads == [(1, 0), (1, 1)]
    split = result.row(8)["split"]
    assert split["ranked_first"] == 1
    assert split["loss"] == pytest.approx(0.7)
    assert split["dispersion"] == pytest.approx(0.7)
    assert split["dispersion_share"] == pytest.approx(1)
    assert split["ranking"] == pytest.approx(0, abs=1e-12)
    assert split["dispersion_share_low"] == pytest.approx(1)


def test_the_law_that_would_hold_a_head_is_that_of_its_competitors(monkeypatch):
    """Twice as many tokens a fixed distance below the answer, at twice the length."""
    result = diagnosis(monkeypatch, (0.9, 0.5, 0.2), (1, 1, 0.5))
    for head in result.measurements["retrieval_heads"]:
        tokens = [row["tokens"] for row in result.measurements["rows"]]
        counts = [np.where(np.array(GAPS) > 5, 1 + 10 * length, 1) for length in LENGTHS]
        assert head["power"] == pytest.approx(float(growth_power(tokens, np.array(counts))))
        assert head["law"] == name_law(head["power"])
    alone = diagnosis(monkeypatch, (0.9, 0.5, 0.2), (1, 0, 0))
    assert [head["power"] for head in alone.measurements["retrieval_heads"]] == [None, None]
    assert alone.measurements["retrieval_heads"][0]["law"] == "nothing competes"


def test_a_head_that_ranks_others_first_loses_by_ranking_alone(monkeypatch):
    result = diagnosis(monkeypatch, (0.9, 0.9, 0.9), (1, 0.5, 0))
    assert result.cause == "ranking"
    split = result.row(4)["split"]
    assert split["loss"] == split["ranking"] == pytest.approx(0.45)
    assert split["lost_to"]["another number"] == pytest.approx(0.45)
    assert split["winners"]["another number"] == pytest.approx(0.5)
    assert split["dispersion"] == pytest.approx(0, abs=1e-7)


def test_both_causes_have_their_parts(monkeypatch):
    # Half of the questions lose 0.4 of 0.8 although ranked first, the others lose all of it.
    split = diagnosis(monkeypatch, (0.8, 0.8, 0.4), (1, 1, 0.5)).row(8)["split"]
    assert split["dispersion"] == pytest.approx(0.2)
    assert split["ranking"] == pytest.approx(0.4)
    assert split["dispersion_share"] == pytest.approx(1 / 3)


def test_what_is_outside_the_window_is_neither(monkeypatch):
    result = diagnosis(monkeypatch, (0.9, 0.9, 0.9), (1, 1, 0), instead="hidden")
    assert result.cause == "window"
    split = result.row(8)["split"]
    assert split["window"] == pytest.approx(0.9)
    assert split["ranking"] == pytest.approx(0, abs=1e-7)


def test_nothing_is_lost(monkeypatch):
    assert diagnosis(monkeypatch, (0.5, 0.5, 0.49), (1, 1, 1)).cause == "nothing lost"


def test_no_head_finds_it(monkeypatch):
    result = diagnosis(monkeypatch, (0.5, 0.5, 0.5), (1, 1, 1), heads=0)
    assert result.cause == "no heads"
    assert result.retrieval_heads == []
    assert result.row(2)["split"] is None
    with pytest.raises(KeyError, match=r"no length 3: measured were \[2, 4, 8\]"):
        result.row(3)


def test_the_score_is_the_share_ranked_first_at_the_shortest_length(monkeypatch):
    result = diagnosis(monkeypatch, (0.9, 0.9, 0.9), (0.5, 1, 1))
    assert result.lengths == list(LENGTHS)
    expected = np.zeros((3, 4))
    expected[1, :2] = 0.5
    np.testing.assert_array_equal(result.score, expected)
    np.testing.assert_array_equal(result.score, (result.rank[0] == 1).mean((0, 1)))


@pytest.mark.parametrize("task", ["lookup", "json", "passkey", "max"])
def test_a_diagnosis_of_a_model(task):
    options = SMALL if task in ("lookup", "json") else SMALL | {"questions": 1}
    if task == "passkey":
        options = options | {"lengths": [170, 200]}
    shares = []
    model = llama(context=700)
    result = shf.diagnose(model, tokenizer(), task, **options, progress=shares.append)
    assert result.weight.shape == (2, 3, options["questions"], 3, 4)
    assert np.isfinite(result.weight).all()
    assert (result.weight <= result.answer_weight + 1e-3).all()
    assert ((result.winner == NEEDLE) == (result.rank == 1)).all()
    assert shares[-1] == 1
    assert_nothing_is_patched()


def test_a_policy_sharpens_the_weights_that_are_measured():
    model = llama(context=700)
    plain, same, sharp = (
        shf.diagnose(model, tokenizer(), **SMALL, policy=policy)
        for policy in (None, Constant(1.0), shf.Condition(Constant(3.0), layers=[2]))
    )
    np.testing.assert_allclose(plain.weight, same.weight, atol=1e-3)
    np.testing.assert_allclose(plain.weight[..., :2, :], sharp.weight[..., :2, :], atol=1e-3)
    # Layer 2 sees the same logits, only sharper: first stays first, and gains.
    np.testing.assert_array_equal(plain.rank, sharp.rank)
    first = plain.rank[..., 2, :] == 1
    assert (sharp.weight[..., 2, :] >= plain.weight[..., 2, :] - 1e-3)[first].all()
    assert plain.config["policy"] is None
    assert sharp.config["policy"]["policy"] == repr(Constant(3.0))


def test_an_interrupted_diagnosis_resumes_to_the_same_numbers(monkeypatch, tmp_path):
    model, checkpoint = llama(context=700), tmp_path / "part.json"
    expected = shf.diagnose(model, tokenizer(), **SMALL)
    measure, calls = module.measure_needle_rows, []

    def interrupt(*arguments):
        if len(calls) == 4:
            raise KeyboardInterrupt
        calls.append(1)
        return measure(*arguments)

    monkeypatch.setattr(module, "SECONDS_BETWEEN_SAVES", 0.0)
    monkeypatch.setattr(module, "measure_needle_rows", interrupt)
    with pytest.raises(KeyboardInterrupt):
        shf.diagnose(model, tokenizer(), **SMALL, resume=checkpoint)
    with pytest.raises(UserError, match="checkpoint of another diagnose"):
        shf.diagnose(model, tokenizer(), **SMALL, seed=1, resume=checkpoint)
    calls.clear()
    calls += [1, 1]  # two prompts are left
    resumed = shf.diagnose(model, tokenizer(), **SMALL, resume=checkpoint)
    assert len(calls) == 4
    assert resumed.measurements == expected.measurements
    for name, array in expected.arrays.items():
        np.testing.assert_array_equal(resumed.arrays[name], array)
    shf.forget(checkpoint)
    assert not list(tmp_path.iterdir())


def test_a_user_task_must_say_the_answer_once():
    def once(length, generator):
        number = int(generator.integers(100, 1000))
        return f"{'blah ' * length}The number is {number}. I repeat, it is", f" {number}"

    def twice(length, generator):
        return f"{'blah ' * length}7 is 7. It is", " 7"

    model, options = llama(context=700), {"lengths": [3, 5], "prompts": 2}
    result = shf.diagnose(model, tokenizer(), once, **options)
    assert result.config["task"] == "function once"
    with pytest.raises(UserError, match="task 'function twice' does not say where in the text"):
        shf.diagnose(model, tokenizer(), twice, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lengths": [4]}, r"lengths=\[4\]: give at least two"),
        ({"task": "poem"}, "unknown task 'poem'"),
        ({"questions": 5}, "asks for 5 different names of 2"),
        ({"prompts": 0}, "give at least 1 of each"),
        ({"policy": "none.json"}, "none.json does not exist"),
    ],
)
def test_mistakes_are_reported_before_the_model_runs(options, message, monkeypatch):
    monkeypatch.setattr(module, "measure_needle_rows", None)
    with pytest.raises(UserError, match=message):
        shf.diagnose(llama(context=700), tokenizer(), **(SMALL | options))


def test_a_slow_tokenizer_cannot_say_where_the_answer_is():
    class Slow:
        inner = tokenizer()

        def __call__(self, *arguments, **options):
            return self.inner(*arguments, **options)

    with pytest.raises(UserError, match="a fast tokenizer"):
        shf.diagnose(llama(context=700), Slow(), **SMALL)
