"""`sharpmax certify` on a model in a folder."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import OlmoConfig, OlmoForCausalLM, T5Config, T5ForConditionalGeneration

import sharpmax.hf as shf
from hf.small import llama, tokenizer

SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 128}


def save(model, folder):
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    path = tmp_path_factory.mktemp("scan") / "scan.json"
    return shf.scan(llama(), tokenizer(), [4, 8]).save(path)


def test_a_model_in_a_folder(saved_model, scan, tmp_path, succeed, fail):
    out = tmp_path / "out"
    command = ["certify", saved_model, "--out", out]
    printed = succeed(*command, "--scan", scan).out
    result = shf.Certificate.load(out / "certify.json")
    direct = shf.certify(llama())
    np.testing.assert_allclose(result.spread_bound, direct.spread_bound, rtol=1e-9)
    np.testing.assert_allclose(result.measured_spread, shf.Scan.load(scan).spread.max(0), rtol=1e-5)
    assert f"{np.median(direct.spread_bound[1]):,.1f}" in printed
    sentence = "Within the context of 512 tokens that is so for none of them"
    assert sentence in " ".join(printed.split())
    assert sorted(path.suffix for path in out.iterdir()) == [".json", ".npz", ".png", ".svg"]

    before = {path: path.read_bytes() for path in out.iterdir()}
    assert "certify.json" in (error := fail(*command))
    assert "exists already" in error
    assert {path: path.read_bytes() for path in out.iterdir()} == before
    assert "measured spread" not in succeed(*command, "--overwrite").out
    assert shf.Certificate.load(out / "certify.json").measured_spread is None


def test_small_weights_disperse_within_the_context(tmp_path, succeed):
    model = llama()
    with torch.no_grad():
        for block in model.model.layers:
            block.self_attn.q_proj.weight.mul_(1e-3)
    finished = succeed("certify", save(model, tmp_path / "model"), "--out", tmp_path / "out")
    assert "that is so for 12 of them" in " ".join(finished.out.split())


def test_an_encoder_decoder_by_its_encoder(tmp_path, succeed):
    torch.manual_seed(0)
    config = T5Config(vocab_size=128, d_model=16, d_kv=4, d_ff=8, num_layers=2, num_heads=4)
    folder = save(T5ForConditionalGeneration(config), tmp_path / "model")
    assert "certifying its encoder" in succeed("certify", folder, "--out", tmp_path / "out").err
    assert shf.Certificate.load(tmp_path / "out" / "certify.json").spread_bound.shape == (2, 4)


def test_errors_leave_nothing(saved_model, scan, tmp_path, fail):
    out = tmp_path / "out"
    command = ["certify", saved_model, "--out", out]
    assert "nowhere.json does not exist" in fail(*command, "--scan", "nowhere.json")
    other = shf.certify(llama()).save(tmp_path / "other.json")
    assert "of kind 'certify': expected a scan" in fail(*command, "--scan", other)
    bigger = save(llama(layers=2), tmp_path / "bigger")
    assert "the scan is of" in fail("certify", bigger, "--scan", scan, "--out", out)
    assert "no-such" in fail("certify", tmp_path / "no-such", "--out", out)
    assert "--nonsense" in fail(*command, "--nonsense")
    assert not out.exists()


def test_an_architecture_without_a_bound(tmp_path, fail):
    torch.manual_seed(0)
    model = OlmoForCausalLM(OlmoConfig(**SIZES, num_attention_heads=4, pad_token_id=0))
    error = fail("certify", save(model, tmp_path / "model"), "--out", tmp_path / "out")
    assert "OlmoForCausalLM (olmo) cannot be certified" in error
    assert not (tmp_path / "out").exists()
