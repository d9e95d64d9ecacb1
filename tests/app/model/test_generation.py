"""Plain and sharpened text, and a model that is unchanged afterwards."""

from __future__ import annotations

from dataclasses import replace

import pytest

import sharpmax as sx
from hf.small import assert_nothing_is_patched, llama, tokenizer
from report.pages import Page
from sharpmax.app.background_jobs import Stopped
from sharpmax.app.model.generation import GenerationRequest, TextPair, generate_pair, render_pair
from sharpmax.hf import Calibration, scan
from sharpmax.hf.loading.loader import Loaded
from sharpmax.hf.model_info import weights_fingerprint
from sharpmax.hf.tune.calibration import architecture_of
from sharpmax.results.calibration import Head


def ignore(share: float) -> None:
    pass


def make_calibration(model, *heads, start):
    return Calibration(
        model="small",
        weights=weights_fingerprint(model),
        architecture=architecture_of(model),
        method={},
        from_tokens=start,
        heads=tuple(Head(layer=layer, head=head, rate=rate) for layer, head, rate in heads),
    )


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


def test_the_tokens_are_those_of_both_models(loaded):
    pair = generate_pair(loaded, REQUEST, ignore)
    plain, sharpened = pair.tokens.data["inputs"]
    assert plain["pieces"] == sharpened["pieces"]
    tokens = loaded.tokenizer(REQUEST.prompt)["input_ids"]
    scans = [
        scan(loaded.model, loaded.tokenizer, [1], lambda _: tokens, policy=policy)
        for policy in (None, REQUEST.policy)
    ]
    for shown, measured in zip((plain, sharpened), scans, strict=True):
        largest = [[head[1] if head else 0.0 for head in row] for row in shown["heads"]]
        assert largest == pytest.approx(measured.max_weight[0], abs=6e-4)
    one_head = generate_pair(loaded, replace(REQUEST, layers=[1], heads=[2]), ignore).tokens.data
    first, second = (one["heads"] for one in one_head["inputs"])
    assert first[0] == second[0]
    assert first[1][2] != second[1][2]
    assert first[1][1] == second[1][1]


def test_a_calibration_that_is_off_says_so(loaded):
    calibration = make_calibration(loaded.model, (0, 1, 0.5), start=500)
    pair = generate_pair(loaded, replace(REQUEST, policy=calibration), ignore)
    assert pair.plain == pair.sharpened
    (note,) = pair.notes
    assert "The calibration is off here: the prompt has" in note
    assert note.endswith("changes nothing up to 500.")


def test_long_prompts_are_shown_from_their_end():
    pair = TextPair("start " + "word " * 100 + "end:", "a", "b", 0, (), None, "a")
    text = Page(str(render_pair(pair, "the policy paper"))).text
    assert "start" not in text
    assert text.count("end:") == 2
    assert text.count("right") == text.count("wrong") == 1


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
