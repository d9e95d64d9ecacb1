"""Waiting for another process."""

from __future__ import annotations

import time


def wait_until(condition, what):
    """Return the first true value of `condition()`, or fail after a minute."""
    for _ in range(600):
        value = condition()
        if value:
            return value
        time.sleep(0.1)
    raise AssertionError(f"waited a minute in vain: {what}")
