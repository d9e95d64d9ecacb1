"""Summaries: pooled questions, paired changes, and rates of heads compared."""

from __future__ import annotations

import numpy as np
import pytest
from tune_comparison.tiny import loaded

import sharpmax.hf as shf
from sharpmax.experiments.tune_comparison.cells import Cell
from sharpmax.experiments.tune_comparison.summary import correlate, describe_heads, summarise
from sharpmax.hf.evaluate import stats
from sharpmax.hf.evaluate.tasks import TaskPrompt
from sharpmax.hf.model_info import weights_fingerprint
from sharpmax.hf.tune.calibration import architecture_of
from sharpmax.results.calibration import Head

PROMPT = TaskPrompt((1,), ((2,),), ((3,),))


def test_rows_compare_with_plain_and_with_tuning():
    cells = [
        Cell("births-8", "held-out", "births", 8, True, (PROMPT,)),
        Cell("scores-8", "held-out", "scores", 8, True, (PROMPT,)),
        Cell("essays", "text", "essays", 0, True, ((1, 2),)),
    ]
    generator = np.random.default_rng(0)
    right = generator.integers(0, 2, (3, 2, 8, 4))
    measured = {
        condition: {
            cell.name: {"right": answers.tolist(), "log_probability": (-1.0 - answers).tolist()}
            for cell, answers in zip(cells, right[index], strict=False)
        }
        for index, condition in enumerate(("plain", "tune-1", "lora-8"))
    }
    measured["plain"]["essays"] = {"nats": [2.0, 4.0], "short_nats": [3.0, 3.0]}
    measured["lora-8"]["essays"] = {"nats": [2.2, 4.1], "short_nats": [3.0, 3.0]}
    summary = summarise(cells, measured)
    rows = {(row["cell"], row["condition"]): row for row in summary["rows"]}
    assert len(rows) == 9
    pooled = rows["held-out-8", "lora-8"]
    joined = right.swapaxes(0, 1).reshape(2, 3, 8, 4)
    together = [np.concatenate(joined[:, index]) == 1 for index in range(3)]
    assert pooled["accuracy"] == stats.accuracy(together[2])
    changes = stats.compare_answers(together[0], together[2])
    assert changes.items() <= pooled["compared"].items()
    against = stats.compare_answers(together[2], together[1])
    assert against.items() <= pooled["tuned_compared"].items()
    assert "compared" not in rows["births-8", "plain"]
    assert "tuned_compared" not in rows["births-8", "tune-1"]
    four = [
        row["compared"]["p"] for row in rows.values() if "compared" in row and not row["pooled"]
    ]
    assert len(four) == 4
    smallest = rows["births-8", "lora-8"]["compared"]
    assert smallest["p_adjusted"] >= smallest["p"]

    text = next(row for row in summary["texts"] if row["condition"] == "lora-8")
    assert text["nats"] == pytest.approx(3.15)
    assert text["nats_change"]["difference"] == pytest.approx(0.15 / 3)
    assert text["short_nats_change"] == {"difference": 0, "low": 0, "high": 0}


def test_heads_are_compared_between_seeds_and_with_their_score(tmp_path):
    model = loaded().model
    layers, heads = 2, 4
    score = np.arange(8.0).reshape(layers, heads) / 10
    for seed, sign in ((1, 1), (2, -1)):
        calibration = shf.Calibration(
            model="tiny",
            weights=weights_fingerprint(model),
            architecture=architecture_of(model),
            method={"seed": seed},
            from_tokens=8,
            heads=tuple(
                Head(layer=at // heads, head=at % heads, rate=sign * (at + 1) / 10 + 0.05 * seed)
                for at in range(8)
            ),
        )
        calibration.save(tmp_path / f"tune-{seed}.calibration.json")
    measured = {
        "score": score.tolist(),
        "short_entropy": (0 * score).tolist(),
        "long_entropy": score.tolist(),
        "lengths": [4, 8],
    }
    found = describe_heads(model, measured, tmp_path)
    assert found["between_seeds"] == {"tune-1 tune-2": pytest.approx(-1)}
    assert found["rows"][5]["rates"] == {
        "tune-1": pytest.approx(0.65),
        "tune-2": pytest.approx(-0.5),
    }
    assert found["retrieval_heads"] == 7  # a score of 0.1 and more
    assert describe_heads(model, measured, tmp_path / "empty") is None


def test_correlation_is_of_ranks_and_needs_variation():
    x = np.array([1.0, 2.0, 3.0, 10.0])
    assert correlate(x, np.exp(x)) == pytest.approx(1)
    assert correlate(x, -x) == pytest.approx(-1)
    assert correlate(x, 0 * x) is None
    assert correlate(x[:2], x[:2]) is None
