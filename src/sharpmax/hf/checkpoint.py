"""What is finished of long work, kept in a file until its result is saved, so that work that was
killed goes on where it stopped, to the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sharpmax._errors import UserError
from sharpmax.hf.scan.forward import PassStatistics
from sharpmax.results import Result, Stopwatch

KIND = "scan-part"


@dataclass
class Parts:
    """Finished lengths of a scan."""

    path: Path | None
    config: dict[str, Any]
    done: dict[int, PassStatistics] = field(default_factory=dict)

    @staticmethod
    def open(path: str | Path | None, config: dict[str, Any]) -> Parts:
        """Empty, or with what a scan of the same config has left there."""
        parts = Parts(None if path is None else Path(path), config)
        left = None if parts.path is None else left_behind(parts.path, KIND, config)
        if left is None:
            return parts
        seconds = left.measurements["seconds"]
        for length in left.measurements["lengths"]:
            mark = f"{length}_"
            arrays = {
                name.removeprefix(mark): array
                for name, array in left.arrays.items()
                if name.startswith(mark)
            }
            parts.done[length] = PassStatistics(arrays, seconds[str(length)])
        return parts

    def add(self, length: int, found: PassStatistics) -> None:
        """Keep a finished length, on disk too."""
        self.done[length] = found
        if self.path is None:
            return
        arrays = {
            f"{length}_{name}": array
            for length, one in self.done.items()
            for name, array in one.arrays.items()
        }
        result = Result(
            kind=KIND,
            config=self.config,
            seeds=(self.config["seed"],),
            measurements={
                "lengths": list(self.done),
                "seconds": {str(length): one.seconds for length, one in self.done.items()},
            },
            provenance=Stopwatch().provenance(),
        )
        result.with_arrays(**arrays).save(self.path, overwrite=True)


def left_behind(path: Path, kind: str, config: dict[str, Any]) -> Result | None:
    """What work of this kind and config has left there to be resumed, if any."""
    if not path.exists():
        return None
    left, what = Result.load(path), kind.removesuffix("-part")
    if left.kind != kind:
        raise UserError(f"{path} is a result of kind {left.kind!r}, not of a {what} to resume")
    differing = [name for name in config if left.config.get(name) != _plain(config[name])]
    if differing:
        raise UserError(
            f"{path} is left from another {what} ({', '.join(differing)} differ): delete it, or "
            "repeat the command it came from to finish it"
        )
    return left


def forget(path: str | Path) -> None:
    """Remove what was kept to be resumed, once its result is saved."""
    path = Path(path)
    if not path.exists():
        return
    arrays_file = Result.load(path).arrays_file
    path.unlink()
    if arrays_file is not None:
        path.with_name(arrays_file).unlink(missing_ok=True)


def _plain(value: Any) -> Any:
    """As JSON gives it back."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value
