"""The wheel: small, and with every file that the installed package reads."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DATA_SUFFIXES = {".css", ".html", ".j2", ".js", ".json", ".safetensors", ".svg", ".txt", ".yaml"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel without a network, as pip does with the installed build backend."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_has_at_most_2_megabytes(wheel):
    assert wheel.stat().st_size <= 2_000_000


def test_the_wheel_holds_the_files_that_the_package_reads(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert "sharpmax/py.typed" in names
    assert "sharpmax/experiments/max_retrieval/weights/max.safetensors" in names
    for folder in ("report", "app"):  # templates, style sheets and scripts
        files = [
            path.relative_to(ROOT / "src").as_posix()
            for path in (ROOT / "src" / "sharpmax" / folder).rglob("*")
            if path.suffix in DATA_SUFFIXES
        ]
        assert files, folder
        assert set(files) <= names
    assert not any(name.startswith(("tests/", "results/")) for name in names)
