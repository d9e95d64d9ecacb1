"""Trained heads as one safetensors file: the weights of every seed, and how they were made.

The heads of Table 1 and of the guard task are in `results/heads` of the repository, so that figures
and comparisons need no training. The package itself holds the first two heads of Table 1, for the
explorer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from sharpmax._errors import UserError
from sharpmax._files import write_atomically
from sharpmax.experiments.max_retrieval.model import SHAPES, WITHOUT_BIAS
from sharpmax.experiments.max_retrieval.train import TrainedHead, Training, package_versions

__all__ = ["Heads", "load"]

PACKAGED = Path(__file__).parent / "weights" / "max.safetensors"
"""Seeds 0 to 2 of the heads of Table 1: more would make the wheel larger than 2 MB."""
IN_REPOSITORY = Path("results") / "heads"
FORMAT = "sharpmax-heads"


@dataclass(frozen=True)
class Heads:
    """Heads that were trained with the same settings from different seeds."""

    training: Training
    """The settings of the training."""
    seeds: tuple[int, ...]
    """The seeds, in the order of the weights."""
    weights: dict[str, np.ndarray]
    """Arrays by name, with the seed on the first axis."""
    made_by: dict[str, str]
    """Versions of the packages that trained them."""

    def of(self, seed: int) -> dict[str, np.ndarray]:
        """Return the weights of one seed.

        Args:
            seed: One of `seeds`.

        Returns:
            Arrays by name.
        """
        index = self.seeds.index(seed)
        return {name: array[index] for name, array in self.weights.items()}

    def only(self, seeds: tuple[int, ...] | None) -> Heads:
        """Return the heads of some seeds.

        Args:
            seeds: The seeds to keep; None keeps all.

        Returns:
            The chosen heads, in the order of `seeds`.
        """
        if seeds is None:
            return self
        indices = [self.seeds.index(seed) for seed in seeds]
        weights = {name: array[indices] for name, array in self.weights.items()}
        return Heads(self.training, seeds, weights, self.made_by)

    def to_bytes(self) -> bytes:
        """Serialise the heads.

        Returns:
            The content of the safetensors file, the same for the same heads.
        """
        about = {
            "format": FORMAT,
            "training": self.training.to_dict(),
            "seeds": self.seeds,
            "made_by": self.made_by,
        }
        return save(self.weights, {"sharpmax": json.dumps(about, sort_keys=True)})

    @property
    def sha256(self) -> str:
        """The hash of the file; published results name the heads by it."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def save(self, path: Path) -> Path:
        """Write the heads to a file.

        Args:
            path: The file to write or replace.

        Returns:
            The same path.
        """
        write_atomically(path, self.to_bytes())
        return path


def collect_heads(training: Training, trained: Sequence[TrainedHead]) -> Heads:
    """Collect the heads at the end of their trainings."""
    weights = [head.weights[training.steps] for head in trained]
    stacked = {name: np.stack([arrays[name] for arrays in weights]) for name in weights[0]}
    return Heads(training, tuple(head.seed for head in trained), stacked, package_versions())


def load(source: str | Path) -> Heads:
    """Load trained heads.

    Args:
        source: A task, `"max"` (ten heads) or `"most-frequent"` (four), for the heads in
            `results/heads` of a clone of the repository; or the path of a file that
            `sharpmax reproduce table1` wrote.

    Returns:
        The heads with their settings.

    Raises:
        UserError: If the file is missing, damaged or does not hold trained heads.

    Examples:
        >>> from sharpmax.experiments.max_retrieval import heads
        >>> trained = heads.load("max")
        >>> print(trained.of(0)["key"].shape)  # (128, 128)
    """
    if isinstance(source, Path):
        return _read(source)
    path = _find_in_repository(source)
    if path is None:
        raise UserError(
            f"the trained heads of {source!r} are not part of the installed package: run this in "
            f"a clone of the repository, which has them in {IN_REPOSITORY.as_posix()}, or train "
            "heads with sharpmax reproduce table1 and load the file that it writes"
        )
    return _read(path)


def load_available() -> Heads:
    """Load as many heads of Table 1 as there are, for the explorer.

    Returns:
        All ten in a clone of the repository, else the two of the package.
    """
    return _read(_find_in_repository("max") or PACKAGED)


def _find_in_repository(task: str) -> Path | None:
    """Return the file of a task: of the checkout this module is in, or of the working directory."""
    here = Path.cwd()
    roots = [Path(__file__).parents[4], here, *here.parents]
    paths = [root / IN_REPOSITORY / f"{task}.safetensors" for root in roots]
    return next((path for path in paths if path.is_file()), None)


def _read(path: Path) -> Heads:
    try:
        with safe_open(path, "numpy") as stored:
            about = json.loads((stored.metadata() or {}).get("sharpmax", "{}"))
            weights = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist: expected a safetensors file of heads") from error
    except (SafetensorError, ValueError) as error:
        raise UserError(f"{path} is damaged or not a safetensors file ({error})") from error
    if about.get("format") != FORMAT:
        raise UserError(f"{path} does not hold trained heads: its format is not {FORMAT}")
    training: dict[str, Any] = {
        **about["training"],
        "kept_at": tuple(about["training"]["kept_at"]),
    }
    heads = Heads(Training(**training), tuple(about["seeds"]), weights, about["made_by"])
    _check_shapes(heads, path)
    return heads


def _check_shapes(heads: Heads, path: Path) -> None:
    """Refuse files in which an array is missing, unknown or of another shape."""
    seeds = len(heads.seeds)
    expected: dict[str, tuple[int, ...]] = {}
    for name, (inputs, outputs) in SHAPES.items():
        expected[name] = (seeds, inputs, outputs)
        if name not in WITHOUT_BIAS:
            expected[f"{name}_bias"] = (seeds, outputs)
    shapes = {name: array.shape for name, array in heads.weights.items()}
    if shapes != expected:
        names = {*shapes, *expected}
        wrong = sorted(name for name in names if shapes.get(name) != expected.get(name))
        raise UserError(f"{path} is damaged: unexpected names or shapes of {', '.join(wrong)}")
