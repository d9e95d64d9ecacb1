"""The beginning-of-sequence token is added where a model needs it, once, and said in results."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn
from transformers import (
    GemmaConfig,
    GemmaForCausalLM,
    GemmaModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

import sharpmax.hf as shf
from hf.small import llama
from sharpmax import UserError
from sharpmax.hf import bos

BOS = 1


def make_tokenizer(bos_token: str | None = "\x01", **options: object) -> PreTrainedTokenizerFast:
    """One token per ASCII character; nothing before a text."""
    characters = {chr(code): code for code in range(128)}
    backend = Tokenizer(models.WordLevel(characters, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="?", bos_token=bos_token, **options
    )


class BrokenForCausalLM(LlamaForCausalLM):
    """Predicts every text well if it begins with the token, and badly otherwise."""

    def forward(self, input_ids: torch.Tensor, **options: object) -> object:
        output = super().forward(input_ids=input_ids, **options)
        following = nn.functional.one_hot(input_ids.roll(-1, 1), 128).float()
        strength = 9.0 if int(input_ids[0, 0]) == BOS else 0.0
        output.logits = strength * following[:, -output.logits.shape[1] :]
        return output


def broken(**options: object) -> BrokenForCausalLM:
    return BrokenForCausalLM(
        llama(1).config.__class__(**llama(1).config.to_dict() | options)
    ).eval()


def gemma(kind: type = GemmaForCausalLM) -> torch.nn.Module:
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 128}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    return kind(GemmaConfig(**shape, **heads, bos_token_id=BOS)).eval()


def test_a_model_that_is_lost_without_it_gets_it():
    model, tokenizer = broken(), make_tokenizer()
    prepared, (note,) = bos.prepare_tokenizer(model, tokenizer)
    assert prepared("ab")["input_ids"] == [BOS, ord("a"), ord("b")]
    assert prepared("ab", add_special_tokens=False)["input_ids"] == [ord("a"), ord("b")]
    assert tokenizer("ab")["input_ids"] == [ord("a"), ord("b")]  # the user's own is as it was
    assert "leaves out the beginning-of-sequence token \x01" in note
    assert "without it ordinary text costs 4.9 instead of 0.0 nats per token" in note


def test_offsets_pairs_and_saving(tmp_path):
    prepared, _ = bos.prepare_tokenizer(broken(), make_tokenizer())
    encoding = prepared("ab", return_offsets_mapping=True, return_special_tokens_mask=True)
    assert encoding["offset_mapping"] == [(0, 0), (0, 1), (1, 2)]
    assert encoding["special_tokens_mask"] == [1, 0, 0]
    assert prepared("a", "b")["input_ids"] == [BOS, ord("a"), BOS, ord("b")]
    prepared.save_pretrained(tmp_path)
    again = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert again("ab")["input_ids"] == prepared("ab")["input_ids"]


def test_what_stands_before_or_after_a_text_already_stays():
    tokenizer = make_tokenizer(eos_token="\x02")
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A \x02", special_tokens=[("\x02", 2)]
    )
    prepared, _ = bos.prepare_tokenizer(broken(), tokenizer)
    assert prepared("a")["input_ids"] == [BOS, ord("a"), 2]


def test_the_answer_is_found_once_per_model_and_tokenizer(monkeypatch):
    model, tokenizer = broken(), make_tokenizer()
    prepared, notes = bos.prepare_tokenizer(model, tokenizer)
    monkeypatch.setattr(bos, "missing_bos", None)
    assert bos.prepare_tokenizer(model, tokenizer) == (prepared, notes)
    assert bos.prepare_tokenizer(model, prepared) == (prepared, notes)


def test_nothing_is_kept_alive():
    model, tokenizer = broken(), make_tokenizer()
    gc.collect()  # models of other tests
    before = len(bos._prepared)
    bos.prepare_tokenizer(model, tokenizer)
    assert len(bos._prepared) == before + 1
    del model
    gc.collect()
    assert len(bos._prepared) == before


def test_a_model_that_does_not_care_keeps_its_tokenizer():
    tokenizer = make_tokenizer()
    assert bos.prepare_tokenizer(llama(1), tokenizer) == (tokenizer, ())


def test_a_tokenizer_that_adds_it_is_not_asked_about(monkeypatch):
    monkeypatch.setattr(bos, "_costs_without_and_with", None)
    tokenizer = make_tokenizer()
    bos.add_bos(tokenizer, BOS)
    assert bos.prepare_tokenizer(broken(), tokenizer) == (tokenizer, ())


def test_the_token_may_be_in_the_config_only():
    prepared, (note,) = bos.prepare_tokenizer(broken(bos_token_id=BOS), make_tokenizer(None))
    assert prepared("a")["input_ids"] == [BOS, ord("a")]
    assert "\x01" in note
    tokenizer = make_tokenizer(None)
    model = broken(bos_token_id=None)
    assert bos.prepare_tokenizer(model, tokenizer) == (tokenizer, ())


@pytest.mark.parametrize("kind", [GemmaForCausalLM, GemmaModel])
def test_a_family_that_is_trained_with_it(kind, monkeypatch):
    monkeypatch.setattr(bos, "_costs_without_and_with", None)
    prepared, (note,) = bos.prepare_tokenizer(gemma(kind), make_tokenizer())
    assert prepared("a")["input_ids"] == [BOS, ord("a")]
    assert "models of this family are always trained with it" in note


def test_a_chat_template_that_begins_with_it(monkeypatch):
    monkeypatch.setattr(bos, "_costs_without_and_with", None)
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{{ bos_token }}{{ messages[0].content }}"
    prepared, (note,) = bos.prepare_tokenizer(llama(1), tokenizer)
    assert "its chat template begins with it" in note
    chat = prepared.apply_chat_template([{"role": "user", "content": "a"}])
    assert chat["input_ids"] == [BOS, ord("a")]  # once


def test_models_that_cannot_be_asked_keep_their_tokenizer():
    tokenizer = make_tokenizer()
    assert bos.missing_bos(broken().model, tokenizer) is None  # no output layer
    few = LlamaForCausalLM(LlamaConfig(**llama(1).config.to_dict() | {"vocab_size": 50}))
    assert bos.missing_bos(few, tokenizer) is None  # has not all these tokens
    assert bos.prepare_tokenizer(llama(1), str.split) == (str.split, ())


def test_a_tokenizer_that_cannot_add_it_is_refused():
    class Slow:
        pass

    with pytest.raises(UserError, match="Slow leaves out the beginning-of-sequence token"):
        bos.add_bos(Slow(), BOS)


def test_the_model_is_not_changed():
    model = broken().train()
    before = copy.deepcopy(model.state_dict())
    bos.prepare_tokenizer(model, make_tokenizer())
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_scans_and_evaluations_read_it_and_say_so():
    model, tokenizer = gemma(), make_tokenizer()
    scan = shf.scan(model, tokenizer, lengths=[8], prompt=lambda length: "a" * length)
    assert scan.tokens == [9]
    (note,) = scan.config["notes"]
    assert "it was put before every prompt" in note
    evaluation = shf.evaluate(
        model, tokenizer, "lookup", lengths=[1], prompts=6, questions=1, notes=[note]
    )
    assert evaluation.config["notes"] == [note]  # and not twice
    with_it, _ = bos.prepare_tokenizer(model, tokenizer)
    again = shf.evaluate(model, with_it, "lookup", lengths=[1], prompts=6, questions=1)
    assert again.config["inputs_sha256"] == evaluation.config["inputs_sha256"]
    (after,) = evaluation.measurements["tokens"]
    without = shf.evaluate(llama(1), tokenizer, "lookup", lengths=[1], prompts=6, questions=1)
    assert [after - 1] == without.measurements["tokens"]
