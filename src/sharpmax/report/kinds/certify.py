"""A certificate: how sharp can each head ever be, by its weights, and how sharp was it?"""

from __future__ import annotations

import math

import numpy as np

from sharpmax.report.blocks import (
    Axis,
    Cell,
    Chart,
    Column,
    Content,
    Heads,
    Line,
    Measure,
    Rule,
    Table,
    Verdict,
)
from sharpmax.report.kinds._shared import model_facts
from sharpmax.report.numbers import fixed, percent, power_of_ten
from sharpmax.results import Result, schemas

SHARE = 0.1
"""The weight that the map is about."""

BOUNDS = (
    {"key": "bound", "name": "certified", "colour": "mean", "dash": "solid"},
    {"key": "measured", "name": "with the measured spread", "colour": "last", "dash": "dash"},
)


def describe(result: Result) -> Content:
    certificate = schemas.Certificate.of(result)
    bound, measured = result.arrays["spread_bound"], result.arrays.get("measured_spread")
    scan, context = certificate.scan, certificate.context
    facts = [*model_facts(certificate), "from the weights alone"]
    if scan is not None:
        facts.append(f"measured on prompt {scan.prompt}, up to {scan.tokens:,} tokens")
    known = bound if measured is None else measured
    charts = [
        _spreads(certificate, bound, measured),
        _tokens(certificate, known, measured is not None),
    ]
    heads = _map(certificate, bound, measured)
    return Content(
        what="certificate",
        title=certificate.model,
        facts=facts,
        sentences=_sentences(context, bound, measured),
        verdict=_verdict(context, bound),
        blocks=[heads, *charts, _table(certificate)],
        notes=certificate.notes,
        picture=charts,
    )


def log10_tokens(spread: np.ndarray, share: float) -> np.ndarray:
    """Return log10 of the number of tokens from which no weight can reach a share.

    Lemma 2.1 in its tight form, 1 + (1 / share - 1) exp(spread), which may exceed floats.
    """
    return np.asarray(np.logaddexp(0, spread + math.log(1 / share - 1)) / math.log(10))


def _count_within(bound: np.ndarray, context: int | None) -> int:
    """Count the heads that must be below the share within the model's context."""
    return 0 if context is None else int((log10_tokens(bound, SHARE) <= math.log10(context)).sum())


def _sentences(context: int | None, bound: np.ndarray, measured: np.ndarray | None) -> list[str]:
    first = power_of_ten(float(log10_tokens(bound, SHARE).min()))
    sentences = [
        f"The weights allow the logits of a head to differ by {fixed(bound.min(), 0)} to "
        f"{fixed(bound.max(), 0)}, the median head's by {fixed(float(np.median(bound)), 0)}.",
        f"From {first} tokens on, the first of {bound.size:,} heads cannot give any token "
        f"{percent(SHARE, 0)} of its weight, whatever the input.",
    ]
    if context is not None:
        within = _count_within(bound, context) or "none"
        sentences.append(
            f"Within the context of {context:,} tokens that is so for {within} of them."
        )
    if measured is not None and np.isfinite(measured).any():
        known = np.isfinite(measured) & (measured > 0)
        sentences.append(
            f"The measured differences are {fixed(measured[known].min(), 1)} to "
            f"{fixed(measured[known].max(), 1)}. {bound_over_measured(bound, measured)}"
        )
    return sentences


def bound_over_measured(bound: np.ndarray, measured: np.ndarray) -> str:
    """Say how loose the bound is."""
    known = np.isfinite(measured) & (measured > 0)
    ratio = bound[known] / measured[known]
    return (
        f"The bound is {fixed(ratio.min(), 0)} to {fixed(ratio.max(), 0)} times as large as the "
        f"measured spread (median {fixed(float(np.median(ratio)), 0)})."
    )


def _verdict(context: int | None, bound: np.ndarray) -> Verdict:
    within = _count_within(bound, context)
    if within:
        return Verdict(
            "bad",
            f"{within} of {bound.size} heads must be below {percent(SHARE, 0)} at the model's full "
            "context, by their weights.",
            ["No prompt can make them point at one token there. The map shows which they are."],
            command="sharpmax scan MODEL",
        )
    length = "any length that could exist" if context is None else f"{context:,} tokens"
    return Verdict(
        "neutral",
        f"The weights force no head to disperse at {length}: a guarantee, not a prediction.",
        [
            "Use the bound to compare heads, models, or one model during training, and a scan to "
            "see what heads do."
        ],
        command="sharpmax scan MODEL",
    )


