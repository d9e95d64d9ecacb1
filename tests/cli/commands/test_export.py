"""`sharpmax export` on a model in a folder, and its mistakes in one line."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

import sharpmax as sx
import sharpmax.hf as shf
from hf.small import llama, random_tokens, tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "tiny"
    llama(context=2048).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@torch.no_grad()
def answer(model):
    return model(random_tokens(1, 32)).logits


def test_a_policy_becomes_a_plain_folder(folder, tmp_path, succeed):
    out = tmp_path / "out"
    options = ["--calibration", "log-length:4@1-2", "--at-length", "64", "--out", out]
    finished = succeed("export", folder, *options)
    assert "exact for inputs of 64 tokens" in finished.err
    assert str(out) in finished.out
    model = AutoModelForCausalLM.from_pretrained(folder)
    with shf.sharpen(model, sx.Constant(3.0), layers=[1, 2]):
        expected = answer(model)
    exported = answer(AutoModelForCausalLM.from_pretrained(out))
    torch.testing.assert_close(exported, expected, rtol=0, atol=1e-4)


def test_the_length_is_chosen_by_questions(folder, tmp_path, succeed):
    options = ["--calibration", "log-length:64", "--at-length", "auto", "--lengths", "2,8"]
    finished = succeed("export", folder, *options, "--out", tmp_path / "out")
    assert finished.err.count("log p of an answer") == 2
    assert "exact for inputs of" in finished.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--calibration", "paper"], "looks at the entropy"),
        (["--calibration", "log-length:16"], "give the number of tokens to export for"),
        (["--calibration", "log-length:16", "--at-length", "9"], "changes no head there"),
        (["--calibration", "constant:2", "--at-length", "-3"], "--at-length -3: expected a number"),
        (["--calibration", "constant:2", "--at-length", "1e9"], "--at-length 1e9: expected"),
        (["--calibration", "nothing.json"], "nothing.json"),
        (["--calibration", "tuned", "--at-length", "512"], "no tuned calibration comes with"),
        (["--calibration", "constant:2", "--out", "here.gguf"], "is not a GGUF file"),
    ],
)
def test_mistakes_in_one_line(folder, tmp_path, fail, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    assert message in fail("export", folder, *options)
    assert not list(tmp_path.iterdir())


def test_an_existing_folder_is_kept(folder, tmp_path, fail):
    (tmp_path / "out").mkdir()
    error = fail("export", folder, "--calibration", "constant:2", "--out", tmp_path / "out")
    assert "exists already" in error
    assert not list((tmp_path / "out").iterdir())
