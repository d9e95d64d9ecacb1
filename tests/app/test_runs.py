"""Runs: followed to their end, stopped when asked, and never mixed."""

from __future__ import annotations

import threading

import pytest

from sharpmax.app import runs
from sharpmax.app.runs import Ended, Stopped


def test_a_run_is_followed_to_its_value():
    def work(tell):
        tell(0.5)
        return "found"

    *shares, end = runs.follow("a", work)
    assert end == Ended(value="found")
    assert set(shares) <= {0.5}


def test_an_error_is_how_it_ended():
    def work(tell):
        raise RuntimeError("broken")

    (end,) = runs.follow("a", work)
    assert isinstance(end.error, RuntimeError)


@pytest.fixture
def endless():
    """Work that goes on until it is stopped, and says when it has ended."""
    ended = threading.Event()

    def work(tell):
        try:
            while True:
                tell(0.1)
                ended.wait(0.001)
        finally:
            ended.set()

    work.ended = ended
    return work


def test_stop_ends_the_run_of_its_session_only(endless):
    run = runs.follow("a", endless)
    assert next(run) == 0.1
    assert not runs.stop("b")
    assert not endless.ended.wait(0.05)
    assert runs.stop("a")
    *_, end = run
    assert isinstance(end.error, Stopped)
    assert not runs.stop("a")


def test_who_goes_away_ends_the_run(endless):
    run = runs.follow("a", endless)
    next(run)
    run.close()
    assert endless.ended.wait(5)


def test_a_second_run_ends_the_first(endless):
    first = runs.follow("a", endless)
    next(first)
    (end,) = runs.follow("a", lambda tell: 2)
    assert end.value == 2
    assert endless.ended.wait(5)
    first.close()


def test_waiting_for_a_lock_can_be_stopped(monkeypatch):
    monkeypatch.setattr(runs, "PATIENCE", 0.01)
    lock = threading.Lock()
    lock.acquire()
    run = runs.follow("a", lambda tell: runs.held(lock, tell))
    assert next(run) == 0.0
    runs.stop("a")
    *_, end = run
    assert isinstance(end.error, Stopped)
