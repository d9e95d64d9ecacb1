"""Many jobs on all cores: each in a process of its own, on one core, with progress and a clean end.

One thread a job, always: the numbers that a job finds do not depend on how many cores there are,
and jobs beside each other waste nothing on waiting.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from queue import Empty
from typing import Any, TypeVar

from sharpmax._errors import UserError
from sharpmax.results.provenance import cores

Job = TypeVar("Job")
Found = TypeVar("Found")

Tell = Callable[[float], None]
"""Called by a job now and then with the share of it that is done, 0 to 1. It raises `StoppedError`
when the job is no longer wanted."""

Progress = Callable[[int, float], None]
"""Called with a job's place in the list and the share of it that is done."""

ONE_THREAD = {
    "NPROC": "1",  # what XLA takes for the number of cores
    "JAX_PLATFORMS": "cpu",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
PATIENCE = 0.2
"""Seconds between two looks at whether a job has ended."""


class StoppedError(Exception):
    """The job's result is no longer wanted."""


def run(
    function: Callable[[Job, Tell], Found],
    jobs: Sequence[Job],
    *,
    processes: int | None = None,
    progress: Progress | None = None,
    keep: Callable[[int, Found], None] | None = None,
) -> list[Found]:
    """The function of every job, in the jobs' order, some at a time.

    The first error stops the others, and so does an interrupt; whatever they keep on disk stays.
    `keep` is called in this process, with a job's place and what it found, as soon as it is there:
    what is kept then survives whatever happens to the other jobs. Its errors stop them too.
    `function` and the jobs are sent to other processes, so they must be importable and picklable.
    """
    if not jobs:
        return []
    processes = min(processes or cores(), len(jobs))
    # Not forked: a copy of a process in which JAX or torch have threads may hang.
    context = multiprocessing.get_context("spawn")
    messages, stop = context.Queue(), context.Event()
    executor = ProcessPoolExecutor(processes, context, _begin, (messages, stop, os.getpid()))
    try:
        futures = [executor.submit(_work, function, place, job) for place, job in enumerate(jobs)]
        _attend(
            futures,
            messages,
            progress or (lambda place, share: None),
            keep or (lambda place, found: None),
        )
        return [future.result() for future in futures]
    except BrokenProcessPool as error:
        raise UserError(
            "a worker process was killed, perhaps for want of memory; what was finished is kept: "
            "repeat the command to go on"
        ) from error
    finally:
        stop.set()
        executor.shutdown(wait=True, cancel_futures=True)
        messages.close()


def _attend(
    futures: list[Future[Any]],
    messages: Any,
    progress: Progress,
    keep: Callable[[int, Any], None],
) -> None:
    """Pass on what jobs tell and find, until all have ended or one has failed."""
    pending = set(futures)
    while pending:
        ended, pending = wait(pending, timeout=PATIENCE, return_when=FIRST_COMPLETED)
        while True:
            try:
                place, share = messages.get_nowait()
            except Empty:
                break
            if futures[place] in pending:  # what a job said may arrive after its result
                progress(place, share)
        for future in ended:
            place = futures.index(future)
            keep(place, future.result())  # raises what the job raised
            progress(place, 1.0)


_worker: dict[str, Any] = {}
"""What a worker process knows of the one that started it."""


def _begin(messages: Any, stop: Any, parent: int) -> None:
    """Prepare a worker process, before it imports any library with threads."""
    os.environ.update(ONE_THREAD)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides, and tells by `stop`
    _worker.update(messages=messages, stop=stop)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """End this process soon after its parent: one that was killed could not say so."""
    while os.getppid() == parent:
        time.sleep(PATIENCE)
    os._exit(1)


def _work(function: Callable[[Any, Tell], Any], place: int, job: Any) -> Any:
    def tell(share: float) -> None:
        if _worker["stop"].is_set():
            raise StoppedError
        _worker["messages"].put((place, share))

    return function(job, tell)
