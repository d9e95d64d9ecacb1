"""Functions that tests run in other processes: they must be importable there."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from sharpmax import MissingExtraError, UserError


def square(job, tell):
    for share in (0.25, 0.5, 0.75):
        tell(share)
        time.sleep(0.3)
    return job * job


def environment(job, tell):
    import jax

    return os.environ[job], jax.devices()[0].platform


def refuse(job, tell):
    if job == "bad":
        raise UserError("this job is bad")
    for _ in range(1000):
        time.sleep(0.05)
        tell(0.1)
    return job


def refuse_later(job, tell):
    """Good at once, bad after three seconds, slow after 50."""
    for _ in range({"good": 0, "bad": 60, "slow": 1000}[job]):
        time.sleep(0.05)
        tell(0.1)
    if job == "bad":
        raise UserError("this job is bad")
    return job


def lack(job, tell):
    raise MissingExtraError("a package", "an extra", job)


def die(job, tell):
    os.kill(os.getpid(), signal.SIGKILL)


def tell_for_long(job, tell):
    Path(job).write_text(str(os.getpid()))
    for _ in range(6_000):
        time.sleep(0.1)
        tell(0.5)


def wait_for_long(job, tell):
    """Says where it is and goes on without telling anybody."""
    Path(job).write_text(str(os.getpid()))
    time.sleep(600)


def die_once(job, tell):
    """Says who it is, and the first to do so dies."""
    mark = Path(job)
    first = not mark.exists()
    with mark.open("a") as marks:
        marks.write(f"{os.getpid()}\n")
    if first:
        die(job, tell)
    return mark.read_text().count("\n")


def perform_and_mark(unit, tell):
    """A unit of the leaderboard; every attempt leaves a line with its seed and the node."""
    import ray

    from sharpmax.experiments.leaderboard.unit import perform

    with (unit.folder / "attempts").open("a") as attempts:
        attempts.write(f"{unit.budget.seeds[0]} {ray.get_runtime_context().get_node_id()}\n")
    return perform(unit, tell)


def note_the_end(job, tell):
    """A bad one waits for the other to begin; the other goes on, and notes by what it is ended."""
    mark, bad = Path(job[0]), job[1]
    while bad and not mark.exists():
        time.sleep(0.1)
    if bad:
        raise UserError("this job is bad")
    try:
        tell_for_long(mark, tell)
    except BaseException as error:
        mark.write_text(type(error).__name__)
        raise
