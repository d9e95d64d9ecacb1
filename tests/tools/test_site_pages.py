"""The pages that show the product are whole, and work without a server."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from browser import DESKTOP, PHONE

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site_pages():
    spec = importlib.util.spec_from_file_location("site_pages", ROOT / "tools" / "site_pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(site_pages, tmp_path_factory):
    folder = tmp_path_factory.mktemp("see")
    for place in site_pages.PAGES:
        (folder / Path(place).name).write_text(site_pages.make(place), "utf-8")
    return folder


def test_the_docs_link_each_page(site_pages):
    page = (ROOT / "docs" / "see.md").read_text("utf-8")
    assert set(re.findall(r'href="(see/.*?)"', page)) == set(site_pages.PAGES)


def test_they_are_small_and_load_nothing(site_pages):
    for place in site_pages.PAGES:
        page = site_pages.make(place)
        assert "default-src 'none'" in page
        assert not re.search(r'(src|srcset)="', page)
        assert len(page.encode()) < 1_600_000, place


def test_the_sample_report_compares_two_scans(site_pages):
    page = site_pages.make("see/report.html")
    assert "Plain and tuned: SmolLM2" in page
    assert page.count('class="token-panel"') == 8  # four compared, and two of each scan


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [DESKTOP, PHONE])
@pytest.mark.parametrize("name", ["softmax", "max_retrieval"])
def test_play_grows_n(folder, open_page, name, dark, width):
    watched = open_page(folder / f"{name}.html", dark=dark, width=width)
    page = watched.page
    page.get_by_text("1,024 items").first.wait_for()
    page.get_by_role("button", name="Play").click()
    page.get_by_text("2,048 items").first.wait_for()
    page.get_by_role("button", name="Pause").click()
    page.locator(".chart > svg").last.wait_for()
    assert watched.fits()
    colour = page.locator("#view .said").first.evaluate("one => getComputedStyle(one).color")
    assert (colour == "rgb(230, 232, 236)") is dark


@pytest.mark.slow
def test_the_sample_report_opens(folder, open_page):
    page = open_page(folder / "report.html").page
    page.locator("#comparison .token").first.wait_for()
    assert page.locator(".chart").count() == page.locator(".chart > svg").count() > 10
