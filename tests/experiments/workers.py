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
