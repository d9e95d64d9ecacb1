"""What each result says, in one cell of a table: every function reads one result and nothing else.

`docs/claim_rows.py` says which claim each of them is about.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from sharpmax.report.calibration import Calibration
from sharpmax.report.numbers import points
from sharpmax.report.summary import VERBS
from sharpmax.results import Result

AGAIN = "to be measured again"
"""For a benchmark whose file is of an older format than its program writes."""

ROUNDING = 1e-9
"""A weight that attains its bound may exceed it by as much as it was rounded."""


def share(mean: float, std: float | None = None) -> str:
    """A share in percent, with its standard deviation over seeds."""
    return f"{100 * mean:.1f}" + ("" if std is None else f" ± {100 * std:.1f}")


def spread(values: Any, digits: int = 2) -> str:
    """Mean ± standard deviation."""
    found = np.asarray(values)
    return f"{found.mean():.{digits}f} ± {found.std(ddof=1):.{digits}f}"


def chance(p: float | None) -> str:
    """p of a test, if there was something to test, or if it is known."""
    return "" if p is None else f", p {p:.2g}"


def bounds(result: Result) -> str:
    found = result.measurements
    weights = np.stack([found["needle_weight"], found["smallest_weight"]])  # [2, size, draw]
    told = []
    for name in ("paper", "tight"):
        low, high = (np.asarray(found[f"{name}_{end}"])[:, None] for end in ("low", "high"))
        held = (weights >= low * (1 - ROUNDING)) & (weights <= high * (1 + ROUNDING))
        told.append(f"{held.sum()} of {held.size}")
    return f"{told[0]} weights within the printed bounds, {told[1]} within the tight ones"


def one_head(result: Result) -> str:
    found, sizes = result.measurements, result.measurements["sizes"]
    needle = np.asarray(found["needle_weight"])
    start = sizes.index(8)
    return (
        f"weight of the needle {spread(needle[start])} on {sizes[start]} items, "
        f"{needle[-1].mean():.1g} on {sizes[-1]:,}; no weight can reach "
        f"{result.config['epsilon']} from {found['dispersed_from']:,.0f} items on"
    )


def head_entropy(result: Result) -> str:
    found, lengths = result.measurements, result.config["lengths"]
    ends = [
        f"{found['mean_entropy'][place]:.2f} ± {found['seed_spread'][place]:.3f} nats on "
        f"{lengths[place]} numbers"
        for place in (0, -1)
    ]
    return (
        f"{', '.join(ends)}: {found['slope']:.2f} for each nat of log n, "
        + found["model"].partition(" (")[0]
    )


def power_series(result: Result) -> str:
    found = result.measurements
    return (
        f"{found['entropy_at_base_0']:.4f} and {found['entropy_at_base_1']:.4f} nats at the edges, "
        f"{found['least_entropy']:.1g} at least; sharp on "
        f"{100 * found['share_of_plane']['sharp']:.0f} % of the plane"
    )


def fit(result: Result) -> str:
    found = result.measurements
    errors, (low, high) = found["temperature_error"], found["sharpens"]["paper"][0]
    return (
        f"error of the best temperature {errors['paper']:.2f}, of a polynomial fitted to these "
        f"heads {errors['temperature']:.2f}; it sharpens from {low:.2f} to {high:.2f} nats only"
    )


def maps(result: Result) -> str:
    """Of one head, so no spread over seeds."""
    found = result.measurements
    told = []
    for size in (16, 1024, 16384):
        place = found["sizes"].index(size)
        weights = [rows[place] for rows in found["weight_of_maximum"].values()]
        told.append(f"{' → '.join(f'{weight:.2f}' for weight in weights)} on {size:,} items")
    return f"weight of the maximum {', '.join(told)}; one head, {result.config['sets']} sets"


def accuracy(result: Result, size: int) -> str:
    found = result.measurements
    place = found["sizes"].index(size)
    plain, adaptive = (
        share(found["mean"][name][place], found["std"][name][place])
        for name in ("baseline", "adaptive")
    )
    return f"{plain} → {adaptive}{chance(found['p'][place])}"


def significant(result: Result) -> str:
    found = result.measurements
    below = [
        size
        for size, p in zip(found["sizes"], found["p"], strict=True)
        if p is not None and p < 0.05
    ]
    first = found["sizes"].index(below[0])
    whole = "every size" if below == found["sizes"][first:] else f"{len(below)} sizes"
    return f"p below 0.05 at {whole} from {below[0]} up, {len(result.seeds)} seeds"


def ranking(result: Result) -> str:
    found, told = result.measurements, []
    for size in (1024, 16384):
        place = found["sizes"].index(size)
        lost = found["attribution"]["baseline"]
        told.append(
            f"{share(lost['ranking'][place])} against {share(lost['dispersion'][place])} % on "
            f"{size:,} items"
        )
    return ", ".join(told)


def unknowns(result: Result) -> str:
    cells = result.measurements["cells"]
    best = cells[result.measurements["closest"]]
    logits = "divided by √128" if best["scaled"] else "as they are"
    decay = "decoupled decay" if best["decoupled"] else "L2 in the loss"
    return (
        f"closest of {len(cells)}: logits {logits}, {decay}, {best['steps']:,} steps: "
        f"{best['distance']['mean']:.1f} points from Table 1 on average ({best['seeds']} seeds)"
    )


def policies(result: Result) -> str:
    tasks = result.measurements["tasks"]
    place = result.measurements["sizes"].index(4096)
    means, stds = tasks["max"]["mean"], tasks["max"]["std"]
    guard = tasks["most-frequent"]["mean"]
    loss = np.min(np.asarray(guard["log-length"]) - guard["plain"])
    return (
        f"{share(means['paper'][place], stds['paper'][place])} → "
        f"{share(means['log-length'][place], stds['log-length'][place])} on 4,096 items"
        f"{chance(tasks['max']['p_against_paper']['log-length'][place])}; a task of averaging "
        f"loses {-100 * loss:.1f} points at most"
    )


def board_row(result: Result, track: str, task: str, method: str) -> dict[str, Any]:
    for row in result.measurements["rows"]:
        if (row["track"], row["task"], row["method"]) == (track, task, method):
            return row
    raise LookupError(f"no {method} in track {track} on {task}")


def board_cell(result: Result, track: str, method: str, size: int) -> str:
    row, place = board_row(result, track, "max", method), result.measurements["sizes"].index(size)
    return f"{method} {share(row['mean'][place], row['std'][place])}"


def unnormalised(result: Result) -> str:
    names = ("softmax", "sigmoid", "linear", "stick-breaking")
    cells = [board_cell(result, "trained", name, 1024) for name in names]
    return f"{', '.join(cells)} % on 1,024 items"


def best(result: Result) -> str:
    """The best of each track."""
    told = []
    for track in result.measurements["tracks"]:
        rows = [
            row
            for row in result.measurements["rows"]
            if row["track"] == track and row["task"] == "max" and "mean" in row
        ]
        if rows:
            winner = max(rows, key=lambda row: row["mean"][-1])
            told.append(f"{track}: {board_cell(result, track, winner['method'], 16384)}")
    return "; ".join(told)


def answered(result: Result, arm: str, length: int) -> str:
    """An arm beside plain attention, with the interval of the difference."""
    rows = {row["arm"]: row for row in result.measurements["rows"] if row["length"] == length}
    change = rows[arm]["compared"]
    return (
        f"{share(rows['plain']['accuracy']['mean'])} → {share(rows[arm]['accuracy']['mean'])} %, "
        f"{points(change['difference'])} points ({points(change['low'])} to "
        f"{points(change['high'])}), {length:,} {result.config['unit']}"
    )


def calibrated(found: Calibration) -> str:
    layers = sorted({one["layer"] for one in found.heads})
    rates = sorted({one["rate"] for one in found.heads})
    return (
        f"{len(found.heads)} of {sum(found.architecture['heads'])} heads, in layers {layers[0]} to "
        f"{layers[-1]}, rate {rates[0]:.2g}"
        + (f" to {rates[-1]:.2g}" if len(rates) > 1 else "")
        + f"; seed {found.method['seed']}"
    )


def scanned(result: Result) -> str:
    counts = Counter(label for row in result.measurements["labels"] for label in row)
    told = ", ".join(
        f"{count} {VERBS[label][0 if count == 1 else 1]}" for label, count in counts.most_common()
    )
    tokens = result.measurements["tokens"]
    return f"of {sum(counts.values())} heads: {told} ({tokens[0]} to {tokens[-1]:,} tokens)"


def measured_spread(result: Result) -> str:
    measured = result.arrays["measured_spread"]
    return (
        f"SmolLM2-135M: {spread(measured)}, from {measured.min():.2f} to {measured.max():.2f}, at "
        f"the last of up to {result.config['scan']['tokens']:,} tokens"
    )


def certified(result: Result) -> str:
    bound, measured = (result.arrays[name] for name in ("spread_bound", "measured_spread"))
    ratio = bound / measured
    return (
        f"holds in {(ratio >= 1).sum()} of {ratio.size} heads; the bound is {ratio.min():.0f} to "
        f"{ratio.max():.0f} times what was measured (median {np.median(ratio):.0f})"
    )
