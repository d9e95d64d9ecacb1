"""What a diagnosis says follows its cause."""

from __future__ import annotations

import pytest

from hf.needles import diagnosis
from sharpmax import UserError, report
from sharpmax.report.blocks import Chart, Heads, Table


def said(result):
    content = report.describe(result)
    parts = [*content.sentences, content.verdict.sentence, *content.verdict.details]
    return " ".join(parts).replace("\xa0", " "), content.verdict


def test_dispersion_calls_for_sharpening(monkeypatch):
    text, verdict = said(diagnosis(monkeypatch, (0.9, 0.5, 0.2), (1, 1, 1)))
    assert "2 of 12 heads find the answer, in layer 1." in text
    assert "They rank it first in 100 % of cases at 2 names and in 100 % at 8." in text
    assert "They give it 0.90 of the weight at 2 names and 0.20 at 8." in text
    assert "Dispersion explains 100 % of the loss at 8 names (95 % interval 100 to 100 %)" in text
    assert "The model answers 100 % correctly at 2 names and 100 % at 8." in text
    assert (
        "Sharpening can help: at 8 names these heads still rank the answer first in 100 %" in text
    )
    assert verdict.status == "good"
    assert verdict.command == "sharpmax tune MODEL"


def test_ranking_does_not(monkeypatch):
    text, verdict = said(diagnosis(monkeypatch, (0.9, 0.9, 0.9), (1, 1, 0), "first token", heads=1))
    assert "1 of 12 heads finds the answer" in text
    assert "It gives it 0.90 of the weight" in text
    assert "Dispersion explains none of the loss" in text
    assert (
        "Sharpening this head cannot bring most of the weight back: at 8 names something else"
        in text
    )
    assert "first in 100 % of cases, mostly the first token." in text
    assert "Infinitely sharp, this head would give it 0.00 of the weight" in text
    assert verdict.status == "mixed"


def test_a_window_hides_the_answer(monkeypatch):
    text, verdict = said(diagnosis(monkeypatch, (0.9, 0.9, 0.9), (1, 1, 0), "hidden"))
    assert "the answer is outside the sliding window of these heads in 100 % of cases." in text
    assert (verdict.status, verdict.command) == ("bad", "sharpmax scan MODEL")


def test_nothing_is_lost(monkeypatch):
    text, verdict = said(diagnosis(monkeypatch, (0.9, 0.9, 0.9), (1, 1, 1)))
    assert "These heads lose no weight over these lengths." in text
    assert verdict.status == "good"
    assert "Dispersion explains" not in text


def test_no_head_finds_the_answer(monkeypatch):
    result = diagnosis(monkeypatch, (0.9, 0.9, 0.9), (1, 1, 1), heads=0)
    text, verdict = said(result)
    assert "None of 12 heads finds the answer at 2 names." in text
    assert verdict.status == "neutral"
    blocks = report.describe(result).blocks
    assert [type(block) for block in blocks] == [Heads, Table]
    report.draw(result)


def test_charts_and_tables_by_their_numbers(monkeypatch):
    result = diagnosis(monkeypatch, (0.8, 0.8, 0.4), (1, 1, 0.5))
    blocks = report.describe(result).blocks
    attention, loss, winners = (block for block in blocks if isinstance(block, Chart))
    lines = {line.name: line for line in (*attention.lines, *loss.lines, *winners.lines)}
    assert lines["ranked first"].y == [100, 100, 50]
    assert lines["weight"].y == pytest.approx([80, 80, 20])
    assert lines["dispersion"].y == pytest.approx([0, 0, 0.2])
    assert lines["ranking"].y == pytest.approx([0, 0, 0.4], abs=1e-7)
    assert lines["ranking: another number"].y == pytest.approx([0, 0, 0.4], abs=1e-7)
    assert lines["the answer"].y == [100, 100, 50]
    assert "ranking: the first token" not in lines
    assert "outside the window" not in lines
    by_length, heads = (block for block in blocks if isinstance(block, Table))
    assert [row[0] for row in by_length.rows] == [2, 4, 8]
    assert by_length.rows[-1][-1].startswith("33 (")
    assert [row[:2] for row in heads.rows] == [[1, 0], [1, 1]]
    assert heads.rows[0][3].text == "0.80 → 0.20"
    assert heads.rows[0][-2:] == ["another number", "like (log n)²"]


def test_a_diagnosis_without_its_arrays_is_damaged(monkeypatch):
    bare = diagnosis(monkeypatch, (0.9, 0.5, 0.2), (1, 1, 1))
    bare._arrays = {}
    with pytest.raises(UserError, match="its arrays are missing"):
        report.describe(bare)
