"""How the benchmarks measure: every candidate in turn, again and again, in one process.

A time alone says little on a machine that others use; the ratio of two calls made a moment apart
says more. So a figure is the median over rounds of (time of the candidate / time of the baseline in
the same round), with its quartiles. Peak memory is measured in a process of its own.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FEW = 10


def ratios(
    candidates: dict[str, Callable[[], Any]],
    rounds: int,
    *,
    share: dict[str, float] | None = None,
    before: dict[str, Callable[[], Any]] | None = None,
) -> dict[str, dict[str, float]]:
    """Ratio of each candidate's time to the first one's, and its own median time in ms. Of a
    candidate that does more than is asked, `share` is what counts; `before` it something else may
    be called, and not timed.
    """
    if rounds >= FEW:  # else a first call's share in the time is small
        for call in candidates.values():
            call()
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, call in candidates.items():
            if before:
                before[name]()
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    for name, part in (share or {}).items():
        times[name] = [part * taken for taken in times[name]]
    base = next(iter(times.values()))
    found = {}
    for name, taken in times.items():
        relative = [mine / its for mine, its in zip(taken, base, strict=True)]
        low, middle, high = (
            statistics.quantiles(relative, n=4) if len(relative) > 1 else [relative[0]] * 3
        )
        found[name] = {
            "ratio": round(middle, 3),
            "low": round(low, 3),
            "high": round(high, 3),
            "milliseconds": round(1e3 * statistics.median(taken), 3),
        }
    return found


def peak_megabytes(script: str, *arguments: str) -> float:
    """How far a process's peak memory rises while it runs `script ... memory <arguments>`."""
    command = [sys.executable, script, "memory", *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def print_rise(work: Callable[[], Any]) -> None:
    """In a fresh process: print by how many MB resident memory rises at the peak of `work`.

    Linux keeps the peak of the whole process, importing included, until it is told to begin anew.
    """
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    work()
    print((_status("VmHWM") - before) / 1024)


def _status(name: str) -> int:
    """A line of /proc/self/status, in kB."""
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith(name):
            return int(line.split()[1])
    raise SystemExit(f"/proc/self/status has no {name}: peak memory is measured on Linux only")
