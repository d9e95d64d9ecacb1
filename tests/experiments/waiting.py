"""Waiting for another process."""

from __future__ import annotations

import time


def eventually(condition, what):
    """What the condition finds, as soon as it finds something."""
    for _ in range(600):
        found = condition()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"waited a minute in vain: {what}")