def _map(certificate: schemas.Certificate, bound: np.ndarray, measured: np.ndarray | None) -> Heads:
    measures = [Measure("bound", "Certified spread", bound.tolist(), 1, scale="log")]
    if measured is not None:
        ratio = np.divide(bound, measured, out=np.full_like(bound, np.nan), where=measured > 0)
        measures.append(Measure("measured", "Measured spread", measured.tolist(), 1))
        measures.append(Measure("ratio", "Certified over measured", ratio.tolist(), 1))
    tokens = log10_tokens(bound, SHARE).tolist()
    name = f"Tokens until no weight reaches {percent(SHARE, 0)}"
    measures.append(Measure("tokens", name, tokens, 0, scale="power"))
    row, column = np.unravel_index(int(np.argmin(bound)), bound.shape)
    bounds = BOUNDS if measured is not None else BOUNDS[:1]
    return Heads(
        title="Map of heads",
        layers=[
            layer.model_dump(include={"index", "name", "window"}) for layer in certificate.layers
        ],
        present=[[True] * bound.shape[1]] * bound.shape[0],
        measures=measures,
        first=(int(row), int(column)),
        without="not measured by the scan",
        extra={"bounds": list(bounds), "context": certificate.context},
        text="The spread of a head is its largest logit minus its smallest. The curves show the "
        "largest weight that a head of that spread can give to one of n tokens: 1 / (1 + (n - 1) "
        "exp(-spread)).",
    )


def _spreads(
    certificate: schemas.Certificate, bound: np.ndarray, measured: np.ndarray | None
) -> Chart:
    layers = [layer.index for layer in certificate.layers for _ in range(bound.shape[1])]
    labels = [
        f"layer {layer.index}, head {head}"
        for layer in certificate.layers
        for head in range(bound.shape[1])
    ]
    clouds = {"certified, for all inputs": (bound, "mean")}
    if measured is not None:
        clouds["measured"] = (measured, "last")
    lines = [
        Line(name, layers, values.ravel().tolist(), colour=colour, dash="none", labels=labels)
        for name, (values, colour) in clouds.items()
    ]
    return Chart(
        "Spread of each head's logits",
        Axis("attention layer", noun="(layer)"),
        Axis("largest logit minus smallest", scale="log", digits=1),
        lines,
        single=True,
    )


def _tokens(certificate: schemas.Certificate, spread: np.ndarray, measured: bool) -> Chart:
    """Draw from how many tokens on each head must have dispersed, beside the model's context."""
    layers, context = certificate.layers, certificate.context
    labels = [
        f"layer {layer.index}, head {head}" for layer in layers for head in range(spread.shape[1])
    ]
    tokens = np.where(np.isfinite(spread), log10_tokens(spread, SHARE), np.nan)
    line = Line(
        "with the measured spread" if measured else "certified, for all inputs",
        [layer.index for layer in layers for _ in range(spread.shape[1])],
        [None if math.isnan(value) else value for value in tokens.ravel().tolist()],
        colour="last" if measured else "mean",
        dash="none",
        labels=labels,
    )
    rules = [] if context is None else [Rule("y", math.log10(context), f"context {context:,}")]
    source = "With the spread that the scan measured" if measured else "For all inputs"
    return Chart(
        f"Tokens until no weight reaches {percent(SHARE, 0)}",
        Axis("attention layer", noun="(layer)"),
        Axis("tokens", scale="power", low=0),
        [line],
        rules,
        f"{source}: above its dot, a head cannot give any token {percent(SHARE, 0)} of its weight. "
        "A dot below the context's line is a head that must disperse within it.",
        single=True,
    )


def _table(certificate: schemas.Certificate) -> Table:
    layers = certificate.layers
    measured = any(layer.measured is not None for layer in layers)
    columns = [Column("Layer", 0)]
    columns += [
        Column(f"{name} bound", 1, short=name) for name in ("Smallest", "Median", "Largest")
    ]
    columns += [Column("Largest measured", 1, short="Measured")] if measured else []
    columns += [
        Column(f"Tokens until below {percent(epsilon, 0)}", 0, short=f"< {percent(epsilon, 0)}")
        for epsilon in certificate.epsilons
    ]
    rows = []
    for layer in layers:
        tokens = [layer.log10_items[str(epsilon)] for epsilon in certificate.epsilons]
        rows.append(
            [
                *(layer.index, layer.smallest, layer.median, layer.largest),
                *([layer.measured] if measured else []),
                *(Cell(logarithm, power_of_ten(logarithm)) for logarithm in tokens),
            ]
        )
    text = "Tokens: from how many on no weight of any head of the layer can reach that share."
    return Table("Spread of logits by layer", columns, rows, text)
