"""Fixtures of the experiments' tests."""

from __future__ import annotations

import jax
import pytest

INLINE = (
    "clrs_text.generate",
    "leaderboard.experiment",
    "max_retrieval.evaluation",
    "max_retrieval.polynomial_fit",
    "max_retrieval.train",
)
"""Modules that start jobs."""


def run_inline(function, jobs, *, processes=None, progress=None, on_result=None):
    """Do what `jobs.run_jobs` does, one job after the other in this process."""
    results = []
    for index, job in enumerate(jobs):
        report = lambda share, index=index: progress and progress(index, share)  # noqa: E731
        results.append(function(job, report))
        if on_result:
            on_result(index, results[-1])
        report(1.0)
    return results


@pytest.fixture(autouse=True, scope="package")
def quick_compilation():
    """Compile without optimisations, which take longer than these small computations."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(scope="module")
def inline_jobs():
    """Run jobs in this process: a new one takes seconds to import JAX and compile."""
    with pytest.MonkeyPatch.context() as patch:
        for name in INLINE:
            patch.setattr(f"sharpmax.experiments.{name}.run_jobs", run_inline)
        yield


@pytest.fixture(scope="module")
def default_jax():
    """Use JAX as users have it: optax does not work with the strict settings of other tests."""
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        yield
