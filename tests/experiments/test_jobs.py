"""Jobs in separate processes: results in order, progress, and a clean end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import workers
from waiting import wait_until

from sharpmax import MissingExtraError, UserError
from sharpmax.experiments import jobs


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """Let worker processes import `workers`."""
    before = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parent}{os.pathsep}{before}")


def test_results_are_in_the_order_of_the_jobs_and_progress_ends_at_one():
    shares, results = {}, []
    answers = jobs.run_jobs(
        workers.square,
        [3, 1, 4],
        processes=2,
        progress=lambda index, share: shares.setdefault(index, []).append(share),
        on_result=lambda *result: results.append(result),
    )
    assert answers == [9, 1, 16]
    assert sorted(results) == [(0, 9), (1, 1), (2, 16)]
    assert sorted(shares) == [0, 1, 2]
    for values in shares.values():
        assert values == sorted(values)
        assert values[-1] == 1.0
        assert 0.25 in values


def test_no_jobs_give_no_results():
    assert jobs.run_jobs(workers.square, []) == []


def test_a_labelled_progress_names_the_phase_and_the_number_of_jobs():
    calls = []
    jobs.label_progress("training", 5, lambda *call: calls.append(call))(2, 0.5)
    assert calls == [("training", 5, 2, 0.5)]
    assert jobs.label_progress("training", 5, None) is None


def test_a_job_has_one_thread_on_any_machine():
    assert jobs.run_jobs(workers.environment, ["NPROC"]) == [("1", "cpu")]


def test_an_error_stops_the_other_jobs_and_is_raised():
    begin = time.monotonic()
    with pytest.raises(UserError, match="this job is bad"):
        jobs.run_jobs(workers.refuse, ["good", "bad", "good"], processes=2)
    assert time.monotonic() - begin < 30  # a good one alone would take 50 s


def test_an_error_with_several_arguments_arrives_as_it_was_raised():
    with pytest.raises(MissingExtraError, match=r"^flying needs a package, which is not installed"):
        jobs.run_jobs(workers.lack_package, ["flying"])


def test_a_result_is_passed_on_before_other_jobs_end():
    results = []
    with pytest.raises(UserError, match="this job is bad"):
        jobs.run_jobs(
            workers.refuse_later,
            ["good", "bad"],
            processes=2,
            on_result=lambda *result: results.append(result),
        )
    assert results == [(0, "good")]


def test_an_error_in_on_result_stops_all_jobs():
    def fail(index, result):
        raise OSError("disk full")

    begin = time.monotonic()
    with pytest.raises(OSError, match="disk full"):
        jobs.run_jobs(workers.refuse_later, ["good", "slow"], processes=2, on_result=fail)
    assert time.monotonic() - begin < 30  # the slow one alone would take 50 s


def test_a_killed_worker_is_reported():
    with pytest.raises(UserError, match=r"a worker process was killed.*repeat the command"):
        jobs.run_jobs(workers.die, [0])


def test_workers_end_when_their_parent_is_killed(tmp_path):
    parent, worker = _start(tmp_path, "sleep_for_long")
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert wait_until(lambda: not _is_alive(worker), "the worker ends")


def test_an_interrupt_ends_all_processes(tmp_path):
    parent, worker = _start(tmp_path, "report_for_long")
    os.killpg(parent.pid, signal.SIGINT)  # to all processes, as a terminal does
    assert parent.wait(timeout=60) != 0
    assert not _is_alive(worker)
    errors = (tmp_path / "errors").read_text()
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert errors.count("Traceback") == 1  # only the parent's: workers end quietly


@pytest.mark.parametrize("times", [2, 5])
def test_a_second_interrupt_ends_jobs_that_do_not_report(tmp_path, times):
    parent, worker = _start(tmp_path, "sleep_for_long")
    try:
        for _ in range(times):
            os.killpg(parent.pid, signal.SIGINT)
            time.sleep(0.3)
        assert parent.wait(timeout=60) != 0
        assert wait_until(lambda: not _is_alive(worker), "the worker ends")
        errors = (tmp_path / "errors").read_text()
        assert errors.rstrip().endswith("KeyboardInterrupt")
    finally:
        for process in (parent.pid, worker):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def test_afterwards_interrupts_are_what_they_were():
    handler = signal.getsignal(signal.SIGINT)
    jobs.run_jobs(workers.environment, ["NPROC"])
    assert signal.getsignal(signal.SIGINT) is handler


def _start(folder: Path, function: str) -> tuple[subprocess.Popen[bytes], int]:
    """Start a process with one job; return it and the process id of the job."""
    mark = folder / "pid"
    script = (
        "import workers\nfrom sharpmax.experiments import jobs\n"
        f"if __name__ == '__main__': jobs.run_jobs(workers.{function}, [{str(mark)!r}])\n"
    )
    (folder / "main.py").write_text(script)
    command = [sys.executable, folder / "main.py"]
    with (folder / "errors").open("w") as errors:
        parent = subprocess.Popen(command, stderr=errors, start_new_session=True)
    return parent, int(wait_until(lambda: mark.exists() and mark.read_text(), "the job begins"))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # An orphan that has ended stays a zombie until its new parent collects it.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
