"""Maps of a trained head's attention, plain and sharpened side by side (Figures 2 and 7)."""

from __future__ import annotations

import math

import numpy as np
from markupsafe import Markup

from sharpmax.app.retrieval.head import (
    Outcome,
    attend,
    attend_plain,
    ranks_correctly,
    sets_and_logits,
)
from sharpmax.policy_names import make_policy, policy_title
from sharpmax.report.blocks import Column, Frames, Table
from sharpmax.report.numbers import percent
from sharpmax.report.renderers.html import fragment

SHOWN_SETS = 32
SHOWN_ITEMS = 16


def render_retrieval(seed: int, items: int, policy: str, number: float | None) -> Markup:
    """Return the maps and numbers of one head, at one size, with softmax and with one policy."""
    outcomes = {
        "softmax": attend_plain(seed, items),
        f"policy {policy_title(policy, number)}": attend(seed, items, make_policy(policy, number)),
    }
    summary = describe(items, outcomes, ranks_correctly(seed, items))
    return fragment([summary], [_map(seed, items, outcomes), _table(outcomes)])


def describe(items: int, outcomes: dict[str, Outcome], ranked: np.ndarray) -> str:
    """Say how often the head is right, and how often any temperature could make it right."""
    (plain_name, plain), (policy_name, sharpened) = outcomes.items()
    return (
        f"{items:,} items, after training on 5 to 16: the head is right in "
        f"{percent(plain.right.mean())} of {len(ranked)} sets with {plain_name}, and in "
        f"{percent(sharpened.right.mean())} with {policy_name}. Its largest logit has the right "
        f"class in {percent(float(ranked.mean()))}: no temperature can fix a wrong ranking."
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
        text=f"Rows: {SHOWN_SETS} of the sets. Columns: the {shown} items of highest priority, the "
        "maximum on the right. Above each map: the mean weight of the maximum over all sets.",
    )


def _table(outcomes: dict[str, Outcome]) -> Table:
    columns = [
        Column("Method"),
        Column("Right, %", 1),
        Column("Sampling error, points", 1),
        Column("Weight of the maximum", 4),
        Column("Entropy, nats", 2),
        Column("Inverse temperature", 2),
    ]
    rows = []
    for name, outcome in outcomes.items():
        accuracy = float(outcome.right.mean())
        error = math.sqrt(accuracy * (1 - accuracy) / outcome.right.size)
        values = (outcome.maximum_weight, outcome.entropy, outcome.inverse_temperature)
        means = [float(value.mean()) for value in values]
        rows.append([name, 100 * accuracy, 100 * error, *means])
    return Table("Numbers", columns, rows, "Means over all sets; both methods see the same sets.")
