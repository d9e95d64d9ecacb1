"""The page in a real browser, and its server without one."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import expect

from browser import DESKTOP, PHONE, SHARED_HOST, SHARED_NAME, Watched
from model_folder import NAME, make_folder
from sharpmax.app import build, launch, views
from sharpmax.app import page as page_module
from sharpmax.app.model import tab as model_tab
from sharpmax.app.model.example import load_example

EVIL = "<script>window.hacked=1</script>"
PATIENCE = 120_000
"""Milliseconds to wait for a change of the page."""


@contextmanager
def serve(page, host: str = "127.0.0.1", **options) -> Iterator[str]:
    """Serve a page at a free port; the test is skipped if this machine has no such address."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as free:
            free.bind((host, 0))
            port = free.getsockname()[1]
    except OSError:
        pytest.skip(f"this machine has no address {host}")
    yield launch(page, host=host, port=port, wait=False, **options)
    page.close(verbose=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    return make_folder(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def address(folder) -> Iterator[str]:
    """Serve the page once for all tests, with a small model in its third tab."""
    with serve(build(folder)) as address:
        yield address


@pytest.fixture
def opened(address, open_page):
    def opener(tab: str = "Softmax", **options) -> Watched:
        watched = open_page(address, allow=address, **options)
        watched.page.get_by_role("tab", name=tab).click()
        return watched

    return opener


def paths(page, view: str) -> str:
    """Return the lines that a view has drawn."""
    return page.evaluate(
        f"[...document.querySelectorAll('{view} .curve')].map((line) => line.getAttribute('d')).join()"
    )


def pixels(page) -> list[str]:
    return page.evaluate(
        "[...document.querySelectorAll('#retrieval-view canvas')].map((canvas) => canvas.toDataURL())"
    )


def choose(page, label: str, option: str) -> None:
    """Choose an option of a dropdown by the beginning of its text."""
    page.get_by_label(label, exact=True).locator("visible=true").click()
    page.get_by_role("option", name=f"{option}:").click()


def says(page, view: str, words: str) -> None:
    page.locator(view).get_by_text(words).first.wait_for(timeout=PATIENCE)


def grow(page, view: str, items: int) -> None:
    """Move the slider of n to so many items."""
    slider = page.locator(".size input").locator("visible=true")
    ends = [int(slider.get_attribute(name)) for name in ("min", "max")]
    steps = (16_384 // items).bit_length() - 1
    slider.fill(str(ends[1] - steps))
    says(page, view, f"{items:,} items")


def test_the_server_answers(address):
    """The page loads from this machine, with our script and with all tabs."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(address) as answer:
        html = answer.read().decode()
    assert address.startswith("http://127.0.0.1:")
    for part in (
        "sharpmaxShow",
        "Softmax",
        "Max retrieval",
        "Plain attention",
        "1,024 items whose logits differ",
    ):
        assert part in html


def test_strangers_cannot_choose_a_model():
    page = build("smollm2", any_model=False)
    (name,) = [block for block in page.blocks.values() if block.elem_id == "model-name"]
    assert name.choices == [("smollm2", "smollm2")]


def test_progress_then_the_result(monkeypatch):
    """What a run shows in its view, one value after the other."""

    class Request:
        session_hash = "a"

    def work(report):
        report(0.5)
        return "value"

    def render(value):
        return views.message(f"done: {value}")

    shown = [
        value["html"]
        for value in model_tab.follow_job(Request(), "scan", "Scanning:", work, render)
    ]
    assert "Scanning: 0 %" in shown[0]
    assert "done: value" in shown[-1]
    assert all("Scanning: " in html for html in shown[:-1])

    def fail(report):
        raise RuntimeError("broken")

    *_, last = model_tab.follow_job(Request(), "scan", "Scanning:", fail, render)
    assert "Unexpected error: RuntimeError: broken" in last["html"]


@pytest.mark.slow
def test_n_changes_the_weights_and_the_bounds(opened):
    page = opened().page
    says(page, "#softmax-view", "1,024 items whose logits differ by at most 8")
    before = paths(page, "#softmax-view")
    grow(page, "#softmax-view", 16_384)
    assert paths(page, "#softmax-view") != before
    names = page.locator("#softmax-view .block.plots").first.locator(".names button")
    assert names.all_inner_texts() == ["softmax", "adaptive temperature", "the needle"]


@pytest.mark.slow
def test_a_chosen_normaliser_has_its_line(opened):
    page = opened().page
    chart = page.locator("#softmax-view .block.plots").first
    curves = expect(chart.locator(".curve"))  # waits: the view is drawn after the tab is shown
    curves.to_have_count(2, timeout=PATIENCE)
    page.get_by_label("sparsemax").check()
    chart.get_by_role("button", name="sparsemax").wait_for(timeout=PATIENCE)
    curves.to_have_count(3, timeout=PATIENCE)


@pytest.mark.slow
def test_typed_logits_and_typed_nonsense(opened):
    page = opened().page
    page.get_by_label("typed").check()
    box = page.get_by_label("Logits, separated by")
    box.fill("5, 1, 1")
    says(page, "#softmax-view", "3 items whose logits differ by at most 4")
    box.fill(EVIL)
    says(page, "#softmax-view", "logit 1 is '<script>window.hack")
    assert page.evaluate("window.hacked") is None


@pytest.mark.slow
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
    says(page, "#softmax-view", "1,024 items whose logits differ by at most 7.")


@pytest.mark.slow
def test_n_changes_the_map(opened):
    page = opened("Max retrieval").page
    says(page, "#retrieval-view", "1,024 items, after")
    before = pixels(page)
    assert len(before) == 2
    grow(page, "#retrieval-view", 4_096)
    after = pixels(page)
    assert after[0] != before[0]
    assert after[0] != after[1]


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_it_opens_with_a_question_that_the_calibration_answers(address, open_page, dark, width):
    """No model is loaded for it. The paper's polynomial is one click away, as a caution."""
    watched = open_page(address, allow=address, dark=dark, width=width)
    page, example = watched.page, load_example()
    view = page.locator("#sharpen-view")
    says(page, "#sharpen-view", "This question was chosen because it shows the effect.")
    assert view.locator(".answer").all_inner_texts() == ["wrong", "right"]
    assert f"is {example['answer'].strip()}." in view.locator(".written").nth(1).inner_text()
    panels = view.locator(".token-panel")
    assert panels.count() == 2
    assert panels.nth(1).locator(".needle").first.is_visible()
    panels.nth(1).locator(".needle").first.click()
    says(page, "#sharpen-view", "heads look at it")
    page.get_by_role("button", name="Caution").click()
    says(page, "#sharpen-view", "A caution: ")
    assert view.locator(".answer").all_inner_texts() == ["wrong", "wrong"]
    assert page.get_by_label("Policy", exact=True).input_value().startswith("paper")
    page.get_by_role("button", name="Example").click()
    says(page, "#sharpen-view", "This question was chosen")
    assert page.get_by_label("Policy", exact=True).input_value().startswith("tuned")
    assert watched.fits()


@pytest.mark.slow
def test_the_play_button_grows_n(opened):
    page = opened("Max retrieval").page
    says(page, "#retrieval-view", "1,024 items, after")
    axes = "#retrieval-view .chart text"
    ticks = page.locator(axes).all_inner_texts()
    box = page.locator(".size").locator("visible=true")
    box.get_by_role("button", name="Play").click()
    says(page, "#retrieval-view", "4,096 items, after")
    box.get_by_role("button", name="Pause").click()
    box.get_by_role("button", name="Play").wait_for()
    assert box.locator("output").inner_text() in ("4,096", "8,192", "16,384")
    # The axes stay: only the label of the size at hand is another.
    shown = page.locator(axes).all_inner_texts()
    assert [text for text in ticks if text not in shown] in ([], ["1,024"])


@pytest.mark.slow
def test_a_scan_is_compared_with_a_sharpened_one(opened):
    page = opened("Model").page
    page.get_by_role("tab", name="Scan").click()
    page.get_by_label("Lengths").fill("4, 8")
    choose(page, "Compare with", "paper")
    page.get_by_role("button", name="Scan", exact=True).click()
    frame = page.frame_locator("#scan-view iframe.sheet")
    frame.get_by_text("Plain and sharpened").first.wait_for(timeout=PATIENCE)
    assert frame.locator("#comparison .token-panel").count() == 4


@pytest.mark.slow
def test_a_scan_and_the_curve_of_a_head(opened):
    page = opened("Model").page
    page.get_by_role("tab", name="Scan").click()
    page.get_by_label("Lengths").fill("4, 8, 16")
    page.get_by_role("button", name="Scan", exact=True).click()
    frame = page.frame_locator("#scan-view iframe.sheet")
    frame.locator(".cells td").first.wait_for(timeout=PATIENCE)
    assert NAME in frame.locator("h1").inner_text()
    name = frame.locator(".head-name").first
    curve = frame.locator("[data-role='head-charts'] .curve").nth(1)
    seen = set()
    for cell in (0, 7):
        frame.locator(".cells td").nth(cell).click()
        assert f"Layer {cell // 4}, head {cell % 4}" in name.inner_text()
        seen.add(curve.get_attribute("d"))
    assert len(seen) == 2
    assert page.evaluate("window.hacked") is None
    # The frame is as high as its content, so that only the page scrolls.
    page.wait_for_function("document.querySelector('iframe.sheet').offsetHeight > 1000")


@pytest.mark.slow
def test_plain_and_sharpened_side_by_side(opened):
    page = opened("Model").page
    choose(page, "Policy", "paper")
    page.get_by_label("Prompt").locator("visible=true").fill(f"Go on: {EVIL}")
    page.get_by_role("button", name="Write both").click()
    says(page, "#sharpen-view", "With the policy paper")
    texts = page.locator("#sharpen-view .written").all_inner_texts()
    assert len(texts) == 2
    assert all(text.startswith(f"Go on: {EVIL}") for text in texts)
    assert page.evaluate("window.hacked") is None


@pytest.mark.slow
def test_a_model_that_is_not_there_is_one_sentence(opened):
    page = opened("Model").page
    page.get_by_role("tab", name="Scan").click()
    page.get_by_label("Model: smollm2").fill(f"./{EVIL}")
    page.get_by_role("button", name="Scan", exact=True).click()
    says(page, "#scan-view", f"'./{EVIL}' cannot be loaded")
    assert page.evaluate("window.hacked") is None


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_a_phone(opened, dark):
    watched = opened(width=PHONE, dark=dark)
    for tab in ("Softmax", "Max retrieval", "Model"):
        watched.page.get_by_role("tab", name=tab).click()
        watched.page.locator("[role=tabpanel]").locator("visible=true").first.wait_for()
        assert watched.fits(), tab
    assert watched.page.evaluate("document.body.classList.contains('dark')") is dark


def try_both_kinds_of_tabs(watched: Watched) -> None:
    """Draw a chart and scan a model, as far as the page reaches."""
    page = watched.page
    page.get_by_role("tab", name="Softmax").click()
    says(page, "#softmax-view", "1,024 items whose logits differ by at most 8")
    grow(page, "#softmax-view", 8)
    page.get_by_role("tab", name="Model").click()
    page.get_by_role("tab", name="Scan").click()
    page.get_by_label("Lengths").fill("4, 8")
    page.get_by_role("button", name="Scan", exact=True).click()
    frame = page.frame_locator("#scan-view iframe.sheet")
    frame.locator(".cells td").first.wait_for(timeout=PATIENCE)


@pytest.mark.slow
def test_it_works_by_the_name_localhost(address, open_page):
    by_name = address.replace("127.0.0.1", "localhost")
    try_both_kinds_of_tabs(open_page(by_name, allow=by_name))


@pytest.mark.slow
def test_it_works_by_an_address_of_six(folder, open_page):
    with serve(build(folder), "::1") as address:
        assert address.startswith("http://[::1]:")
        try_both_kinds_of_tabs(open_page(address, allow=address))


@pytest.mark.slow
def test_it_works_for_others_by_its_own_name(folder, open_page):
    page = build(folder, any_model=False)
    with serve(page, SHARED_HOST, names=[SHARED_NAME]) as address:
        by_name = address.replace(SHARED_HOST, SHARED_NAME)
        try_both_kinds_of_tabs(open_page(by_name, allow=by_name))


@pytest.mark.slow
def test_a_refused_request_is_a_sentence_on_the_page(folder, open_page, monkeypatch):
    monkeypatch.setattr(page_module, "USER_LIMIT", (2, 0.001))
    with serve(build(folder, any_model=False), SHARED_HOST) as address:
        watched = open_page(address, allow=address)
        watched.page.get_by_role("tab", name="Softmax").click()
        says(watched.page, "#softmax-view", "1,024 items whose logits differ by at most 8")
        slider = watched.page.locator(".size input").locator("visible=true")
        for value in (3, 4, 5, 6):
            slider.fill(str(value))
            watched.page.wait_for_timeout(1_000)
        toast = watched.page.get_by_text("too many requests: wait a few seconds and try again")
        toast.first.wait_for(timeout=PATIENCE)
        watched.errors.clear()  # the console names the refused requests


@pytest.mark.slow
def test_a_text_that_is_too_long_is_a_sentence_on_the_page(opened):
    watched = opened("Model")
    page = watched.page
    box = page.get_by_label("Prompt").locator("visible=true")
    box.fill("x" * 200_001)
    page.get_by_role("button", name="Write both").click()
    says(page, "#sharpen-view", "the prompt has 200,001 characters: shorten it to 200,000")
    box.fill("x" * 1_100_000)
    page.get_by_role("button", name="Write both").click()
    toast = page.get_by_text("the request is larger than 1,000,000 bytes: shorten the text")
    toast.first.wait_for(timeout=PATIENCE)
    watched.errors.clear()
