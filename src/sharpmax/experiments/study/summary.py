"""From the measurements to what the result says: intervals, tests, power and verdicts.

A prompt is the unit of every test, and its score is the mean over its answers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import ttest_1samp

from sharpmax.experiments.study.config import CONDITIONS, FAMILIES, MODELS, PLAIN
from sharpmax.hf.evaluate import stats

if TYPE_CHECKING:
    from jaxtyping import Float, Int

MAX_SHORT_LOSS = 0.03
"""How much of their score short tasks may lose, as a share of all answers."""
MAX_TEXT_COST = 0.01
"""How much more nats per token ordinary text may cost, as a share."""
SIGNIFICANT = 0.05

PRIMARY_TESTS = len(MODELS) * (len(CONDITIONS) - 1) * len(FAMILIES)
"""The number of primary tests, also while some are missing."""
SHORT_GROUPS = ("short", "choices")


@dataclass(frozen=True)
class Measured:
    """What was measured of a model.

    Attributes:
        model: What results say about the model, and facts of its conditions.
        cells: What the cells are.
        units: What the cells returned, by condition and cell.
    """

    model: dict[str, Any]
    cells: Sequence[Mapping[str, Any]]
    units: Mapping[str, Mapping[str, dict[str, Any]]]


def summarise(models: Mapping[str, Measured]) -> dict[str, Any]:
    """Return rows per cell, per text and per family, and a verdict per model and condition."""
    rows = [row for key, found in models.items() for row in _answer_rows(key, found)]
    texts = [row for key, found in models.items() for row in _text_rows(key, found)]
    pools = [row for key, found in models.items() for row in _pool_rows(key, found)]
    primary = [row["compared"] for row in pools if row["group"] in FAMILIES and "compared" in row]
    _adjust(primary, PRIMARY_TESTS)
    questions = sum(cell["group"] != "text" for found in models.values() for cell in found.cells)
    missing = len(MODELS) / max(len(models), 1)
    _adjust(
        [row["compared"] for row in rows if "compared" in row],
        round(questions * missing) * (len(CONDITIONS) - 1),
    )
    verdicts = [
        {"model": key, "condition": condition}
        | judge(
            [row for row in pools if (row["model"], row["condition"]) == (key, condition)],
            [row for row in texts if (row["model"], row["condition"]) == (key, condition)],
        )
        for key, found in models.items()
        for condition in found.units
        if condition != PLAIN
    ]
    return {
        "rows": rows,
        "texts": texts,
        "pools": pools,
        "verdicts": verdicts,
        "primary_tests": PRIMARY_TESTS,
    }


def _adjust(tests: list[dict[str, Any]], count: int) -> None:
    """Correct by Holm's method for this many tests; those that are missing count as p = 1."""
    p_values = [test["p"] for test in tests] + [1.0] * (count - len(tests))
    for test, p_value in zip(tests, stats.adjust_p_values(p_values), strict=False):
        test["p_adjusted"] = p_value


def scores(right: Sequence[Sequence[int]]) -> Float[np.ndarray, " prompts"]:
    """Return the share of right answers of each prompt."""
    return np.asarray([np.mean(marks) for marks in right])


def _interval(values: Float[np.ndarray, " prompts"]) -> dict[str, float]:
    """Return the mean with Student's interval; where nothing varies, the mean alone."""
    mean = float(values.mean())
    if len(values) < 2 or not np.ptp(values):
        return {"mean": mean, "low": mean, "high": mean}
    interval = ttest_1samp(values, 0.0).confidence_interval(stats.LEVEL)
    return {
        "mean": mean,
        "low": max(0.0, float(interval.low)),
        "high": min(1.0, float(interval.high)),
    }


