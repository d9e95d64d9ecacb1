"""Hugging Face models: measure how their attention disperses, bound it, sharpen it, find out
whether that helps, and put it back."""

from __future__ import annotations

from sharpmax._errors import MissingExtraError

try:
    import torch as _torch  # noqa: F401
    import transformers as _transformers  # noqa: F401
except ModuleNotFoundError as error:
    raise MissingExtraError(error.name or "transformers", "hf", "sharpmax.hf") from error

from sharpmax.hf.arms import Arm
from sharpmax.hf.calibrate import calibrate
from sharpmax.hf.calibration import Calibration
from sharpmax.hf.certify import Certificate, certify
from sharpmax.hf.evaluate import Evaluation, evaluate
from sharpmax.hf.models import load
from sharpmax.hf.parts import forget
from sharpmax.hf.registry import register
from sharpmax.hf.sampling import AdaptiveTemperatureLogitsProcessor
from sharpmax.hf.scan import Scan, scan
from sharpmax.hf.sharpen import LengthTemperatureWarning, OtherWeightsWarning, sharpen

__all__ = [
    "AdaptiveTemperatureLogitsProcessor",
    "Arm",
    "Calibration",
    "Certificate",
    "Evaluation",
    "LengthTemperatureWarning",
    "OtherWeightsWarning",
    "Scan",
    "calibrate",
    "certify",
    "evaluate",
    "forget",
    "load",
    "register",
    "scan",
    "sharpen",
]
