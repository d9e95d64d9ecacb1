"""The answer before the evidence: what a scan found, in sentences, and what one might try."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sharpmax.report.numbers import joined, listed
from sharpmax.report.reading import Head, Scan

VERBS = {
    "disperses": ("disperses", "disperse"),
    "stays sharp": ("stays sharp", "stay sharp"),
    "uniform": ("is uniform", "are uniform"),
    "sink": ("is a sink", "are sinks"),
    "local": ("is local", "are local"),
    "unknown": ("is unknown", "are unknown"),
}

MOST_LAYERS = 3
"""A first try names few layers: what helps can then be told from what harms."""


@dataclass(frozen=True)
class Advice:
    """Heads to try first: all of `heads` in each of `layers`, and every one of them disperses."""

    layers: list[int]
    heads: list[int]

    @property
    def code(self) -> str:
        return f"with sharpmax.hf.sharpen(model, layers={self.layers}, heads={self.heads}):"


def sentences(scan: Scan) -> list[str]:
    """What was found, most important first."""
    return [_counts(scan), *_where(scan), _entropy(scan), _steepest(scan)]


def advice(scan: Scan) -> Advice | None:
    """The layers with most dispersing heads, and the heads that disperse in each of them.

    Of one, two or three layers, whichever names most heads; None if no head disperses.
    """
    dispersing = _dispersing(scan)
    layers = _by_count(dispersing)
    heads = {layer: {head.head for head in dispersing if head.layer == layer} for layer in layers}
    tries = [
        (chosen, set.intersection(*(heads[layer] for layer in chosen)))
        for chosen in (layers[:count] for count in range(1, min(MOST_LAYERS, len(layers)) + 1))
    ]
    if not tries:
        return None
    chosen, common = max(tries, key=lambda one: len(one[0]) * len(one[1]))
    return Advice(sorted(chosen), sorted(common))


def steepest(heads: Sequence[Head]) -> Head | None:
    """The head whose entropy grows fastest; None if no slope was measured."""
    measured = [head for head in heads if head.slope is not None]
    return max(measured, key=lambda head: head.slope or 0.0, default=None)


def _counts(scan: Scan) -> str:
    said = []
    for label, count in scan.counts.items():
        one, many = VERBS.get(label, (f"is labelled {label}", f"are labelled {label}"))
        said.append(f"{count or 'none'} {one if count <= 1 else many}")
    total = len(scan.heads)
    text = f"Of {total} {'head' if total == 1 else 'heads'}, {joined(said)}."
    if scan.counts["local"]:
        text += (
            " A local head sees a sliding window of fixed size, so the theorem, which is about"
            " growing inputs, does not concern it."
        )
    return text


def _where(scan: Scan) -> list[str]:
    """The fewest layers that hold half of the dispersing heads."""
    dispersing = _dispersing(scan)
    if not dispersing:
        return []
    total, shown, held = len(dispersing), [], 0
    counts = Counter(head.layer for head in dispersing)
    for layer in _by_count(dispersing):
        if 2 * held >= total:
            break
        shown.append(layer)
        held += counts[layer]
    amount = (
        f"{held} of the {total} dispersing heads {'is' if held == 1 else 'are'}"
        if held < total
        else ("The one dispersing head is" if total == 1 else f"All {total} dispersing heads are")
    )
    layers = len(scan.found["layers"])
    if len(shown) == 1:
        return [f"{amount} in layer {shown[0]}, of {layers} measured."]
    return [f"{amount} in {len(shown)} of the {layers} layers measured: {listed(shown)}."]


def _entropy(scan: Scan) -> str:
    """At both ends of the scan; exp of a mean entropy, not a mean of effective tokens."""
    tokens = scan.found["tokens"]
    levels = scan.result.arrays["last_entropy"][[0, -1]]
    means = [float(level[np.isfinite(level)].mean(dtype=np.float64)) for level in levels]
    short, long = (f"{mean:.2f} nats, as if over {math.exp(mean):,.1f} tokens" for mean in means)
    if len(tokens) == 1:
        return f"At the last of {tokens[0]:,} tokens the mean entropy of the heads is {short}."
    return (
        f"At the last position the mean entropy of the heads is {short}, with {tokens[0]:,} "
        f"tokens, and {long}, with {tokens[-1]:,} tokens."
    )


def _steepest(scan: Scan) -> str:
    head, dispersing = steepest(scan.heads), steepest(_dispersing(scan))
    if head is None:
        return "No slope was measured: that takes at least two lengths."
    text = (
        f"The steepest is head {head.head} of layer {head.layer} ({head.label}): its entropy grows "
        f"by {head.slope:z.2f} nats for each nat of log(visible tokens). At 1 a head spreads as "
        "fast as its input grows, at 0 it stays as sharp as it was."
    )
    if dispersing is not None and dispersing != head:
        text += (
            f" Of the heads that disperse, the steepest is head {dispersing.head} of layer "
            f"{dispersing.layer}, by {dispersing.slope:z.2f}."
        )
    return text


def first_shown(scan: Scan) -> Head:
    """The head whose curves the page opens with: the steepest that disperses, if any does."""
    return steepest(_dispersing(scan)) or steepest(scan.heads) or scan.heads[0]


def _dispersing(scan: Scan) -> list[Head]:
    return [head for head in scan.heads if head.label == "disperses"]


def _by_count(heads: list[Head]) -> list[int]:
    """Layers of these heads, those with most first."""
    counts = Counter(head.layer for head in heads)
    return sorted(counts, key=lambda layer: (-counts[layer], layer))
