"""Attention of Hugging Face models: measure dispersion per head, bound it, sharpen it, evaluate it.

Needs the extra `sharpmax[hf]`.
"""

from __future__ import annotations

import warnings
from typing import Any

from sharpmax._errors import MissingExtraError

try:
    import torch as _torch  # noqa: F401
    import transformers as _transformers  # noqa: F401
except ModuleNotFoundError as error:
    raise MissingExtraError(error.name or "transformers", "hf", "sharpmax.hf") from error

from sharpmax.hf.certify.certify import Certificate, certify
from sharpmax.hf.checkpoint import forget
from sharpmax.hf.evaluate.conditions import Condition
from sharpmax.hf.evaluate.evaluate import Evaluation, evaluate
from sharpmax.hf.export.checkpoint import export
from sharpmax.hf.export.gguf import export_gguf
from sharpmax.hf.loading.loader import load
from sharpmax.hf.patch.context import PlainThreadWarning
from sharpmax.hf.patch.registered import register
from sharpmax.hf.sampling import AdaptiveTemperatureLogitsProcessor
from sharpmax.hf.scan.scan import Scan, scan
from sharpmax.hf.sharpen import (
    Applied,
    LengthTemperatureWarning,
    OtherWeightsWarning,
    Sharpened,
    apply,
    sharpen,
)
from sharpmax.hf.tune.calibrate import NothingToGain, calibrate
from sharpmax.hf.tune.calibration import Calibration, shipped_calibrations
from sharpmax.hf.tune.diagnose import Diagnosis, diagnose
from sharpmax.hf.tune.learning import TuningStep
from sharpmax.hf.tune.tune import tune

__all__ = [
    "AdaptiveTemperatureLogitsProcessor",
    "Applied",
    "Calibration",
    "Certificate",
    "Condition",
    "Diagnosis",
    "Evaluation",
    "LengthTemperatureWarning",
    "NothingToGain",
    "OtherWeightsWarning",
    "PlainThreadWarning",
    "Scan",
    "Sharpened",
    "TuningStep",
    "apply",
    "calibrate",
    "certify",
    "diagnose",
    "evaluate",
    "export",
    "export_gguf",
    "forget",
    "load",
    "register",
    "scan",
    "sharpen",
    "shipped_calibrations",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name == "Arm":
        warnings.warn("Arm is deprecated: use Condition", DeprecationWarning, stacklevel=2)
        return Condition
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
