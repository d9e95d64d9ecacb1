"""Jobs report progress, stop when asked, and do not mix."""

from __future__ import annotations

import threading
import time

import pytest

from sharpmax.app import background_jobs
from sharpmax.app.background_jobs import JobEnd, JobLock, Stopped, run_job, stop_job


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
    lock = JobLock()

    def work(report):
        with lock.hold(report):
            pytest.fail("two jobs have the lock")

    with lock.hold(lambda share: None):
        job = run_job("a", work)
        assert next(job) == 0.0
        stop_job("a")
        *_, end = job
        assert isinstance(end.error, Stopped)


def test_jobs_take_turns_in_the_order_in_which_they_came():
    lock, order, report = JobLock(), [], lambda share: None

    def work(number):
        with lock.hold(report):
            order.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
    with lock.hold(report):
        for thread in threads:
            thread.start()
            time.sleep(0.01)
        assert order == []
    for thread in threads:
        thread.join(30)
    assert order == list(range(20))


def test_an_error_gives_the_lock_to_the_next():
    lock = JobLock()
    with pytest.raises(ZeroDivisionError), lock.hold(lambda share: None):
        raise ZeroDivisionError
    with lock.hold(lambda share: None):
        pass
