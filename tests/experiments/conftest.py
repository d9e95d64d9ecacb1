"""What one process has compiled, the next need not: only the time of these tests depends on it."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="session")
def compiled_once(tmp_path_factory, worker_id):
    folder = tmp_path_factory.getbasetemp()
    if worker_id != "master":
        folder = folder.parent  # of all workers of pytest-xdist
    with pytest.MonkeyPatch.context() as patch:
        # Read by the processes that tests start; JAX of this one has been imported before.
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(folder / "compiled"))
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        yield
