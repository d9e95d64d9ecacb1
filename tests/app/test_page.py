"""The page in a real browser: what is moved moves, what is typed is text, and nobody is asked."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from browser import PHONE, Watched
from model_folder import NAME, make_folder
from sharpmax.app import build, launch

EVIL = "<script>window.hacked=1</script>"
PATIENCE = 120_000
"""Milliseconds."""


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> Iterator[str]:
    """One server for all tests, with a small model in its third tab."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    page = build(make_folder(tmp_path_factory.mktemp("models")))
    yield launch(page, port=port, wait=False)
    page.close(verbose=False)


@pytest.fixture
def opened(address, open_page):
    def opener(tab: str = "Softmax", **options) -> Watched:
        watched = open_page(address, allow=address, **options)
        watched.page.get_by_role("tab", name=tab).click()
        return watched

    return opener


def paths(page, view: str) -> str:
    """The lines that a view has drawn."""
    return page.evaluate(
        f"[...document.querySelectorAll('{view} .curve')].map((one) => one.getAttribute('d')).join()"
    )


def pixels(page) -> list[str]:
    return page.evaluate(
        "[...document.querySelectorAll('#retrieval-view canvas')].map((one) => one.toDataURL())"
    )


def says(page, view: str, words: str) -> None:
    page.locator(view).get_by_text(words).first.wait_for(timeout=PATIENCE)


def power(page, view: str, value: int) -> None:
    box = page.get_by_label("number input for Items n").locator("visible=true")
    box.fill(str(value))
    box.press("Enter")
    says(page, view, f"{2**value:,} items")


def test_n_changes_the_weights_and_the_bounds(opened):
    page = opened().page
    says(page, "#softmax-view", "256 items whose logits differ by at most 8")
    before = paths(page, "#softmax-view")
    power(page, "#softmax-view", 14)
    assert paths(page, "#softmax-view") != before
    names = page.locator("#softmax-view .block.plots").first.locator(".names button")
    assert names.all_inner_texts() == ["softmax", "adaptive-temperature"]


def test_a_chosen_normaliser_has_its_line(opened):
    page = opened().page
    chart = page.locator("#softmax-view .block.plots").first
    assert chart.locator(".curve").count() == 2
    page.get_by_label("sparsemax").check()
    chart.get_by_role("button", name="sparsemax").wait_for(timeout=PATIENCE)
    assert chart.locator(".curve").count() == 3


def test_typed_logits_and_typed_nonsense(opened):
    page = opened().page
    page.get_by_label("typed").check()
    box = page.get_by_label("Logits, with commas")
    box.fill("5, 1, 1")
    says(page, "#softmax-view", "3 items whose logits differ by at most 4")
    box.fill(EVIL)
    says(page, "#softmax-view", "logit 1 is '<script>window.hack")
    assert page.evaluate("window.hacked") is None


def test_a_curve_is_drawn(opened):
    page = opened().page
    page.get_by_label("drawn").check()
    pad = page.locator("#softmax-pad .pad")
    pad.wait_for()
    box = pad.bounding_box()
    page.mouse.move(box["x"] + 5, box["y"] + box["height"] - 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 2, steps=5)
    page.mouse.up()
    says(page, "#softmax-view", "256 items whose logits differ by at most 7.")


def test_n_changes_the_map(opened):
    page = opened("Max retrieval").page
    says(page, "#retrieval-view", "1,024 items, after")
    before = pixels(page)
    assert len(before) == 2
    power(page, "#retrieval-view", 12)
    after = pixels(page)
    assert after[0] != before[0]
    assert after[0] != after[1]


def test_a_scan_and_the_curve_of_a_head(opened):
    page = opened("Model").page
    page.get_by_label("Lengths").fill("4, 8, 16")
    page.get_by_role("button", name="Scan").click()
    frame = page.frame_locator("#scan-view iframe.sheet")
    frame.locator(".cells td").first.wait_for(timeout=PATIENCE)
    assert NAME in frame.locator("h1").inner_text()
    name = frame.locator(".head-name")
    curve = frame.locator("[data-role='head-charts'] .curve").nth(1)
    seen = set()
    for cell in (0, 7):
        frame.locator(".cells td").nth(cell).click()
        assert f"Layer {cell // 4}, head {cell % 4}" in name.inner_text()
        seen.add(curve.get_attribute("d"))
    assert len(seen) == 2
    assert page.evaluate("window.hacked") is None
    # The frame is as high as what is in it: only one of them scrolls.
    page.wait_for_function("document.querySelector('iframe.sheet').offsetHeight > 1000")


def test_plain_and_sharpened_side_by_side(opened):
    page = opened("Model").page
    page.get_by_role("tab", name="Sharpen").click()
    page.get_by_label("Prompt").locator("visible=true").fill(f"Go on: {EVIL}")
    page.get_by_role("button", name="Write both").click()
    says(page, "#sharpen-view", "Sharpened: paper")
    texts = page.locator("#sharpen-view .written").all_inner_texts()
    assert len(texts) == 2
    assert all(text.startswith(f"Go on: {EVIL}") for text in texts)
    assert page.evaluate("window.hacked") is None


def test_a_model_that_is_not_there_is_one_sentence(opened):
    page = opened("Model").page
    page.get_by_label("Model: smollm2").fill(f"./{EVIL}")
    page.get_by_role("button", name="Scan").click()
    says(page, "#scan-view", f"'./{EVIL}': no such folder")
    assert page.evaluate("window.hacked") is None


@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_a_phone(opened, dark):
    watched = opened(width=PHONE, dark=dark)
    for tab in ("Softmax", "Max retrieval", "Model"):
        watched.page.get_by_role("tab", name=tab).click()
        watched.page.locator("[role=tabpanel]").locator("visible=true").first.wait_for()
        assert watched.fits(), tab
    assert watched.page.evaluate("document.body.classList.contains('dark')") is dark
