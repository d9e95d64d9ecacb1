"""Threads that share out blocks: as many as asked for, kept from call to call.

Python's own, not numba's: those abort the process when two threads call at once, or after a fork.
The compiled parts and the products let go of the interpreter's lock.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import scipy.linalg.cython_blas  # noqa: F401  # the BLAS that numba calls, loaded to be found below
from threadpoolctl import ThreadpoolController

Item = TypeVar("Item")

_lock = threading.Lock()
_pools: dict[int, ThreadPoolExecutor] = {}


def over(items: Iterable[Item], work: Callable[[Item], None], threads: int) -> None:
    """Call `work` on every item, by this thread and `threads - 1` more; an error is raised."""
    waiting = iter(list(items))  # whose next() is one step of the interpreter: no item is had twice

    def take() -> None:
        for item in waiting:
            work(item)

    with _one_thread_a_product():
        helpers = [_pool(threads).submit(take) for _ in range(threads - 1)]
        try:
            take()
        finally:
            for _ in waiting:  # after an error nobody begins another
                pass
            errors = [one.exception() for one in helpers]
    for error in errors:
        if error is not None:
            raise error


def _pool(threads: int) -> ThreadPoolExecutor:
    with _lock:
        if threads not in _pools:
            _pools[threads] = ThreadPoolExecutor(threads - 1, thread_name_prefix="sharpmax")
        return _pools[threads]


class _Products:
    """The BLAS, held to one thread a product while any call of ours is running."""

    def __init__(self) -> None:
        self.callers, self.lock = 0, threading.Lock()
        self.limit: object | None = None
        self.controller: ThreadpoolController | None = None

    def enter(self) -> None:
        with self.lock:
            self.callers += 1
            if self.callers == 1:
                if self.controller is None:
                    found = ThreadpoolController().select(user_api="blas")
                    self.controller = found
                self.limit = self.controller.limit(limits=1)

    def leave(self) -> None:
        with self.lock:
            self.callers -= 1
            if self.callers == 0:
                self.limit.restore_original_limits()  # type: ignore[union-attr]


_products = _Products()


@contextmanager
def _one_thread_a_product() -> Iterator[None]:
    _products.enter()
    try:
        yield
    finally:
        _products.leave()


def _forget() -> None:
    """A forked child has none of its parent's threads, and maybe its locks, held."""
    global _lock, _products
    _lock, _products = threading.Lock(), _Products()
    _pools.clear()


os.register_at_fork(after_in_child=_forget)
