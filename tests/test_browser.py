"""The browser of the tests must itself be able to find a fault."""

from __future__ import annotations

import pytest

import browser as browsers
from browser import PHONE, watch


@pytest.fixture
def written(tmp_path):
    def write(body: str):
        path = tmp_path / "page.html"
        path.write_text(f"<!DOCTYPE html><link rel=icon href=data:,><body>{body}", "utf-8")
        return path

    return write


def test_a_quiet_page_passes(open_page, written):
    watched = open_page(written("<p>words"), width=PHONE)
    assert watched.page.locator("p").inner_text() == "words"
    assert watched.fits()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("<script>console.error('broken')</script>", "broken"),
        ("<script>null.x</script>", "Cannot read properties of null"),
        ("<img src=https://example.org/a.png>", "https://example.org/a.png"),
        ("<script>fetch('http://192.0.2.1/').catch(() => 0)</script>", "http://192.0.2.1/"),
        ("<script>new WebSocket('ws://example.org/')</script>", "ws://example.org/"),
    ],
)
def test_a_page_that_complains_or_asks_is_found(browser, written, body, said):
    watched = watch(browser, written(body))
    watched.page.wait_for_timeout(100)
    watched.page.context.close()
    assert said in str(watched.requests + watched.errors)
    with pytest.raises(AssertionError):
        watched.check()


def test_too_wide_a_page_is_found(open_page, written):
    assert not open_page(written("<div style='width: 500px'>wide"), width=PHONE).fits()


def test_the_scheme_is_the_one_asked_for(open_page, written):
    for dark in (False, True):
        page = open_page(written(""), dark=dark).page
        assert page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") is dark


@pytest.mark.parametrize(
    ("variable", "value", "outcome"),
    [
        ("CI", "", pytest.skip.Exception),
        ("CI", "true", pytest.fail.Exception),
        ("SHARPMAX_BROWSER", "required", pytest.fail.Exception),
    ],
)
def test_without_a_browser(monkeypatch, variable, value, outcome):
    for name in ("CI", "SHARPMAX_BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, value)
    monkeypatch.setattr(browsers, "NAMES", ("no-such-browser",))
    with pytest.raises(outcome, match="none of no-such-browser is installed"):
        browsers.executable()
