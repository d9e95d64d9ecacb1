"""The file of a training's attention statistics: one line of JSON per sample."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from sharpmax._errors import UserError
from sharpmax._files import refuse_overwriting, write_atomically
from sharpmax.hf.train.alarms import MAX_LOGIT, MIN_ENTROPY, Alarm, AlarmBell
from sharpmax.hf.train.rows import STATISTICS
from sharpmax.hf.train.statistics import AttentionStatistics
from sharpmax.results import Result, Stopwatch

FORMAT = "sharpmax-training-statistics"
DIGITS = 7
"""Significant digits of the numbers in the file."""


class StatisticsLog:
    """Write a training's attention statistics to a file as they come, and find alarms.

    The first line says what was measured. Each further line is a sample: its step, its alarms, and
    each statistic as a list of layers with a list of heads. A killed training loses no finished
    sample.

    Args:
        path: The file, such as `statistics.jsonl`.
        config: What the first line says besides the limits, such as the model's name.
        max_logit: Largest logit of a head that is no alarm.
        min_entropy: Smallest entropy of a head that is no alarm, in nats.
        resume_step: Continue the file after this step; later samples in it are dropped. None
            starts a new file.
        overwrite: Replace a file that exists.

    Raises:
        UserError: The file exists and is neither resumed nor replaced, is damaged, or is of
            another model.
    """

    def __init__(
        self,
        path: str | Path,
        config: dict[str, Any] | None = None,
        *,
        max_logit: float = MAX_LOGIT,
        min_entropy: float = MIN_ENTROPY,
        resume_step: int | None = None,
        overwrite: bool = False,
    ) -> None:
        self.path, self.watch = Path(path), Stopwatch()
        self.bell = AlarmBell(max_logit, min_entropy)
        limits = {"max_logit": self.bell.max_logit, "min_entropy": self.bell.min_entropy}
        self.config: dict[str, Any] = {"format": FORMAT, **(config or {}), **limits}
        samples: list[dict[str, Any]] = []
        if resume_step is not None and self.path.exists():
            saved, samples = _read(self.path)
            different = [key for key in self.config if saved.get(key) != self.config[key]]
            if different:
                raise UserError(
                    f"{self.path} was recorded with another {', '.join(different)}: give another "
                    "path, or the settings with which it was begun"
                )
            samples = [sample for sample in samples if sample["step"] <= resume_step]
        else:
            refuse_overwriting([self.path], overwrite)
        self.steps: list[int] = []
        self._arrays: dict[str, list[np.ndarray]] = {name: [] for name in STATISTICS}
        for sample in samples:
            self._keep(sample["step"], {key: _to_array(sample[key]) for key in STATISTICS})
        lines = [self.config, *samples]
        write_atomically(self.path, "".join(_to_line(line) for line in lines).encode())

    def add(self, step: int, statistics: AttentionStatistics) -> list[Alarm]:
        """Append a sample, and return the alarms that are new.

        Args:
            step: The step of the training.
            statistics: What was recorded in it.

        Returns:
            The new alarms.

        Raises:
            UserError: The step is not after the last one.
        """
        values = {name: _to_lists(statistics.array(name)) for name in STATISTICS}
        # As the file holds them, so that a resumed training has the same.
        alarms = self._keep(step, {name: _to_array(rows) for name, rows in values.items()})
        told = [alarm.describe() for alarm in alarms]
        with self.path.open("a") as stream:
            stream.write(_to_line({"step": step, "alarms": told, **values}))
        return alarms

    def _keep(self, step: int, arrays: dict[str, np.ndarray]) -> list[Alarm]:
        if self.steps and step <= self.steps[-1]:
            raise UserError(f"step {step} comes after step {self.steps[-1]}: steps must increase")
        self.steps.append(step)
        for name, array in arrays.items():
            self._arrays[name].append(array)
        return self.bell.check(step, arrays["entropy"], arrays["max_logit"])

    def result(self) -> Result:
        """Return a result of kind `training-statistics`, for `sharpmax report`."""
        return _make_result(self.config, self.steps, self._arrays, self.bell, self.watch)


def read_statistics(path: str | Path) -> Result:
    """Read the statistics that a training has written, finished or not.

    Args:
        path: The file of JSON lines.

    Returns:
        A result of kind `training-statistics`, with an array [step, layer, head] of each statistic.
        Save it as .json to make a report of it with `sharpmax report`.

    Raises:
        UserError: The file is missing or damaged, or holds no sample.

    Examples:
        >>> shf.read_statistics("statistics.jsonl").save("statistics.json")
    """
    watch = Stopwatch()
    config, samples = _read(Path(path))
    bell = AlarmBell(config["max_logit"], config["min_entropy"])
    arrays: dict[str, list[np.ndarray]] = {name: [] for name in STATISTICS}
    for sample in samples:
        for name in STATISTICS:
            arrays[name].append(_to_array(sample[name]))
        bell.check(sample["step"], arrays["entropy"][-1], arrays["max_logit"][-1])
    return _make_result(config, [sample["step"] for sample in samples], arrays, bell, watch)


def _make_result(
    config: dict[str, Any],
    steps: list[int],
    arrays: dict[str, list[np.ndarray]],
    bell: AlarmBell,
    watch: Stopwatch,
) -> Result:
    if not steps:
        raise UserError("no statistics were recorded yet: train for at least one sampled step")
    result = Result(
        kind="training-statistics",
        config={key: value for key, value in config.items() if key != "format"},
        seeds=(),
        measurements={"steps": steps, "alarms": [alarm.describe() for alarm in bell.alarms]},
        provenance=watch.provenance(),
    )
    return result.with_arrays(**{name: np.stack(rows) for name, rows in arrays.items()})


def _read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the first line and the samples of a file; a line that a kill has cut is left out."""
    try:
        *lines, _ = path.read_text("utf-8").split("\n")
        config, *samples = [json.loads(line) for line in lines]
        if config["format"] != FORMAT or not {"max_logit", "min_entropy"} <= set(config):
            raise ValueError("not what StatisticsLog writes")
        shapes = {_to_array(row[name]).shape for row in samples for name in STATISTICS}
        steps = [row["step"] for row in samples]
        if len(shapes) > 1 or not all(type(step) is int for step in steps):
            raise ValueError("its samples do not fit together")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path} is damaged or holds no attention statistics ({error})") from error
    return config, samples


def _to_line(values: dict[str, Any]) -> str:
    return json.dumps(values, allow_nan=False) + "\n"


def _to_lists(array: np.ndarray) -> list[list[float | None]]:
    """Return numbers of a few digits, None for NaN; an infinity becomes the largest number."""
    limit = np.finfo(np.float32).max
    return [
        [None if np.isnan(x) else float(f"{np.clip(x, -limit, limit):.{DIGITS}g}") for x in row]
        for row in array
    ]


def _to_array(rows: list[list[float | None]]) -> np.ndarray:
    return np.array(rows, float)
