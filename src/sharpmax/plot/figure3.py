"""Figure 3: entropy of the heads of one block against the number of elements."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from sharpmax.plot import style
from sharpmax.results import Result


def draw(result: Result) -> Figure:
    """A line a head, mean over seeds; their mean and standard deviation as a band."""
    found, config = result.measurements, result.config
    lengths = np.asarray(config["lengths"])
    entropy = np.asarray(found["entropy"]).mean(0)  # [length, head]
    mean, std = entropy.mean(1), entropy.std(1)
    with style.house_style():
        figure = Figure(figsize=(8.4, 5.4))
        axes = figure.add_subplot()
        axes.plot(lengths, entropy, color=style.MUTED, lw=0.9, alpha=0.7)
        axes.plot([], [], color=style.MUTED, lw=0.9, label=f"a head ({entropy.shape[1]} of them)")
        axes.fill_between(lengths, mean - std, mean + std, color=style.MEASURED, alpha=0.16, lw=0)
        label = "mean of the heads, ± standard deviation"
        axes.plot(lengths, mean, "o-", color=style.MEASURED, lw=2.2, ms=4.5, label=label)
        axes.plot(
            lengths,
            np.log(found["tokens"]),
            color=style.INK,
            ls=":",
            lw=1.2,
            label="log of the prompt's tokens: the most possible",
        )
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [str(length) for length in lengths])
        axes.set_xlabel("numbers in the sequence")
        axes.set_ylabel("entropy at the last token, nats")
        axes.set_ylim(0)
        axes.set_title(
            f"{found['model']}; block {config['layer']}, {len(config['seeds'])} random sequences a "
            "length",
            color=style.MUTED,
            fontsize=10,
        )
        axes.legend(loc="upper left", fontsize=9)
        figure.suptitle(
            f"Asked for a maximum, the heads of block {config['layer']} spread with the sequence",
            x=0.01,
            ha="left",
            fontsize=12.5,
            fontweight="bold",
        )
    return figure
