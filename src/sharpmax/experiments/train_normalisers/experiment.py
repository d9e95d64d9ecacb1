"""Does training with another normaliser keep a small language model sharp on long inputs?

One model per normaliser and seed is trained on texts of 2 to 16 items and tested on up to 2,048.
What `sharpmax tune` makes of the softmax model is one more condition. Every finished model and
measurement is kept in a file of its own, so that the same command resumes after an interruption.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from sharpmax._errors import UserError
from sharpmax._files import write_atomically
from sharpmax.experiments.train_normalisers.config import CONDITIONS, QUICK, Config
from sharpmax.experiments.train_normalisers.testing import test_model, tune_model
from sharpmax.experiments.train_normalisers.training import train
from sharpmax.hf.checkpoint import forget
from sharpmax.hf.patch.layers import attention_layers
from sharpmax.hf.sharpen import sharpen
from sharpmax.hf.train.head_normaliser import SUBMODULE
from sharpmax.hf.train.rows import STATISTICS
from sharpmax.hf.tune.calibrate import NothingToGain
from sharpmax.hf.tune.calibration import Calibration
from sharpmax.policies import PAPER
from sharpmax.results import Result, Stopwatch

__all__ = ["QUICK", "Config", "run"]

Report = Callable[[str, int, int, float], None]
"""Called with a stage, its number of jobs, the index of a job and the finished share of that."""


def run(
    config: Config = Config(),  # noqa: B008 - frozen, so sharing the default is safe
    folder: str | Path = "results/training",
    *,
    only: Sequence[str] | None = None,
    threads: int | None = None,
    progress: Report | None = None,
) -> Result:
    """Train and test the models of all conditions.

    Args:
        config: Sizes, steps and seeds.
        folder: Where models and measurements are kept, in a folder `train-normalisers`.
        only: Names of the conditions to work on now. Default: all.
        threads: Number of threads of PyTorch. Default: its own.
        progress: Called while the work goes on.

    Returns:
        A result of kind `train-normalisers` with the seeds for which every condition that has
        any measurement is finished, and the array `statistics`.

    Raises:
        UserError: A name is unknown, or the folder holds a run with other settings.
    """
    watch = Stopwatch()
    for name in (*config.conditions, *(only or ())):
        if name not in CONDITIONS:
            raise UserError(f"unknown condition {name!r}: expected one of {', '.join(CONDITIONS)}")
    if threads is not None:
        torch.set_num_threads(threads)
    work = _Work(config, Path(folder) / "train-normalisers", progress)
    work.finish([name for name in config.conditions if only is None or name in only])
    measured = {
        name: [unit for seed in config.seeds if (unit := work.read(name, seed)) is not None]
        for name in config.conditions
    }
    # Conditions are compared on the same seeds.
    seeds = min((len(units) for units in measured.values() if units), default=0)
    rows = [
        {"condition": name, **unit} for name, units in measured.items() for unit in units[:seeds]
    ]
    result = Result(
        kind="train-normalisers",
        config=asdict(config),
        seeds=config.seeds[:seeds],
        measurements={
            "summaries": {name: CONDITIONS[name].summary for name in measured if measured[name]},
            "rows": [{key: row[key] for key in row if key != "statistics"} for row in rows],
            "statistics": list(STATISTICS),
            "sampled_steps": list(range(0, config.steps, config.sample_every)),
        },
        provenance=watch.provenance(),
    )
    recorded = {
        f"{row['condition']}-{row['seed']}": np.array(row["statistics"], np.float32)
        for row in rows
        if row["statistics"] is not None
    }
    return result.with_arrays(**recorded)


class _Work:
    """The files of the experiment, and the work that is missing.

    Args:
        config: The settings.
        folder: Where the files are.
        progress: Called while the work goes on.
    """

    def __init__(self, config: Config, folder: Path, progress: Report | None) -> None:
        self.config, self.folder, self.progress = config, folder, progress
        # Sums are split among threads: with another number of them, bits differ.
        settings = asdict(config) | {"threads": torch.get_num_threads()}
        self.depends_on = {
            key: value for key, value in settings.items() if key not in ("seeds", "conditions")
        }

    def finish(self, names: Sequence[str]) -> None:
        """Train and test what is missing, one seed after the other."""
        jobs = [(name, seed) for seed in self.config.seeds for name in names]
        for number, (name, seed) in enumerate(jobs):
            if self.read(name, seed) is None:
                content = self._measure(name, seed, partial(self._report, len(jobs), number))
                written = {"of": self.depends_on, "content": content}
                write_atomically(self._file(name, seed), json.dumps(written).encode())
            self._report(len(jobs), number, "testing", 1.0)

    def read(self, name: str, seed: int) -> dict[str, Any] | None:
        """Return what was measured of a condition and seed; None if it is not finished."""
        path = self._file(name, seed)
        if not path.exists():
            return None
        saved = json.loads(path.read_bytes())
        if saved["of"] != json.loads(json.dumps(self.depends_on)):
            raise UserError(
                f"{path} was measured with other settings: repeat the command that did it, delete "
                f"{self.folder}, or choose another --out"
            )
        content: dict[str, Any] = saved["content"]
        return content

    def _measure(
        self, name: str, seed: int, report: Callable[[str, float], None]
    ) -> dict[str, Any]:
        condition = CONDITIONS[name]
        file = self.folder / f"{condition.normaliser}-{seed}.json"
        model, training = train(
            self.config, condition.normaliser, seed, file, partial(report, "training")
        )
        block, facts = self._apply(name, model, seed)
        with block:
            tested = test_model(model, self.config, seed, partial(report, "testing"))
        trained_here = condition.afterwards == "nothing"
        return {
            "seed": seed,
            **tested,
            # What was recorded is the weight before the policy or the calibration acts.
            "largest_weight": tested["largest_weight"] if trained_here else None,
            "facts": facts,
            "final_loss": float(np.mean(training["losses"][-50:])),
            "losses": training["losses"][:: self.config.sample_every].tolist(),
            "seconds": training["seconds"],
            "statistics": training["statistics"].tolist() if trained_here else None,
        }

    def _apply(
        self, name: str, model: PreTrainedModel, seed: int
    ) -> tuple[AbstractContextManager[Any], dict[str, Any]]:
        """Return the block in which a condition is tested, and what is learned in it."""
        condition = CONDITIONS[name]
        if condition.afterwards == "nothing":
            return nullcontext(), {"learned": _learned_values(model)}
        if condition.afterwards == "paper":
            return sharpen(model, PAPER), {}
        file = self.folder / f"{name}-{seed}.calibration.json"
        resume = self.folder / f"{name}-{seed}.json"
        if not file.exists():
            try:
                sizes = condition.tune_sizes or self.config.tune_sizes
                calibration = tune_model(model, self.config, sizes, seed, resume)
            except NothingToGain as reason:
                return nullcontext(), {"nothing_to_gain": str(reason)}
            calibration.save(file)
            forget(resume)
        calibration = Calibration.load(file)
        rates = {str(layer): list(rates) for layer, rates in calibration.rates().items()}
        return sharpen(model, calibration), {"rates": rates}

    def _file(self, name: str, seed: int) -> Path:
        return self.folder / "measured" / f"{name}-{seed}.json"

    def _report(self, jobs: int, job: int, stage: str, share: float) -> None:
        if self.progress is not None:
            self.progress(stage, jobs, job, share)


def _learned_values(model: PreTrainedModel) -> dict[str, list[list[float]]]:
    """Return the learned fields of the normaliser of each layer."""
    heads: list[Any] = [getattr(layer.module, SUBMODULE, None) for layer in attention_layers(model)]
    names = () if heads[0] is None else heads[0].learned
    return {name: [head.fields()[name].tolist() for head in heads] for name in names}
