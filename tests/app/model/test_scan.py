"""Scans from the page, and the cache that lends models to them."""

from __future__ import annotations

import threading

import pytest

import sharpmax as sx
from model_folder import make_folder
from report.pages import Page
from sharpmax.app import background_jobs
from sharpmax.app.background_jobs import Stopped
from sharpmax.app.model.model_cache import ModelCache
from sharpmax.app.model.scan import render_scan, scan_model


def ignore(share: float) -> None:
    pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("models"))


def test_a_scan_is_shown_in_a_sandboxed_frame(folder):
    result = scan_model(ModelCache(), folder, "max", "", "4, 8", ignore)
    assert result.lengths == [4, 8]
    assert result.entropy.shape == (2, 3, 4)
    page = Page(str(render_scan(result)))
    (frame,) = [attributes for name, attributes in page.elements if name == "iframe"]
    assert frame["sandbox"] == "allow-scripts"
    assert "<script>window.hacked" not in frame["srcdoc"]
    assert "&lt;script&gt;window.hacked" in frame["srcdoc"]


def test_a_pasted_text(folder):
    result = scan_model(ModelCache(), folder, "text", "One day, far away.", "4, 8", ignore)
    assert result.config["prompt"] == "text pasted.txt"


@pytest.mark.parametrize(
    ("name", "prompt", "lengths", "message"),
    [
        ("./<script>", "max", "8", "no such folder"),
        (" ", "max", "8", "the model's name is ''"),
        ("there", "max", "eight", "lengths: expected whole numbers"),
        ("there", "text", "8", "paste a text"),
    ],
)
def test_a_bad_request_is_refused(name, prompt, lengths, message):
    with pytest.raises(sx.UserError, match=message):
        scan_model(ModelCache(), name, prompt, "", lengths, ignore)


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
        assert second is first


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
