"""Work that takes a while: it says how far it is, and ends when its user stops it or goes away.

A run is a thread. gradio can drop a running function, but not end it: the thread would go on, and
hold the model. So each piece of work calls `tell(share)` as it goes on, and that is where it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread
from typing import Any

Tell = Callable[[float], None]
"""Told the share of the work that is done; raises `Stopped` once it is not wanted any more."""

PATIENCE = 0.2
"""Seconds after which one who waits looks whether that is still wanted."""


class Stopped(Exception):  # noqa: N818 - not an error: the user asked for it
    """The run is not wanted any more."""


@dataclass(frozen=True)
class Ended:
    """What a run came to: a value, or why there is none."""

    value: Any = None
    error: Exception | None = None


_RUNNING: dict[str, Event] = {}
_LOCK = Lock()


def follow(session: str, work: Callable[[Tell], Any]) -> Iterator[float | Ended]:
    """Shares of the work that is done, then how it ended. A session has one run at a time: a new
    one ends the old.
    """
    stop, news = Event(), SimpleQueue[float | Ended]()

    def tell(share: float) -> None:
        if stop.is_set():
            raise Stopped
        news.put(share)

    def run() -> None:
        try:
            news.put(Ended(value=work(tell)))
        except Exception as error:  # also what is not foreseen must reach the page
            news.put(Ended(error=error))

    with _LOCK:
        if session in _RUNNING:
            _RUNNING[session].set()
        _RUNNING[session] = stop
    Thread(target=run, name="sharpmax-run", daemon=True).start()
    try:
        while True:
            latest = _latest(news)
            yield latest
            if isinstance(latest, Ended):
                return
    finally:
        stop.set()
        with _LOCK:
            if _RUNNING.get(session) is stop:
                del _RUNNING[session]


def _latest(news: SimpleQueue[float | Ended]) -> float | Ended:
    """Wait for news; of several, the last."""
    found = news.get()
    while True:
        try:
            found = news.get_nowait()
        except Empty:
            return found


def stop(session: str) -> bool:
    """End the session's run, if there is one."""
    with _LOCK:
        found = _RUNNING.get(session)
    if found is not None:
        found.set()
    return found is not None


def held(lock: Any, tell: Tell) -> None:
    """Wait for a lock for as long as that is wanted; the caller releases it."""
    while not lock.acquire(timeout=PATIENCE):
        tell(0.0)
