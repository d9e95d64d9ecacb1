"""Keys split across real processes give the answer of one process that has them all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sharpmax.torch import sharded_attention

HERE = Path(__file__).parent


def test_three_processes(tmp_path):
    worker = [sys.executable, "-W", "error", HERE / "sharded_worker.py"]
    running = [
        subprocess.Popen(
            [*worker, str(rank), "3", str(tmp_path / "meeting")],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    errors = [process.communicate(timeout=300)[1] for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], "\n".join(errors)


def test_the_example():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    example = HERE.parents[1] / "examples" / "sharded_torch.py"
    done = subprocess.run([*command, "2", example], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "2 processes, 1000 keys in all"
    # float32: an entropy good to 1e-6 moves a logit of 4 by up to 5 * 4 * 1e-6.
    assert float(second.rpartition(" ")[2]) < 1e-4


def test_alone_it_says_what_is_missing():
    query = torch.ones(1, 2, 3, 8)
    with pytest.raises(RuntimeError, match="call init_process_group first"):
        sharded_attention(query, query, query)
