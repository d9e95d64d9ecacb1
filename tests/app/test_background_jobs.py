"""Jobs report progress, stop when asked, and do not mix."""

from __future__ import annotations

import threading

import pytest

from sharpmax.app import background_jobs
from sharpmax.app.background_jobs import JobEnd, Stopped, acquire_lock, run_job, stop_job


def test_progress_and_then_the_value():
    def work(report):
        report(0.5)
        return "value"

    *shares, end = run_job("a", work)
    assert end == JobEnd(value="value")
    assert set(shares) <= {0.5}


def test_an_error_ends_the_job():
    def work(report):
        raise RuntimeError("broken")

    (end,) = run_job("a", work)
    assert isinstance(end.error, RuntimeError)


@pytest.fixture
def endless():
    """Return work that runs until it is stopped, with an event that is set when it has ended."""
    ended = threading.Event()

    def work(report):
        try:
            while True:
                report(0.1)
                ended.wait(0.001)
        finally:
            ended.set()

    work.ended = ended
    return work


def test_stopping_ends_the_job_of_its_key_only(endless):
    job = run_job("a", endless)
    assert next(job) == 0.1
    assert not stop_job("b")
    assert not endless.ended.wait(0.05)
    assert stop_job("a")
    *_, end = job
    assert isinstance(end.error, Stopped)
    assert not stop_job("a")


def test_closing_the_iterator_ends_the_job(endless):
    job = run_job("a", endless)
    next(job)
    job.close()
    assert endless.ended.wait(5)


def test_a_second_job_ends_the_first(endless):
    first = run_job("a", endless)
    next(first)
    (end,) = run_job("a", lambda report: 2)
    assert end.value == 2
    assert endless.ended.wait(5)
    first.close()


def test_waiting_for_a_lock_can_be_stopped(monkeypatch):
    monkeypatch.setattr(background_jobs, "LOCK_POLL_SECONDS", 0.01)
    lock = threading.Lock()
    lock.acquire()
    job = run_job("a", lambda report: acquire_lock(lock, report))
    assert next(job) == 0.0
    stop_job("a")
    *_, end = job
    assert isinstance(end.error, Stopped)
