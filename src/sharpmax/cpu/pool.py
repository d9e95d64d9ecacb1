"""Threads that share out blocks: as many as asked for, kept from call to call.

torch's own where it is loaded: after each of its calls they stay awake for a while, and any others
would have to share the cores with them. Else Python's, not numba's: those abort the process when
two threads call at once, or after a fork. The compiled parts and the products let go of the
interpreter's lock.
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

import scipy.linalg.cython_blas  # noqa: F401  # the BLAS that numba calls, loaded to be found below
from threadpoolctl import ThreadpoolController

Item = TypeVar("Item")

Team = Callable[[Callable[[object], None], int], None]
"""Has a task called by so many threads at once, and waits for all."""
TASK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

_forked = False
_lock = threading.Lock()
_pools: dict[int, ThreadPoolExecutor] = {}


def over(items: Iterable[Item], work: Callable[[Item], None], threads: int) -> None:
    """Call `work` on every item, by this thread and `threads - 1` more; an error is raised."""
    waiting = iter(list(items))  # whose next() is one step of the interpreter: no item is had twice
    errors: list[BaseException] = []

    def take(_: object = None) -> None:
        try:
            for item in waiting:
                work(item)
        except BaseException as error:  # an interrupt too: C, which may have called, knows none
            errors.append(error)
            for _ in waiting:  # nobody begins another
                pass

    with _one_thread_a_product():
        team = None if threads == 1 else torch_team()
        if team is not None:
            team(take, threads)
        else:
            helpers = [_pool(threads).submit(take) for _ in range(threads - 1)]
            take()
            for one in helpers:
                one.result()
    if errors:
        raise errors[0]


def torch_team() -> Team | None:
    """How to have something called by torch's threads, if it is loaded and they can be had."""
    torch = sys.modules.get("torch")
    if torch is None or _forked:
        return None
    return _team(str(Path(torch.__file__ or "").parent))


@cache
def _team(folder: str) -> Team | None:
    """By the OpenMP library that torch uses: the only one that is loaded, or that in its folder.

    GOMP_parallel is what compilers make of `#pragma omp parallel`; LLVM's and Intel's libraries
    have it too, on Linux.
    """
    loaded = [
        one.filepath for one in ThreadpoolController().lib_controllers if one.user_api == "openmp"
    ]
    its = [path for path in loaded if path.startswith(folder)] or loaded
    begin = getattr(ctypes.CDLL(its[0]), "GOMP_parallel", None) if len(its) == 1 else None
    if begin is None:
        return None
    begin.argtypes = [TASK, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    begin.restype = None

    def team(task: Callable[[object], None], threads: int) -> None:
        begin(TASK(task), None, threads, 0)

    return team


def _pool(threads: int) -> ThreadPoolExecutor:
    with _lock:
        if threads not in _pools:
            _pools[threads] = ThreadPoolExecutor(max(1, threads - 1), thread_name_prefix="sharpmax")
        return _pools[threads]


class _Products:
    """The BLAS, held to one thread a product while any call of ours is running."""

    def __init__(self) -> None:
        self.callers, self.lock = 0, threading.Lock()
        self.libraries: list[Any] | None = None
        self.before: list[int] = []

    def enter(self) -> None:
        with self.lock:
            self.callers += 1
            if self.callers == 1:
                if self.libraries is None:
                    found = ThreadpoolController().lib_controllers
                    self.libraries = [one for one in found if one.user_api == "blas"]
                # One by one: threadpoolctl's own context asks each library for all that it knows.
                self.before = [one.num_threads for one in self.libraries]
                for one in self.libraries:
                    one.set_num_threads(1)

    def leave(self) -> None:
        with self.lock:
            self.callers -= 1
            if self.callers == 0:
                for one, threads in zip(self.libraries or [], self.before, strict=True):
                    one.set_num_threads(threads)


_products = _Products()


@contextmanager
def _one_thread_a_product() -> Iterator[None]:
    _products.enter()
    try:
        yield
    finally:
        _products.leave()


def _forget() -> None:
    """A forked child has none of its parent's threads, and maybe its locks, held. OpenMP does not
    know that it was forked, and would wait for them for ever.
    """
    global _forked, _lock, _products
    _forked = True
    _lock, _products = threading.Lock(), _Products()
    _pools.clear()


os.register_at_fork(after_in_child=_forget)
