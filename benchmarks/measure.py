"""Measure candidates in turn, in many rounds of one process.

On a shared machine the ratio of two calls made a moment apart is more reliable than a time. So each
number is the median over rounds of (time of the candidate / time of the baseline in the same
round), with its quartiles. Peak memory is measured in a separate process.
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
    """Return the ratio of each candidate's time to the first one's, and its median time in ms.

    `share` is the fraction of a candidate's time that counts. `before` is called before a candidate
    and not timed.
    """
    if rounds >= FEW:  # with fewer, longer rounds a first call costs little
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
    summary = {}
    for name, taken in times.items():
        relative = [seconds / baseline for seconds, baseline in zip(taken, base, strict=True)]
        low, middle, high = (
            statistics.quantiles(relative, n=4) if len(relative) > 1 else [relative[0]] * 3
        )
        summary[name] = {
            "ratio": round(middle, 3),
            "low": round(low, 3),
            "high": round(high, 3),
            "milliseconds": round(1e3 * statistics.median(taken), 3),
        }
    return summary


def peak_megabytes(script: str, *arguments: str) -> float:
    """Return how much memory a process takes that runs `script memory <arguments>`."""
    command = [sys.executable, script, "memory", *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def print_rise(work: Callable[[], Any]) -> None:
    """Print by how many MB resident memory rises at the peak of `work`, in a fresh process.

    Linux keeps the peak of the whole process, imports included, until it is reset.
    """
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    work()
    print((_status("VmHWM") - before) / 1024)


def peak_gigabytes() -> float:
    """Return the peak of resident memory of this process, imports included.

    `getrusage` would not do: its peak starts at what the parent process held when it forked.
    """
    return _status("VmHWM") / 2**20


def _status(name: str) -> int:
    """Return a value of /proc/self/status, in kB."""
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith(name):
            return int(line.split()[1])
    raise SystemExit(f"/proc/self/status has no {name}: peak memory is measured on Linux only")
