"""Where a trained head looks, plain and sharpened side by side: Figures 2 and 7, live."""

from __future__ import annotations

import math

import numpy as np
from markupsafe import Markup

from sharpmax.app import policies, retrieval
from sharpmax.app.retrieval import Seen
from sharpmax.report.blocks import Column, Frames, Table
from sharpmax.report.numbers import percent
from sharpmax.report.renderers.html import fragment

SHOWN_SETS = 32
SHOWN_ITEMS = 16
PLAIN = "softmax"


def html(seed: int, items: int, name: str, number: float | None) -> Markup:
    """The map and the numbers of one head, one size and one policy."""
    policy = policies.policy_of(name, number)
    seen = {
        PLAIN: retrieval.plain(seed, items),
        f"policy {policies.told(name, number)}": retrieval.sharpened(seed, items, policy),
    }
    ranked = retrieval.ranked(seed, items)
    return fragment(sentences(items, seen, ranked), [_map(seed, items, seen), _table(seen)])


def sentences(items: int, seen: dict[str, Seen], ranked: np.ndarray) -> list[str]:
    (plain, before), (other, after) = seen.items()
    most = float(ranked.mean())
    return [
        f"{items:,} items, after a training on 5 to 16: the head is right in "
        f"{percent(before.right.mean())} of {len(ranked)} sets with {plain}, and in "
        f"{percent(after.right.mean())} with {other}. Its largest logit has the right class in "
        f"{percent(most)}: what it ranks wrongly, no temperature mends."
    ]


def _map(seed: int, items: int, seen: dict[str, Seen]) -> Frames:
    sets, _ = retrieval.looked_at(seed, items)
    shown = min(items, SHOWN_ITEMS)
    order = np.argsort(sets.priority[:SHOWN_SETS], axis=1)[:, -shown:]
    frames = [
        np.round(np.take_along_axis(one.given[:SHOWN_SETS], order, 1), 3).tolist()
        for one in seen.values()
    ]
    return Frames(
        title="Weights",
        captions=[
            f"{name}: the maximum has {one.of_maximum.mean():.3f}" for name, one in seen.items()
        ],
        frames=frames,
        rows=[f"set {row + 1}" for row in range(SHOWN_SETS)],
        columns=[
            "the maximum" if place == shown - 1 else f"item {shown - place} by priority"
            for place in range(shown)
        ],
        ends=(0.0, 1.0),
        unit="weight",
        digits=3,
        text=f"A row is one of {SHOWN_SETS} sets, a column one of its {shown} items of highest "
        "priority, the maximum at the right. Above: the mean weight of the maximum in all sets.",
    )


def _table(seen: dict[str, Seen]) -> Table:
    columns = [
        Column("Method"),
        Column("Right, %", 1),
        Column("Sampling error, points", 1),
        Column("Weight of the maximum", 4),
        Column("Entropy, nats", 2),
        Column("Inverse temperature", 2),
    ]
    rows = []
    for name, one in seen.items():
        share = float(one.right.mean())
        error = math.sqrt(share * (1 - share) / one.right.size)
        numbers = (one.of_maximum, one.entropy, one.inverse_temperature)
        rows.append([name, 100 * share, 100 * error, *(float(some.mean()) for some in numbers)])
    return Table("Numbers", columns, rows, "Means over all sets; both methods see the same ones.")
