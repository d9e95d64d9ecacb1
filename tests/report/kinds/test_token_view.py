"""The view of tokens shows what a scan kept, of bounded size."""

from __future__ import annotations

import json

import pytest

from report.synthetic import changed, scan
from sharpmax import UserError
from sharpmax.report.kinds.scan_view import ScanView
from sharpmax.report.kinds.token_view import MOST_WEIGHTS, SMALLEST, token_view
from sharpmax.report.renderers.html import block_data


def view_of(*results):
    views = [(str(number), ScanView.of(result)) for number, result in enumerate(results)]
    return token_view(views, (0, 0))


def test_it_shows_the_weights_of_the_shortest_and_the_longest_input():
    result = scan(3, 2, 4)
    view = view_of(result)
    assert list(view.inputs) == ["0, 16 tokens", "0, 128 tokens"]
    for end, shown in zip((0, -1), view.data["inputs"], strict=True):
        assert shown["pieces"] == result.measurements["texts"][end]["pieces"]
        for layer in range(3):
            for head in range(2):
                flat = shown["heads"][layer][head]
                weights = result.arrays["strongest_weight"][end, layer, head]
                tokens = result.arrays["strongest"][end, layer, head]
                expected = [
                    (token, weight)
                    for token, weight in zip(tokens.tolist(), weights.tolist(), strict=True)
                    if weight >= SMALLEST
                ]
                assert flat[::2] == [token for token, _ in expected]
                assert flat[1::2] == pytest.approx([weight for _, weight in expected], abs=6e-4)


def test_two_scans_stand_side_by_side():
    view = view_of(scan(3, 2, 4), scan(3, 2, 4, policy="paper"))
    assert list(view.inputs) == ["0, 16 tokens", "1, 16 tokens", "0, 128 tokens", "1, 128 tokens"]


def test_a_scan_without_tokens_has_no_view():
    result = scan(2, 2, 2)
    older = changed(result, texts=[])
    assert view_of(older) is None
    assert view_of(result, older) is None


def test_the_size_is_bounded():
    view = view_of(scan(60, 64, 3), scan(60, 64, 3))
    numbers = sum(len(head) for one in view.data["inputs"] for row in one["heads"] for head in row)
    assert 0 < numbers <= 2 * MOST_WEIGHTS
    assert len(block_data(view)) < 400_000


def test_only_the_positions_of_a_cut_text_are_written():
    result = scan(2, 2, 2)
    texts = json.loads(json.dumps(result.measurements["texts"]))
    texts[-1] = {"positions": [0, 9], "pieces": ["a", "b"]}
    short, long = view_of(changed(result, texts=texts)).data["inputs"]
    assert short["positions"] is None
    assert long["positions"] == [0, 9]


def test_damaged_tokens_are_refused():
    result = scan(2, 2, 2)
    with pytest.raises(UserError, match="1 texts of 2 inputs"):
        view_of(changed(result, texts=result.measurements["texts"][:1]))
    cut = result.with_arrays(**result.arrays | {"strongest": result.arrays["strongest"][:, :1]})
    with pytest.raises(UserError, match="strongest tokens do not fit"):
        view_of(cut)
