"""Run many jobs in parallel on one machine: one process and one thread per job.

A job never uses more than one thread. Its numbers therefore do not depend on how many cores the
machine has, and jobs that run side by side do not compete for them.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from queue import Empty
from types import FrameType
from typing import Any, TypeVar

from sharpmax._errors import UserError
from sharpmax.results.provenance import cores

Job = TypeVar("Job")
JobResult = TypeVar("JobResult")

ReportShare = Callable[[float], None]
"""Called by a running job with the share of its work that is done, 0 to 1. Raises `StoppedError` if
the result of the job is no longer wanted."""

JobProgress = Callable[[int, float], None]
"""Called with the index of a job and the share of its work that is done."""

Progress = Callable[[str, int, int, float], None]
"""Called with the name of a phase, its number of jobs, the index of one of them and the share of
that job that is done."""

ONE_THREAD = {
    "NPROC": "1",  # the number of cores that XLA assumes
    "JAX_PLATFORMS": "cpu",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
POLL_SECONDS = 0.2
"""Time between two checks for finished jobs and progress messages."""


class StoppedError(Exception):
    """The job was stopped because its result is no longer wanted."""


def run_jobs(
    function: Callable[[Job, ReportShare], JobResult],
    jobs: Sequence[Job],
    *,
    processes: int | None = None,
    progress: JobProgress | None = None,
    on_result: Callable[[int, JobResult], None] | None = None,
) -> list[JobResult]:
    """Call `function(job, report_share)` for every job, several at a time.

    The first error and an interrupt stop all jobs when they next report. A second interrupt kills
    them. Files that jobs have written stay.

    Args:
        function: Called in another process, so it must be importable there.
        jobs: Picklable arguments of `function`.
        processes: Maximum number of jobs at a time; the number of cores by default.
        progress: Called in this process while the jobs run.
        on_result: Called in this process with a job's index and result as soon as the job is
            finished. Results that it saves survive failures of other jobs; an error that it raises
            stops them.

    Returns:
        The results in the order of the jobs.

    Raises:
        UserError: If a worker process was killed.
    """
    if not jobs:
        return []
    processes = min(processes or cores(), len(jobs))
    # "spawn": a forked copy of a process in which JAX or torch have threads may hang.
    context = multiprocessing.get_context("spawn")
    messages, stop = context.Queue(), context.Event()
    with _interruptible_once():
        executor = ProcessPoolExecutor(processes, context, _start_worker, (messages, stop))
        try:
            futures = [
                executor.submit(_run_job, function, index, job) for index, job in enumerate(jobs)
            ]
            _wait_for_all(
                futures,
                messages,
                progress or (lambda index, share: None),
                on_result or (lambda index, result: None),
            )
            return [future.result() for future in futures]
        except BrokenProcessPool as error:
            raise UserError(
                "a worker process was killed, perhaps because memory ran out; finished work is "
                "saved: repeat the command to resume"
            ) from error
        finally:
            stop.set()
            executor.shutdown(wait=True, cancel_futures=True)
            messages.close()


@contextmanager
def _interruptible_once() -> Iterator[None]:
    """Raise KeyboardInterrupt at the first Ctrl-C only; kill the worker processes at the next.

    Raised again while the workers are being stopped, it would leave them running, and the
    interpreter would wait for them for ever. A caller's own handler is left alone.
    """
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    others = {process.pid for process in multiprocessing.active_children()}
    interrupted = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        if not interrupted:
            interrupted = True
            raise KeyboardInterrupt
        for process in multiprocessing.active_children():
            if process.pid not in others:
                process.kill()

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def label_progress(phase: str, count: int, progress: Progress | None) -> JobProgress | None:
    """Turn the progress of single jobs into the progress of a phase with `count` jobs."""
    if progress is None:
        return None
    return lambda index, share: progress(phase, count, index, share)


def _wait_for_all(
    futures: list[Future[Any]],
    messages: Any,
    progress: JobProgress,
    on_result: Callable[[int, Any], None],
) -> None:
    """Forward progress and results until all jobs have ended or one has failed."""
    pending = set(futures)
    while pending:
        ended, pending = wait(pending, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
        while True:
            try:
                index, share = messages.get_nowait()
            except Empty:
                break
            if futures[index] in pending:  # a message may arrive after the job's result
                progress(index, share)
        for future in ended:
            index = futures.index(future)
            on_result(index, future.result())  # raises what the job raised
            progress(index, 1.0)


_worker: dict[str, Any] = {}
"""In a worker process: the queue for progress messages and the event that stops the job."""


def _start_worker(messages: Any, stop: Any) -> None:
    """Prepare a worker process before it imports a library that starts threads."""
    os.environ.update(ONE_THREAD)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it and sets `stop`
    _worker.update(messages=messages, stop=stop)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    """End this process when its parent ends: a parent that was killed cannot set `stop`."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)


def _run_job(function: Callable[[Any, ReportShare], Any], index: int, job: Any) -> Any:
    def report_share(share: float) -> None:
        if _worker["stop"].is_set():
            raise StoppedError
        _worker["messages"].put((index, share))

    return function(job, report_share)
