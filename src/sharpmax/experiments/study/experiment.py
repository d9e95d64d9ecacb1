"""Run the study: every condition on every cell of a model, each kept in a file of its own.

SmolLM2 and Gemma take several hours each on one core, Qwen about a day. A run may be stopped at any
time: repeated, it resumes. The result holds whatever is finished in the folder, of all models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from sharpmax._errors import UserError
from sharpmax.experiments.cells import Cell
from sharpmax.experiments.measurement_files import MeasurementFiles
from sharpmax.experiments.study.cells import make_cells
from sharpmax.experiments.study.conditions import Condition, Subject, prepare
from sharpmax.experiments.study.config import CONDITIONS, FAMILIES, MODELS, PLAIN, Config
from sharpmax.experiments.study.summary import Measured, summarise
from sharpmax.hf.evaluate import stats
from sharpmax.hf.loading.loader import load
from sharpmax.hf.model_info import describe_model, weights_fingerprint
from sharpmax.hf.patch.layers import evaluation_mode
from sharpmax.results import Result, Stopwatch

__all__ = ["Config", "run"]

STAGES = (("lookup",), ("text", "short", "choices"), ("ruler",))
"""Groups of cells that are measured under all conditions before the next."""

Report = Callable[[str, int, int, float], None]
"""Called with a stage, its number of jobs, the index of a job and the finished share of that."""


def run(
    config: Config = Config(),  # noqa: B008 - frozen, so sharing the default is safe
    folder: str | Path = "results/study",
    *,
    only: Sequence[str] | None = None,
    threads: int | None = None,
    progress: Report | None = None,
) -> Result:
    """Measure policies, calibrations and tuning on lookup, RULER, short tasks and ordinary text.

    Args:
        config: The model and the seed.
        folder: Where calibrations and measurements are kept, in a folder per model.
        only: Names of the conditions to work on now; an empty list measures nothing and collects
            what is finished. Default: all.
        threads: Number of threads of PyTorch. Default: its own.
        progress: Called while the work goes on.

    Returns:
        A result of kind `study` with everything that is finished in the folder, of all models.

    Raises:
        UserError: A name is unknown, a package with data is missing, the folder holds
            measurements with other settings, or nothing was measured.
    """
    watch = Stopwatch()
    chosen = _check_names(config, only)
    if threads is not None:
        torch.set_num_threads(threads)
    for key in _models_to_measure(config, chosen):
        loaded = load(key, device=config.device, dtype=config.dtype)
        _Work(config, Subject(key, MODELS[key], loaded), Path(folder) / key, progress).finish(
            chosen
        )
    models = {key: _collect(Path(folder) / key) for key in MODELS}
    measured = {key: found for key, found in models.items() if found is not None}
    if not measured:
        raise UserError(
            f"no measurement of a plain model in {folder}: leave out --only, or give it plain"
        )
    return Result(
        kind="study",
        config=asdict(config) | {"sizes": {key: asdict(size) for key, size in MODELS.items()}},
        seeds=(config.seed,),
        measurements={
            "models": {key: found.model for key, found in measured.items()},
            "conditions": CONDITIONS,
            "families": list(FAMILIES),
            **summarise(measured),
            "level": stats.LEVEL,
        },
        provenance=watch.provenance(),
    )


def _check_names(config: Config, only: Sequence[str] | None) -> list[str]:
    if config.model is not None and config.model not in MODELS:
        raise UserError(f"model {config.model!r}: the study measures {', '.join(MODELS)}")
    for name in only or ():
        if name not in CONDITIONS:
            raise UserError(f"unknown condition {name!r}: expected one of {', '.join(CONDITIONS)}")
    return [name for name in CONDITIONS if only is None or name in only]


def _models_to_measure(config: Config, chosen: list[str]) -> list[str]:
    if not chosen:
        return []
    return [*MODELS] if config.model is None else [config.model]


class _Work:
    """The work that is missing for one model."""

    def __init__(
        self, config: Config, subject: Subject, folder: Path, progress: Report | None
    ) -> None:
        self.config, self.subject, self.folder, self.progress = config, subject, folder, progress
        self.files = MeasurementFiles(folder)
        model, tokenizer = subject.loaded.model, subject.loaded.tokenizer
        self.weights = weights_fingerprint(model)
        self.cells = make_cells(subject.sizes, config.seed, model, tokenizer)
        self.stage = f"measuring {subject.key}:"
        described = {
            "model": describe_model(model, subject.loaded.name, subject.loaded.notes)
            | {"weights": self.weights},
            "cells": [_describe_cell(cell) for cell in self.cells],
        }
        self.files.save("model", "cells", {}, described)

    def finish(self, chosen: list[str]) -> None:
        """Measure what is missing of the chosen conditions: RULER, which takes long, comes last."""
        stages = [[cell for cell in self.cells if cell.group in groups] for groups in STAGES]
        jobs = [(cells, name) for cells in stages for name in chosen]
        order = [(name, cell.name) for cells, name in jobs for cell in cells]
        for cells, name in jobs:
            self._measure(name, self._prepare(name, chosen), cells, order)

    def _prepare(self, name: str, chosen: list[str]) -> Condition:
        report = partial(
            self._report, f"calibrating {self.subject.key}:", len(chosen), chosen.index(name)
        )
        condition = prepare(name, self.config, self.subject, self.folder, report)
        facts = {"facts": condition.facts, "sha256": condition.sha256}
        self.files.save(name, "condition", {"weights": self.weights}, facts)
        return condition

    def _measure(
        self, name: str, condition: Condition, cells: list[Cell], order: list[tuple[str, str]]
    ) -> None:
        loaded = self.subject.loaded
        for cell in cells:
            depends_on = _depends_on(self.weights, condition.sha256, cell.sha256)
            if self.files.load(name, cell.name, depends_on) is None:
                with evaluation_mode(loaded.model), condition.apply():
                    content = cell.measure(loaded.model, loaded.tokenizer)
                self.files.save(name, cell.name, depends_on, content)
            self._report(self.stage, len(order), order.index((name, cell.name)), 1.0)

    def _report(self, stage: str, jobs: int, job: int, share: float) -> None:
        if self.progress is not None:
            self.progress(stage, jobs, job, share)


def _depends_on(weights: str, condition_sha256: str, inputs_sha256: str) -> dict[str, Any]:
    return {"weights": weights, "condition": condition_sha256, "inputs": inputs_sha256}


def _describe_cell(cell: Cell) -> dict[str, Any]:
    return {
        "name": cell.name,
        "group": cell.group,
        "task": cell.task,
        "length": cell.length,
        "tokens": cell.tokens,
        "inputs": len(cell.inputs),
        "sha256": cell.sha256,
    }


def _collect(folder: Path) -> Measured | None:
    """Return everything that was measured of a model, without loading it; None if nothing was."""
    files = MeasurementFiles(folder)
    if not files.path(PLAIN, "condition").exists():
        return None
    described = files.load("model", "cells", {}) or {}
    weights = described["model"]["weights"]
    facts, units = {}, dict[str, dict[str, dict[str, Any]]]()
    for name in CONDITIONS:
        condition = files.load(name, "condition", {"weights": weights})
        if condition is None:
            continue
        facts[name] = condition["facts"]
        found = {
            cell["name"]: files.load(
                name, cell["name"], _depends_on(weights, condition["sha256"], cell["sha256"])
            )
            for cell in described["cells"]
        }
        units[name] = {cell: unit for cell, unit in found.items() if unit is not None}
    return Measured(described["model"] | {"facts": facts}, described["cells"], units)
