"""Write CLRS-Text as its authors generate it: a JSONL file an algorithm, and a manifest.

A line is what the official generator for Hugging Face yields, with the seed added: `question`,
`answer`, `algo_name`, `length`, `use_hints`, `seed`. Sizes and seeds follow each other as in the
official script. Training reads these files and needs no dm-clrs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from itertools import product
from pathlib import Path
from typing import NamedTuple

from sharpmax._errors import UserError
from sharpmax._files import open_atomically
from sharpmax.experiments import jobs
from sharpmax.experiments.clrs_text import generator, manifest
from sharpmax.experiments.clrs_text.algorithms import (
    DECIMALS,
    SAMPLES,
    SEEDS,
    SIZES,
    check_algorithms,
    check_sizes,
)
from sharpmax.experiments.clrs_text.manifest import File, Manifest

Progress = Callable[[str, int, int, float], None]


@dataclass(frozen=True)
class Config:
    """What to generate; the defaults are the official ones of the split."""

    split: str = "train"
    sizes: Mapping[str, tuple[int, ...]] | None = None
    """By algorithm."""
    seeds: tuple[int, ...] | None = None
    samples: int | None = None
    """For each algorithm, size and seed."""

    def manifest(self) -> Manifest:
        """The settings with everything said, checked."""
        if self.split not in SIZES:
            raise UserError(f"unknown split {self.split!r}: expected one of {', '.join(SIZES)}")
        sizes = dict(SIZES[self.split] if self.sizes is None else self.sizes)
        check_algorithms(sizes)
        for name, some in sizes.items():
            check_sizes(name, some)
        samples = SAMPLES[self.split] if self.samples is None else self.samples
        if samples < 1:
            raise UserError(f"the number of samples is at least 1, got {samples}")
        return Manifest(
            self.split,
            sizes,
            SEEDS[self.split] if self.seeds is None else self.seeds,
            samples,
            DECIMALS,
            # JAX only carries the samples about; NumPy draws the numbers and prints them.
            {name: metadata.version(name) for name in ("dm-clrs", "numpy")},
        )


class Job(NamedTuple):
    """One algorithm's file."""

    algorithm: str
    sizes: tuple[int, ...]
    seeds: tuple[int, ...]
    samples: int
    path: Path


def run(
    config: Config,
    folder: Path,
    *,
    overwrite: bool = False,
    processes: int | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """Generate into the folder; what an earlier call with the same settings finished is kept."""
    generator.official()  # first: without it nothing else need be looked at
    made = config.manifest()
    if (folder / manifest.NAME).exists() and not overwrite:
        made = _continued(made, folder)
    wanted = [name for name in made.sizes if name not in made.files]
    todo = [
        Job(name, made.sizes[name], made.seeds, made.samples, folder / f"{name}.jsonl")
        for name in wanted
    ]

    def keep(place: int, file: File) -> None:
        nonlocal made
        made = replace(made, files={**made.files, wanted[place]: file})
        made.save(folder)

    def told(place: int, share: float) -> None:
        if progress is not None:
            progress("generating", len(todo), place, share)

    jobs.run(write, todo, processes=processes, progress=told, keep=keep)
    return made


def write(job: Job, tell: jobs.Tell = lambda share: None) -> File:
    """One algorithm: all sizes with all seeds."""
    digest, rows = hashlib.sha256(), 0
    pairs = list(product(job.sizes, job.seeds))
    with open_atomically(job.path) as stream:
        for done, (size, seed) in enumerate(pairs):
            for question, answer in generator.examples(job.algorithm, size, seed, job.samples):
                line = _line(job.algorithm, size, seed, question, answer)
                digest.update(line)
                stream.write(line)
                rows += 1
            tell((done + 1) / len(pairs))
    return File(job.path.name, job.sizes, rows, digest.hexdigest())


def _line(algorithm: str, size: int, seed: int, question: str, answer: str) -> bytes:
    row = {
        "question": question,
        "answer": answer,
        "algo_name": algorithm,
        "length": size,
        "use_hints": False,
        "seed": seed,
    }
    return (json.dumps(row) + "\n").encode()


def _continued(made: Manifest, folder: Path) -> Manifest:
    before = manifest.load(folder)
    if not before.made_like(made):
        raise UserError(
            f"{folder} holds CLRS-Text with other settings: choose another folder or ask to "
            "overwrite it"
        )
    if before.complete:
        raise UserError(
            f"{folder / manifest.NAME} exists already: choose another place or ask to overwrite it"
        )
    return before
