"""Plain and sharpened text, and a model that is unchanged afterwards."""

from __future__ import annotations

from dataclasses import replace

import pytest

import sharpmax as sx
from hf.small import assert_nothing_is_patched, llama, tokenizer
from report.pages import Page
from sharpmax.app.background_jobs import Stopped
from sharpmax.app.model.generation import GenerationRequest, TextPair, generate_pair, render_pair
from sharpmax.hf.loading.loader import Loaded


def ignore(share: float) -> None:
    pass


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return Loaded(llama(), tokenizer(), "small", ())


REQUEST = GenerationRequest(
    "What is the maximum: 1, 2, 3?", sx.Constant(4.0), None, None, 12, False
)


def test_a_policy_of_1_writes_the_same(loaded):
    pair = generate_pair(loaded, replace(REQUEST, policy=sx.Constant(1.0)), ignore)
    assert pair.plain == pair.sharpened != ""
    assert pair.first_difference is None


def test_sharpening_changes_the_text_and_is_undone(loaded):
    before = loaded.model.config._attn_implementation
    first, second = (generate_pair(loaded, REQUEST, ignore) for _ in range(2))
    assert first.plain != first.sharpened
    assert first == second
    assert loaded.model.config._attn_implementation == before
    assert_nothing_is_patched()


def test_only_selected_heads_are_sharpened(loaded):
    selections = [{}, {"layers": [2]}, {"heads": [0]}, {"layers": [2], "heads": [0]}]
    texts = {
        generate_pair(loaded, replace(REQUEST, **selection), ignore).sharpened
        for selection in selections
    }
    assert len(texts) == len(selections)


def test_a_stop_leaves_the_model_as_it_was(loaded):
    shares = []

    def report(share):
        shares.append(share)
        if share > 0.6:  # in the second half, which is sharpened
            raise Stopped

    with pytest.raises(Stopped):
        generate_pair(loaded, REQUEST, report)
    assert max(shares) < 0.7
    assert_nothing_is_patched()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"prompt": " "}, "type a prompt"),
        ({"prompt": "a" * 600}, "longer than the context of this model, 512"),
        ({"layers": [9]}, "9"),
    ],
)
def test_a_bad_request_is_refused(loaded, changed, message):
    with pytest.raises(sx.UserError, match=message):
        generate_pair(loaded, replace(REQUEST, **changed), ignore)


def test_generated_text_is_escaped():
    pair = TextPair("<script>", "a<b>x</b>", "a<i>y</i>", 1, ())
    markup = str(render_pair(pair, "<u>"))
    page = Page(markup)
    assert not {"script", "b", "i", "u"} & {name for name, _ in page.elements}
    assert "<script>" in page.text
    assert "differ from token 2 on" in page.text


def test_an_empty_text_is_explained():
    pair = TextPair("Go on", "", "so", 0, ())
    assert Page(str(render_pair(pair, "paper"))).text.count("wrote nothing") == 1
