"""Reports in a real browser: mouse, keyboard, phone, dark mode and printer.

One test opens a page in the fast tier; the others are slow.
"""

from __future__ import annotations

import pytest

from browser import DESKTOP, PHONE
from report.published import ALL, EVIL, everything, evil, first_of
from report.synthetic import changed, scan
from sharpmax import report


def test_pages_open_without_errors_or_requests(open_page, tmp_path):
    """Each page that `open_page` opens is checked for console errors and requests at the end."""
    results = [
        scan(),
        first_of("certify"),
        first_of("table1"),
        first_of("figure7"),
        evil("evaluate"),
    ]
    asked = []
    watched = open_page("about:blank")
    watched.page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
    watched.page.goto(report.write(results, tmp_path / "page.html").as_uri())
    watched.page.locator(".chart > svg").last.wait_for()
    assert watched.page.locator(".chart").count() == watched.page.locator(".chart > svg").count()
    assert watched.page.locator(".cells").count() == 2
    cell = watched.page.locator(".scan .cells tbody tr").nth(3).locator("td").nth(4)
    cell.click()
    assert "Layer 3, head 4" in watched.page.locator(".scan .head-name").inner_text()
    # The policy of the page refuses a script that is not the page's own.
    watched.page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), "
        "{textContent: 'window.foreign = true'}))"
    )
    assert watched.page.evaluate("window.foreign") is None
    assert any("Content Security Policy" in error for error in watched.errors)
    watched.errors.clear()
    assert asked == []


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    made = {
        "scan": [scan()],
        "certify": [first_of("certify")],
        "evaluate": [first_of("evaluate")],
        "policies": [first_of("policies")],
        "figure7": [first_of("figure7")],
        "all": list(everything().values()),
        "evil": [evil(kind) for kind in ALL],
        "two": [scan(8, 4, 4), scan(8, 4, 4, policy="paper")],
    }
    return {name: report.write(results, folder / f"{name}.html") for name, results in made.items()}


def curves(box) -> list[str]:
    return [path.get_attribute("d") for path in box.locator("path.curve").all()]


