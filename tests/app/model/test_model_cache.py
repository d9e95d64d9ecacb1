"""One model for one job at a time, and no word on which files exist."""

from __future__ import annotations

import os
import threading
import time

import pytest

import sharpmax as sx
from model_folder import make_folder
from sharpmax.app import background_jobs
from sharpmax.app.background_jobs import Stopped
from sharpmax.app.model import model_cache
from sharpmax.app.model.model_cache import ModelCache


def ignore(share: float) -> None:
    pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("models"))


def test_only_allowed_models_are_loaded(folder):
    with (
        pytest.raises(sx.UserError, match="is not offered here: choose smollm2"),
        ModelCache(("smollm2",)).borrow(folder, ignore),
    ):
        pass


def test_a_model_is_loaded_once(folder):
    cache = ModelCache()
    with cache.borrow(folder, ignore) as first:
        pass
    with cache.borrow(f" {folder} ", ignore) as second:
        assert second.loaded is first.loaded


def test_a_model_is_lent_to_one_job_at_a_time(folder, monkeypatch):
    monkeypatch.setattr(background_jobs, "LOCK_POLL_SECONDS", 0.01)
    cache, waited = ModelCache(), []

    def report(share):
        waited.append(share)
        raise Stopped

    def borrow_too():
        with pytest.raises(Stopped), cache.borrow(folder, report):
            pytest.fail("two jobs have the same model")

    with cache.borrow(folder, ignore):
        other = threading.Thread(target=borrow_too)
        other.start()
        other.join(30)
    assert waited == [0.0]


def refusal(name: str, cache: ModelCache | None = None) -> tuple[str, float]:
    """Return how a name is refused, without the name, and after how many seconds."""
    start = time.monotonic()
    with pytest.raises(sx.UserError) as caught, (cache or ModelCache()).borrow(name, ignore):
        pass
    return str(caught.value).replace(repr(name), "NAME"), time.monotonic() - start


def test_a_refusal_does_not_tell_whether_a_path_exists(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(model_cache, "REFUSAL_SECONDS", 0.2)
    (tmp_path / "file").write_text("secret")
    (tmp_path / "secret.gguf").write_text("secret")
    (tmp_path / "folder").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"model_type": "secret"}')
    names = ["file", "secret.gguf", "folder", "other", "nothing", "nothing/at/all"]
    answers = [refusal(str(tmp_path / name)) for name in names]
    answers += [refusal(name) for name in ("~/", "~nobody-of-this-name/", "/root/x", "./\0")]
    assert {text for text, _ in answers} == {
        "NAME cannot be loaded: expected smollm2, a folder with a model, or a name on the Hugging "
        "Face hub. The reason is in the terminal where the explorer runs."
    }
    assert all(seconds >= 0.2 for _, seconds in answers)
    assert "is a file, but not a .gguf" in caplog.text  # for whoever started the page


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes")
def test_a_pipe_does_not_block_others(tmp_path, monkeypatch):
    monkeypatch.setattr(model_cache, "REFUSAL_SECONDS", 0.0)
    pipe, folder = tmp_path / "model.gguf", tmp_path / "model"
    os.mkfifo(pipe)
    folder.mkdir()
    os.mkfifo(folder / "config.json")
    (tmp_path / "endless").mkdir()
    (tmp_path / "endless" / "config.json").symlink_to("/dev/zero")
    for name in (pipe, folder, tmp_path / "endless", "/dev/zero"):
        asked = threading.Thread(target=refusal, args=(str(name),), daemon=True)
        asked.start()
        asked.join(30)
        assert not asked.is_alive(), name


def test_the_models_that_the_page_was_started_with_may_say_what_is_wrong(tmp_path):
    name = str(tmp_path / "nothing")
    assert refusal(name, ModelCache(own=name))[0] == "NAME: no such folder; check the path"


def test_others_need_not_wait_for_a_refusal(folder, monkeypatch):
    monkeypatch.setattr(model_cache, "REFUSAL_SECONDS", 3.0)
    cache = ModelCache()
    refused = threading.Thread(target=refusal, args=("./nothing", cache))
    refused.start()
    time.sleep(0.3)
    start = time.monotonic()
    with cache.borrow(folder, ignore):
        assert time.monotonic() - start < 2.5
    refused.join()


def test_a_job_on_a_shared_page_ends_in_time(folder):
    with ModelCache(job_seconds=60.0).borrow(folder, ignore) as lent:
        lent.report(0.5)
    with ModelCache(job_seconds=0.0).borrow(folder, ignore) as lent:
        time.sleep(0.01)
        with pytest.raises(sx.UserError, match="longer than 0 seconds, the limit of a shared page"):
            lent.report(0.5)
