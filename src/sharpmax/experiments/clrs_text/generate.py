"""Write CLRS-Text with its authors' generator: a JSONL file per algorithm, and a manifest.

A line is what the official generator for Hugging Face yields, with the seed added: `question`,
`answer`, `algo_name`, `length`, `use_hints`, `seed`. Sizes and seeds are in the order of the
official script. Training reads these files and does not need dm-clrs.

dm-clrs requires TensorFlow (2.9 GB with its dependencies) for its graph datasets. The text
generators need only three of its modules, `samplers`, `specs` and `clrs_utils`, which use NumPy and
JAX. But `clrs/__init__.py` and `clrs/_src/clrs_text/__init__.py` import everything, and `probing`
imports TensorFlow to ask whether an input is one of its tensors. So we import these modules with
empty stand-ins for the packages' `__init__` files and for TensorFlow. Afterwards all these names
are removed from `sys.modules`: a later `import clrs` finds the package as it is.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import metadata
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from sharpmax._errors import MissingExtraError, UserError
from sharpmax._files import open_atomically
from sharpmax.experiments.clrs_text.algorithms import (
    DECIMALS,
    SAMPLES,
    SEEDS,
    SIZES,
    check_algorithms,
    check_sizes,
)
from sharpmax.experiments.clrs_text.data import MANIFEST, File, Manifest, load_manifest
from sharpmax.experiments.jobs import Progress, ReportShare, label_progress, run_jobs

INSTALL = "pip install --no-deps dm-clrs==2.0.3"
"""Without its dependencies; the extra `clrs` has those that the generators need."""

STAND_INS = ("clrs", "clrs._src", "clrs._src.clrs_text")
"""Packages whose own `__init__` is not run."""


@dataclass(frozen=True)
class Config:
    """What to generate; the official settings of the split by default."""

    split: str = "train"
    """`train` or `test`."""
    sizes: Mapping[str, tuple[int, ...]] | None = None
    """Sizes by algorithm; only these algorithms are generated."""
    seeds: tuple[int, ...] | None = None
    """Seeds of the samples."""
    samples: int | None = None
    """Samples per algorithm, size and seed."""

    def to_manifest(self) -> Manifest:
        """Check the settings and fill in the defaults."""
        if self.split not in SIZES:
            raise UserError(f"unknown split {self.split!r}: expected one of {', '.join(SIZES)}")
        sizes = dict(SIZES[self.split] if self.sizes is None else self.sizes)
        check_algorithms(sizes)
        for name, numbers in sizes.items():
            check_sizes(name, numbers)
        samples = SAMPLES[self.split] if self.samples is None else self.samples
        if samples < 1:
            raise UserError(f"samples must be at least 1, got {samples}")
        return Manifest(
            self.split,
            sizes,
            SEEDS[self.split] if self.seeds is None else self.seeds,
            samples,
            DECIMALS,
            # JAX only moves the samples; NumPy draws the numbers and prints them.
            {name: metadata.version(name) for name in ("dm-clrs", "numpy")},
        )


class FileJob(NamedTuple):
    """The file of one algorithm."""

    algorithm: str
    sizes: tuple[int, ...]
    seeds: tuple[int, ...]
    samples: int
    path: Path


def generate_dataset(
    config: Config,
    folder: Path,
    *,
    overwrite: bool = False,
    processes: int | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """Generate CLRS-Text into a folder; files that an interrupted call finished are kept.

    Args:
        config: Split, algorithms, sizes, seeds and number of samples.
        folder: Where the files and the manifest are written.
        overwrite: Replace the data of a folder.
        processes: Algorithms that are generated at a time; the number of cores by default.
        progress: Called while files are written.

    Returns:
        The manifest of the finished folder.

    Raises:
        UserError: If dm-clrs is not installed, a setting is out of range, or the folder holds other
            data.
    """
    load_official_generator()  # first, so that nothing is written if it is missing
    manifest = config.to_manifest()
    if (folder / MANIFEST).exists() and not overwrite:
        manifest = _resume(manifest, folder)
    names = [name for name in manifest.sizes if name not in manifest.files]
    jobs = [
        FileJob(
            name, manifest.sizes[name], manifest.seeds, manifest.samples, folder / f"{name}.jsonl"
        )
        for name in names
    ]

    def add_to_manifest(index: int, file: File) -> None:
        nonlocal manifest
        manifest = replace(manifest, files={**manifest.files, names[index]: file})
        manifest.save(folder)

    report = label_progress("generating", len(jobs), progress)
    run_jobs(write_file, jobs, processes=processes, progress=report, on_result=add_to_manifest)
    return manifest


def _resume(manifest: Manifest, folder: Path) -> Manifest:
    """Return the manifest of an unfinished folder with the same settings."""
    before = load_manifest(folder)
    if not before.has_settings_of(manifest):
        raise UserError(
            f"{folder} holds CLRS-Text with other settings: choose another folder or overwrite it"
        )
    if before.complete:
        raise UserError(
            f"{folder / MANIFEST} exists already: choose another folder or overwrite it"
        )
    return before


def write_file(job: FileJob, report_share: ReportShare = lambda share: None) -> File:
    """Write all sizes and seeds of one algorithm."""
    digest, rows = hashlib.sha256(), 0
    pairs = list(product(job.sizes, job.seeds))
    with open_atomically(job.path) as stream:
        for done, (size, seed) in enumerate(pairs):
            for question, answer in generate_examples(job.algorithm, size, seed, job.samples):
                row = {
                    "question": question,
                    "answer": answer,
                    "algo_name": job.algorithm,
                    "length": size,
                    "use_hints": False,
                    "seed": seed,
                }
                line = (json.dumps(row) + "\n").encode()
                digest.update(line)
                stream.write(line)
                rows += 1
            report_share((done + 1) / len(pairs))
    return File(job.path.name, job.sizes, rows, digest.hexdigest())


def generate_examples(
    algorithm: str, size: int, seed: int, samples: int
) -> Iterator[tuple[str, str]]:
    """Yield questions and answers, byte for byte those of the official script."""
    official = load_official_generator()
    with _silence():
        sampler, _ = official.build_sampler(
            algorithm,
            seed=seed,
            num_samples=-1,  # drawn on demand
            length=size,
            track_max_steps=False,
            truncate_decimals=DECIMALS,
        )
    for _ in range(samples):
        with _silence():
            drawn = sampler.next(batch_size=1)
        yield official.format_clrs_example(algorithm, drawn, use_hints=False)


class OfficialGenerator(NamedTuple):
    """The functions of dm-clrs that we use."""

    build_sampler: Callable[..., tuple[Any, Any]]
    format_clrs_example: Callable[..., tuple[str, str]]


@functools.cache
def load_official_generator() -> OfficialGenerator:
    """Import the two functions of dm-clrs without TensorFlow."""
    folder = find_dm_clrs()
    try:
        with replace_packages(folder):
            samplers = importlib.import_module("clrs._src.samplers")
            texts = importlib.import_module("clrs._src.clrs_text.clrs_utils")
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            error.name or "a package", "clrs", "generating CLRS-Text"
        ) from error
    return OfficialGenerator(samplers.build_sampler, texts.format_clrs_example)


def find_dm_clrs() -> Path:
    """Return the folder of the installed package `clrs`."""
    try:
        spec = find_spec("clrs")
        metadata.version("dm-clrs")
    except (metadata.PackageNotFoundError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"generating CLRS-Text needs dm-clrs, which is not installed: {INSTALL}")
    return Path(spec.submodule_search_locations[0])


@contextmanager
def replace_packages(folder: Path) -> Iterator[None]:
    """Let modules of dm-clrs be imported without its packages' `__init__` and TensorFlow."""
    before = {name: module for name, module in sys.modules.items() if _is_replaced(name)}
    for name in before:
        del sys.modules[name]
    try:
        for name in STAND_INS:
            package = ModuleType(name)
            package.__path__ = [str(folder.joinpath(*name.split(".")[1:]))]
            sys.modules[name] = package
        tensorflow = ModuleType("tensorflow")
        tensorflow.Tensor = type("Tensor", (), {})  # type: ignore[attr-defined]
        sys.modules["tensorflow"] = tensorflow
        yield
    finally:
        for name in [name for name in sys.modules if _is_replaced(name)]:
            del sys.modules[name]
        sys.modules.update(before)


def _is_replaced(name: str) -> bool:
    # TensorFlow's submodules stay: if it is loaded, they refer to each other by name.
    return name == "tensorflow" or name == "clrs" or name.startswith("clrs.")


@contextmanager
def _silence() -> Iterator[None]:
    """Hide dm-clrs' log that samples are drawn on demand, and NumPy's warning about `np.cross`."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        logger.setLevel(level)