@pytest.mark.slow
def test_opening_the_report_of_a_large_scan_is_no_work(open_page, pages):
    """One second is the limit; in time of the processor, which a busy machine does not stretch."""
    watched = open_page("about:blank")
    session = watched.page.context.new_cdp_session(watched.page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    watched.page.goto(pages["scan"].as_uri())
    watched.page.locator(".chart > svg").nth(7).wait_for()
    assert watched.page.locator(".chart").count() == 8
    assert watched.page.locator(".cells td").count() == 270
    metrics = session.send("Performance.getMetrics")["metrics"]
    spent = {one["name"]: one["value"] for one in metrics}["TaskDuration"]
    assert 0.01 < spent < 1.0
    assert pages["scan"].stat().st_size < 1_000_000


@pytest.mark.slow
def test_a_click_on_a_head_shows_its_curve(open_page, pages):
    page = open_page(pages["scan"]).page
    head = page.locator(".head").first
    before, cell = curves(head), page.locator(".cells tbody tr").nth(3).locator("td").nth(4)
    cell.click()
    assert "Layer 3, head 4" in head.locator(".head-name").inner_text()
    assert cell.get_attribute("aria-selected") == "true"
    after = curves(head)
    assert len(after) == len(before) >= 12
    assert after != before
    label = scan().measurements["labels"][3][4]
    assert label in head.locator(".head-name").inner_text()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert "Layer 3, head 5" in head.locator(".head-name").inner_text()
    head.locator("[data-role=head-layer]").select_option(label="0")
    assert "Layer 0, head 5" in head.locator(".head-name").inner_text()


@pytest.mark.slow
def test_the_map_shows_what_is_asked_for(open_page, pages):
    page = open_page(pages["scan"]).page
    cell = page.locator(".cells tbody tr").nth(29).locator("td").nth(8)
    before = cell.get_attribute("style")
    assert "Label" in page.locator("[data-role=map-caption]").inner_text()
    page.locator("[data-role=map-statistic]").select_option("entropy")
    page.locator("[data-role=map-length]").select_option(index=0)
    assert "16 tokens" in page.locator("[data-role=map-caption]").inner_text()
    assert cell.get_attribute("style") != before
    page.locator("[data-role=map-statistic]").select_option("spread")
    cell.hover()
    value = scan().arrays["last_spread"][0, 29, 8]
    assert f"logit spread {value:.2f}" in page.locator("[data-role=map-readout]").inner_text()


def colours(panel) -> dict[str, str]:
    """The coloured tokens of a panel, by their number."""
    return panel.evaluate(
        "one => Object.fromEntries([...one.querySelectorAll('.token')].filter(t => t.style.background)"
        ".map(t => [t.dataset.token, t.style.background]))"
    )


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_the_tokens_that_a_head_looks_at(open_page, pages, dark, width):
    watched = open_page(pages["scan"], dark=dark, width=width)
    page, result = watched.page, scan()
    row, column = 3, 4
    page.locator(".scan .cells tbody tr").nth(row).locator("td").nth(column).click()
    panel = page.locator(".token-panel").last
    expected = result.arrays["strongest"][-1, row, column]
    kept = expected[result.arrays["strongest_weight"][-1, row, column] >= 0.005]
    assert set(colours(panel)) == {str(token) for token in kept}
    assert panel.locator(".token").count() == 2048
    assert watched.fits()
    # A click on a token lists the heads that look at it; one of them is chosen by a click.
    panel.locator(f'.token[data-token="{expected[0]}"]').click()
    readout = page.locator("[data-role=tokens-readout]")
    looking = (result.arrays["strongest"][-1] == expected[0]) & (
        result.arrays["strongest_weight"][-1] >= 0.005
    )
    assert f"{looking.any(-1).sum()} heads look at it" in readout.inner_text()
    other = readout.locator("button").nth(1)
    name = other.inner_text().partition(":")[0]
    other.click()
    assert name in page.locator(".head-name").first.inner_text().lower()
    # All heads at once: the first token has weight in every head.
    page.locator("[data-role=tokens-layer]").select_option("all")
    assert "mean weight of all heads" in panel.locator(".strongest").inner_text()
    assert "0" in colours(panel)


@pytest.mark.slow
def test_two_heads_side_by_side(open_page, pages):
    page = open_page(pages["scan"]).page
    page.get_by_role("button", name="Compare with a second head").click()
    first, second = page.locator(".head").all()
    assert abs(first.bounding_box()["y"] - second.bounding_box()["y"]) < 2
    assert first.locator(".head-name").inner_text() != second.locator(".head-name").inner_text()
    before = curves(first)
    second.locator("[data-role=head-layer]").select_option(label="7")
    assert "Layer 7" in second.locator(".head-name").inner_text()
    assert curves(first) == before
    assert len(curves(second)) == len(before)
    page.get_by_role("button", name="Show one head only").click()
    assert not second.is_visible()


@pytest.mark.slow
def test_markup_in_a_prompt_is_text(open_page, tmp_path):
    result = scan(2, 2, 2)
    texts = [
        text | {"pieces": [EVIL] * len(text["pieces"])} for text in result.measurements["texts"]
    ]
    asked = []
    watched = open_page("about:blank")
    watched.page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
    path = report.write([changed(result, texts=texts)], tmp_path / "page.html")
    watched.page.goto(path.as_uri())
    watched.page.locator(".token").first.click()
    readout = watched.page.locator("[data-role=tokens-readout]")
    assert "<script>alert(1)</script>" in readout.inner_text()
    assert "<img src=x" in watched.page.locator(".token-text").first.inner_text()
    assert watched.page.locator("img").count() == 0
    assert asked == []


@pytest.mark.slow
def test_before_and_after(open_page, pages):
    page = open_page(pages["two"]).page
    section = page.locator("#comparison")
    assert "Plain and sharpened" in section.locator(".title").inner_text()
    section.locator(".heads .cells tbody tr").nth(2).locator("td").nth(1).click()
    assert "Layer 2, head 1" in section.locator(".head-name").inner_text()
    assert section.locator("[data-role=tokens-layer]").input_value() == "2"
    panels = section.locator(".token-panel")
    assert panels.locator("figcaption").all_inner_texts()[:2] == [
        "plain, 16 tokens",
        "sharpened, 16 tokens",
    ]
    # The choice stays in this part of the page.
    assert "Layer 2, head 1" not in page.locator("#scan-1 .head-name").first.inner_text()


@pytest.mark.slow
def test_the_contents_stay_in_sight(open_page, pages):
    page = open_page(pages["scan"]).page
    page.get_by_role("link", name="What a head looks at").click()
    assert -2 < page.locator(".tokens").bounding_box()["y"] < 200
    assert page.locator(".contents").bounding_box()["y"] >= 0
    narrow = open_page(pages["scan"], width=PHONE).page
    assert narrow.locator(".contents a").first.is_hidden()
    narrow.locator(".contents summary").click()
    narrow.locator(".contents a", has_text="How it was made").click()
    assert narrow.locator(".contents a").first.is_hidden()
    assert -2 < narrow.locator(".origin").bounding_box()["y"] < 200
    assert abs(narrow.locator(".contents").bounding_box()["y"]) < 2


@pytest.mark.slow
def test_a_click_on_a_certified_head_shows_what_its_weights_allow(open_page, pages):
    result = first_of("certify")
    page = open_page(pages["certify"]).page
    box = page.locator(".heads")
    before = curves(box)
    box.locator(".cells tbody tr").nth(13).locator("td").nth(6).click()
    facts = box.locator("[data-role=heads-facts]").inner_text()
    assert "Layer 13, head 6" in facts
    assert f"{result.arrays['spread_bound'][13, 6]:,.1f}" in facts
    assert f"{result.arrays['measured_spread'][13, 6]:,.1f}" in facts
    after = curves(box)
    assert len(after) == len(before) == 4
    assert after != before
    page.locator("[data-role=heads-statistic]").select_option(label="Measured spread")
    assert "measured spread" in page.locator("[data-role=heads-readout]").inner_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "column", "heading"), [("scan", 5, "Entropy"), ("evaluate", 2, "Correct %")]
)
def test_a_table_sorts_by_a_click(open_page, pages, name, column, heading):
    page = open_page(pages[name]).page
    table = page.locator("table.numbers").first
    button = table.locator("thead th").nth(column).locator("button")
    assert button.inner_text().startswith(heading)

    def shown() -> list[float]:
        return [
            float(one)
            for one in table.locator(f"tbody td:nth-child({column + 1})").all_inner_texts()
        ]

    first = shown()
    button.click()
    assert shown() == sorted(first, reverse=True) != first
    button.click()
    assert shown() == sorted(first)
    assert table.locator("th[aria-sort=ascending]").count() == 1


