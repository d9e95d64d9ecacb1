"""Functions that tests run in other processes, where they must be importable."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from sharpmax import MissingExtraError, UserError


def square(job, report_share):
    for share in (0.25, 0.5, 0.75):
        report_share(share)
        time.sleep(0.3)
    return job * job


def environment(job, report_share):
    import jax

    return os.environ[job], jax.devices()[0].platform


def refuse(job, report_share):
    """Fail at once if the job is bad, else report progress for 50 seconds."""
    if job == "bad":
        raise UserError("this job is bad")
    for _ in range(1000):
        time.sleep(0.05)
        report_share(0.1)
    return job


def refuse_later(job, report_share):
    """Return at once if the job is good, fail after two seconds if it is bad, else take 50."""
    for _ in range({"good": 0, "bad": 40, "slow": 1000}[job]):
        time.sleep(0.05)
        report_share(0.1)
    if job == "bad":
        raise UserError("this job is bad")
    return job


def lack_package(job, report_share):
    raise MissingExtraError("a package", "an extra", job)


def die(job, report_share):
    os.kill(os.getpid(), signal.SIGKILL)


def report_for_long(job, report_share):
    Path(job).write_text(str(os.getpid()))
    for _ in range(6_000):
        time.sleep(0.1)
        report_share(0.5)


def sleep_for_long(job, report_share):
    """Write the process id and never report."""
    Path(job).write_text(str(os.getpid()))
    time.sleep(600)


def die_once(job, report_share):
    """Append the process id to a file; the first process to do so dies."""
    path = Path(job)
    first = not path.exists()
    with path.open("a") as lines:
        lines.write(f"{os.getpid()}\n")
    if first:
        die(job, report_share)
    return path.read_text().count("\n")


def run_trial_and_log(trial, report_share):
    """Run a trial of the leaderboard; every attempt logs its seed and its node."""
    import ray

    from sharpmax.experiments.leaderboard.trial import run_trial

    with (trial.folder / "attempts").open("a") as attempts:
        attempts.write(f"{trial.budget.seeds[0]} {ray.get_runtime_context().get_node_id()}\n")
    return run_trial(trial, report_share)


def log_the_end(job, report_share):
    """A bad job waits for the other one to begin and fails; the other logs what ends it."""
    path, bad = Path(job[0]), job[1]
    while bad and not path.exists():
        time.sleep(0.1)
    if bad:
        raise UserError("this job is bad")
    try:
        report_for_long(path, report_share)
    except BaseException as error:
        path.write_text(type(error).__name__)
        raise


def run_cell_and_log(cell, report_share):
    """Do a job of a grid, and note which node began it."""
    import ray

    from sharpmax.experiments.grid import run_cell

    with (Path(cell.model) / "attempts").open("a") as log:
        log.write(f"{cell.seed} {ray.get_runtime_context().get_node_id()}\n")

    def slowly(share):
        time.sleep(0.1)
        report_share(share)

    return run_cell(cell, slowly)
