"""Figure 3: how the heads of one block spread when a model is asked for a maximum."""

from __future__ import annotations

import numpy as np

from sharpmax.report.blocks import Axis, Chart, Column, Content, Line, Table
from sharpmax.report.numbers import counted, ends
from sharpmax.results import Result


def content(result: Result) -> Content:
    found, config = result.measurements, result.config
    entropy = np.asarray(found["entropy"]).mean(0)  # [length, head]
    mean = found["mean_entropy"]
    growth = entropy[-1] - entropy[0]
    return Content(
        what="Figure 3: entropy of one block",
        title=str(found["model"]),
        facts=[
            f"block {config['layer']}",
            f"{counted(entropy.shape[1], 'head')}",
            f"{ends(config['lengths'])} numbers",
            f"{counted(len(config['seeds']), 'random sequence')} a length",
        ],
        findings=[
            f"Asked for the largest of {config['lengths'][0]:,} numbers, the heads of block "
            f"{config['layer']} have {mean[0]:.2f} nats of entropy on average; of "
            f"{config['lengths'][-1]:,}, {mean[-1]:.2f}.",
            f"Their mean grows by {found['slope']:.2f} nats for each nat of log(numbers): 1 would "
            "be as fast as the input. Head "
            f"{int(growth.argmax())} grows most, by {growth.max():.2f} nats, head "
            f"{int(growth.argmin())} least, by {growth.min():.2f}.",
        ],
        advice=["A scan measures every head of every layer, and says which to try to sharpen."],
        blocks=[_curves(result, entropy), _table(result, entropy)],
        notes=found["notes"],
    )


def _curves(result: Result, entropy: np.ndarray) -> Chart:
    found, lengths = result.measurements, result.config["lengths"]
    mean, std = entropy.mean(1), entropy.std(1)
    heads = [
        Line(f"head {head}", lengths, entropy[:, head].tolist(), colour="other", marks=1.5)
        for head in range(entropy.shape[1])
    ]
    middle = Line(
        "mean of the heads",
        lengths,
        mean.tolist(),
        (mean - std).tolist(),
        (mean + std).tolist(),
        colour="series-2",
    )
    most = np.log(found["tokens"]).tolist()
    uniform = Line("most possible", lengths, most, colour="ink", dash="dot", marks=0)
    return Chart(
        "Entropy at the last token",
        Axis("numbers in the sequence", scale="log", noun="numbers", ticks=lengths),
        Axis("entropy, nats", digits=2, unit="nats", low=0),
        [*heads, middle, uniform],
        text="Mean over the sequences; band: standard deviation over the heads. Most possible: the "
        "logarithm of the prompt's tokens.",
        single=True,
    )


def _table(result: Result, entropy: np.ndarray) -> Table:
    lengths = result.config["lengths"]
    columns = [Column("Head", 0), *(Column(f"{length:,}", 2) for length in lengths)]
    rows = [[head, *entropy[:, head].tolist()] for head in range(entropy.shape[1])]
    return Table("Entropy of each head by numbers, nats", columns, rows)
