"""Keys split across devices give the answer of one device that has them all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def on_four_devices(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    return subprocess.run(
        [sys.executable, "-W", "error", script, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_four_devices():
    done = on_four_devices(HERE / "sharded_worker.py", "few")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_four_devices_with_every_mask_and_block():
    done = on_four_devices(HERE / "sharded_worker.py", "all")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_example():
    done = on_four_devices(HERE.parents[1] / "examples" / "sharded_jax.py")
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "4 devices, 1000 keys in all"
    # float32: an entropy good to 1e-6 moves a logit of 4 by up to 5 * 4 * 1e-6.
    assert float(second.rpartition(" ")[2]) < 1e-4
