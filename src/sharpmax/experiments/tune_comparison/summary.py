"""From the measurements of all conditions to what the result says: intervals, tests, heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import spearmanr
from transformers import PreTrainedModel

from sharpmax.experiments.cells import Cell
from sharpmax.experiments.tune_comparison.config import PLAIN, SEEDS, TUNED, Config
from sharpmax.hf.evaluate import stats
from sharpmax.hf.evaluate.tasks import TASKS, make_prompts
from sharpmax.hf.loading.loader import Loaded
from sharpmax.hf.tune.calibration import Calibration, architecture_of
from sharpmax.hf.tune.diagnose import MIN_SCORE, diagnose
from sharpmax.hf.tune.head_profiles import measure_entropies

if TYPE_CHECKING:
    from jaxtyping import Float

Measured = Mapping[str, Mapping[str, dict[str, Any]]]
"""What cells returned, by condition and cell."""

ENTROPY_PROMPTS = 4


def summarise(cells: Sequence[Cell], measured: Measured) -> dict[str, Any]:
    """Return one row per condition and cell, with intervals and paired tests.

    `compared` is the change against the plain model, `tuned_compared` that from the condition to
    `TUNED`. Questions in formats that were not tuned on are also pooled by length.
    """
    rows = [
        row
        for cell, parts in _with_pools(cells)
        if cell.group != "text"
        for row in _answer_rows(cell, parts, measured)
    ]
    for key in ("compared", "tuned_compared"):
        tests = [row[key] for row in rows if key in row and not row["pooled"]]
        pooled = [row[key] for row in rows if key in row and row["pooled"]]
        for some in (tests, pooled):  # pooled questions would be counted twice
            adjusted = stats.adjust_p_values([test["p"] for test in some])
            for test, p_value in zip(some, adjusted, strict=True):
                test["p_adjusted"] = p_value
    texts = [row for cell in cells if cell.group == "text" for row in _text_rows(cell, measured)]
    return {"rows": rows, "texts": texts}


def _with_pools(cells: Sequence[Cell]) -> list[tuple[Cell, list[str]]]:
    """Return each cell with its name, then all formats of a length that were not tuned on."""
    pools: dict[int, list[Cell]] = {}
    for cell in cells:
        if cell.group == "held-out":
            pools.setdefault(cell.length, []).append(cell)
    return [(cell, [cell.name]) for cell in cells] + [
        (
            Cell(f"held-out-{length}", "held-out", "all", length, True, some[0].inputs),
            [cell.name for cell in some],
        )
        for length, some in pools.items()
    ]


def _answer_rows(cell: Cell, parts: list[str], measured: Measured) -> list[dict[str, Any]]:
    def gather(condition: str, key: str) -> np.ndarray | None:
        units = measured.get(condition, {})
        if not all(part in units for part in parts):
            return None
        return np.concatenate([np.asarray(units[part][key]) for part in parts])

    rows = []
    plain, tuned = gather(PLAIN, "right"), gather(TUNED, "right")
    for condition in measured:
        right = gather(condition, "right")
        log_probability = gather(condition, "log_probability")
        if right is None or log_probability is None:
            continue
        row: dict[str, Any] = {
            "cell": cell.name,
            "group": cell.group,
            "task": cell.task,
            "length": cell.length,
            "tokens": cell.tokens,
            "pooled": len(parts) > 1,
            "condition": condition,
            "questions": right.size,
            "accuracy": stats.accuracy(right == 1),
            "log_probability": float(log_probability.mean()),
        }
        if plain is not None and condition != PLAIN:
            row["compared"] = stats.compare_answers(plain == 1, right == 1)
            same = gather(PLAIN, "log_probability") == log_probability
            row["identical"] = float(np.all(same, axis=1).mean())
        if tuned is not None and condition not in (PLAIN, TUNED):
            row["tuned_compared"] = stats.compare_answers(right == 1, tuned == 1)
        rows.append(row)
    return rows


def _text_rows(cell: Cell, measured: Measured) -> list[dict[str, Any]]:
    """Return nats per token, and their relative change with an interval over the chunks."""
    rows = []
    for condition, units in measured.items():
        if cell.name not in units:
            continue
        row: dict[str, Any] = {"cell": cell.name, "condition": condition}
        for key in ("nats", "short_nats"):
            values = np.asarray(units[cell.name][key])
            row[key] = float(values.mean())
            plain = measured.get(PLAIN, {}).get(cell.name)
            if plain is not None and condition != PLAIN:
                base = np.asarray(plain[key])
                change = stats.mean_difference(base[:, None], values[:, None])
                row[f"{key}_change"] = {name: x / base.mean() for name, x in change.items()}
        rows.append(row)
    return rows


# What the tuned heads are.


def measure_heads(config: Config, loaded: Loaded) -> dict[str, Any]:
    """Return each head's retrieval score, and its entropy on short and on long prompts."""
    lengths = (config.short_names, max(config.held_out_names))
    questions = min(TASKS["lookup"].questions, *lengths)
    diagnosis = diagnose(
        loaded.model,
        loaded.tokenizer,
        "lookup",
        lengths=lengths,
        questions=questions,
        seed=config.seed,
    )
    entropies = [_mean_entropy(config, loaded, length) for length in lengths]
    return {
        "lengths": list(lengths),
        "score": diagnosis.score.tolist(),
        "short_entropy": entropies[0].tolist(),
        "long_entropy": entropies[1].tolist(),
    }


