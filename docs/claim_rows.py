"""What the paper says: each claim with the paper's number, how sure that is, and
the result that has ours.

The paper's numbers come from texts about it (arXiv 2410.01104); its Table 1 is in
`sharpmax.experiments.max_retrieval.paper`, its polynomial is `sharpmax.PAPER`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import claim_numbers as numbers
import clrs_results

from sharpmax import PAPER
from sharpmax.experiments.max_retrieval.paper import TABLE1

CONFIRMED, ONE_TEXT = "confirmed", "one text"
UNKNOWN = "not known"
NO_NUMBER = "a picture; its values are not known to us"


@dataclass(frozen=True)
class Claim:
    """One row."""

    text: str
    page: str
    """Where it is explained, in docs/."""
    file: str
    """The result that has the number, in results/."""
    command: str
    """What makes it; shown where the file does not say what was typed."""
    ours: Callable[[Any], str]
    paper: str = "—"
    sure: str = "—"
    brief: bool = False
    """Also in the README."""


def _table1(size: int, **more: Any) -> Claim:
    row = TABLE1[size]
    return Claim(
        f"Table 1: {size:,} items, softmax → adaptive temperature, %",
        "max_retrieval.md#table-1",
        "table1.json",
        "sharpmax reproduce table1",
        partial(numbers.accuracy, size=size),
        f"{row.baseline} → {row.adaptive}{numbers.chance(row.p)}",
        row.sure,
        **more,
    )


def _figure(number: int, text: str, ours: Callable[[Any], str], paper: str, sure: str) -> Claim:
    pages = {2: "max_retrieval.md#figures-2-and-7-where-the-head-looks"}
    pages |= {6: "max_retrieval.md#figure-6-where-the-polynomial-comes-from", 7: pages[2]}
    return Claim(
        f"Figure {number}: {text}",
        pages.get(number, f"reproduce.md#figure-{number}"),
        f"figure{number}.json",
        f"sharpmax reproduce figure{number}",
        ours,
        paper,
        sure,
    )


_FIGURE3 = _figure(
    3,
    "entropy of a language model's first heads grows with the input",
    numbers.head_entropy,
    "a straight line in log n for Gemma 2B; its values are not known to us",
    CONFIRMED,
)

_COEFFICIENTS = " ".join(f"{one:g}" for one in PAPER.coefficients).replace("-", "\N{MINUS SIGN}")

PAPERS = (
    Claim(
        "Lemma 2.1: weights lie within e^(±δ)/n",
        "theory.md",
        "figure1.json",
        "sharpmax reproduce figure1",
        numbers.bounds,
        "every weight, always",
        CONFIRMED,
    ),
    Claim(
        "Theorem 2.2, Figure 1: a head over a vocabulary must disperse",
        "reproduce.md#figure-1",
        "figure1.json",
        "sharpmax reproduce figure1",
        numbers.one_head,
        "below any ε from some n on; the figure illustrates it",
        CONFIRMED,
        brief=True,
    ),
    Claim(
        "Proposition 3.1: weights bound the spread of logits",
        "certify.md",
        "certify.json",
        "sharpmax certify --scan results/scan.json",
        numbers.certified,
        "every head, always",
        CONFIRMED,
    ),
    Claim(
        "Spread of logits in a language model",
        "certify.md#the-spreads-published-for-gemma",
        "certify.json",
        "sharpmax certify --scan results/scan.json",
        numbers.measured_spread,
        "Gemma 2B: 5.69 ± 2.05, from 2.28 to 14.78, on a file of about 4,000 tokens",
        ONE_TEXT,
    ),
    _figure(
        2, "a head that finds the maximum looks away from it", numbers.maps, NO_NUMBER, UNKNOWN
    ),
    Claim(**(vars(_FIGURE3) | {"brief": True})),
    *(
        _table1(size, brief=size in (1024, 16384))
        for size, row in TABLE1.items()
        if row.sure == CONFIRMED
    ),
    Claim(
        "Table 1: the gain is significant",
        "max_retrieval.md#table-1",
        "table1.json",
        "sharpmax reproduce table1",
        numbers.significant,
        "p below 0.05 at every size from 64 up",
        ONE_TEXT,
    ),
    _figure(
        5,
        "entropy of a power series; degenerate at both edges",
        numbers.power_series,
        "log 10 = 2.3026 at both edges; four regions",
        CONFIRMED,
    ),
    _figure(
        6,
        "Figure 4's polynomial of the entropy is the best inverse temperature",
        numbers.fit,
        f"{_COEFFICIENTS}; its error is not known to us",
        CONFIRMED,
    ),
    _figure(7, "Figure 2 without → with adaptive temperature", numbers.maps, NO_NUMBER, UNKNOWN),
    Claim(
        "Section 5: the polynomial at inference only does not help a language model",
        "evaluate.md#what-it-does-to-smollm2",
        "evaluate_lookup.json",
        "sharpmax evaluate smollm2 --task lookup --policy paper",
        partial(numbers.answered, arm="paper", length=32),
        "said of Gemma 2B on CLRS-Text; no number",
        CONFIRMED,
        brief=True,
    ),
    Claim(
        "Figure 8: CLRS-Text beyond the sizes trained at, fine-tuned, exact match",
        "clrs.md#our-results",
        "tuned/figure8.json",
        "sharpmax clrs evaluate build/clrs/test --trained build/clrs/tuned --out results/tuned",
        clrs_results.beyond,
        "fine-tuned with it, Gemma 2B is better on nearly all of 30 tasks; no number",
        ONE_TEXT,
        brief=True,
    ),
    Claim(
        "Un-normalised attention does not disperse, but ranks items less well",
        "leaderboard.md",
        "leaderboard.json",
        "sharpmax leaderboard",
        numbers.unnormalised,
        "said without a number",
        CONFIRMED,
    ),
)
"""Figure 4 is code (`sharpmax.PAPER`); what Figure 9 shows is not known to us."""