@pytest.mark.slow
def test_the_table_of_a_scan_is_filtered_by_label(open_page, pages):
    page = open_page(pages["scan"]).page
    page.locator("[data-role=table-label]").select_option("sink")
    expected = sum(row.count("sink") for row in scan().measurements["labels"])
    assert page.locator("[data-role=table] tbody tr:visible").count() == expected > 0


@pytest.mark.slow
def test_a_chart_tells_its_numbers_to_mouse_and_keyboard(open_page, pages):
    page = open_page(pages["evaluate"]).page
    chart = page.locator(".plots .chart").first
    box = chart.bounding_box()
    chart.hover(position={"x": box["width"] / 2, "y": box["height"] / 2})
    tip = chart.locator(".tip")
    assert "32 names" in tip.inner_text()
    assert "calibration-answers: 57.7" in tip.inner_text()
    chart.locator("svg").first.focus()
    page.keyboard.press("ArrowRight")
    assert "64 names" in tip.inner_text()


@pytest.mark.slow
def test_a_name_in_the_legend_hides_its_line_in_every_chart_of_the_group(open_page, pages):
    page = open_page(pages["policies"]).page
    group = page.locator(".plots").first
    count = group.locator("path.curve").count()
    button = group.locator(".names button", has_text="log n / log 16")
    button.click()
    assert group.locator("path.curve").count() == count - 2
    assert button.get_attribute("aria-pressed") == "false"
    button.click()
    assert group.locator("path.curve").count() == count


