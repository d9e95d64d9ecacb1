"""An HTML report is whole, safe, deterministic, and carries the measured numbers."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys

import numpy as np
import pytest

from report.pages import Page, html_of_a_scan, tiny
from report.published import ALL, EVIL, everything, evil, first_of
from report.synthetic import RULES, changed, scan, without_head
from sharpmax import UserError, report
from sharpmax.report.renderers import html
from sharpmax.results import Result

ARXIV = "https://arxiv.org/abs/2410.01104"


def test_nothing_is_loaded():
    found = Page(html_of_a_scan())
    links = [value for _, attributes in found.elements for value in attributes.values() if value]
    assert [link for link in links if re.match(r"\s*(https?:)?//", link)] == [ARXIV]
    for name in ("src", "srcset", "data", "action", "poster", "background"):
        assert not [tag for tag, attributes in found.elements if name in attributes], name
    assert [link["href"] for link in found.all("link")] == ["data:,"]
    assert not {"iframe", "object", "embed", "base"} & {tag for tag, _ in found.elements}
    style = re.search(r"<style>(.*?)</style>", html_of_a_scan(), re.S)[1]
    assert "url(" not in style
    assert "@import" not in style


def test_the_policy_allows_the_script_and_no_request():
    found = Page(html_of_a_scan())
    policy = next(m["content"] for m in found.all("meta") if m.get("http-equiv"))
    assert "default-src 'none'" in policy
    hashes = re.findall(r"'sha256-(.*?)'", policy)
    run = [script for script in found.scripts if not script.startswith("{")]
    assert len(run) == 1
    assert hashes == [
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in run
    ]
    assert "connect-src" not in policy
    assert not [name for _, attributes in found.elements for name in attributes if name[:2] == "on"]


def test_small_and_the_same_each_time(tmp_path):
    page = html_of_a_scan()
    assert len(page.encode()) < 600_000
    assert report.render([scan()]) == page
    stored = scan().save(tmp_path / "scan.json")
    assert report.render([Result.load(stored)]) == page


@pytest.mark.parametrize("name", sorted(everything()))
def test_a_page_says_what_was_found_and_what_made_it(name):
    result = everything()[name]
    content, text = report.describe(result), report.render([result])
    page = Page(text)
    for sentence in content.sentences:
        assert " ".join(sentence.split()) in page.text
    assert not re.search(r"\b(nan|None|inf)\b", page.text)
    if result.kind != "calibration":
        assert page.text.count(" ".join(result.provenance.command.split())) >= 2
        assert "How it was made" in page.text
    assert len(text.encode()) < 1_000_000


def evil_scan() -> Result:
    names = ("model", "architecture", "dtype", "device", "prompt", "unit", "policy")
    result = scan(2, 2, 2, notes=[EVIL], **dict.fromkeys(names, EVIL))
    result = changed(
        result,
        labels=[[EVIL, "disperses"]] * 2,
        rules=RULES | {EVIL: EVIL},
        texts=[
            text | {"pieces": [EVIL] * len(text["pieces"])} for text in result.measurements["texts"]
        ],
        layers=[layer | {"name": EVIL} for layer in result.measurements["layers"]],
    )
    origin = dict.fromkeys(("command", "commit", "platform", "processor", "sharpmax"), EVIL)
    provenance = result.provenance.model_copy(update=origin | {"packages": {EVIL: EVIL}})
    copy = result.model_copy(update={"provenance": provenance})
    return copy.with_arrays(**result.arrays)


def test_every_text_of_a_scan_is_only_ever_text():
    found, harmless = Page(report.render([evil_scan()])), Page(html_of_a_scan())
    assert len(found.scripts) == len(harmless.scripts)
    assert not found.all("img")
    assert {tag for tag, _ in found.elements} == {tag for tag, _ in harmless.elements}
    assert found.text.count("<script>alert(1)</script></script>&\"'") >= 15
    for script in found.scripts[:-1]:
        assert not set("<>&\u2028\u2029") & set(script)
    assert found.data[0]["layers"][0]["name"] == EVIL
    assert found.data[0]["labels"][0][0] == EVIL
    assert found.data[1]["inputs"][0]["pieces"][0] == EVIL


@pytest.mark.parametrize("kind", ALL)
def test_text_of_a_result_is_only_ever_text(kind):
    found, harmless = Page(report.render([evil(kind)])), Page(report.render([first_of(kind)]))
    assert len(found.scripts) == len(harmless.scripts)
    assert {tag for tag, _ in found.elements} == {tag for tag, _ in harmless.elements}
    assert not found.all("img")
    assert found.text.count("<script>alert(1)</script>") >= 2
    for script in found.scripts[:-1]:
        assert not set("<>&\u2028\u2029") & set(script)


def test_embedded_json_can_be_read_back():
    value = {"a": [1.5, None, EVIL]}
    assert json.loads(html.embed_json(value)) == value
    with pytest.raises(ValueError, match="not JSON compliant"):
        html.embed_json(float("nan"))


def test_the_page_carries_the_measured_numbers():
    result = scan()
    data = Page(html_of_a_scan()).data[0]
    assert len(data["values"]) == 12
    for name, values in data["values"].items():
        np.testing.assert_allclose(values, result.arrays[name], rtol=1e-4, err_msg=name)
    assert data["count"] == result.arrays["last_count"].tolist()
    assert data["tokens"] == result.measurements["tokens"]
    first = data["first"]
    assert data["labels"][first[0]][first[1]] == "disperses"


def test_the_map_of_a_certificate_has_its_arrays():
    result = first_of("certify")
    data = Page(report.render([result])).data[0]
    bound = result.arrays["spread_bound"]
    np.testing.assert_allclose(data["values"]["bound"], bound, rtol=1e-4)
    np.testing.assert_allclose(
        data["values"]["measured"], result.arrays["measured_spread"], rtol=1e-4
    )
    assert bound[tuple(data["first"])] == bound.min()


def test_a_head_that_does_not_exist():
    result = without_head(scan(3, 2, 2), 1, 1)
    found = Page(report.render([result]))
    data = found.data[0]
    assert data["labels"][1][1] is None
    assert [level[1][1] for level in data["values"]["mean_spread"]] == [None, None]
    rows = [(row["data-row"], row["data-column"]) for row in found.all("tr") if row]
    assert len(rows) == 5
    assert ("1", "1") not in rows
    assert not re.search(r"\bnan\b", found.text)


def test_a_number_that_was_not_measured():
    """A head that exists, without a value at the longest input."""
    arrays = {name: array.copy() for name, array in tiny().arrays.items()}
    arrays["last_sink"][-1, 0, 1] = np.nan
    page = report.render([tiny().with_arrays(**arrays)])
    row = re.search(r'<tr data-row="0" data-column="1">(.*?)</tr>', page, re.S)[1]
    assert row.count('<td data-value="">\N{EN DASH}</td>') == 1


def test_the_table_can_be_sorted_and_read():
    all_heads = html_of_a_scan().partition('data-role="table"')[2].partition("</table>")[0]
    found = Page(all_heads)
    assert [header["aria-sort"] for header in found.all("th")] == ["ascending"] + ["none"] * 10
    assert len(found.all("button")) == 11
    entropy = scan().arrays["last_entropy"][-1, 3, 4]
    row = re.search(r'<tr data-row="3" data-column="4">(.*?)</tr>', all_heads, re.S)[1]
    cells = re.findall(r"<td[^>]*>(.*?)</td>", row)
    assert cells[:2] == ["3", "4"]
    assert float(cells[5]) == pytest.approx(entropy, abs=6e-4)


def test_a_column_says_which_direction_is_better():
    page = Page(report.render([first_of("evaluate")]))
    titles = [header.get("title") for header in page.all("th")]
    assert titles.count("higher is better") == 2
    assert "Higher is better in “Correct %” and “log p”." in page.text


def test_a_learned_sink_is_shown_where_there_is_one():
    with_one = Page(report.render([scan(2, 2, 2, learned_sink=True)]))
    assert "Learned sink" in with_one.text
    assert "last_learned_sink" in with_one.data[0]["values"]
    assert "Learned sink" not in Page(html_of_a_scan()).text


def test_how_it_was_made():
    text = Page(html_of_a_scan()).text
    origin = scan().provenance
    for expected in (
        origin.command,
        "2026-11-16 01:02:03 UTC",
        "12.3 s in all",
        "sharpmax 0.1.0, python 3.11.2, numpy 2.4.6",
        origin.commit,
        "Synthetic CPU, 8 cores",
        *(f"{rule[0].upper()}{rule[1:]}." for rule in RULES.values()),
        *scan().config["notes"],
        "LlamaForCausalLM",
        "135 million parameters",
        "16 to 2,048 tokens in 8 lengths",
        "-sum over i of p_i log(p_i)",
    ):
        assert expected in text, expected


def test_the_verdict_is_marked_by_its_status():
    page = Page(report.render([first_of("evaluate")]))
    (verdict,) = [one for one in page.all("p") if one.get("class") == "verdict"]
    assert verdict["data-status"] == "good"
    assert "use calibration-answers" in page.text


def test_several_results_share_one_page():
    results = [scan(2, 2, 2, model="first/model"), scan(3, 4, 1, model="second/model")]
    results += everything().values()
    page = report.render(results)
    found = Page(page)
    assert found.text.startswith(f"{len(results)} results of sharpmax")
    identifiers = [attributes["id"] for _, attributes in found.elements if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))
    contents = re.search(r"<nav.*?</nav>", page, re.S)[0]
    for model in ("first/model", "second/model"):
        entry = rf'<a href="#(scan-\d+)">{model}</a> <span class="what">scan</span>'
        assert re.search(entry, contents)[1] in identifiers
    assert contents.count("<a ") == len(results)
    assert page.count("<h1>") == 1


def test_the_contents_of_one_result_are_its_parts():
    page = html_of_a_scan()
    contents = re.search(r"<nav.*?</nav>", page, re.S)[0]
    identifiers = [one.get("id") for _, one in Page(page).elements]
    links = re.findall(r'href="#(.*?)">(.*?)</a>', contents)
    assert {"Summary", "Map of heads", "What a head looks at"} <= {title for _, title in links}
    for anchor, _ in links:
        assert identifiers.count(anchor) == 1


def test_a_page_needs_a_result_that_can_be_described():
    with pytest.raises(UserError, match="at least one result"):
        report.render([])
    with pytest.raises(UserError, match=r"^two: no report for results of kind 'growth'"):
        report.render([tiny(), tiny().model_copy(update={"kind": "growth"})], names=["one", "two"])


def test_a_report_is_not_replaced_without_being_asked(tmp_path):
    path = tmp_path / "new" / "report.html"
    assert report.write([tiny()], path) == path
    written = path.read_bytes()
    assert written.decode() == report.render([tiny()])
    with pytest.raises(UserError, match=r"report\.html exists already"):
        report.write([scan(1, 1, 2)], path)
    assert path.read_bytes() == written
    report.write([scan(1, 1, 2)], path, overwrite=True)
    assert path.read_bytes() != written
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]


def test_a_missing_package_is_one_sentence():
    source = (
        "import sys; sys.modules['jinja2'] = None\n"
        "from sharpmax import report; report.render([None])\n"
    )
    command = [sys.executable, "-c", source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr.strip().endswith(
        "the HTML report needs jinja2, which is not installed: pip install 'sharpmax[report]'"
    )
