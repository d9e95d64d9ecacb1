"""Kill -9 at random moments, then repeat: the same numbers as never killed, and nothing left over.

The moments are spread over the measured duration of a run. A run that is killed is repeated in the
same folder, and killed again, until it ends; what it wrote is then compared.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clrs_text.small import SAMPLE

from hf.small import llama, tokenizer
from sharpmax.results import Calibration, Result

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="forks processes"),
]

KILLS = 10
TIMES = {"seconds", "training_seconds", "unit_seconds", "cost", "costs"}
"""What a repeated run measures anew."""

COMMANDS: dict[str, tuple[str, ...]] = {
    "scan": ("scan", "MODEL", "--lengths", "4,8,16,32,64,100,120"),
    "evaluate": ("evaluate", "MODEL", "--task", "max", "--policy", "constant:2", "--lengths",
                 "4,8,16", "--prompts", "12"),
    "calibrate": ("calibrate", "MODEL", "--task", "max", "--short", "4", "--long", "24",
                  "--prompts", "8"),
    "tune": ("tune", "MODEL", "--task", "max", "--from-tokens", "64", "--steps", "6",
             "--check-prompts", "1", "--guard-weight", "0", "--max-text-cost", "9"),
    "table1": ("reproduce", "table1", "--quick", "--processes", "1"),
    "leaderboard": ("leaderboard", "--quick", "--steps", "100", "--method", "softmax", "--method",
                    "sparsemax", "--track", "trained", "--processes", "2"),
    "clrs train": ("clrs", "train", str(SAMPLE / "train"), "--shape",
                   "width=32,layers=1,heads=2,head_size=16,inner=48", "--steps", "8", "--batch",
                   "4", "--micro", "2", "--threads", "1", "--checkpoint-every", "1"),
}  # fmt: skip

Run = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Iterator[Run]:
    """Run a command in a process of its own; kill it after some seconds."""
    script = Path(__file__).with_name("kill_runner.py")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"

    def run_command(words: list[str], log: Path, kill_after: float | None = None) -> dict[str, Any]:
        order = {"words": words, "log": str(log), "kill_after": kill_after}
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    with process:
        yield run_command


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    llama(context=700).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_times(inner) for key, inner in value.items() if key not in TIMES}
    return [without_times(inner) for inner in value] if isinstance(value, list) else value


def contents(out: Path) -> dict[str, Any]:
    """The numbers in a folder, by file; pictures and pages by their names alone."""
    found: dict[str, Any] = {}
    for path in sorted(out.rglob("*")):
        name = re.sub(r"\.[0-9a-f]{12}\.npz$", ".npz", str(path.relative_to(out)))
        if path.is_dir() or name.endswith(".lock"):
            continue
        found[name] = None
        if path.suffix == ".json":
            value = json.loads(path.read_text("utf-8"))
            if value.get("format") == "sharpmax-result":
                result = Result.load(path)
                found[name] = without_times(
                    [result.measurements, result.config, list(result.seeds)]
                )
                for key, array in result.arrays.items():
                    found[f"{name} {key}"] = array.tolist()
            elif value.get("format") == "sharpmax-calibration":
                found[name] = Calibration.load(path).text()
            else:
                found[name] = without_times(value)
        elif path.suffix == ".safetensors" and path.name == "model.safetensors":
            found[name] = path.read_bytes()
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_killed_and_repeated(run, model, tmp_path, command):
    words = [str(model) if word == "MODEL" else word for word in COMMANDS[command]]
    log = tmp_path / "log"

    def start(out: Path, kill_after: float | None = None) -> dict[str, Any]:
        return run([*words, "--out", str(out)], log, kill_after)

    start(tmp_path / "warm")  # what is compiled or read for the first time
    clean = tmp_path / "clean"
    whole = start(clean)
    assert whole["status"] == 0, log.read_text()
    expected = contents(clean)

    rng = np.random.default_rng(list(COMMANDS).index(command))
    moments = iter(rng.permutation((np.arange(3 * KILLS) % KILLS + rng.random(3 * KILLS)) / KILLS))
    kills, finished = 0, 0
    out = tmp_path / "out"
    while kills < KILLS:
        ended = start(out, whole["seconds"] * next(moments))
        if ended["status"] == -9:
            kills += 1
            continue
        assert ended["status"] == 0, log.read_text()
        np.testing.assert_equal(contents(out), expected)
        finished += 1
        shutil.rmtree(out)
    if out.exists():
        assert start(out)["status"] == 0, log.read_text()
        np.testing.assert_equal(contents(out), expected)
