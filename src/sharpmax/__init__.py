"""Measure, bound and undo the dispersion of softmax attention.

The functions here take NumPy, PyTorch or JAX arrays and return the same kind. Importing the package
imports none of these frameworks. Attention is in `sharpmax.torch`, `sharpmax.jax` and
`sharpmax.cpu`; scanning and sharpening language models is in `sharpmax.hf`.
"""

from sharpmax import theory
from sharpmax._errors import MissingExtraError, UserError
from sharpmax.normalisers import NORMALISERS
from sharpmax.ops import (
    SoftmaxState,
    adaptive_temperature_softmax,
    entropy,
    inverse_temperature_for_entropy,
    softmax,
)
from sharpmax.policies import (
    PAPER,
    Constant,
    LogLength,
    Polynomial,
    Saturating,
    TargetEntropy,
    fit_polynomial,
)

__version__ = "0.1.0"

__all__ = [
    "NORMALISERS",
    "PAPER",
    "Constant",
    "LogLength",
    "MissingExtraError",
    "Polynomial",
    "Saturating",
    "SoftmaxState",
    "TargetEntropy",
    "UserError",
    "adaptive_temperature_softmax",
    "entropy",
    "fit_polynomial",
    "inverse_temperature_for_entropy",
    "softmax",
    "theory",
]
