"""The official generator of CLRS-Text, without TensorFlow.

dm-clrs asks for TensorFlow (2.9 GB with what that brings), for its graph datasets. The text
generators need three of its modules, `samplers`, `specs` and `clrs_utils`, which use NumPy and JAX
only; but `clrs/__init__.py` and `clrs/_src/clrs_text/__init__.py` import everything, and `probing`
imports TensorFlow to ask whether an input is one of its tensors. So these packages are entered here
by empty stand-ins for the two `__init__` files, and TensorFlow by one with that one type. When the
modules are there, all names are taken out of `sys.modules` again: a later `import clrs` finds the
package as it is, with TensorFlow or with the error that it lacks it.
"""

from __future__ import annotations

import functools
import importlib
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from sharpmax._errors import MissingExtraError, UserError
from sharpmax.experiments.clrs_text.algorithms import DECIMALS

INSTALL = "pip install --no-deps dm-clrs==2.0.3"
"""Without what it asks for; what the generators need is in the extra `clrs`."""

_ENTERED = ("clrs", "clrs._src", "clrs._src.clrs_text")
"""Packages whose own `__init__` is not run."""


class Official(NamedTuple):
    """What is used of dm-clrs."""

    build_sampler: Callable[..., tuple[Any, Any]]
    format_clrs_example: Callable[..., tuple[str, str]]
    version: str


@functools.cache
def official() -> Official:
    """The generator's two functions; the packages that they need are loaded on the first call."""
    folder = _folder()
    try:
        with _stand_ins(folder):
            samplers = importlib.import_module("clrs._src.samplers")
            texts = importlib.import_module("clrs._src.clrs_text.clrs_utils")
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            error.name or "a package", "clrs", "generating CLRS-Text"
        ) from error
    return Official(samplers.build_sampler, texts.format_clrs_example, metadata.version("dm-clrs"))


def examples(algorithm: str, size: int, seed: int, samples: int) -> Iterator[tuple[str, str]]:
    """Questions and answers, byte for byte those of the official script for this algorithm, size
    and seed.
    """
    made = official()
    with _silent():
        sampler, _ = made.build_sampler(
            algorithm,
            seed=seed,
            num_samples=-1,  # as they are asked for
            length=size,
            track_max_steps=False,
            truncate_decimals=DECIMALS,
        )
    for _ in range(samples):
        with _silent():
            drawn = sampler.next(batch_size=1)
        yield made.format_clrs_example(algorithm, drawn, use_hints=False)


@contextmanager
def _silent() -> Iterator[None]:
    """Without its log, that samples are made as they are asked for, and NumPy's warning that its
    geometry calls `np.cross` in a way that is going to end.
    """
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        logger.setLevel(before)


def _folder() -> Path:
    try:
        found = find_spec("clrs")
        metadata.version("dm-clrs")
    except (metadata.PackageNotFoundError, ValueError):
        found = None
    if found is None or not found.submodule_search_locations:
        raise UserError(f"generating CLRS-Text needs dm-clrs, which is not installed: {INSTALL}")
    return Path(found.submodule_search_locations[0])


@contextmanager
def _stand_ins(folder: Path) -> Iterator[None]:
    """`sys.modules` in which importing a module of dm-clrs imports no other than it needs."""
    before = {name: module for name, module in sys.modules.items() if _is_swapped(name)}
    for name in before:
        del sys.modules[name]
    try:
        for name in _ENTERED:
            package = ModuleType(name)
            package.__path__ = [str(folder.joinpath(*name.split(".")[1:]))]
            sys.modules[name] = package
        tensorflow = ModuleType("tensorflow")
        tensorflow.Tensor = type("Tensor", (), {})  # type: ignore[attr-defined]
        sys.modules["tensorflow"] = tensorflow
        yield
    finally:
        for name in [name for name in sys.modules if _is_swapped(name)]:
            del sys.modules[name]
        sys.modules.update(before)


def _is_swapped(name: str) -> bool:
    # TensorFlow's submodules stay: if it is loaded, they refer to each other by name.
    return name == "tensorflow" or name == "clrs" or name.startswith("clrs.")
