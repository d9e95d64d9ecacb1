"""Importing sharpmax costs nothing but NumPy, and each missing extra is named in one sentence."""

from __future__ import annotations

import subprocess
import sys

import pytest

FRAMEWORKS = (
    "torch",
    "jax",
    "transformers",
    "scipy",
    "pydantic",
    "typer",
    "rich",
    "matplotlib",
    "pandas",
    "gradio",
)

COUNT = """
import sys
import numpy
before = set(sys.modules)
{statement}
print(*sorted(set(sys.modules) - before))
"""

BLOCK = """
import importlib.abc, sys
class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in {blocked!r}:
            raise ModuleNotFoundError(f'No module named {{name!r}}', name=name)
sys.meta_path.insert(0, Missing())
{statement}
"""


def run(source: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=False
    )


def modules_after(statement: str) -> set[str]:
    return set(run(COUNT.format(statement=statement)).stdout.split())


def loaded_frameworks(modules: set[str]) -> set[str]:
    return {module.partition(".")[0] for module in modules} & set(FRAMEWORKS)


def test_the_root_imports_no_framework():
    modules = modules_after("import sharpmax")
    assert "sharpmax" in modules
    assert loaded_frameworks(modules) == set()


def test_the_root_is_small():
    """Counted, not timed: at 0.5 ms a module, 60 modules are 0.03 s."""
    assert len(modules_after("import sharpmax")) <= 60


def test_that_test_can_fail():
    assert loaded_frameworks(modules_after("import sharpmax, scipy")) == {"scipy"}
    assert len(modules_after("import sharpmax, matplotlib.pyplot")) > 60


def test_the_core_works_with_numpy_alone():
    statement = (
        "import numpy as np, sharpmax as sx; print(sx.adaptive_temperature_softmax(np.zeros(4))[0])"
    )
    done = run(BLOCK.format(blocked=FRAMEWORKS, statement=statement))
    assert (done.returncode, done.stdout.strip()) == (0, "0.25")


@pytest.mark.parametrize(
    ("blocked", "statement", "message"),
    [
        ("pydantic", "import sharpmax.results", "reading and writing results needs pydantic"),
        (
            "matplotlib",
            "import sharpmax.report.renderers.matplotlib",
            "drawing a picture needs matplotlib",
        ),
        ("torch", "import sharpmax.torch", "sharpmax.torch needs torch"),
        ("jax", "import sharpmax.jax", "sharpmax.jax needs jax"),
        ("gradio", "import sharpmax.app", "the explorer needs gradio"),
    ],
)
def test_a_missing_extra_is_one_sentence(blocked, statement, message):
    done = run(BLOCK.format(blocked=(blocked,), statement=statement))
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    extra = {"torch": "torch", "jax": "jax", "gradio": "app"}.get(blocked, "cli")
    assert last.endswith(f"{message}, which is not installed: pip install 'sharpmax[{extra}]'")


def test_attention_without_triton():
    """It is missed only by who asks for it, who is told in one line what to install."""
    ones = "torch.ones(1, 1, 2, 4)"
    statement = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch; from sharpmax.torch import attention\n"
        f"attention({ones}, {ones}, {ones})\n"
        f"attention({ones}, {ones}, {ones}, impl='triton')"
    )
    last = run(statement).stderr.strip().splitlines()[-1]
    assert "without triton (pip install 'sharpmax[triton]'); use impl=" in last


@pytest.mark.parametrize(("ours", "other"), [("torch", "jax"), ("jax", "torch")])
def test_each_framework_alone(ours, other):
    """Attention for one framework needs neither the other nor flax nor any other extra."""
    # find_spec is asked by torch itself whether pandas is there, and must not raise.
    blocked = ({*FRAMEWORKS, "flax"} - {ours, "scipy", "pandas"}) | {other}
    done = run(BLOCK.format(blocked=tuple(blocked), statement=f"import sharpmax.{ours}"))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("blocked", ["typer", "rich", "packaging", "pydantic"])
def test_the_command_without_its_extra(blocked):
    statement = "import sys; from sharpmax.cli import main; sys.exit(main(['doctor']))"
    done = run(BLOCK.format(blocked=(blocked,), statement=statement))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert blocked in done.stderr
    assert "pip install 'sharpmax[cli]'" in done.stderr
