"""The sentences about a scan say what its data say."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

from report.pages import Page, html_of_a_scan, tiny
from report.synthetic import changed, scan, without_head
from sharpmax import UserError, report
from sharpmax.report.blocks import Table
from sharpmax.report.kinds.scan_view import ScanView
from sharpmax.report.numbers import join_numbers
from sharpmax.results import Result

LABELS = ("disperses", "stays sharp", "uniform", "sink", "local")


def sentences(result: Result) -> str:
    return " ".join(report.describe(result).sentences)


def tables(result: Result) -> dict[str, Table]:
    blocks = report.describe(result).blocks
    return {block.title: block for block in blocks if isinstance(block, Table)}


def test_counts_are_those_of_the_data():
    expected = Counter(label for row in scan().measurements["labels"] for label in row)
    assert len(expected) == 5
    said = re.search(
        r"Of (\d+) heads, (\d+) disperse, (\d+) stay sharp, (\d+) are uniform, (\d+) are sinks "
        r"and (\d+) are local",
        sentences(scan()),
    )
    assert [int(count) for count in said.groups()] == [270, *(expected[label] for label in LABELS)]
    counts = [int(item["data-count"]) for item in Page(html_of_a_scan()).all("li") if item]
    assert counts == [expected[label] for label in LABELS]


def test_the_layers_named_hold_half_of_the_dispersing_heads():
    result = scan()
    by_layer = [row.count("disperses") for row in result.measurements["labels"]]
    pattern = r"(\d+) of the (\d+) dispersing heads are in (\d+) of the 30 layers"
    held, total, count = map(int, re.search(pattern, sentences(result)).groups())
    assert total == sum(by_layer)
    assert held == sum(sorted(by_layer)[-count:]) >= total / 2
    assert sum(sorted(by_layer)[-count + 1 :]) < total / 2


def test_entropy_and_the_steepest_head_are_those_of_the_data():
    result = scan()
    entropy = result.arrays["last_entropy"].astype(np.float64)
    text = sentences(result)
    for level, tokens in ((0, "16"), (-1, "2,048")):
        assert f"about {np.exp(entropy[level].mean()):,.1f} tokens of a {tokens}-token" in text
    slopes = np.array(result.measurements["slopes"], dtype=float)
    slopes[np.array(result.measurements["labels"]) != "disperses"] = -1
    layer, head = np.unravel_index(slopes.argmax(), slopes.shape)
    assert f"steepest dispersing head is head {head} of layer {layer}: doubling the prompt" in text
    steepest = slopes.max()
    assert f"{2**steepest:.1f} times as many tokens (slope {steepest:.2f};" in text


def test_a_model_with_dispersing_heads_is_advised_to_tune():
    verdict = report.describe(scan()).verdict
    assert verdict.status == "mixed"
    assert "sharpmax diagnose MODEL" in verdict.command
    assert "sharpmax tune MODEL" in verdict.command
    text = Page(html_of_a_scan()).text
    assert "sharpmax tune MODEL" in text
    assert "makes language models worse" in text


def test_nothing_to_try_where_nothing_disperses():
    sharp = changed(tiny(), labels=[["stays sharp"] * 2] * 2)
    content = report.describe(sharp)
    assert content.verdict.status == "good"
    assert content.verdict.command == "sharpmax scan MODEL --lengths 64,128"
    assert content.verdict.sentence == "No head disperses over these lengths."
    assert "Of 4 heads, none disperses, 4 stay sharp" in " ".join(content.sentences)
    assert "hf.sharpen(" not in Page(report.render([sharp])).text


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([["disperses", "sink"], ["sink"] * 2], "The one dispersing head is in layer 0, of 2"),
        ([["disperses"] * 2, ["sink"] * 2], "All 2 dispersing heads are in layer 0, of 2"),
        ([["disperses", "sink"]] * 2, "1 of the 2 dispersing heads is in layer 0, of 2 measured."),
        ([["new", "sink"], ["new", "new"]], "1 is a sink, none is local and 3 are labelled new."),
    ],
)
def test_sentences_are_grammatical(labels, expected):
    assert expected in sentences(changed(tiny(), labels=labels))


def test_numbers_are_joined_as_people_do():
    assert join_numbers([3]) == "3"
    assert join_numbers([5, 4, 9, 7, 6, 1, 2]) == "1, 2, 4\N{EN DASH}7 and 9"


def test_a_measurement_under_a_policy_says_so():
    content = report.describe(scan(2, 2, 2, policy="paper"))
    assert "measured with policy paper" in content.facts
    assert "Compare them with a scan of the same model without it" in content.verdict.details[0]


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
    assert f"{expected} parameters" in report.describe(scan(1, 1, 2, parameters=number)).facts


def test_one_length_has_no_slope():
    result = changed(scan(2, 2, 1), slopes=[[None, None]] * 2)
    assert "No slope was measured" in sentences(result)
    mean = result.arrays["last_entropy"].astype(float).mean()
    assert f"about {np.exp(mean):,.1f} tokens of a 16-token prompt (exp" in sentences(result)
    report.render([result])


def test_lengths_that_are_not_tokens():
    facts = report.describe(scan(2, 2, 2, unit="numbers", lengths=[4, 8])).facts
    assert "4 to 8 numbers (16 to 32 tokens) in 2 lengths" in facts


def test_the_tables_are_means_and_the_steepest_heads():
    result = scan()
    by_length = tables(result)["Means over all heads, at the last position"]
    names = [column.name for column in by_length.columns]
    for index, row in enumerate(by_length.rows):
        for key, name in (
            ("entropy", "Entropy"),
            ("sink", "First token"),
            ("spread", "Logit spread"),
        ):
            mean = result.arrays[f"last_{key}"][index].astype(float).mean()
            assert row[names.index(name)] == pytest.approx(mean, rel=1e-6)
    steepest = tables(result)["The steepest heads, from the shortest to the longest input"]
    slopes = [row[2] for row in steepest.rows]
    known = np.array(result.measurements["slopes"], dtype=float)
    assert slopes == sorted(known[np.isfinite(known)].ravel(), reverse=True)[: len(slopes)]


def test_a_head_that_does_not_exist_counts_nowhere():
    view = ScanView.of(without_head(scan(3, 2, 2), 1, 1))
    assert len(view.heads) == sum(view.counts.values()) == 5
    assert (1, 1) not in [(head.row, head.column) for head in view.heads]


def lacking(part: str, key: str) -> Result:
    result = tiny()
    if part == "arrays":
        return result.with_arrays(**{k: v for k, v in result.arrays.items() if k != key})
    left = {k: v for k, v in getattr(result, part).items() if k != key}
    return result.model_copy(update={part: left})


@pytest.mark.parametrize(
    ("part", "key", "message"),
    [
        ("config", "prompt", r"kind 'scan' holds \(prompt: Field required"),
        ("measurements", "rules", r"kind 'scan' holds \(rules: Field required"),
        ("arrays", "mean_spread", "the scan lacks mean_spread in its arrays"),
    ],
)
def test_an_incomplete_scan_is_refused(part, key, message):
    with pytest.raises(UserError, match=message):
        report.describe(lacking(part, key))


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
        report.describe(damaged())


def with_laws(laws):
    """The synthetic scan with a law for each head, from a list that is repeated."""
    result = scan().model_copy(deep=True)
    shape = result.arrays["last_entropy"].shape[1:]
    names = np.resize(np.array(laws, object), shape)
    result.measurements["laws"] = names.tolist()
    power = np.where(names == "log n", 1.0, np.nan)
    return result.with_arrays(**scan().arrays, growth_power=power)


def test_laws_of_sharpening_are_counted_if_they_were_measured():
    title = "Sharpening that would hold the focus"
    assert title not in tables(scan())  # a scan without them
    result = with_laws(["log n", "log n", "nothing competes"])
    rows = {row[0]: row[1:] for row in tables(result)[title].rows}
    assert rows["like log n"] == [180, 1.0]
    assert rows["not measured"] == [90, None]
    assert rows["hardly"] == [0, None]
    assert "180 of 180 heads would need sharpening that grows like log n" in sentences(result)


def test_laws_that_do_not_fit_the_heads_are_refused():
    damaged = with_laws(["log n"])
    damaged.measurements["laws"] = damaged.measurements["laws"][:-1]
    with pytest.raises(UserError, match="laws are not one row of heads per layer"):
        report.describe(damaged)
