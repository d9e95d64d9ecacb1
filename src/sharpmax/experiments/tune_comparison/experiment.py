"""Run the comparison: every condition on every cell, each kept in a file of its own.

A run of SmolLM2 takes most of a day on two cores. It may be stopped at any time: repeated, it
resumes and gives the same numbers. The result holds whatever is finished in the folder.
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
from sharpmax.experiments.tune_comparison.cells import make_cells
from sharpmax.experiments.tune_comparison.conditions import prepare, require_files
from sharpmax.experiments.tune_comparison.config import CONDITIONS, PLAIN, Config
from sharpmax.experiments.tune_comparison.summary import describe_heads, measure_heads, summarise
from sharpmax.hf.evaluate import stats
from sharpmax.hf.loading.loader import Loaded, load
from sharpmax.hf.model_info import describe_model, weights_fingerprint
from sharpmax.hf.patch.layers import evaluation_mode
from sharpmax.results import Result, Stopwatch

__all__ = ["Config", "run"]

Report = Callable[[str, int, int, float], None]
"""Called with a stage, its number of jobs, the index of a job and the finished share of that."""


def run(
    config: Config = Config(),  # noqa: B008 - frozen, so sharing the default is safe
    folder: str | Path = "results/training",
    *,
    only: Sequence[str] | None = None,
    threads: int | None = None,
    progress: Report | None = None,
    loaded: Loaded | None = None,
) -> Result:
    """Compare the plain model, policies, calibrations, tuning and LoRA on the same questions.

    Args:
        config: The model and the sizes of everything.
        folder: Where trainings and measurements are kept, in a folder `tune-comparison`.
        only: Names of the conditions to work on now. Default: all.
        threads: Number of threads of PyTorch. Default: its own.
        progress: Called while the work goes on.
        loaded: The model, if it is loaded already.

    Returns:
        A result of kind `tune-comparison` with everything that is finished in the folder.

    Raises:
        UserError: A name is unknown, a package with data is missing, or the folder holds a run with
            other settings.
    """
    watch = Stopwatch()
    chosen = _check_names(config, only)
    require_files(chosen, config)
    if threads is not None:
        torch.set_num_threads(threads)
    loaded = loaded or load(config.model, device=config.device, dtype=config.dtype)
    work = _Work(config, loaded, Path(folder) / "tune-comparison", chosen, progress)
    work.finish()
    conditions, measured = work.collect()
    heads = work.heads()
    return Result(
        kind="tune-comparison",
        config=asdict(config) | describe_model(loaded.model, loaded.name, loaded.notes),
        seeds=(config.seed,),
        measurements={
            "finished": conditions,
            **summarise(work.cells, measured),
            "heads": None if heads is None else describe_heads(loaded.model, heads, work.folder),
            "level": stats.LEVEL,
        },
        provenance=watch.provenance(),
    )


def _check_names(config: Config, only: Sequence[str] | None) -> list[str]:
    for name in (*config.conditions, *(only or ())):
        if name not in CONDITIONS:
            raise UserError(f"unknown condition {name!r}: expected one of {', '.join(CONDITIONS)}")
    wanted = {PLAIN, *config.conditions} if only is None else set(only)
    return [name for name in CONDITIONS if name in wanted]


class _Work:
    """The files of a comparison, and the work that is missing."""

    def __init__(
        self,
        config: Config,
        loaded: Loaded,
        folder: Path,
        chosen: list[str],
        progress: Report | None,
    ) -> None:
        self.config, self.loaded, self.folder = config, loaded, folder
        self.chosen, self.progress = chosen, progress
        self.files = MeasurementFiles(folder)
        self.weights = weights_fingerprint(loaded.model)
        # Sums are split among threads: with another number of them, bits differ.
        self.threads = torch.get_num_threads()
        self.cells = make_cells(config, loaded.model, loaded.tokenizer)

    def finish(self) -> None:
        """Train and measure what is missing of the chosen conditions."""
        jobs = [(name, cell.name) for name in self.chosen for cell in self._cells_of(name)]
        for number, name in enumerate(self.chosen):
            report = partial(self._report, "training", len(self.chosen), number)
            condition = prepare(name, self.config, self.loaded, self.folder, report)
            facts = {"facts": condition.facts, "sha256": condition.sha256}
            self.files.save(name, "condition", {"weights": self.weights}, facts)
            missing = []
            for cell in self._cells_of(name):
                if self._read(name, condition.sha256, cell) is None:
                    missing.append(cell)
                else:
                    self._report("measuring", len(jobs), jobs.index((name, cell.name)), 1.0)
            if missing:
                with evaluation_mode(self.loaded.model), condition.apply():
                    for cell in missing:
                        content = cell.measure(self.loaded.model, self.loaded.tokenizer)
                        of = self._depends_on(condition.sha256, cell)
                        self.files.save(name, cell.name, of, content)
                        self._report("measuring", len(jobs), jobs.index((name, cell.name)), 1.0)
            if name == PLAIN and self.heads() is None:
                heads = measure_heads(self.config, self.loaded)
                self.files.save(PLAIN, "heads", self._heads_depend_on, heads)

    def collect(self) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Return the facts and measurements of every condition that has any."""
        facts, measured = {}, dict[str, dict[str, Any]]()
        for name, recipe in CONDITIONS.items():
            saved = self.files.load(name, "condition", {"weights": self.weights})
            if saved is not None:
                units = {cell.name: self._read(name, saved["sha256"], cell) for cell in self.cells}
                measured[name] = {cell: unit for cell, unit in units.items() if unit is not None}
                facts[name] = {"summary": recipe.summary, "learns": recipe.learns} | saved["facts"]
        return facts, measured

    def heads(self) -> dict[str, Any] | None:
        """Return what was measured of the plain model's heads; None if it is missing."""
        return self.files.load(PLAIN, "heads", self._heads_depend_on)

    @property
    def _heads_depend_on(self) -> dict[str, Any]:
        lengths = [self.config.short_names, max(self.config.held_out_names)]
        return {"weights": self.weights, "lengths": lengths, "seed": self.config.seed}

    def _depends_on(self, condition_sha256: str, cell: Cell) -> dict[str, Any]:
        return {
            "weights": self.weights,
            "threads": self.threads,
            "condition": condition_sha256,
            "inputs": cell.sha256,
        }

    def _cells_of(self, name: str) -> list[Cell]:
        return [cell for cell in self.cells if CONDITIONS[name].everything or cell.telling]

    def _read(self, name: str, condition_sha256: str, cell: Cell) -> dict[str, Any] | None:
        return self.files.load(name, cell.name, self._depends_on(condition_sha256, cell))

    def _report(self, stage: str, jobs: int, job: int, share: float) -> None:
        if self.progress is not None:
            self.progress(stage, jobs, job, share)
