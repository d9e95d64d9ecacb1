"""The import arrows of the design hold, and the check that says so can fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

WRONG_IMPORTS = {
    "ops/state.py": "import sharpmax.theory",  # an upper layer
    "theory/spread.py": "def lazily():\n    import torch",  # only _array knows array libraries
    "torch/api.py": "import jax",  # a folder named after a framework imports no other
    "vllm/plugin.py": "import transformers",  # vLLM has a release of its own
    "report/__init__.py": "import sharpmax.hf",  # reports only read results
    "unlayered.py": "",  # every module has a layer
}


def lint(project: Path) -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    environment = os.environ | {"PYTHONPATH": str(project / "src")}
    return subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, check=False
    )


def test_the_arrows_hold():
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_wrong_imports_are_found(tmp_path):
    for source in (ROOT / "src").rglob("*.py"):
        target = tmp_path / source.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for module, line in WRONG_IMPORTS.items():
        with (tmp_path / "src" / "sharpmax" / module).open("a") as stream:
            stream.write(f"\n{line}\n")
    done = lint(tmp_path)
    assert done.returncode == 1
    for module in WRONG_IMPORTS:
        name = module.removesuffix("/__init__.py").removesuffix(".py").replace("/", ".")
        assert f"sharpmax.{name}" in done.stdout or name in done.stdout, done.stdout
    assert done.stdout.count("BROKEN") == 5  # all contracts but that of JAX