def _mean_entropy(config: Config, loaded: Loaded, length: int) -> Float[np.ndarray, "layers heads"]:
    task, model = TASKS["lookup"], loaded.model
    prompts = make_prompts(
        model,
        task,
        loaded.tokenizer,
        [length],
        ENTROPY_PROMPTS,
        min(task.questions, length),
        config.seed,
    )
    return np.mean([measure_entropies(model, each, [1.0])[0] for each in prompts[length]], axis=0)


def describe_heads(
    model: PreTrainedModel, heads: dict[str, Any], folder: Path
) -> dict[str, Any] | None:
    """Compare the rates of different seeds with each other and with what the heads do.

    Returns:
        One row per head, and correlations; None if no tuning is finished.
    """
    architecture = architecture_of(model)
    size = (architecture.layers, max(architecture.heads))
    rates: dict[str, np.ndarray] = {}
    for name in SEEDS:
        file = folder / f"{name}.calibration.json"
        if file.exists():
            rates[name] = np.zeros(size)
            for layer, row in Calibration.load(file).rates().items():
                rates[name][layer, : len(row)] = row
    if not rates:
        return None
    score = np.asarray(heads["score"], float)
    measured = np.isfinite(score)
    mean = np.mean(list(rates.values()), axis=0)
    retrieval = measured & (score >= MIN_SCORE)
    rows = [
        {
            "layer": layer,
            "head": head,
            "rates": {name: float(values[layer, head]) for name, values in rates.items()},
            **{key: heads[key][layer][head] for key in ("score", "short_entropy", "long_entropy")},
        }
        for layer, head in np.argwhere(measured).tolist()
    ]
    growth = np.asarray(heads["long_entropy"], float) - np.asarray(heads["short_entropy"], float)
    return {
        "rows": rows,
        "lengths": heads["lengths"],
        "retrieval_heads": int(retrieval.sum()),
        "retrieval_rate": _mean(mean[retrieval]),
        "other_rate": _mean(mean[measured & ~retrieval]),
        "retrieval_size": _mean(np.abs(mean[retrieval])),
        "other_size": _mean(np.abs(mean[measured & ~retrieval])),
        "between_seeds": {
            f"{one} {other}": correlate(rates[one][measured], rates[other][measured])
            for one, other in combinations(rates, 2)
        },
        "size_with_score": correlate(np.abs(mean[measured]), score[measured]),
        "rate_with_score": correlate(mean[measured], score[measured]),
        "rate_with_entropy_growth": correlate(mean[measured], growth[measured]),
    }


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if values.size else None


def correlate(x: np.ndarray, y: np.ndarray) -> float | None:
    """Return Spearman's rank correlation; None where one of the two does not vary."""
    if x.size < 3 or not np.ptp(x) or not np.ptp(y):
        return None
    return float(spearmanr(x, y).statistic)
