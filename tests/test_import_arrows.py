"""The layers of the design hold, and the check that says so can fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def lint(project: Path) -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    environment = os.environ | {"PYTHONPATH": str(project / "src")}
    return subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_arrows_hold(copy):
    done = lint(copy)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("ops/entropy.py", "import sharpmax.theory"),
        ("ops/softmax.py", "import sharpmax.normalisers"),
        ("normalisers/entmax.py", "import sharpmax.torch"),
        ("normalisers/top_k.py", "import torch"),
        ("policies.py", "from sharpmax.ops import softmax"),
        ("plot/figure1.py", "from sharpmax.ops import softmax"),
        ("experiments/one_head.py", "import sharpmax.plot"),
        ("hf/scan.py", "import sharpmax.plot"),
        ("torch/api.py", "import sharpmax.hf"),
        ("report/__init__.py", "import sharpmax.hf"),
        ("report/__init__.py", "import sharpmax.app"),
        ("app/softmax/rows.py", "import sharpmax.cli"),
        ("ops/state.py", "import torch"),
        ("theory/spread.py", "import sharpmax.torch"),
        ("torch/api.py", "import sharpmax.jax"),
        ("jax/api.py", "import torch"),
        ("torch/api.py", "import jax"),
        ("theory/spread.py", "def lazily():\n    import jax"),
        ("unlayered.py", ""),
    ],
)
def test_a_wrong_arrow_is_found(copy, module, line):
    path = copy / "src" / "sharpmax" / module
    existing = path.read_text() if path.exists() else ""
    path.write_text(existing + f"\n{line}\n")
    done = lint(copy)
    assert done.returncode == 1
    assert "BROKEN" in done.stdout
