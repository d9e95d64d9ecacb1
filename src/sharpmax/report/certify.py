"""How sharp can each head ever be? A certificate: what the weights allow, and what was measured."""

from __future__ import annotations

import math

import numpy as np

from sharpmax.report import provenance
from sharpmax.report.blocks import Axis, Chart, Column, Content, Heads, Line, Measure, Rule, Table
from sharpmax.report.numbers import number, percent, power
from sharpmax.results import Result

SHARE = 0.1
"""The weight that the map tells of."""

BOUNDS = (
    {"key": "bound", "name": "certified", "colour": "var(--mean)", "dash": "solid"},
    {
        "key": "measured",
        "name": "with the measured spread",
        "colour": "var(--last)",
        "dash": "dash",
    },
)


def content(result: Result) -> Content:
    config, bound = result.config, result.arrays["spread_bound"]
    measured = result.arrays.get("measured_spread")
    scan = config["scan"]
    facts = [*provenance.model_of(config), "from the weights alone"]
    if scan is not None:
        facts.append(f"measured on prompt {scan['prompt']}, up to {scan['tokens']:,} tokens")
    within = _within(bound, config["context"])
    return Content(
        what="certificate",
        title=str(config["model"]),
        facts=facts,
        findings=_findings(result, bound, measured),
        advice=_advice(within, bound.size, config["context"]),
        blocks=[_map(result, bound, measured), _tokens(result), _table(result)],
        notes=config["notes"],
    )


def log10_tokens(spread: np.ndarray, share: float) -> np.ndarray:
    """log10 of the number of tokens from which on no weight reaches the share: Lemma 2.1, tight,
    1 + (1 / share - 1) exp(spread), which may be far beyond floats.
    """
    return np.asarray(np.logaddexp(0, spread + math.log(1 / share - 1)) / math.log(10))


def _within(bound: np.ndarray, context: int | None) -> int:
    """Heads that must be below the share within the model's context."""
    return 0 if context is None else int((log10_tokens(bound, SHARE) <= math.log10(context)).sum())


def _findings(result: Result, bound: np.ndarray, measured: np.ndarray | None) -> list[str]:
    context = result.config["context"]
    least = power(float(log10_tokens(bound, SHARE).min()))
    first = (
        f"From {least} tokens on the first of {bound.size:,} heads cannot give any token "
        f"{percent(SHARE, 0)} of its weight, whatever the input"
    )
    if context is not None:
        within = _within(bound, context) or "none"
        first += f"; within the context of {context:,} tokens that is so for {within} of them"
    said = [
        f"The weights allow the logits of a head to differ by {number(bound.min(), 0)} to "
        f"{number(bound.max(), 0)}, by {number(float(np.median(bound)), 0)} for the median head.",
        f"{first}.",
    ]
    if measured is not None and np.isfinite(measured).any():
        known = np.isfinite(measured) & (measured > 0)
        ratio = bound[known] / measured[known]
        said.append(
            f"Measured were {number(measured[known].min(), 1)} to "
            f"{number(measured[known].max(), 1)}: the bound is {number(ratio.min(), 0)} to "
            f"{number(ratio.max(), 0)} times that, {number(float(np.median(ratio)), 0)} times for "
            "the median head."
        )
    return said


def _advice(within: int, heads: int, context: int | None) -> list[str]:
    if within:
        return [
            f"{within} of {heads} heads must be below {percent(SHARE, 0)} at the model's full "
            "context, by their weights: no prompt can make them point at one token there. The map "
            "shows which."
        ]
    where = "any length that could exist" if context is None else f"{context:,} tokens"
    return [
        f"The weights force nothing at {where}: a guarantee, not a prediction. Use the bound to "
        "compare heads, models, or one model during training, and a scan to see what heads do."
    ]


def _map(result: Result, bound: np.ndarray, measured: np.ndarray | None) -> Heads:
    measures = [Measure("bound", "Certified spread", bound.tolist(), 1, scale="log")]
    if measured is not None:
        ratio = np.divide(bound, measured, out=np.full_like(bound, np.nan), where=measured > 0)
        measures.append(Measure("measured", "Measured spread", measured.tolist(), 1))
        measures.append(Measure("ratio", "Certified over measured", ratio.tolist(), 1))
    tokens = log10_tokens(bound, SHARE).tolist()
    name = f"Tokens until no weight reaches {percent(SHARE, 0)}"
    measures.append(Measure("tokens", name, tokens, 0, scale="power"))
    row, column = np.unravel_index(int(np.argmin(bound)), bound.shape)
    shown = BOUNDS if measured is not None else BOUNDS[:1]
    layers = [
        {key: layer.get(key) for key in ("index", "name", "window")}
        for layer in result.measurements["layers"]
    ]
    return Heads(
        title="Map of heads",
        layers=layers,
        present=[[True] * bound.shape[1]] * bound.shape[0],
        measures=measures,
        first=(int(row), int(column)),
        without="not measured by the scan",
        extra={"bounds": list(shown), "context": result.config["context"]},
        text="The spread of a head is its largest logit minus its smallest. The curves show the "
        "most weight that a head of that spread can give to one of n tokens: 1 / (1 + (n - 1) "
        "exp(-spread)).",
    )


def _tokens(result: Result) -> Chart:
    layers = result.measurements["layers"]
    indices = [layer["index"] for layer in layers]
    context = result.config["context"]
    lines = [
        Line(
            f"no weight reaches {percent(epsilon, 0)}",
            indices,
            [layer["log10_items"][str(epsilon)] for layer in layers],
        )
        for epsilon in result.config["epsilons"]
    ]
    rules = [] if context is None else [Rule("y", math.log10(context), f"context {context:,}")]
    return Chart(
        "Tokens at which every head of a layer must have dispersed",
        Axis("attention layer", noun="(layer)"),
        Axis("tokens", scale="power", low=0),
        lines,
        rules,
    )


def _table(result: Result) -> Table:
    layers, epsilons = result.measurements["layers"], result.config["epsilons"]
    measured = any("measured" in layer for layer in layers)
    columns = [Column("Layer", 0)]
    columns += [Column(f"{name} bound", 1) for name in ("Smallest", "Median", "Largest")]
    columns += [Column("Largest measured", 1)] if measured else []
    columns += [
        Column(f"log10 of tokens until below {percent(epsilon, 0)}", 1) for epsilon in epsilons
    ]
    rows = [
        [
            layer["index"],
            *(layer[name] for name in ("smallest", "median", "largest")),
            *([layer.get("measured")] if measured else []),
            *(layer["log10_items"][str(epsilon)] for epsilon in epsilons),
        ]
        for layer in layers
    ]
    return Table("By layer", columns, rows)
