"""The page in plain words says what the committed results say, in its text and its pictures."""

from __future__ import annotations

import re

import plain_words
import pytest

PAGE = (plain_words.ROOT / "docs" / "plain_words.md").read_text("utf-8")


def percentages(text):
    return re.findall(r"([\d.]+) %", text)


def test_every_percentage_of_the_page_is_measured():
    diagnosis = plain_words.diagnosis()
    accuracies = [100 * row.accuracy.mean for row in diagnosis.rows]
    shares = [share for _, share in plain_words.attention_shares()]
    measured = [accuracies[0], accuracies[-1], shares[0], shares[-1], *plain_words.held_out()]
    expected = {f"{value:.0f}" for value in measured} | {f"{plain_words.text_cost():.1f}"}
    assert set(percentages(PAGE)) - {"100"} == expected


def test_the_page_counts_the_heads_of_the_diagnosis():
    diagnosis = plain_words.diagnosis()
    assert f"SmolLM2 has {sum(diagnosis.heads)} of" in PAGE
    assert len(diagnosis.retrieval_heads) == 5
    assert "Five heads" in PAGE
    last = diagnosis.rows[-1].split
    assert last.ranking > last.dispersion  # "the second reason weighs more"
    assert last.winners["first token"] == max(last.winners.values())


def test_methods_are_ordered_from_helpful_to_harmful():
    changes = [change for _, change in plain_words.changes()]
    assert changes == sorted(changes, reverse=True)
    assert changes[0] > 0 > changes[-1]


@pytest.mark.parametrize("name", ["attention", "answers", "changes"])
def test_pictures_show_the_committed_results(name, drawn):
    committed = (plain_words.FOLDER / f"{name}.svg").read_bytes()
    assert (drawn / f"{name}.svg").read_bytes() == committed, "run make plain-words"


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    plain_words.draw(folder)
    return folder
