"""Scans from the page, and the cache that lends models to them."""

from __future__ import annotations

import shlex

import pytest

import sharpmax as sx
from model_folder import make_folder
from report.pages import Page
from sharpmax.app.model.model_cache import ModelCache
from sharpmax.app.model.scan import render_scans, scan_model


def ignore(share: float) -> None:
    pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("models"))


def test_a_scan_is_shown_in_a_sandboxed_frame(folder):
    (result,) = scan_model(ModelCache(), folder, "max", "", "4, 8", None, None, ignore)
    assert result.lengths == [4, 8]
    assert result.entropy.shape == (2, 3, 4)
    page = Page(str(render_scans([result])))
    (frame,) = [attributes for name, attributes in page.elements if name == "iframe"]
    assert frame["sandbox"] == "allow-scripts"
    assert "<script>window.hacked" not in frame["srcdoc"]
    assert "&lt;script&gt;window.hacked" in frame["srcdoc"]


def test_two_scans_are_compared(folder):
    shares = []
    plain, sharpened = scan_model(
        ModelCache(), folder, "max", "", "4, 8", sx.Constant(3.0), "constant:3", shares.append
    )
    assert plain.config["policy"] is None
    # The report names the command that makes the same scan, not the explorer's.
    same = f"sharpmax scan {shlex.quote(folder)} --prompt max --lengths 4,8"
    assert plain.provenance.command == same
    assert sharpened.provenance.command == f"{same} --policy constant:3"
    assert (sharpened.entropy < plain.entropy).mean() > 0.9
    assert shares == sorted(shares)
    assert max(shares) == pytest.approx(1.0)
    assert "Plain and sharpened" in str(render_scans([plain, sharpened]))


def test_a_pasted_text(folder):
    (result,) = scan_model(
        ModelCache(), folder, "text", "One day, far away.", "4, 8", None, None, ignore
    )
    assert result.config["prompt"] == "text pasted.txt"


@pytest.mark.parametrize(
    ("name", "prompt", "lengths", "message"),
    [
        ("./<script>", "max", "8", "'./<script>' cannot be loaded: expected smollm2, a folder"),
        (" ", "max", "8", "type the name of a model"),
        ("there", "max", "eight", "lengths: expected whole numbers"),
        ("there", "text", "8", "paste a text"),
        ("there", "max", "1-33", "lengths: '1-33' are more than 32 numbers"),
        ("there", "max", "4, 16385", "lengths: 16,385 is too large"),
        ("there", "other", "8", "the prompt is 'other': expected max, passkey, text"),
    ],
)
def test_a_bad_request_is_refused(name, prompt, lengths, message):
    with pytest.raises(sx.UserError, match=message):
        scan_model(ModelCache(), name, prompt, "", lengths, None, None, ignore)
