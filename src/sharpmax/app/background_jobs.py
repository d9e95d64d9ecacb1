"""Run long work in a thread that reports its progress and stops when the user asks for it.

gradio can abandon a running function, but not end it: its thread would continue and keep the model
busy. So each job calls `report(share)` as it proceeds, and that call raises `Stopped` once the job
is no longer wanted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Condition, Event, Lock, Thread
from typing import Any

Report = Callable[[float], None]
"""Called with the share of the work that is done; raises `Stopped` if the job is to end."""

LOCK_POLL_SECONDS = 0.2
"""Interval at which a job that waits for a lock checks whether it is still wanted."""


class Stopped(Exception):  # noqa: N818 - not an error: the user asked for it
    """The job was stopped."""


@dataclass(frozen=True)
class JobEnd:
    """How a job ended: with a value or with an error."""

    value: Any = None
    error: Exception | None = None


_STOP_EVENTS: dict[str, Event] = {}
_STOP_EVENTS_LOCK = Lock()


def run_job(key: str, work: Callable[[Report], Any]) -> Iterator[float | JobEnd]:
    """Run work in a thread; yield the share that is done, and at last how it ended.

    Args:
        key: Identifies the user and the kind of job. A new job stops the previous one of its key.
        work: Called with a function to report progress to.
    """
    stop, updates = Event(), SimpleQueue[float | JobEnd]()

    def report(share: float) -> None:
        if stop.is_set():
            raise Stopped
        updates.put(share)

    def run() -> None:
        try:
            updates.put(JobEnd(value=work(report)))
        except Exception as error:  # unexpected errors must reach the page too
            updates.put(JobEnd(error=error))

    with _STOP_EVENTS_LOCK:
        if key in _STOP_EVENTS:
            _STOP_EVENTS[key].set()
        _STOP_EVENTS[key] = stop
    Thread(target=run, name="sharpmax-job", daemon=True).start()
    try:
        while True:
            update = _wait_for_latest(updates)
            yield update
            if isinstance(update, JobEnd):
                return
    finally:
        stop.set()
        with _STOP_EVENTS_LOCK:
            if _STOP_EVENTS.get(key) is stop:
                del _STOP_EVENTS[key]


def _wait_for_latest(updates: SimpleQueue[float | JobEnd]) -> float | JobEnd:
    """Wait for an update; if several have arrived, return the last."""
    latest = updates.get()
    while True:
        try:
            latest = updates.get_nowait()
        except Empty:
            return latest


def stop_job(key: str) -> bool:
    """Stop the job of this key, and return whether there was one."""
    with _STOP_EVENTS_LOCK:
        stop = _STOP_EVENTS.get(key)
    if stop is not None:
        stop.set()
    return stop is not None


class JobLock:
    """Lets one job in at a time, in the order in which they came.

    A plain lock takes any of those that wait for it, and one of twenty may wait for minutes.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._jobs: deque[object] = deque()
        """The job that has the lock, and those that wait for it."""

    @contextmanager
    def hold(self, report: Report) -> Iterator[None]:
        """Wait for as long as the job is wanted, and keep the lock inside the `with` block."""
        job = object()
        with self._changed:
            self._jobs.append(job)
        try:
            with self._changed:
                while self._jobs[0] is not job:
                    self._changed.wait(LOCK_POLL_SECONDS)
                    report(0.0)
            report(0.0)
            yield
        finally:
            with self._changed:
                self._jobs.remove(job)
                self._changed.notify_all()
