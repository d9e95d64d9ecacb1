"""The sentences of a report say what the data say."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

from report.pages import Page, html_of_a_scan, tiny
from report.synthetic import changed, scan
from sharpmax import report
from sharpmax.report import summary
from sharpmax.report.reading import read
from sharpmax.results import Result


def sentences(result: Result) -> str:
    return " ".join(summary.sentences(read(result)))


def test_counts_are_those_of_the_data():
    expected = Counter(label for row in scan().measurements["labels"] for label in row)
    assert len(expected) == 5
    text = Page(html_of_a_scan()).text
    said = re.search(
        r"Of (\d+) heads, (\d+) disperse, (\d+) stay sharp, (\d+) are uniform, (\d+) are sinks "
        r"and (\d+) are local",
        text,
    )
    labels = ("disperses", "stays sharp", "uniform", "sink", "local")
    assert [int(one) for one in said.groups()] == [270, *(expected[label] for label in labels)]
    counts = [int(item["data-count"]) for item in Page(html_of_a_scan()).all("li") if item]
    assert counts == [expected[label] for label in labels]


def test_the_layers_named_hold_half_of_the_dispersing_heads():
    result = scan()
    by_layer = [row.count("disperses") for row in result.measurements["labels"]]
    held, total, count = map(
        int,
        re.search(
            r"(\d+) of the (\d+) dispersing heads are in (\d+) of the 30 layers", sentences(result)
        ).groups(),
    )
    assert total == sum(by_layer)
    assert held == sum(sorted(by_layer)[-count:]) >= total / 2
    assert sum(sorted(by_layer)[-count + 1 :]) < total / 2


def test_entropy_and_the_steepest_head_are_those_of_the_data():
    result = scan()
    entropy = result.arrays["last_entropy"].astype(np.float64)
    text = sentences(result)
    for level, tokens in ((0, "16"), (-1, "2,048")):
        mean = entropy[level].mean()
        assert f"{mean:.2f} nats, as if over {np.exp(mean):,.1f} tokens, with {tokens}" in text
    slopes = np.array(result.measurements["slopes"], dtype=float)
    layer, head = np.unravel_index(np.nanargmax(slopes), slopes.shape)
    assert f"The steepest is head {head} of layer {layer} (uniform)" in text


def test_the_advice_names_dispersing_heads_only():
    result = scan()
    advice = summary.advice(read(result))
    labels = result.measurements["labels"]
    most = max(row.count("disperses") for row in labels)
    assert advice.heads
    assert most in [labels[layer].count("disperses") for layer in advice.layers]
    assert {labels[layer][head] for layer in advice.layers for head in advice.heads} == {
        "disperses"
    }
    text = Page(html_of_a_scan()).text
    assert f"sharpen(model, layers={advice.layers}, heads={advice.heads})" in text
    assert "only your own task can say" in text
    assert "known to make language models worse" in text


def test_no_advice_where_nothing_disperses():
    sharp = changed(tiny(), labels=[["stays sharp"] * 2] * 2)
    assert summary.advice(read(sharp)) is None
    text = Page(report.render([sharp])).text
    assert "Of 4 heads, none disperses, 4 stay sharp" in text
    assert "No head disperses over these lengths" in text
    assert "hf.sharpen(" not in text


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (
            [["disperses", "sink"], ["sink"] * 2],
            "The one dispersing head is in layer 0, of 2",
        ),
        ([["disperses"] * 2, ["sink"] * 2], "All 2 dispersing heads are in layer 0, of 2"),
        ([["disperses", "sink"]] * 2, "1 of the 2 dispersing heads is in layer 0, of 2 measured."),
        ([["new", "sink"], ["new", "new"]], "1 is a sink, none is local and 3 are labelled new."),
    ],
)
def test_sentences_are_grammatical(labels, expected):
    assert expected in sentences(changed(tiny(), labels=labels))


def test_numbers_are_listed_as_people_do():
    assert summary.listed([3]) == "3"
    assert summary.listed([5, 4, 9, 7, 6, 1, 2]) == "1, 2, 4\N{EN DASH}7 and 9"


def test_a_measurement_under_a_policy_says_so():
    text = Page(report.render([scan(2, 2, 2, policy="paper")])).text
    assert "measured with policy paper" in text
    assert "Compare them with a scan of the same model without it" in text


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (812, "812"),
        (92_000, "92,000"),
        (134_515_008, "135 million"),
        (1_235_814_400, "1.24 billion"),
    ],
)
def test_parameters_as_people_say_them(number, expected):
    assert f"{expected} parameters" in Page(report.render([scan(1, 1, 2, parameters=number)])).text


def test_one_length_has_no_slope():
    result = scan(2, 2, 1)
    result = changed(result, slopes=[[None, None]] * 2)
    text = sentences(result)
    assert "No slope was measured" in text
    assert "At the last of 16 tokens the mean entropy" in text
    report.render([result])


def test_lengths_that_are_not_tokens():
    html = report.render([scan(2, 2, 2, unit="numbers", lengths=[4, 8])])
    assert "4 to 8 numbers (16 to 32 tokens) in 2 lengths" in Page(html).text
