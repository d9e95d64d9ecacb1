"""Softmax and its statistics along one axis of logits, for the arrays of any library."""

from sharpmax.ops.inverse_temperature import inverse_temperature_for_entropy
from sharpmax.ops.softmax import adaptive_temperature_softmax, entropy, softmax
from sharpmax.ops.state import SoftmaxState

__all__ = [
    "SoftmaxState",
    "adaptive_temperature_softmax",
    "entropy",
    "inverse_temperature_for_entropy",
    "softmax",
]
