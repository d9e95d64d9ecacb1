"""The HTML report: one file that asks the network for nothing and lets nothing of a result run."""

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
from report.synthetic import RULES, changed, scan, without_head
from sharpmax import UserError, report
from sharpmax.report import page
from sharpmax.results import Result

ARXIV = "https://arxiv.org/abs/2410.01104"
EVIL = "<script>alert(1)</script></script>&\"'\u2028\u2029<img src=x onerror=alert(1)>"


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


def test_small_and_the_same_each_time():
    html = html_of_a_scan()
    assert len(html.encode()) < 600_000
    assert report.render([scan()]) == html


def test_the_same_from_a_file(tmp_path):
    stored = scan().save(tmp_path / "scan.json")
    assert report.render([Result.load(stored)]) == html_of_a_scan()


def evil_scan() -> Result:
    names = ("model", "architecture", "dtype", "device", "prompt", "unit", "policy")
    result = scan(2, 2, 2, notes=[EVIL], **dict.fromkeys(names, EVIL))
    result = changed(
        result,
        labels=[[EVIL, "disperses"]] * 2,
        rules=RULES | {EVIL: EVIL},
        layers=[layer | {"name": EVIL} for layer in result.measurements["layers"]],
    )
    origin = dict.fromkeys(("command", "commit", "platform", "processor", "sharpmax"), EVIL)
    provenance = result.provenance.model_copy(update=origin | {"packages": {EVIL: EVIL}})
    copy = result.model_copy(update={"provenance": provenance})
    return copy.with_arrays(**result.arrays)


def test_text_of_a_result_is_only_ever_text():
    found, harmless = Page(report.render([evil_scan()])), Page(html_of_a_scan())
    assert len(found.scripts) == len(harmless.scripts) == 2
    assert not found.all("img")
    assert {tag for tag, _ in found.elements} == {tag for tag, _ in harmless.elements}
    shown = "<script>alert(1)</script></script>&\"'"
    assert found.text.count(shown) >= 15
    (embedded,) = [script for script in found.scripts if script.startswith("{")]
    assert not set("<>&\u2028\u2029") & set(embedded)
    assert found.data[0]["layers"][0]["name"] == EVIL
    assert found.data[0]["labels"][0][0] == EVIL


def test_embedded_json_can_be_read_back():
    value = {"a": [1.5, None, EVIL]}
    assert json.loads(page.embedded_json(value)) == value
    with pytest.raises(ValueError, match="not JSON compliant"):
        page.embedded_json(float("nan"))


def test_the_page_carries_the_measured_numbers():
    result = scan()
    (data,) = Page(html_of_a_scan()).data
    assert len(data["values"]) == 12
    for name, values in data["values"].items():
        np.testing.assert_allclose(values, result.arrays[name], rtol=1e-4, err_msg=name)
    assert data["count"] == result.arrays["last_count"].tolist()
    assert data["tokens"] == result.measurements["tokens"]
    first = data["first"]
    assert data["labels"][first[0]][first[1]] == "disperses"


def test_a_head_that_is_not_there():
    result = without_head(scan(3, 2, 2), 1, 1)
    found = Page(report.render([result]))
    (data,) = found.data
    assert "Of 5 heads" in found.text
    assert data["labels"][1][1] is None
    assert [level[1][1] for level in data["values"]["mean_spread"]] == [None, None]
    rows = [(row["data-row"], row["data-column"]) for row in found.all("tr") if row]
    assert len(rows) == 5
    assert ("1", "1") not in rows
    assert "NaN" not in json.dumps(data)
    assert not re.search(r"\bnan\b", found.text)


def test_a_number_that_is_not_there():
    """A head that exists, without a value at the longest input."""
    arrays = {name: array.copy() for name, array in tiny().arrays.items()}
    arrays["last_sink"][-1, 0, 1] = np.nan
    html = report.render([tiny().with_arrays(**arrays)])
    row = re.search(r'<tr data-row="0" data-column="1">(.*?)</tr>', html)[1]
    assert row.count('<td data-value="">\N{EN DASH}</td>') == 1


