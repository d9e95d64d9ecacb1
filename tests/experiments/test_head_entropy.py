"""Figure 3 on a real language model: the first block disperses as the sequence grows."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from sharpmax.experiments import head_entropy
from sharpmax.results import Result

ROOT = Path(__file__).parents[2]
MEASURED = [3.11, 3.54, 4.03, 4.55, 5.05, 5.54, 6.00]
"""Nats at 8 to 512 numbers, measured by another program with other random numbers."""


@pytest.fixture(scope="module")
def result():
    return head_entropy.run(head_entropy.Config(seeds=(0, 1)))


def test_mean_entropy_rises_in_a_straight_line(result):
    mean = np.asarray(result.measurements["mean_entropy"])
    np.testing.assert_allclose(mean, MEASURED, atol=0.1)
    assert (np.diff(mean) > 0).all()
    line = np.polyval(np.polyfit(np.log(result.config["lengths"]), mean, 1), np.log([8, 64, 512]))
    np.testing.assert_allclose(line, mean[[0, 3, 6]], atol=0.1)


def test_what_is_published_is_what_is_measured(result):
    published = Result.load(ROOT / "results" / "figure3.json")
    assert published.config["seeds"] == [0, 1, 2, 3, 4]
    ours = np.asarray(result.measurements["entropy"])
    np.testing.assert_allclose(ours, np.asarray(published.measurements["entropy"])[:2], atol=1e-3)
    page = (ROOT / "docs" / "reproduce.md").read_text("utf-8")
    for row, name in (("mean of 9 heads, nats", "mean_entropy"), ("standard dev", "seed_spread")):
        (line,) = re.findall(rf"^\| {row}[^|]*\|(.*)\|$", page, re.M)
        numbers = [float(cell) for cell in line.split("|")]
        np.testing.assert_allclose(numbers, published.measurements[name], atol=0.00501)


def test_quantised_weights_are_noted(result):
    assert any("4 bits" in note for note in result.measurements["notes"])
    assert result.measurements["slope"] == pytest.approx(0.75, abs=0.1)
