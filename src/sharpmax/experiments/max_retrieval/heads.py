"""Trained heads as one file: the weights of every seed, and how they were made.

Two such files come with the package, one a task, so that figures and comparisons need no training.
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
from sharpmax.experiments.max_retrieval.settings import Training
from sharpmax.experiments.max_retrieval.train import Trained, versions

SHIPPED = Path(__file__).parent / "weights"
FORMAT = "sharpmax-heads"


@dataclass(frozen=True)
class Heads:
    """Heads that were trained alike, from different seeds."""

    training: Training
    seeds: tuple[int, ...]
    weights: dict[str, np.ndarray]
    """By name, the seed on the first axis."""
    made_by: dict[str, str]
    """Versions of the packages that trained them."""

    def of(self, seed: int) -> dict[str, np.ndarray]:
        """The weights of one seed."""
        place = self.seeds.index(seed)
        return {name: array[place] for name, array in self.weights.items()}

    def only(self, seeds: tuple[int, ...] | None) -> Heads:
        """Those of some seeds; all of them for None."""
        if seeds is None:
            return self
        places = [self.seeds.index(seed) for seed in seeds]
        weights = {name: array[places] for name, array in self.weights.items()}
        return Heads(self.training, seeds, weights, self.made_by)

    def packed(self) -> bytes:
        """As the bytes of a safetensors file, the same for the same heads."""
        about = {
            "format": FORMAT,
            "training": self.training.stated,
            "seeds": self.seeds,
            "made_by": self.made_by,
        }
        return save(self.weights, {"sharpmax": json.dumps(about, sort_keys=True)})

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.packed()).hexdigest()

    def save(self, path: Path) -> Path:
        write_atomically(path, self.packed())
        return path


def gathered(training: Training, trained: Sequence[Trained]) -> Heads:
    """The heads at the end of their trainings."""
    weights = [one.weights[training.steps] for one in trained]
    stacked = {name: np.stack([one[name] for one in weights]) for name in weights[0]}
    return Heads(training, tuple(one.seed for one in trained), stacked, versions())


def load(source: str | Path) -> Heads:
    """The heads of a file, or of a task: those that come with the package."""
    path = SHIPPED / f"{source}.safetensors" if isinstance(source, str) else source
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
    heads = Heads(_training(about["training"]), tuple(about["seeds"]), weights, about["made_by"])
    _check(heads, path)
    return heads


def _training(fields: dict[str, Any]) -> Training:
    return Training(**{**fields, "kept_at": tuple(fields["kept_at"])})


def _check(heads: Heads, path: Path) -> None:
    seeds = len(heads.seeds)
    matrices = {name: (seeds, *shape) for name, shape in SHAPES.items()}
    biases = {
        f"{name}_bias": (seeds, outputs)
        for name, (_, outputs) in SHAPES.items()
        if name not in WITHOUT_BIAS
    }
    shapes = {**matrices, **biases}
    found = {name: array.shape for name, array in heads.weights.items()}
    if found != shapes:
        wrong = sorted(name for name in {*found, *shapes} if found.get(name) != shapes.get(name))
        raise UserError(f"{path} is damaged: unexpected names or shapes of {', '.join(wrong)}")
