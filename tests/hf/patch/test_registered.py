"""`attn_implementation="sharpmax"` with a calibration, for tools that load models themselves."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, pipeline

import sharpmax as sx
import sharpmax.hf as shf
from hf.export.test_checkpoint import calibration_of
from hf.families import FAMILIES
from hf.small import llama, random_tokens, tokenizer
from sharpmax import UserError

TOKENS = random_tokens(2, 40)


@torch.no_grad()
def answer(model):
    return model(TOKENS).logits


@pytest.fixture
def folder(tmp_path):
    model = llama()
    model.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    calibration_of(model).save(tmp_path / "calibration.json")
    return tmp_path


@pytest.mark.parametrize("given", ["beside", "path", "calibration"])
def test_a_calibration_is_picked_up_if_it_is_asked_for(given, folder):
    path = folder / "calibration.json"
    calibration = shf.Calibration.load(path)
    shf.register({"beside": "beside", "path": path, "calibration": calibration}[given])
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sharpmax")
    found = answer(model)
    model.set_attn_implementation("sdpa")
    plain = answer(model)
    with shf.sharpen(model, calibration):
        assert torch.equal(answer(model), found)
    assert (found - plain).abs().max() > 0.1
    torch.testing.assert_close(found[:, :16], plain[:, :16], rtol=0, atol=1e-5)


def test_a_block_refines_it(folder):
    shf.register("beside")
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sharpmax")
    found = answer(model)
    with shf.sharpen(model, sx.Constant(3.0), layers=[2]):
        refined = answer(model)
    assert (refined - found).abs().max() > 0.1
    assert torch.equal(answer(model), found)
    shf.register(sx.Constant(1.0))
    assert not torch.equal(answer(model), found)


def test_a_pipeline_runs_it(folder):
    shf.register("beside")
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sharpmax")
    generate = pipeline("text-generation", model=model, tokenizer=tokenizer())
    prompt = "a" * 60
    (found,) = generate(prompt, max_new_tokens=4, do_sample=False)
    shf.register(sx.Constant(1.0))
    with shf.sharpen(model, folder / "calibration.json"):
        (expected,) = generate(prompt, max_new_tokens=4, do_sample=False)
    assert found == expected


def test_what_does_not_fit_is_refused_by_name(folder):
    shf.register("beside")
    with pytest.raises(UserError, match=r"calibration\.json: no such file"):
        answer(llama(attn_implementation="sharpmax"))
    shf.register(folder / "calibration.json")
    with pytest.raises(UserError, match="a small Llama with 3 layers, and 4 heads a layer; this"):
        answer(llama(layers=2, attn_implementation="sharpmax"))
    mistral = FAMILIES["Mistral"].make("sharpmax")
    with pytest.raises(UserError, match=r"\(llama\), and MistralAttention belongs to a mistral"):
        mistral(**FAMILIES["Mistral"].example())
    with pytest.raises(UserError, match=r"nothing\.json"):
        shf.register("nothing.json")
    with pytest.raises(TypeError, match="a calibration or its path, got 1"):
        shf.register(1.5)