@pytest.mark.slow
def test_frames_are_painted_and_read(open_page, pages):
    page = open_page(pages["figure7"]).page
    frames = page.locator("canvas")
    assert frames.count() == 18  # six sizes: plain, adaptive and their difference
    colours = "c => new Set(c.getContext('2d').getImageData(0, 0, c.width, c.height).data).size"
    assert frames.first.evaluate(colours) > 5
    frames.first.hover()
    assert "16 items" in page.locator("[data-role=frames-readout]").first.inner_text()


@pytest.mark.slow
def test_dark_and_light(open_page, pages):
    ink, paper = (
        "getComputedStyle(document.body).color",
        "getComputedStyle(document.body).backgroundColor",
    )

    def brightness(page, what: str) -> int:
        return sum(
            int(one) for one in page.evaluate(what).removeprefix("rgb(").rstrip(")").split(",")
        )

    for dark in (False, True):
        page = open_page(pages["scan"], dark=dark).page
        assert (brightness(page, paper) < brightness(page, ink)) is dark
        line = page.locator(".curves .series").last
        colour = line.evaluate("one => getComputedStyle(one).color")
        assert ("253, 231, 37" in colour) is dark  # the brightest is for the dark page


@pytest.mark.slow
def test_a_phone_needs_no_scrolling_sideways(open_page, pages):
    for name in ("all", "evil"):
        watched = open_page(pages[name], width=PHONE, height=844)
        assert watched.fits(), name
        assert watched.page.locator(".cells td, .chart > svg").first.is_visible()


@pytest.mark.slow
@pytest.mark.parametrize("width", [1000, 1200, 1500])
def test_wide_tables_do_not_widen_the_page(open_page, pages, width):
    watched = open_page(pages["all"], width=width, height=844)
    assert watched.fits()


@pytest.mark.slow
def test_text_of_a_result_is_shown_and_not_run(open_page, pages):
    watched = open_page("about:blank")
    asked = []
    watched.page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
    watched.page.goto(pages["evil"].as_uri())
    for cell in watched.page.locator(".cells tbody tr:first-child td:first-of-type").all():
        cell.click()
    for chart in watched.page.locator(".chart").all()[:12]:
        chart.scroll_into_view_if_needed()
        chart.hover()
    assert watched.page.inner_text("main").count("<script>alert(1)</script>") > 50
    assert watched.page.locator("img").count() == 0
    assert asked == []


@pytest.mark.slow
def test_the_contents_lead_to_every_section(open_page, pages):
    page = open_page(pages["all"]).page
    links = page.locator("nav a").all()
    assert len(links) == len(everything())
    links[-1].click()
    target = page.locator(links[-1].get_attribute("href"))
    assert -2 < target.bounding_box()["y"] < 200


@pytest.mark.slow
def test_every_part_of_every_page_is_drawn(open_page, pages):
    page = open_page(pages["all"]).page
    page.locator(".chart > svg").last.wait_for()
    assert page.locator(".chart").count() == page.locator(".chart > svg").count() > 60
    assert page.locator(".cells").count() == page.locator(".scan, .heads").count() >= 5
    empty = "c => !c.getContext('2d').getImageData(0, 0, 1, 1).data[3]"
    assert not any(canvas.evaluate(empty) for canvas in page.locator("canvas").all())


@pytest.mark.slow
def test_on_paper(open_page, pages):
    """Light, whole and without what one would click, whatever the screen is like."""
    page = open_page(pages["scan"], dark=True).page
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(34, 38, 46)"
    assert page.locator(".controls:visible, .tip:visible, .readout:visible").count() == 0
    assert page.locator(".chart > svg:visible").count() == 8
    table = page.locator(".tall").first
    assert table.evaluate("one => one.scrollHeight <= one.clientHeight")
    assert len(page.pdf()) > 50_000
    # Chromium repeats the headings of a table on each page, unless they stand in a button's box.
    style = "one => getComputedStyle(one)"
    head = page.locator(".numbers thead").first
    assert head.evaluate(f"{style}.display") == "table-header-group"
    assert head.locator("button").first.evaluate(f"{style}.display") == "contents"
    for heading in page.locator("h2, h3").all():
        assert heading.evaluate(f"{style}.breakAfter") == "avoid"
