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
from sharpmax.hf.evaluate.own_data import read_questions
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
from sharpmax.hf.train.alarms import Alarm
from sharpmax.hf.train.callback import AttentionAlarmWarning, StatisticsCallback
from sharpmax.hf.train.history import StatisticsLog, read_statistics
from sharpmax.hf.train.normaliser import load_with_normaliser, with_normaliser
from sharpmax.hf.train.qk_clip import LargestLogits, QKClipCallback, max_logits, qk_clip
from sharpmax.hf.train.statistics import AttentionStatistics, attention_statistics
from sharpmax.hf.tune.calibrate import NothingToGain, calibrate
from sharpmax.hf.tune.calibration import Calibration, shipped_calibrations
from sharpmax.hf.tune.diagnose import Diagnosis, diagnose
from sharpmax.hf.tune.learning import TuningStep
from sharpmax.hf.tune.tune import tune

__all__ = [
    "AdaptiveTemperatureLogitsProcessor",
    "Alarm",
    "Applied",
    "AttentionAlarmWarning",
    "AttentionStatistics",
    "Calibration",
    "Certificate",
    "Condition",
    "Diagnosis",
    "Evaluation",
    "LargestLogits",
    "LengthTemperatureWarning",
    "NothingToGain",
    "OtherWeightsWarning",
    "PlainThreadWarning",
    "QKClipCallback",
    "Scan",
    "Sharpened",
    "StatisticsCallback",
    "StatisticsLog",
    "TuningStep",
    "apply",
    "attention_statistics",
    "calibrate",
    "certify",
    "diagnose",
    "evaluate",
    "export",
    "export_gguf",
    "forget",
    "load",
    "load_with_normaliser",
    "max_logits",
    "qk_clip",
    "read_questions",
    "read_statistics",
    "register",
    "scan",
    "sharpen",
    "shipped_calibrations",
    "tune",
    "with_normaliser",
]


def __getattr__(name: str) -> Any:
    if name == "Arm":
        warnings.warn("Arm is deprecated: use Condition", DeprecationWarning, stacklevel=2)
        return Condition
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
