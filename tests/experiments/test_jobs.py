"""Jobs in processes of their own: in order, with progress, and with a clean end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import workers
from waiting import eventually

from sharpmax import MissingExtraError, UserError
from sharpmax.experiments import jobs


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """In the workers too."""
    before = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parent}{os.pathsep}{before}")


def test_answers_come_in_the_order_of_the_jobs_and_progress_ends_at_one():
    seen = {}
    told = lambda place, share: seen.setdefault(place, []).append(share)  # noqa: E731
    assert jobs.run(workers.square, [3, 1, 4, 1, 5], processes=2, progress=told) == [
        9,
        1,
        16,
        1,
        25,
    ]
    assert sorted(seen) == [0, 1, 2, 3, 4]
    for shares in seen.values():
        assert shares == sorted(shares)
        assert shares[-1] == 1.0
        assert 0.25 in shares


def test_nothing_to_do():
    assert jobs.run(workers.square, []) == []


def test_a_job_has_one_thread_whatever_the_machine_has():
    assert jobs.run(workers.environment, ["NPROC"]) == [("1", "cpu")]


def test_an_error_stops_the_others_and_is_the_one_that_is_seen():
    began = time.monotonic()
    with pytest.raises(UserError, match="this job is bad"):
        jobs.run(workers.refuse, ["good", "bad", "good"], processes=2)
    assert time.monotonic() - began < 30  # a good one alone would take 50 s


def test_an_error_of_several_parts_arrives_as_it_was_raised():
    with pytest.raises(MissingExtraError, match=r"^flying needs a package, which is not installed"):
        jobs.run(workers.lack, ["flying"])


def test_what_a_job_found_is_kept_once_and_before_the_others_end():
    kept = []
    with pytest.raises(UserError, match="this job is bad"):
        jobs.run(
            workers.refuse_later,
            ["good", "bad"],
            processes=2,
            keep=lambda *found: kept.append(found),
        )
    assert kept == [(0, "good")]
    kept.clear()
    answers = jobs.run(
        workers.square, [3, 1, 4], processes=2, keep=lambda *found: kept.append(found)
    )
    assert answers == [9, 1, 16]
    assert sorted(kept) == [(0, 9), (1, 1), (2, 16)]


def test_an_error_in_keeping_stops_all():
    def fail(place, found):
        raise OSError("disk full")

    began = time.monotonic()
    with pytest.raises(OSError, match="disk full"):
        jobs.run(workers.refuse_later, ["good", "slow"], processes=2, keep=fail)
    assert time.monotonic() - began < 30  # the slow one alone would take 50 s


def test_a_worker_that_is_killed_is_reported():
    with pytest.raises(UserError, match=r"a worker process was killed.*repeat the command"):
        jobs.run(workers.die, [0])


def test_workers_end_with_a_parent_that_was_killed(tmp_path):
    parent, worker = _begin(tmp_path, "wait_for_long")
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert eventually(lambda: not _alive(worker), "the worker ends")


def test_an_interrupt_ends_all(tmp_path):
    parent, worker = _begin(tmp_path, "tell_for_long")
    os.killpg(parent.pid, signal.SIGINT)  # to all of them, as a terminal does
    assert parent.wait(timeout=60) != 0
    assert not _alive(worker)
    errors = (tmp_path / "errors").read_text()
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert errors.count("Traceback") == 1  # that of the parent: workers end quietly


def _begin(folder: Path, function: str) -> tuple[subprocess.Popen[bytes], int]:
    """A process with one job that says where it runs, and that job's own."""
    mark = folder / "pid"
    script = (
        "import workers\nfrom sharpmax.experiments import jobs\n"
        f"if __name__ == '__main__': jobs.run(workers.{function}, [{str(mark)!r}])\n"
    )
    (folder / "main.py").write_text(script)
    command = [sys.executable, folder / "main.py"]
    with (folder / "errors").open("w") as errors:
        parent = subprocess.Popen(command, stderr=errors, start_new_session=True)
    return parent, int(eventually(lambda: mark.exists() and mark.read_text(), "the job begins"))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # An orphan that has ended may wait for a parent to take note of it.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
