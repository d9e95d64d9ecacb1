"""Evaluate or tune several models: one job per model, task and seed.

Jobs run in parallel on one machine or on the nodes of a Ray cluster. A finished job is saved at
once and not repeated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import sharpmax.hf as shf
from sharpmax._errors import UserError
from sharpmax._files import write_atomically
from sharpmax.experiments.cluster import run_on_cluster
from sharpmax.experiments.jobs import Progress, ReportShare, label_progress, run_jobs
from sharpmax.results import Calibration, Result

Outcome: TypeAlias = Result | Calibration | str
"""A result, or a sentence where there is nothing to gain by tuning."""

DESCRIPTION = "grid.json"
"""File in the folder of a grid: what all its jobs have in common."""


@dataclass(frozen=True)
class Cell:
    """One job of a grid.

    Attributes:
        model: Its name or folder, as `sharpmax.hf.load` takes it.
        task: The task to evaluate on; None tunes the model.
        seed: Seed of the prompts.
        options: Further arguments of `sharpmax.hf.evaluate`, with a `Condition` for each policy,
            or of `sharpmax.hf.tune`.
        resume: The checkpoint file, or None.
    """

    model: str
    task: str | None
    seed: int
    options: dict[str, Any] = field(default_factory=dict)
    resume: Path | None = None

    @property
    def verb(self) -> str:
        """What the job does with the model."""
        return "tune" if self.task is None else "evaluate"

    @property
    def file(self) -> Path:
        """The path of the result in the folder of the grid."""
        name = re.sub(r"[^\w.-]+", "-", Path(self.model).name).strip(".-") or "model"
        # A task may be the path of a file of questions.
        task = "" if self.task is None else "_" + re.sub(r"\W+", "-", Path(self.task).stem)
        parts = [f"{self.verb}{task}", f"seed{self.seed}"]
        return Path(name) / ("-".join(parts) + ".json")


def run_cell(cell: Cell, report_share: ReportShare) -> Outcome:
    """Do one job in this process."""
    loaded = shf.load(cell.model)
    common: dict[str, Any] = {"name": loaded.name, "seed": cell.seed, "resume": cell.resume}
    model, tokenizer = loaded.model, loaded.tokenizer
    if cell.task is not None:
        return shf.evaluate(
            model,
            tokenizer,
            cell.task,
            notes=loaded.notes,
            progress=report_share,
            **common,
            **cell.options,
        )
    try:
        return shf.tune(
            model,
            tokenizer,
            progress=lambda step: report_share(step.share),
            **common,
            **cell.options,
        )
    except shf.NothingToGain as error:
        return str(error)


def run(
    cells: Sequence[Cell],
    folder: Path,
    *,
    overwrite: bool = False,
    processes: int | None = None,
    ray: str | None = None,
    progress: Progress | None = None,
) -> list[Outcome]:
    """Run all jobs whose results are not in the folder yet.

    Args:
        cells: The jobs, all to evaluate or all to tune, with the same options.
        folder: Where the results are saved, one folder per model. Local jobs that were interrupted
            resume there; on a cluster a job that is lost starts again on another node.
        overwrite: Repeat jobs whose results exist.
        processes: Jobs at a time, with one thread each; the number of cores by default.
        ray: Address of a Ray cluster on which the jobs run instead of this machine. Models must be
            found by the same name on each node.
        progress: Called while jobs run.

    Returns:
        The outcome of each job, in their order.

    Raises:
        UserError: Two jobs would write one file, the folder holds another grid, or a job failed.
            What is finished is saved.
    """
    _require_own_files(cells)
    description = _describe(cells[0])
    if not overwrite:
        _require_own_folder(folder, description)
    outcomes: dict[int, Outcome] = {}
    missing = []
    for index, cell in enumerate(cells):
        if overwrite or not (folder / cell.file).exists():
            missing.append(index)
        else:
            kind = shf.Calibration if cell.task is None else shf.Evaluation
            outcomes[index] = kind.load(folder / cell.file)

    def save(job: int, outcome: Outcome) -> None:
        index = missing[job]
        cell, outcomes[index] = cells[index], outcome
        write_atomically(folder / DESCRIPTION, json.dumps(description, indent=1).encode())
        if not isinstance(outcome, str):
            outcome.save(folder / cell.file, overwrite=True)
        shf.forget(_checkpoint(folder, cell))

    jobs = [cells[index] for index in missing]
    shares = label_progress(cells[0].verb, len(jobs), progress)
    if ray is None:
        jobs = [replace(cell, resume=_checkpoint(folder, cell)) for cell in jobs]
        run_jobs(run_cell, jobs, processes=processes, progress=shares, on_result=save)
    else:
        run_on_cluster(run_cell, jobs, address=ray, progress=shares, on_result=save)
    return [outcomes[index] for index in range(len(cells))]


def _checkpoint(folder: Path, cell: Cell) -> Path:
    return (folder / cell.file).with_suffix(".part.json").absolute()


def _require_own_files(cells: Sequence[Cell]) -> None:
    files: dict[Path, Cell] = {}
    for cell in cells:
        other = files.setdefault(cell.file, cell)
        if other is not cell:
            raise UserError(
                f"{other.model} and {cell.model} would both write {cell.file}: give each model, "
                "task and seed once, and models in folders of different names"
            )


def _require_own_folder(folder: Path, description: dict[str, Any]) -> None:
    """Refuse a folder with the results of another grid."""
    path = folder / DESCRIPTION
    if not path.exists():
        return
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise UserError(
            f"{path} is damaged ({error}): delete the folder, or use --overwrite"
        ) from error
    if found != description:
        names = [key for key, value in description.items() if found.get(key) != value]
        raise UserError(
            f"{folder} holds the results of another grid ({', '.join(names)} differ): give another "
            "--out, or --overwrite to replace them"
        )


def _describe(cell: Cell) -> dict[str, Any]:
    """Return what the jobs of a grid have in common, as JSON values."""
    text = json.dumps({"verb": cell.verb, **cell.options}, default=shf.Condition.describe)
    described: dict[str, Any] = json.loads(text)
    return described
