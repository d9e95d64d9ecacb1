"""Make the calibrations of the study, and apply a condition to a model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from sharpmax._files import write_atomically
from sharpmax.experiments.study.config import PLAIN, Config, Sizes
from sharpmax.hf.checkpoint import forget
from sharpmax.hf.loading.loader import Loaded, load
from sharpmax.hf.model_info import weights_fingerprint
from sharpmax.hf.sharpen import sharpen
from sharpmax.hf.tune.calibrate import NothingToGain, calibrate
from sharpmax.hf.tune.calibration import Calibration, shipped_calibrations
from sharpmax.hf.tune.tune import tune
from sharpmax.policy_names import parse_policy

ReportShare = Callable[[float], None]


@dataclass(frozen=True)
class Subject:
    """A model of the study.

    Attributes:
        key: Its name in the catalogue.
        sizes: How much it is asked.
        loaded: The model as it is measured.
    """

    key: str
    sizes: Sizes
    loaded: Loaded


@dataclass(frozen=True)
class Condition:
    """A condition that is ready to be measured.

    Attributes:
        facts: What results say about it: the number of heads that it changes, or why there is
            nothing to gain.
        sha256: A hash of what it does to the model.
        apply: Returns a context in which the model is changed.
    """

    facts: dict[str, Any]
    sha256: str
    apply: Callable[[], AbstractContextManager[Any]]


def prepare(
    name: str, config: Config, subject: Subject, folder: Path, report: ReportShare
) -> Condition:
    """Return a condition, after making its calibration if there is none yet.

    Args:
        name: The name in `CONDITIONS`.
        config: The settings.
        subject: The model.
        folder: Where the model's calibrations are kept.
        report: Called with the finished share of the calibration.
    """
    if name == PLAIN:
        return Condition({}, _hash(""), nullcontext)
    model = subject.loaded.model
    if name not in ("calibrate", "tune"):
        policy = parse_policy(name)
        return Condition({}, _hash(repr(policy)), lambda: sharpen(model, policy))
    calibration = _find_calibration(name, config, subject, folder, report)
    if isinstance(calibration, str):
        return Condition({"failure": calibration}, _hash(""), nullcontext)
    return Condition(
        {"changed_heads": len(calibration.heads)},
        _hash(calibration.text()),
        lambda: sharpen(model, _for_weights_of(model, calibration)),
    )


def _hash(description: str) -> str:
    return hashlib.sha256(description.encode()).hexdigest()


def _for_weights_of(model: PreTrainedModel, calibration: Calibration) -> Calibration:
    """Return the calibration without a warning: it was made for the same weights in float32."""
    return calibration.model_copy(update={"weights": weights_fingerprint(model)})


def _find_calibration(
    name: str, config: Config, subject: Subject, folder: Path, report: ReportShare
) -> Calibration | str:
    """Return the shipped calibration, that in the folder, or a new one; or why there is none."""
    shipped = shipped_calibrations()
    if name == "tune" and subject.key in shipped:
        return shipped[subject.key]
    path, failed = folder / f"{name}.json", folder / f"{name}-failed.json"
    if path.exists():
        return Calibration.load(path)
    if failed.exists():
        return str(json.loads(failed.read_bytes())["failure"])
    precise = load(subject.key, device=config.device, dtype=config.calibration_dtype)
    part = folder / f"{name}.part.json"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        calibration = _make_calibration(name, subject.sizes, precise, part, report)
    except NothingToGain as error:
        write_atomically(failed, json.dumps({"failure": str(error)}).encode())
        return str(error)
    calibration.save(path)
    forget(part)
    return calibration


def _make_calibration(
    name: str, sizes: Sizes, precise: Loaded, part: Path, report: ReportShare
) -> Calibration:
    if name == "calibrate":
        return calibrate(
            precise.model, precise.tokenizer, name=precise.name, resume=part, progress=report
        )
    return tune(
        precise.model,
        precise.tokenizer,
        steps=sizes.steps,
        save_memory=sizes.save_memory,
        name=precise.name,
        resume=part,
        progress=lambda step: report(step.share),
    )
