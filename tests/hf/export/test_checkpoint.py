"""An exported folder is plain, complete, repeatable, and says what it is."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import sharpmax as sx
import sharpmax.hf as shf
from hf.families import FAMILIES, assert_close, run
from hf.small import llama, random_tokens, tokenizer
from sharpmax import UserError
from sharpmax.hf.export import checkpoint
from sharpmax.hf.export.choose_length import choose_length
from sharpmax.hf.export.factors import Sharpening, fixed_rules
from sharpmax.hf.model_info import weights_fingerprint
from sharpmax.hf.patch.context import patched_attention
from sharpmax.hf.tune.calibration import Calibration, architecture_of
from sharpmax.results.calibration import Head, Law, TextCost

TOKENS = random_tokens(2, 17)


def calibration_of(model, from_tokens=16):
    heads = [(0, 1, 0.5), (1, 0, -0.2), (2, 3, 0.9)]
    return Calibration(
        model="a small Llama",
        weights=weights_fingerprint(model),
        architecture=architecture_of(model),
        method={"command": "tune"},
        from_tokens=from_tokens,
        law=Law(low=0.3, high=3.0),
        text_cost=TextCost(tokens=100, nats_before=3.0, nats_after=3.003),
        heads=tuple(Head(layer=layer, head=head, rate=rate) for layer, head, rate in heads),
    )


def hashes(folder):
    return {
        file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.rglob("*")
    }


@torch.no_grad()
def answer(model):
    return model(TOKENS).logits


def test_the_folder_is_a_plain_model_that_does_what_sharpen_does_at_that_length(tmp_path):
    model = llama()
    plain, calibration = answer(model), calibration_of(model)
    folder = shf.export(model, calibration, tmp_path / "out", 64, tokenizer=tokenizer())
    assert torch.equal(answer(model), plain)
    exported = AutoModelForCausalLM.from_pretrained(folder)
    sharpening = Sharpening.create(model, calibration)
    rules = fixed_rules(sharpening.layers, sharpening.at_length(64))
    with patched_attention(model, sharpening.layers, rules):
        expected = answer(model)
    torch.testing.assert_close(answer(exported), expected, rtol=0, atol=1e-4)
    assert (expected - plain).abs().max() > 0.1
    assert AutoTokenizer.from_pretrained(folder)("abc").input_ids == tokenizer()("abc").input_ids
    with shf.sharpen(model, calibration):
        last = model(random_tokens(1, 64)).logits[0, -1]
    torch.testing.assert_close(
        exported(random_tokens(1, 64)).logits[0, -1].isfinite(), last.isfinite()
    )
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_second_export_has_the_same_bytes(tmp_path):
    model = llama()
    for name in ("one", "two"):
        shf.export(model, calibration_of(model), tmp_path / name, 64, tokenizer=tokenizer())
    assert hashes(tmp_path / "one") == hashes(tmp_path / "two")


def test_the_model_card_and_the_config_say_what_was_done(tmp_path):
    model = llama()
    calibration = calibration_of(model)
    folder = shf.export(model, calibration, tmp_path / "out", 64, name="my model")
    card = (folder / "README.md").read_text()
    sha256 = hashlib.sha256(calibration.text().encode()).hexdigest()
    assert card.startswith("# my model, sharpened at 64 tokens")
    assert f"calibration of a small Llama ({sha256}), at 64 tokens" in card
    assert "**Heads changed:** 3 in 3 layers, factors 0.723 to 2.248" in card
    assert "+0.10 % nats per token, over 100 tokens" in card
    assert "| 64 | 0.000 | 0.000 |" in card
    mark = json.loads((folder / "config.json").read_text())["sharpmax_export"]
    assert (mark["at_length"], mark["sha256"]) == (64, sha256)
    again = AutoModelForCausalLM.from_pretrained(folder)
    with pytest.raises(UserError, match="is an export already"):
        shf.export(again, sx.Constant(2.0), tmp_path / "twice")
    with pytest.raises(UserError, match="calibration is in its weights already"):
        shf.sharpen(again, calibration)


@pytest.mark.parametrize("name", ["GPT-2", "GPT-NeoX", "Phi-3", "OLMo 2", "gpt-oss", "Whisper"])
def test_every_layout_survives_saving(name, tmp_path):
    model, inputs = FAMILIES[name].make(), FAMILIES[name].example()
    folder = shf.export(model, sx.Constant(1.7), tmp_path / "out", heads=[1, 2])
    exported = type(model).from_pretrained(folder, dtype=model.dtype, attn_implementation="eager")
    with shf.sharpen(model, sx.Constant(1.7), heads=[1, 2]):
        expected = run(model, inputs)
    assert_close(run(exported.eval(), inputs), expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"sharpens more as inputs grow.*give the number of tokens"),
        ({"at_length": 0}, r"at_length=0: expected a number of tokens, 1 or more"),
        ({"at_length": True}, r"at_length=True"),
        ({"at_length": 16}, r"at_length=16: this calibration changes nothing up to 16 tokens"),
        ({"at_length": 64, "layers": [0]}, r"cannot be combined with a calibration"),
    ],
)
def test_mistakes_are_named_and_write_nothing(options, message, tmp_path):
    model = llama()
    with pytest.raises(UserError, match=message) as caught:
        shf.export(model, calibration_of(model), tmp_path / "out", **options)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_policy_that_changes_nothing_there(tmp_path):
    with pytest.raises(UserError, match=r"LogLength\(reference=512\) changes no head there"):
        shf.export(llama(), sx.LogLength(512), tmp_path / "out", 100)


def test_a_folder_is_replaced_only_if_asked(tmp_path):
    model, folder = llama(), tmp_path / "out"
    shf.export(model, sx.Constant(2.0), folder)
    before = hashes(folder)
    with pytest.raises(UserError, match="exists already"):
        shf.export(model, sx.Constant(3.0), folder)
    assert hashes(folder) == before
    shf.export(model, sx.Constant(3.0), folder, overwrite=True)
    assert hashes(folder) != before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def fails(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "_save_model", fails)
    with pytest.raises(UserError, match=r"cannot write .*out \(No space left on device\)"):
        shf.export(llama(), sx.Constant(2.0), tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_killed_export_leaves_no_half_folder(tmp_path):
    program = """
import sys, time
import sharpmax as sx, sharpmax.hf as shf
from hf.small import llama
from sharpmax.hf.export import checkpoint
save = checkpoint._save_model
def slow(*arguments):
    save(*arguments)
    print("saved", flush=True)
    time.sleep(60)
checkpoint._save_model = slow
shf.export(llama(), sx.Constant(2.0), sys.argv[1])
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "out")],
        env=environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline() == "saved\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert not (tmp_path / "out").exists()
    time.sleep(0.01)
    shf.export(llama(), sx.Constant(2.0), tmp_path / "out")
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out") is not None


def test_the_length_may_be_chosen_by_questions():
    model = llama(context=2048)
    condition = shf.Condition(sx.LogLength(64))
    chosen, gains = choose_length(
        model, tokenizer(), condition, "lookup", lengths=[4, 12], prompts=1
    )
    assert chosen in gains
    assert gains[chosen] == max(gains.values())
    with pytest.raises(UserError, match="changes nothing at the lengths"):
        choose_length(
            model,
            tokenizer(),
            shf.Condition(sx.LogLength(10_000)),
            "lookup",
            lengths=[4],
            prompts=1,
        )
