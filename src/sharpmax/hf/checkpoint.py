"""Checkpoint files: unfinished work on disk, so that an interrupted job resumes.

`scan`, `diagnose`, `evaluate` and `calibrate` take the path of such a file as `resume=`. A resumed
job gives the same numbers as one that ran through.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch.distributed as dist

from sharpmax._errors import UserError
from sharpmax._files import remove_leftovers
from sharpmax.results import Provenance, Result, Stopwatch

if TYPE_CHECKING:
    from numpy.typing import DTypeLike
    from torch.distributed import ProcessGroup

SECONDS_BETWEEN_SAVES = 5.0
"""Default pause for jobs with many short steps."""

_SUFFIX = "-checkpoint"


class Checkpoint:
    """The state of an unfinished job, saved to a file and restored from it.

    Opening restores whatever an earlier run with the same config has saved. The job changes
    `arrays` and `values` and calls `save` after each finished step.

    Examples:
        >>> checkpoint = Checkpoint("job.part.json", "sum", {"seed": 0})
        >>> total = checkpoint.array("total", (3,), 0.0)
        >>> for step in range(checkpoint.values.get("step", 0), 10):
        ...     total += step
        ...     checkpoint.values["step"] = step + 1
        ...     checkpoint.save(every=5.0)
        >>> checkpoint.remove()

    Args:
        path: The file. None keeps the state in memory only.
        kind: The kind of job, such as "scan".
        config: Everything that the job's numbers depend on, as JSON values.
        group: The processes that do the job together. The first of them reads and writes the file.
        shared: Whether each process does its own part of the job, and saves it in a file of its
            own beside that of the first.

    Attributes:
        arrays: NumPy arrays by name.
        values: JSON values by name.
        parts: The arrays of the other processes' files that an interrupted job has left.

    Raises:
        UserError: The file belongs to a job of another kind or config, or it is damaged.
    """

    def __init__(
        self,
        path: str | Path | None,
        kind: str,
        config: dict[str, Any],
        *,
        group: ProcessGroup | None = None,
        shared: bool = False,
    ) -> None:
        self.path = None if path is None else Path(path)
        self.kind = kind
        self.config = json.loads(json.dumps(config, default=np.generic.item))
        self.arrays: dict[str, np.ndarray] = {}
        self.values: dict[str, Any] = {}
        self._last_save = time.monotonic()
        self._provenance: Provenance | None = None
        self.parts: list[dict[str, np.ndarray]] = []
        rank = 0 if group is None else dist.get_rank(group)
        self._writes = rank == 0 or shared
        if group is None:
            self._restore()
        else:
            self._restore_together(group, rank)
        if rank and shared and self.path is not None:
            self.path = self.path.with_name(f"{self.path.stem}-{rank}.json")

    def _restore_together(self, group: ProcessGroup, rank: int) -> None:
        """Let the first process read the file, and all have what it holds, or raise its error."""
        told: list[Any] = [None]
        if rank == 0:
            try:
                self._restore()
                told = [(self.arrays, self.values, self.parts)]
            except UserError as error:
                told = [error]
        dist.broadcast_object_list(told, group=group, group_src=0)
        if isinstance(told[0], UserError):
            raise told[0]
        self.arrays, self.values, self.parts = told[0]

    def _restore(self) -> None:
        if self.path is None:
            return
        if self.path.exists():
            saved = self._read(self.path)
            self.arrays, self.values = dict(saved.arrays), dict(saved.measurements)
        self.parts = [dict(self._read(part).arrays) for part in find_parts(self.path)]

    def _read(self, path: Path) -> Result:
        """Read a file of this job.

        Raises:
            UserError: It belongs to another job, or it is damaged.
        """
        saved = Result.load(path)
        if saved.kind != self.kind + _SUFFIX:
            raise UserError(
                f"{path} is a result of kind {saved.kind!r}, not the checkpoint of a {self.kind}: "
                "move it away or give another path"
            )
        names = saved.config | self.config
        differing = [name for name in names if saved.config.get(name) != self.config.get(name)]
        if differing:
            raise UserError(
                f"{path} is the checkpoint of another {self.kind} ({', '.join(differing)} differ): "
                "delete it, or repeat the command that wrote it to finish that job"
            )
        return saved

    def array(
        self, name: str, shape: tuple[int, ...], fill: float, dtype: DTypeLike = np.float64
    ) -> np.ndarray:
        """Return the restored array of this name, or add a new one filled with `fill`.

        Changes made to it in place are saved by the next `save`.

        Args:
            name: The name in `arrays`.
            shape: The shape of a new array.
            fill: The value of a new array's elements.
            dtype: The type of a new array's elements.

        Returns:
            The array that `arrays` holds.
        """
        return self.arrays.setdefault(name, np.full(shape, fill, dtype))

    def save(self, every: float = 0.0) -> None:
        """Write the state, replacing the file atomically: a kill leaves the old file or the new.

        Args:
            every: Skip this save if the last one was less than this many seconds ago.
        """
        if self.path is None or not self._writes or time.monotonic() - self._last_save < every:
            return
        if self._provenance is None:  # once: it starts processes to find the commit
            self._provenance = Stopwatch().provenance()
        result = Result(
            kind=self.kind + _SUFFIX,
            config=self.config,
            seeds=(),
            measurements=self.values,
            provenance=self._provenance,
        )
        result.with_arrays(**self.arrays).save(self.path, overwrite=True)
        self._last_save = time.monotonic()

    def remove(self) -> None:
        """Delete the files of all processes, if there are any."""
        if self.path is not None and self._writes:
            forget(self.path)


def forget(path: str | Path) -> None:
    """Delete a checkpoint file and its arrays, once the result of the job is saved.

    Does nothing if the file does not exist. The files of further processes are deleted, too.

    Args:
        path: What was given as `resume=` to `scan`, `diagnose`, `evaluate` or `calibrate`.

    Raises:
        UserError: The file is not a checkpoint.
    """
    path = Path(path)
    for file in (path, *find_parts(path)):
        if file.exists():
            _delete(file)
    if path.parent.is_dir():
        _delete_leftovers(path)


def _delete_leftovers(path: Path) -> None:
    """Delete what processes that were killed in the middle of a save have left.

    The next save of the same file would delete it, but the job may have ended with fewer processes.
    """
    job = rf"{re.escape(path.stem)}(?:-\d+)?"
    arrays = rf"{job}\.[0-9a-f]{{12}}\.npz"
    remove_leftovers(path.parent, rf"{job}\.json|{arrays}")
    for file in path.parent.iterdir():
        if re.fullmatch(arrays, file.name):
            file.unlink(missing_ok=True)


def _delete(path: Path) -> None:
    saved = Result.load(path)
    if not saved.kind.endswith(_SUFFIX):
        raise UserError(f"{path} is a result of kind {saved.kind!r}, not a checkpoint: not deleted")
    path.unlink()
    if saved.arrays_file is not None:
        path.with_name(saved.arrays_file).unlink(missing_ok=True)


def find_parts(path: Path) -> list[Path]:
    """Return the files of further processes beside a checkpoint file, see `Checkpoint`."""
    numbered = re.compile(re.escape(path.stem) + r"-\d+\.json")
    return sorted(file for file in path.parent.glob("*.json") if numbered.fullmatch(file.name))