def compare(plain: Sequence[Sequence[int]], other: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return the change of the score with interval, exact sign-flip test and power.

    Args:
        plain: The marks of the answers to each prompt.
        other: The same under another condition.
    """
    differences = scores(other) - scores(plain)
    change = stats.mean_difference(np.zeros((len(differences), 1)), differences[:, None])
    deviation = float(differences.std(ddof=1)) if len(differences) > 1 else 0.0
    return change | {
        "p": stats.sign_flip_test(_as_integers(plain, other)),
        "deviation": deviation,
        "detectable": detectable(deviation, len(differences), SIGNIFICANT),
        "detectable_strictly": detectable(deviation, len(differences), SIGNIFICANT / PRIMARY_TESTS),
    }


def _as_integers(
    plain: Sequence[Sequence[int]], other: Sequence[Sequence[int]]
) -> Int[np.ndarray, " prompts"]:
    """Return the differences of scores in a common unit, which the exact test needs."""
    unit = math.lcm(*(len(marks) for marks in plain))
    differences = [
        (sum(after) - sum(before)) * (unit // len(before))
        for before, after in zip(plain, other, strict=True)
    ]
    common = math.gcd(*differences) or 1
    return np.array(differences) // common


def detectable(deviation: float, prompts: int, level: float) -> float:
    """Return the change that a test at this level finds with 80 % power.

    (z(1 - level / 2) + z(power)) * deviation / sqrt(prompts)
    """
    normal = NormalDist()
    factor = normal.inv_cdf(1 - level / 2) + normal.inv_cdf(stats.POWER)
    return factor * deviation / math.sqrt(prompts)


def _answer_rows(key: str, found: Measured) -> list[dict[str, Any]]:
    """Return one row per cell with questions and condition."""
    rows = []
    for cell in found.cells:
        if cell["group"] == "text":
            continue
        plain = found.units.get(PLAIN, {}).get(cell["name"])
        for condition, units in found.units.items():
            unit = units.get(cell["name"])
            if unit is None:
                continue
            row = {
                "model": key,
                "condition": condition,
                **{name: cell[name] for name in ("group", "task", "length", "tokens")},
                "prompts": len(unit["right"]),
                "score": _interval(scores(unit["right"])),
                "log_probability": float(np.mean(np.concatenate(unit["log_probability"]))),
            }
            if plain is not None and condition != PLAIN:
                row["compared"] = compare(plain["right"], unit["right"])
            rows.append(row)
    return rows


def _pool_rows(key: str, found: Measured) -> list[dict[str, Any]]:
    """Return one row per condition and family, and for all short tasks together.

    Scores are there once all cells of the family are measured.
    """
    rows = []
    for group in (*FAMILIES, "short tasks"):
        groups = SHORT_GROUPS if group == "short tasks" else (group,)
        cells = [cell["name"] for cell in found.cells if cell["group"] in groups]
        plain = _pool(found.units.get(PLAIN, {}), cells)
        for condition, units in found.units.items():
            row: dict[str, Any] = {
                "model": key,
                "condition": condition,
                "group": group,
                "cells": len(cells),
                "measured": sum(cell in units for cell in cells),
            }
            right = _pool(units, cells)
            if right is not None:
                row |= {"prompts": len(right), "score": _interval(scores(right))}
                if plain is not None and condition != PLAIN:
                    row["compared"] = compare(plain, right)
            rows.append(row)
    return rows


def _pool(units: Mapping[str, dict[str, Any]], cells: Sequence[str]) -> list[list[int]] | None:
    """Return the marks of all prompts of some cells; None if a cell is missing."""
    if not cells or not all(cell in units for cell in cells):
        return None
    return [marks for cell in cells for marks in units[cell]["right"]]


def _text_rows(key: str, found: Measured) -> list[dict[str, Any]]:
    """Return nats per token of ordinary text, and their relative change."""
    rows = []
    for cell in found.cells:
        plain = found.units.get(PLAIN, {}).get(cell["name"])
        for condition, units in found.units.items():
            if cell["group"] != "text" or cell["name"] not in units:
                continue
            row: dict[str, Any] = {"model": key, "condition": condition, "cell": cell["name"]}
            for name in ("nats", "short_nats"):
                values = np.asarray(units[cell["name"]][name])
                row[name] = float(values.mean())
                if plain is not None and condition != PLAIN:
                    base = np.asarray(plain[name])
                    change = stats.mean_difference(base[:, None], values[:, None])
                    row[f"{name}_change"] = {end: x / base.mean() for end, x in change.items()}
            rows.append(row)
    return rows


def judge(pools: Sequence[Mapping[str, Any]], texts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return whether a condition helps a model, by the rules of docs/study.md, and why.

    Args:
        pools: The rows of both families and of short tasks.
        texts: The rows of ordinary text.
    """
    changes = {row["group"]: row["compared"] for row in pools if "compared" in row}
    clear = {
        group: changes[group]["difference"]
        for group in FAMILIES
        if group in changes and changes[group]["p_adjusted"] < SIGNIFICANT
    }
    costs = {row["cell"]: row["nats_change"] for row in texts if "nats_change" in row}
    short = changes.get("short tasks")
    harms = [f"{group} falls" for group, change in clear.items() if change < 0]
    if short is not None and short["high"] < -MAX_SHORT_LOSS:
        harms.append("short tasks fall")
    harms += [
        f"{cell} cost more" for cell, cost in costs.items() if cost["difference"] > MAX_TEXT_COST
    ]
    complete = {*FAMILIES, "short tasks"} <= changes.keys() and {"essays", "guard"} <= costs.keys()
    rises = [f"{group} rises" for group, change in clear.items() if change > 0]
    if harms:
        return {"verdict": "harms", "reasons": harms + rises}
    if not complete or short is None:
        return {"verdict": "unfinished", "reasons": rises}
    if rises and short["low"] > -MAX_SHORT_LOSS:
        return {"verdict": "helps", "reasons": rises}
    unsure = [] if short["low"] > -MAX_SHORT_LOSS else ["short tasks may fall"]
    return {"verdict": "undecided", "reasons": rises + unsure}