def test_the_table_can_be_sorted_and_read():
    found = Page(html_of_a_scan())
    assert [header["aria-sort"] for header in found.all("th")] == ["ascending"] + ["none"] * 10
    assert len(found.all("button")) == 11
    entropy = scan().arrays["last_entropy"][-1, 3, 4]
    row = re.search(r'<tr data-row="3" data-column="4">(.*?)</tr>', html_of_a_scan())[1]
    cells = re.findall(r"<td[^>]*>(.*?)</td>", row)
    assert cells[:2] == ["3", "4"]
    assert float(cells[5]) == pytest.approx(entropy, abs=6e-4)


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


def test_several_results_share_one_page():
    models = ["first/model", "second/model"]
    html = report.render([scan(2, 2, 2, model=models[0]), scan(3, 4, 1, model=models[1])])
    found = Page(html)
    assert len(found.data) == 2
    assert len(found.scripts) == 3
    identifiers = [attributes["id"] for _, attributes in found.elements if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))
    contents = re.search(r"<nav.*?</nav>", html, re.S)[0]
    for number, model in enumerate(models, start=1):
        assert f'<a href="#scan-{number}">{model}</a> <span class="what">scan</span>' in contents
        assert f"scan-{number}" in identifiers
    assert html.count("<h1>") == 1
    assert "<nav" not in html_of_a_scan().partition("<script")[0]


def test_unknown_kinds_are_refused():
    with pytest.raises(
        UserError, match=r"^two: no report for results of kind 'growth': expected bench-jax, "
    ):
        report.render([tiny(), tiny().model_copy(update={"kind": "growth"})], names=["one", "two"])
    with pytest.raises(UserError, match="at least one result"):
        report.render([])


def lacking(part: str, key: str) -> Result:
    result = tiny()
    if part == "arrays":
        return result.with_arrays(**{k: v for k, v in result.arrays.items() if k != key})
    left = {k: v for k, v in getattr(result, part).items() if k != key}
    return result.model_copy(update={part: left})


@pytest.mark.parametrize(
    ("part", "key"),
    [("config", "prompt"), ("measurements", "rules"), ("arrays", "mean_spread")],
)
def test_an_incomplete_scan_is_refused(part, key):
    with pytest.raises(UserError, match=f"the scan lacks {key} in its {part}"):
        report.render([lacking(part, key)])


@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        (lambda: changed(tiny(), labels=[["sink"]] * 2), "labels is not one row of heads"),
        (lambda: changed(tiny(), tokens=[1]), "has shape"),
        (lambda: changed(tiny(), seconds=[1.0]), "1 seconds, 2 expected"),
        (lambda: changed(tiny(), labels=[[None, None]] * 2), "measured no head"),
    ],
)
def test_a_damaged_scan_is_refused(damaged, message):
    with pytest.raises(UserError, match=message):
        report.render([damaged()])


def test_a_report_is_not_replaced_unasked(tmp_path):
    path = tmp_path / "new" / "report.html"
    assert report.write([tiny()], path) == path
    written = path.read_bytes()
    assert written.decode() == report.render([tiny()])
    with pytest.raises(UserError, match=r"report\.html exists already"):
        report.write([scan(1, 1, 2)], path)
    assert path.read_bytes() == written
    report.write([scan(1, 1, 2)], path, overwrite=True)
    assert path.read_bytes() != written
    assert [one.name for one in path.parent.iterdir()] == ["report.html"]


def test_a_missing_package_is_one_sentence():
    package = "jinja2"
    source = f"import sys; sys.modules[{package!r}] = None\nimport sharpmax.report"
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=False
    )
    assert done.stderr.strip().endswith(
        f"the HTML report needs {package}, which is not installed: pip install 'sharpmax[report]'"
    )
