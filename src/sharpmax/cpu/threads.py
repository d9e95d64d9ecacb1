"""Run work in several threads: torch's OpenMP threads where possible, otherwise a thread pool.

After each of its own calls, torch's OpenMP threads stay awake for a while. A second set of threads
would have to share the cores with them, so torch's threads are used if all of these hold:

1. the platform is Linux;
2. torch is imported in this process, and the process was not forked since this module was imported
   (OpenMP would wait forever for threads that a forked child does not have);
3. exactly one OpenMP library is loaded, or exactly one from torch's folder;
4. that library exports `GOMP_parallel`, the function that compilers call for
   `#pragma omp parallel`. GNU's, LLVM's and Intel's libraries do.

Otherwise Python's ThreadPoolExecutor is used. Numba's own threads are not: they abort the process
when two threads call at once, or after a fork. Both ways give the same numbers. The compiled code
and the matrix products release the interpreter lock.

While work is running, the BLAS is limited to one thread per product.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import scipy.linalg.cython_blas  # noqa: F401  # loads the BLAS that numba calls, to be limited
from threadpoolctl import ThreadpoolController

Item = TypeVar("Item")

Team = Callable[[Callable[[object], None], int], None]
"""team(task, threads) calls the task in this many threads at once and waits for all of them."""
TASK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

_forked = False
_lock = threading.Lock()
_pools: dict[int, ThreadPoolExecutor] = {}


def run_in_threads(items: Iterable[Item], work: Callable[[Item], None], threads: int) -> None:
    """Call `work` on every item, in this thread and `threads - 1` more; raise the first error."""
    # The next() of this iterator is one step of the interpreter, so no item is taken twice.
    remaining = iter(list(items))
    errors: list[BaseException] = []

    def take(_: object = None) -> None:
        try:
            for item in remaining:
                work(item)
        except BaseException as error:  # an interrupt too: C, which may be the caller, ignores it
            errors.append(error)
            for _ in remaining:  # no thread starts another item
                pass

    with one_blas_thread():
        team = None if threads == 1 else openmp_team()
        if team is not None:
            team(take, threads)
        else:
            futures = [_pool(threads).submit(take) for _ in range(threads - 1)]
            take()
            for future in futures:
                future.result()
    if errors:
        raise errors[0]


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # missing on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def openmp_team() -> Team | None:
    """Return torch's OpenMP threads, or None where the rule above does not allow them."""
    torch = sys.modules.get("torch")
    if sys.platform != "linux" or torch is None or _forked:
        return None
    return _load_team(str(Path(torch.__file__ or "").parent))


@cache
def _load_team(torch_folder: str) -> Team | None:
    libraries = ThreadpoolController().lib_controllers
    loaded = [library.filepath for library in libraries if library.user_api == "openmp"]
    candidates = [path for path in loaded if path.startswith(torch_folder)] or loaded
    if len(candidates) != 1:
        return None
    parallel = getattr(ctypes.CDLL(candidates[0]), "GOMP_parallel", None)
    if parallel is None:
        return None
    parallel.argtypes = [TASK, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    parallel.restype = None

    def team(task: Callable[[object], None], threads: int) -> None:
        parallel(TASK(task), None, threads, 0)

    return team


def _pool(threads: int) -> ThreadPoolExecutor:
    with _lock:
        if threads not in _pools:
            _pools[threads] = ThreadPoolExecutor(max(1, threads - 1), thread_name_prefix="sharpmax")
        return _pools[threads]


class _BlasLimit:
    """Limits the BLAS to one thread per product while any call is running."""

    def __init__(self) -> None:
        self.callers, self.lock = 0, threading.Lock()
        self.libraries: list[Any] | None = None
        self.before: list[int] = []

    def enter(self) -> None:
        with self.lock:
            self.callers += 1
            if self.callers == 1:
                if self.libraries is None:
                    controllers = ThreadpoolController().lib_controllers
                    self.libraries = [item for item in controllers if item.user_api == "blas"]
                # One by one: threadpoolctl's own context manager asks each library for everything.
                self.before = [library.num_threads for library in self.libraries]
                for library in self.libraries:
                    library.set_num_threads(1)

    def leave(self) -> None:
        with self.lock:
            self.callers -= 1
            if self.callers == 0:
                for library, threads in zip(self.libraries or [], self.before, strict=True):
                    library.set_num_threads(threads)


_blas_limit = _BlasLimit()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit the BLAS to one thread inside the block."""
    _blas_limit.enter()
    try:
        yield
    finally:
        _blas_limit.leave()


def _reset_after_fork() -> None:
    """Forget the parent's threads, which a forked child does not have, and its locks."""
    global _forked, _lock, _blas_limit
    _forked = True
    _lock, _blas_limit = threading.Lock(), _BlasLimit()
    _pools.clear()


if hasattr(os, "register_at_fork"):  # missing on Windows, which cannot fork
    os.register_at_fork(after_in_child=_reset_after_fork)
