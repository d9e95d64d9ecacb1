"""Figure 3: how the heads of one block spread when a model is asked for a maximum."""

from __future__ import annotations

import numpy as np

from sharpmax.report.blocks import Axis, Chart, Column, Content, Line, Table, Verdict
from sharpmax.report.numbers import plural, span
from sharpmax.results import Result, schemas


def describe(result: Result) -> Content:
    block = schemas.Figure3.of(result)
    entropy = np.asarray(block.entropy).mean(0)  # [length, head]
    growth = entropy[-1] - entropy[0]
    first, last = block.lengths[0], block.lengths[-1]
    return Content(
        what="Figure 3: entropy of one block",
        title=block.model,
        facts=[
            f"block {block.layer}",
            *([] if block.window is None else [f"sliding window of {block.window:,} tokens"]),
            plural(entropy.shape[1], "head"),
            f"{span(block.lengths)} numbers",
            f"{plural(len(block.seeds), 'random sequence')} per length",
        ],
        sentences=[
            f"Asked for the largest of {first:,} numbers, the heads of block {block.layer} have a "
            f"mean entropy of {block.mean_entropy[0]:.2f} nats; of {last:,} numbers, "
            f"{block.mean_entropy[-1]:.2f}.",
            f"The mean grows by {block.slope:.2f} nats per nat of log(visible tokens). A head "
            "that spreads as fast as its input grows has a slope of 1.",
            *_window(block),
            f"Head {int(growth.argmax())} grows most, by {growth.max():.2f} nats; head "
            f"{int(growth.argmin())} least, by {growth.min():.2f}.",
        ],
        verdict=Verdict(
            "neutral",
            "These are the heads of one layer: a scan measures all of them.",
            command="sharpmax scan MODEL",
        ),
        blocks=[_curves(block, entropy), _table(block, entropy)],
        notes=block.notes,
    )


def _window(block: schemas.Figure3) -> list[str]:
    if block.window is None or block.window >= block.tokens[-1]:
        return []
    return [
        f"These heads see the last {block.window:,} tokens only, so their entropy stops growing "
        "where the prompt is longer."
    ]


def _curves(block: schemas.Figure3, entropy: np.ndarray) -> Chart:
    mean, std = entropy.mean(1), entropy.std(1)
    heads = [
        Line(f"head {head}", block.lengths, entropy[:, head].tolist(), colour="other", marks=1.5)
        for head in range(entropy.shape[1])
    ]
    middle = Line(
        "mean of the heads",
        block.lengths,
        mean.tolist(),
        (mean - std).tolist(),
        (mean + std).tolist(),
        colour="series-2",
    )
    visible = np.minimum(block.tokens, block.window or np.inf)
    largest = np.log(visible).tolist()
    uniform = Line("uniform", block.lengths, largest, colour="ink", dash="dot", marks=0)
    return Chart(
        "Entropy at the last token",
        Axis("numbers in the sequence", scale="log", noun="numbers", ticks=block.lengths),
        Axis("entropy, nats", digits=2, unit="nats", low=0),
        [*heads, middle, uniform],
        text="Grey: each head, mean over the sequences. Band: standard deviation over the heads. "
        "Uniform: the logarithm of the visible tokens, the largest possible entropy.",
        single=True,
    )


def _table(block: schemas.Figure3, entropy: np.ndarray) -> Table:
    columns = [Column("Head", 0), *(Column(f"{length:,}", 2) for length in block.lengths)]
    rows = [[head, *entropy[:, head].tolist()] for head in range(entropy.shape[1])]
    return Table("Entropy of each head in nats, by numbers", columns, rows)
