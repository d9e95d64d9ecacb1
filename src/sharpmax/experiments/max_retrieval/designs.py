"""Every design of a head that can be trained: the normalisers, and two that change a layer.

A normaliser that is added to `sharpmax.NORMALISERS` is here too, unless it needs more than the
logits of one row.
"""

from __future__ import annotations

from typing import Final

from sharpmax.experiments.max_retrieval.model import Design
from sharpmax.normalisers import NORMALISERS, Differential, Normaliser, Stieltjes


def design_of(normaliser: Normaliser) -> Design | None:
    """The head with this normaliser, its fields learned; None where a set cannot serve it."""
    paired = isinstance(normaliser, Differential)
    if normaliser.needs is not None and not paired:
        return None
    return Design(normaliser, learned=normaliser.parameters, paired=paired)


DESIGNS: Final[dict[str, Design]] = {
    name: design
    for name, normaliser in NORMALISERS.items()
    if (design := design_of(normaliser)) is not None
} | {
    "softmax": Design(),  # without a temperature to learn: the queries have a scale
    # From a factor of log n, as its public curve on this task has it.
    "stieltjes": Design(Stieltjes(scale=1.0, bias=0.0), learned=Stieltjes.parameters),
    "layer-norm": Design(normed=True),
    "step": Design(stepped=True),
}
