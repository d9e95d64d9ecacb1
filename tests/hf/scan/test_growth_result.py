"""What the page says of growth in SmolLM2 and of the tuned rates is what the result says."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from scipy import stats

from sharpmax.results import Calibration, Result
from sharpmax.theory import growth_power

MINUS = "\N{MINUS SIGN}"
ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "read_a_scan.md").read_text("utf-8")
SHIPPED = ROOT / "src" / "sharpmax" / "hf" / "tune" / "calibrations" / "smollm2.json"


def growth_and_rates():
    """The power and the law of each head, and its tuned rate."""
    result = Result.load(ROOT / "results" / "growth" / "scan.json")
    rates = Calibration.load(SHIPPED).rates()
    by_head = np.array([rates.get(layer, (0.0,) * 9) for layer in range(30)])
    return result, result.arrays["growth_power"], np.array(result.measurements["laws"]), by_head


def test_the_powers_are_those_of_the_counts():
    result, power, _, _ = growth_and_rates()
    sizes = [tokens - 1 for tokens in result.measurements["tokens"]]
    again = growth_power(sizes, result.arrays["competitors"].astype(float))
    np.testing.assert_allclose(again, power, rtol=1e-6)


def test_the_table_of_the_page_is_the_result():
    _, power, laws, rates = growth_and_rates()
    rows = re.findall(r"^\| (hardly|like .*|faster .*) \| (\d+) \| (\S+) \| (\d+) \|$", PAGE, re.M)
    names = ["none", "sqrt(log n)", "log n", "(log n)^2", "faster"]
    assert len(rows) == len(names)
    for (_, heads, mean, strong), law in zip(rows, names, strict=True):
        chosen = rates[laws == law]
        assert int(heads) == len(chosen)
        assert float(mean.replace(MINUS, "-")) == round(float(chosen.mean()), 2)
        assert int(strong) == (chosen > 0.2).sum()
    said = re.search(rf"rank correlation of the power and the rate is ({MINUS}?\d\.\d\d)", PAGE)
    assert said is not None
    correlation = stats.spearmanr(power.ravel(), rates.ravel()).statistic
    assert float(said[1].replace(MINUS, "-")) == round(float(correlation), 2)
