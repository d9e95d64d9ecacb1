"""Plain and sharpened writing: the same words where nothing is sharpened, and the model as before."""

from __future__ import annotations

from dataclasses import replace

import pytest

import sharpmax as sx
from hf.small import assert_nothing_is_patched, llama, tokenizer
from model_folder import make_folder
from report.pages import Page
from sharpmax.app import scanning, writing
from sharpmax.app.runs import Stopped
from sharpmax.app.shelf import Shelf
from sharpmax.app.writing import Asked
from sharpmax.hf.loading.loader import Loaded


def quiet(share: float) -> None:
    pass


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return Loaded(llama(), tokenizer(), "small", ())


ASKED = Asked("What is the maximum: 1, 2, 3?", sx.Constant(4.0), None, None, 12, False)


def test_plain_attention_writes_the_same(loaded):
    written = writing.write(loaded, replace(ASKED, policy=sx.Constant(1.0)), quiet)
    assert written.plain == written.sharpened != ""
    assert written.first_other is None


def test_sharpening_changes_the_text_and_is_undone(loaded):
    before = loaded.model.config._attn_implementation
    first, second = (writing.write(loaded, ASKED, quiet) for _ in range(2))
    assert first.plain != first.sharpened
    assert first == second
    assert loaded.model.config._attn_implementation == before
    assert_nothing_is_patched()


def test_only_what_is_chosen_is_sharpened(loaded):
    """The last layer's heads, one by one, write what nobody else does."""
    all_heads = writing.write(loaded, ASKED, quiet).sharpened
    some = writing.write(loaded, replace(ASKED, layers=[2], heads=[0]), quiet)
    assert some.sharpened != all_heads


def test_a_stop_leaves_the_model_as_it_was(loaded):
    told = []

    def tell(share):
        told.append(share)
        if share > 0.6:  # in the second half, which is sharpened
            raise Stopped

    with pytest.raises(Stopped):
        writing.write(loaded, ASKED, tell)
    assert max(told) < 0.7
    assert_nothing_is_patched()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"prompt": " "}, "type a prompt"),
        ({"prompt": "a" * 600}, "longer than the context of this model, 512"),
        ({"layers": [9]}, "9"),
    ],
)
def test_what_cannot_be_is_one_sentence(loaded, changed, message):
    with pytest.raises(sx.UserError, match=message):
        writing.write(loaded, replace(ASKED, **changed), quiet)


def test_what_a_model_writes_is_text():
    written = writing.Written("<script>", "a<b>x</b>", "a<i>y</i>", 1, ())
    markup = str(writing.html(written, "<u>"))
    page = Page(markup)
    assert not {"script", "b", "i", "u"} & {name for name, _ in page.elements}
    assert "<script>" in page.text
    assert "differ from token 2 on" in page.text


def test_an_empty_text_is_said_to_be_one():
    written = writing.Written("Go on", "", "so", 0, ())
    assert Page(str(writing.html(written, "paper"))).text.count("ended at once") == 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("models"))


def test_a_scan_is_that_of_the_library(folder):
    result = scanning.run(Shelf(), folder, "max", "", "4, 8", quiet)
    assert result.lengths == [4, 8]
    assert result.entropy.shape == (2, 3, 4)
    page = Page(str(scanning.html(result)))
    ((_, frame),) = [one for one in page.elements if one[0] == "iframe"]
    assert frame["sandbox"] == "allow-scripts"
    assert "<script>window.hacked" not in frame["srcdoc"]
    assert "&lt;script&gt;window.hacked" in frame["srcdoc"]


def test_a_text_of_ones_own(folder):
    result = scanning.run(Shelf(), folder, "text", "One day, far away.", "4, 8", quiet)
    assert result.config["prompt"] == "text pasted.txt"


@pytest.mark.parametrize(
    ("name", "prompt", "lengths", "message"),
    [
        ("./<script>", "max", "8", "no such folder"),
        (" ", "max", "8", "the model's name is ''"),
        ("there", "max", "eight", "lengths: expected whole numbers"),
        ("there", "text", "8", "paste a text"),
    ],
)
def test_a_scan_that_cannot_be(name, prompt, lengths, message):
    with pytest.raises(sx.UserError, match=message):
        scanning.run(Shelf(), name, prompt, "", lengths, quiet)


def test_a_shelf_for_strangers_has_one_model(folder):
    with (
        pytest.raises(sx.UserError, match="is not offered here: choose smollm2"),
        Shelf(("smollm2",)).taken(folder, quiet),
    ):
        pass


def test_a_model_is_loaded_once_and_lent_to_one(folder):
    shelf = Shelf()
    with shelf.taken(folder, quiet) as first:
        assert not shelf._lock.acquire(blocking=False)
    with shelf.taken(folder, quiet) as second:
        assert second is first
