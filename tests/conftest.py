"""Every property is stated once and checked on each array library."""

from __future__ import annotations

import hashlib
import os
import signal
from pathlib import Path

import hypothesis
import jax
import numpy as np
import pytest
import torch

import shape_checks

shape_checks.install()  # before anything imports sharpmax

# Numba's cache notices changes in the file of the cached function only, and not in the files that
# it imports. Told here, before anything imports numba.
ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src" / "sharpmax" / "cpu").glob("*.py"))
SEAL = hashlib.sha256(b"".join(source.read_bytes() for source in SOURCES)).hexdigest()[:16]
os.environ.setdefault("NUMBA_CACHE_DIR", str(ROOT / "build" / "numba" / SEAL))

from libraries import LIBRARIES, Library  # noqa: E402

pytest_plugins = ["browser"]

if not torch.cuda.is_available():
    # Without a GPU Triton's interpreter runs the kernels. It must be told before triton is
    # imported, by whichever test comes first.
    os.environ.setdefault("TRITON_INTERPRET", "1")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As in a shell's background. The processes that tests start and interrupt would ignore it too.
    signal.signal(signal.SIGINT, signal.default_int_handler)

torch.set_num_threads(1)  # the tests themselves run in parallel
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")

hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=100)
hypothesis.settings.load_profile("fixed")


@pytest.fixture(autouse=True, scope="session")
def compiled_once(tmp_path_factory, worker_id):
    """What one process has compiled, the next need not: only the time of the tests depends on it."""
    folder = tmp_path_factory.getbasetemp()
    if worker_id != "master":
        folder = folder.parent  # of all workers of pytest-xdist
    jax.config.update("jax_compilation_cache_dir", str(folder / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    with pytest.MonkeyPatch.context() as patch:
        # Read by the processes that tests start.
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(folder / "compiled"))
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        yield


@pytest.fixture(params=LIBRARIES, ids=lambda library: library.name)
def lib(request: pytest.FixtureRequest) -> Library:
    return request.param


@pytest.fixture(
    params=[library for library in LIBRARIES if library.name != "jax"],
    ids=lambda library: library.name,
)
def quick(request: pytest.FixtureRequest) -> Library:
    """All but JAX, which compiles each operation for each shape: it has fewer tests of its own."""
    return request.param


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)
