"""How much to sharpen: from a row's entropy and its number of items to an inverse temperature.

A policy is a callable `policy(entropy, count) -> inverse_temperature`, element by element on the
arrays of any library (or on plain numbers). Attention multiplies the row's logits by the answer: 1
is plain attention, more is sharper. Any such function is a policy. The policies here are frozen
dataclasses, so they compare, hash and print. Class attributes tell attention what a policy needs:
see `Traits`.
"""

from sharpmax.policies.entropy import PAPER, HasPeaks, Polynomial, Saturating
from sharpmax.policies.fit import fit_polynomial
from sharpmax.policies.length import Constant, LengthLaw, LogLength
from sharpmax.policies.published_laws import (
    CriticalScale,
    GrokScale,
    InfoScale,
    Llama4Scale,
    YarnScale,
)
from sharpmax.policies.target_entropy import TargetEntropy
from sharpmax.policies.traits import (
    Policy,
    Traits,
    ask,
    differs_by_head,
    inverse_temperatures,
    needs_entropy,
    needs_rows,
    traits,
)

__all__ = [
    "PAPER",
    "Constant",
    "CriticalScale",
    "GrokScale",
    "HasPeaks",
    "InfoScale",
    "LengthLaw",
    "Llama4Scale",
    "LogLength",
    "Policy",
    "Polynomial",
    "Saturating",
    "TargetEntropy",
    "Traits",
    "YarnScale",
    "ask",
    "differs_by_head",
    "fit_polynomial",
    "inverse_temperatures",
    "needs_entropy",
    "needs_rows",
    "traits",
]
