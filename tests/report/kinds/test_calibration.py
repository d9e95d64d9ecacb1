"""A tuned calibration: what it gains first, what it costs, which heads become sharper or softer."""

from __future__ import annotations

import pytest

from sharpmax import report
from sharpmax.report.blocks import Heads, Table
from sharpmax.results.calibration import Architecture, Calibration, Head, TaskGain, TextCost


def gain(task, tuned_on, before, after):
    return TaskGain(
        task=task,
        unit="names",
        length=40,
        tokens=500,
        tuned_on=tuned_on,
        questions=24,
        right_before=before,
        right_after=after,
        nats_before=-3.0,
        nats_after=-1.0,
    )


def tuned(**changes):
    content = {
        "model": "tiny",
        "weights": "0" * 64,
        "architecture": Architecture(model_type="llama", layers=2, heads=(2, 2)),
        "method": {"command": "tune", "seed": 1, "history": [[0, 0.9, 0.0], [20, 0.4, 0.01]]},
        "from_tokens": 128,
        "gains": (gain("lookup", True, 0.2, 0.8), gain("births", False, 0.1, 0.3)),
        "text_cost": TextCost(tokens=1000, nats_before=2.0, nats_after=2.008),
        "heads": (Head(layer=0, head=1, rate=0.4), Head(layer=1, head=0, rate=-0.25)),
    }
    return Calibration(**content | changes)


def test_gains_come_first_then_the_cost_and_the_heads():
    content = report.describe(tuned())
    text = " ".join(content.sentences)
    assert "tuned on, the model answers 20.0 % correctly without and 80.0 % with" in text
    assert "not tuned on, the model answers 10.0 % correctly without and 30.0 % with" in text
    assert "costs +0.40 % nats per token (2.000 → 2.008, 1,000 tokens" in text
    assert "2 of 4 heads change as inputs grow: 1 become sharper and 1 softer" in text
    first, *_ = content.blocks
    assert isinstance(first, Table)
    assert [row[0] for row in first.rows] == ["lookup", "births"]
    heads = next(block for block in content.blocks if isinstance(block, Heads))
    assert heads.measures[0].scale == "signed"
    assert heads.measures[0].values == [[None, 0.4], [-0.25, None]]


@pytest.mark.parametrize(
    ("gains", "status"),
    [
        ((gain("lookup", True, 0.2, 0.8),), "good"),
        ((gain("lookup", True, 0.2, 0.8), gain("births", False, 0.4, 0.3)), "mixed"),
        ((gain("lookup", True, 0.4, 0.3),), "bad"),
        ((), "neutral"),
    ],
)
def test_the_verdict_follows_the_gains(gains, status):
    content = report.describe(tuned(gains=gains))
    assert content.verdict.status == status
    if status == "mixed":
        assert "Fewer answers are right on births." in content.verdict.details


def test_it_renders_everywhere(tmp_path, capsys):
    calibration = tuned()
    page = report.write([calibration], tmp_path / "tuned.html").read_text("utf-8")
    assert "Answers before and after, on fresh prompts" in page
    report.show(calibration)
    assert "lookup" in capsys.readouterr().out
    report.save_picture(report.draw(calibration), tmp_path / "tuned")
