"""What each measured number means, stated once for the map, the curves, the table and the text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

POSITIONS = {"last": "at the last position", "mean": "averaged over positions"}

LABELS = ("disperses", "stays sharp", "uniform", "sink", "local")
"""In the order in which a reader asks for them."""


@dataclass(frozen=True)
class Statistic:
    """One statistic of a row of attention weights p_1 ... p_n with logits z_1 ... z_n."""

    key: str
    name: str
    unit: str
    formula: str
    meaning: str
    digits: int
    """Decimals in the table."""
    scale: Literal["share", "entropy", "count", "free"]
    """What its axis spans: 0 to 1, 0 to log n, 1 to n, or what was measured."""


STATISTICS = (
    Statistic(
        "normalised_entropy",
        "Normalised entropy",
        "",
        "entropy / log(n), n visible tokens",
        "0: all weight on one token; 1: uniform. Comparable between lengths.",
        3,
        "share",
    ),
    Statistic(
        "entropy",
        "Entropy",
        "nats",
        "-sum over i of p_i log(p_i)",
        "0: all weight on one token; log(n): uniform over n tokens.",
        3,
        "entropy",
    ),
    Statistic(
        "effective_tokens",
        "Effective tokens",
        "",
        "exp(entropy)",
        "Over how many tokens a uniform head of the same entropy would spread.",
        1,
        "count",
    ),
    Statistic(
        "max_weight",
        "Largest weight",
        "",
        "max over i of p_i",
        "The share of the token that gets most.",
        4,
        "share",
    ),
    Statistic(
        "sink",
        "First token",
        "",
        "p_1",
        "The weight on the first token, where many heads park what they do not use.",
        4,
        "share",
    ),
    Statistic(
        "spread",
        "Logit spread",
        "",
        "max over i of z_i - min over i of z_i",
        "While it stays bounded, no weight can escape dispersion as n grows.",
        2,
        "free",
    ),
    Statistic(
        "learned_sink",
        "Learned sink",
        "",
        "exp(s) / (exp(s) + sum over i of exp(z_i)), s the learned logit",
        "The share that goes to a learned sink, to no token at all.",
        4,
        "share",
    ),
)

OPTIONAL = ("learned_sink",)
