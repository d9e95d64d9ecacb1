"""Maps of a trained head's attention, plain and sharpened side by side (Figures 2 and 7)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from markupsafe import Markup

from sharpmax.app.retrieval.head import (
    Outcome,
    attend,
    attend_plain,
    measure_accuracy,
    ranks_correctly,
    sets_and_logits,
)
from sharpmax.policies import Policy
from sharpmax.policy_names import make_policy, policy_title
from sharpmax.report.blocks import Axis, Chart, Column, Frames, Line, Rule, Table
from sharpmax.report.numbers import percent
from sharpmax.report.palette import METHODS, Look
from sharpmax.report.renderers.html import fragment

SIZES = [2**power for power in range(4, 15)]
"""Sizes of sets that the tab offers: 16 to the largest of the paper."""
SHOWN_SETS = 32
SHOWN_ITEMS = 16


def render_retrieval(seed: int, items: int, policy: str, number: float | None) -> Markup:
    """Return the maps and numbers of one head, at one size, with softmax and with one policy."""
    chosen = make_policy(policy, number)
    title = f"policy {policy_title(policy, number)}"
    outcomes = {"softmax": attend_plain(seed, items), title: attend(seed, items, chosen)}
    ranked = ranks_correctly(seed, items)
    return fragment(
        describe(items, outcomes, ranked),
        [
            _map(seed, items, outcomes),
            _accuracy_curve(seed, items, chosen, title),
            _table(outcomes, ranked),
        ],
        _off_note(title, outcomes[title]),
    )


def split_errors(outcome: Outcome, ranked: np.ndarray) -> tuple[float, float, float]:
    """Return the shares of sets that are right, lost to dispersion and lost to ranking.

    They add up to 1. *Dispersion*: the largest logit has the right class, and the answer is wrong
    all the same. *Ranking*: the largest logit has another class. A blurred head can be right in
    spite of that, so the head may be right more often than its largest logit.
    """
    wrong = ~outcome.right
    return (
        float(outcome.right.mean()),
        float((wrong & ranked).mean()),
        float((wrong & ~ranked).mean()),
    )


def describe(items: int, outcomes: dict[str, Outcome], ranked: np.ndarray) -> list[str]:
    """Say how often the head is right, and what the wrong answers were lost to."""
    (plain_name, plain), (policy_name, sharpened) = outcomes.items()
    right, dispersion, ranking = split_errors(plain, ranked)
    sharp = split_errors(sharpened, ranked)[0]
    return [
        f"{items:,} items, after training on 5 to 16: the head is right in {percent(right)} of "
        f"{len(ranked)} sets with {plain_name}, and in {percent(sharp)} with {policy_name}.",
        f"With {plain_name} it loses {percent(dispersion)} of the sets to dispersion: its largest "
        "logit has the right class, but other items outweigh it, and sharpening can bring these "
        f"back. It loses {percent(ranking)} to ranking: its largest logit has another class, which "
        "sharpening cannot change.",
    ]


def _off_note(title: str, outcome: Outcome) -> list[str]:
    """Say where the policy leaves the weights as softmax gives them."""
    off = outcome.inverse_temperature == 1.0
    if not off.any():
        return []
    where = "all" if off.all() else f"{int(off.sum())} of {off.size}"
    low, high = float(outcome.entropy[off].min()), float(outcome.entropy[off].max())
    return [
        f"The {title} is off in {where} sets: there its factor is 1, and the weights are those of "
        f"softmax. Their entropy is {low:.2f} to {high:.2f} nats."
    ]


def _accuracy_curve(seed: int, items: int, policy: Policy, title: str) -> Chart:
    """Draw the share of right answers over the sizes up to this one, on fixed axes."""
    sizes = [size for size in SIZES if size <= items]
    methods: list[tuple[Look, Any]] = [
        (METHODS["softmax"], None),
        (replace(METHODS["adaptive-temperature"], name=title), policy),
    ]
    lines = [
        Line.of(look, sizes, [100 * measure_accuracy(seed, size, one) for size in sizes])
        for look, one in methods
    ]
    return Chart(
        "Right answers as sets grow",
        Axis("items in the set", "log", noun="items", low=SIZES[0], high=SIZES[-1], ticks=SIZES),
        Axis("right, %", digits=1, unit="%", low=0, high=104, ticks=[0, 25, 50, 75, 100]),
        lines,
        [Rule("x", float(items), f"{items:,}")],
        text="The same head on 128 sets of each size, up to the size that is chosen.",
    )


def _map(seed: int, items: int, outcomes: dict[str, Outcome]) -> Frames:
    """Return one map per method, with the items of highest priority."""
    sets, _ = sets_and_logits(seed, items)
    shown = min(items, SHOWN_ITEMS)
    order = np.argsort(sets.priority[:SHOWN_SETS], axis=1)[:, -shown:]
    frames = [
        np.round(np.take_along_axis(outcome.weights[:SHOWN_SETS], order, 1), 3).tolist()
        for outcome in outcomes.values()
    ]
    return Frames(
        title="Weights",
        captions=[
            f"{name}: the maximum has {outcome.maximum_weight.mean():.3f}"
            for name, outcome in outcomes.items()
        ],
        frames=frames,
        rows=[f"set {row + 1}" for row in range(SHOWN_SETS)],
        columns=[*(f"item {rank} by priority" for rank in range(shown, 1, -1)), "the maximum"],
        ends=(0.0, 1.0),
        unit="weight",
        digits=3,
        marked=shown - 1,
        text=f"Rows: {SHOWN_SETS} of the sets. Columns: the {shown} items of highest priority. The "
        "needle, the maximum, is the framed column on the right. Above each map: its mean weight "
        "over all sets.",
    )


def _table(outcomes: dict[str, Outcome], ranked: np.ndarray) -> Table:
    columns = [
        Column("Method"),
        Column("Right, %", 1, "higher"),
        Column("Lost to dispersion, %", 1, "lower"),
        Column("Lost to ranking, %", 1, "lower"),
        Column("Sampling error, points", 1),
        Column("Weight of the maximum", 4, "higher"),
        Column("Entropy, nats", 2),
        Column("Inverse temperature", 2),
    ]
    rows = []
    for name, outcome in outcomes.items():
        accuracy, *lost = split_errors(outcome, ranked)
        error = math.sqrt(accuracy * (1 - accuracy) / outcome.right.size)
        values = (outcome.maximum_weight, outcome.entropy, outcome.inverse_temperature)
        means = [float(value.mean()) for value in values]
        shares = [100 * share for share in (accuracy, *lost)]
        rows.append([name, *shares, 100 * error, *means])
    return Table("Numbers", columns, rows, "Means over all sets; both methods see the same sets.")
