"""`sharpmax certify`: one command on a model in a folder; a mistake is one line and leaves nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import OlmoConfig, OlmoForCausalLM, T5Config, T5ForConditionalGeneration

import sharpmax.hf as shf
from hf.small import llama, tokenizer
from sharpmax import cli

SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 128}


def stored(model, folder):
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return stored(llama(), tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    path = tmp_path_factory.mktemp("scan") / "scan.json"
    return shf.scan(llama(), tokenizer(), [4, 8]).save(path)


def run(capsys, *arguments):
    capsys.readouterr()
    code = cli.main(["certify", *map(str, arguments)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_a_model_in_a_folder(folder, scan, tmp_path, capsys):
    out = tmp_path / "out"
    code, printed, errors = run(capsys, folder, "--scan", scan, "--out", out)
    assert code == 0, errors
    found = shf.Certificate.load(out / "certify.json")
    direct = shf.certify(llama())
    np.testing.assert_allclose(found.spread_bound, direct.spread_bound, rtol=1e-9)
    np.testing.assert_allclose(found.measured_spread, shf.Scan.load(scan).spread.max(0), rtol=1e-5)
    assert f"{np.median(direct.spread_bound[1]):,.1f}" in printed
    assert "Within the context of 512 tokens that is so for none of them" in " ".join(
        printed.split()
    )
    assert sorted(path.suffix for path in out.iterdir()) == [".json", ".npz", ".png", ".svg"]

    before = {path: path.read_bytes() for path in out.iterdir()}
    code, printed, errors = run(capsys, folder, "--out", out)
    assert (code, printed) == (2, "")
    assert "certify.json" in errors
    assert "exists already" in errors
    assert {path: path.read_bytes() for path in out.iterdir()} == before
    code, printed, errors = run(capsys, folder, "--out", out, "--overwrite")
    assert code == 0, errors
    assert shf.Certificate.load(out / "certify.json").measured_spread is None
    assert "measured spread" not in printed


def test_small_weights_say_something(tmp_path, capsys):
    model = llama()
    with torch.no_grad():
        for block in model.model.layers:
            block.self_attn.q_proj.weight.mul_(1e-3)
    code, printed, errors = run(
        capsys, stored(model, tmp_path / "model"), "--out", tmp_path / "out"
    )
    assert code == 0, errors
    assert "that is so for 12 of them" in " ".join(printed.split())


def test_an_encoder_decoder_by_its_encoder(tmp_path, capsys):
    torch.manual_seed(0)
    config = T5Config(vocab_size=128, d_model=16, d_kv=4, d_ff=8, num_layers=2, num_heads=4)
    stored(T5ForConditionalGeneration(config), tmp_path / "model")
    code, _, errors = run(capsys, tmp_path / "model", "--out", tmp_path / "out")
    assert code == 0, errors
    assert "its encoder is certified" in errors
    assert shf.Certificate.load(tmp_path / "out" / "certify.json").spread_bound.shape == (2, 4)


def failure(capsys, tmp_path, *arguments):
    """The one line that a command which must fail prints; it leaves nothing behind."""
    code, printed, errors = run(capsys, *arguments, "--out", tmp_path / "out")
    assert (code, printed) == (2, "")
    assert len(errors.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()
    return errors


def test_a_mistake_is_one_line_and_leaves_nothing(folder, scan, tmp_path, capsys):
    found = failure(capsys, tmp_path, folder, "--scan", "nowhere.json")
    assert "nowhere.json does not exist" in found
    other = shf.certify(llama()).save(tmp_path / "other.json")
    found = failure(capsys, tmp_path, folder, "--scan", other)
    assert "of kind 'certify', not a scan" in found
    bigger = stored(llama(layers=2), tmp_path / "bigger")
    assert "the scan is of" in failure(capsys, tmp_path, bigger, "--scan", scan)
    assert "no-such" in failure(capsys, tmp_path, tmp_path / "no-such")
    assert "--nonsense" in failure(capsys, tmp_path, folder, "--nonsense")


def test_an_uncovered_architecture_is_one_line(tmp_path, capsys):
    torch.manual_seed(0)
    model = OlmoForCausalLM(OlmoConfig(**SIZES, num_attention_heads=4, pad_token_id=0))
    stored(model, tmp_path / "model")
    found = failure(capsys, tmp_path, tmp_path / "model")
    assert "OlmoForCausalLM (olmo) cannot be certified" in found
