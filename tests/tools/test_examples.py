"""The example that trains with statistics runs, and QK-clip keeps its logits small."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sharpmax.results import Result

ROOT = Path(__file__).parents[2]


def run_example(folder: Path, *options: str) -> tuple[Result, str]:
    """Run it for some steps, and return its result and what it prints."""
    script = ROOT / "examples" / "train_with_statistics.py"
    done = subprocess.run(
        [sys.executable, str(script), str(ROOT / "docs"), str(folder), "--steps", "60", *options],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr[-3000:]
    assert "<html" in (folder / "statistics.html").read_text()
    return Result.load(folder / "statistics.json"), done.stdout


@pytest.mark.slow
def test_train_with_statistics(tmp_path):
    plain, printed = run_example(tmp_path / "plain")
    assert plain.measurements["steps"] == [1, 11, 21, 31, 41, 51]
    assert "alarms." in printed
    tau = 10.0
    clipped, _ = run_example(tmp_path / "clipped", "--tau", str(tau))
    largest = [np.max(result.arrays["max_logit"]) for result in (plain, clipped)]
    assert largest[0] > 50
    # A sample is taken before the clipping of its step.
    assert largest[1] < 2 * tau
