"""`sharpmax scan` on a model in a folder."""

from __future__ import annotations

import errno
import json
import shutil

import numpy as np
import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, T5Config, T5ForConditionalGeneration

import sharpmax.hf as shf
from hf.small import count_passes, llama, tokenizer
from sharpmax.hf.model_info import weights_fingerprint
from sharpmax.hf.tune.calibration import architecture_of
from sharpmax.policies import Constant
from sharpmax.results.calibration import Head, Law


def test_a_model_in_a_folder(saved_model, tmp_path, succeed, fail):
    out = tmp_path / "out"
    command = ["scan", saved_model, "--out", out]
    printed = succeed(*command, "--lengths", "4,8,16", "--seed", "3").out
    result = shf.Scan.load(out / "scan.json")
    assert result.lengths == [4, 8, 16]
    direct = shf.scan(llama(), tokenizer(), [4, 8, 16], seed=3)
    np.testing.assert_allclose(result.entropy, direct.entropy, atol=1e-5)
    assert f"{direct.entropy[2].mean():.2f}" in printed
    assert "Of 12 heads" in printed
    suffixes = sorted(path.suffix for path in out.iterdir())
    assert suffixes == [".html", ".json", ".npz", ".png", ".svg"]
    assert (out / "scan.html").read_text().startswith("<!DOCTYPE html>")
    assert result.provenance.command

    before = {path: path.read_bytes() for path in out.iterdir()}
    assert "scan.json" in (error := fail(*command))
    assert "exists already" in error
    assert {path: path.read_bytes() for path in out.iterdir()} == before
    succeed(*command, "--lengths", "5", "--overwrite")
    assert shf.Scan.load(out / "scan.json").lengths == [5]


def test_some_heads_of_a_sharpened_model_on_a_text(saved_model, tmp_path, succeed):
    text = tmp_path / "story.txt"
    text.write_text("Once upon a time there was a head that looked at everything. " * 5)
    options = ["--prompt", "text", "--text", text, "--lengths", "20,40", "--layers", "0-1"]
    options += ["--heads", "1,3", "--policy", "constant:2", "--out", tmp_path / "out"]
    succeed("scan", saved_model, *options)
    result = shf.Scan.load(tmp_path / "out" / "scan.json")
    assert result.entropy.shape == (2, 2, 2)
    assert result.config["policy"] == repr(Constant(2.0))
    assert result.config["prompt"] == "text story.txt"


def test_two_scans_compared(saved_model, tmp_path, succeed):
    """A scan with a calibration, beside the plain one in a report."""
    model = llama()
    calibration = shf.Calibration(
        model="llama",
        weights=weights_fingerprint(model),
        architecture=architecture_of(model),
        method={},
        from_tokens=4,
        law=Law(),
        heads=(Head(layer=1, head=2, rate=0.5),),
    )
    file = calibration.save(tmp_path / "tuned.json")
    plain = ["scan", saved_model, "--lengths", "4,8"]
    succeed(*plain, "--out", tmp_path / "plain")
    succeed(*plain, "--policy", file, "--out", tmp_path / "tuned")
    files = [tmp_path / name / "scan.json" for name in ("plain", "tuned")]
    first, second = map(shf.Scan.load, files)
    assert second.config["policy"].startswith("calibration of 1 heads, SHA-256 ")
    changed = ~np.isclose(first.entropy, second.entropy, atol=1e-5)
    assert changed[-1, 1, 2]
    assert not changed[:, 0].any()
    out = tmp_path / "compared.html"
    assert "not compared" not in succeed("report", *files, "--out", out).out
    assert "Plain and tuned" in out.read_text("utf-8")
    succeed("scan", saved_model, "--lengths", "4,9", "--out", tmp_path / "other")
    other = tmp_path / "other" / "scan.json"
    printed = succeed("report", files[0], other, "--out", out, "--overwrite").out
    assert "The two scans are not compared: they read different inputs" in printed


def test_an_encoder_decoder_by_its_encoder(tmp_path, succeed):
    torch.manual_seed(0)
    config = T5Config(vocab_size=128, d_model=16, d_kv=4, d_ff=8, num_layers=2, num_heads=4)
    T5ForConditionalGeneration(config).save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    out = tmp_path / "out"
    finished = succeed("scan", tmp_path / "model", "--lengths", "4,8", "--out", out)
    assert "scanning its encoder" in finished.err
    assert shf.Scan.load(out / "scan.json").entropy.shape == (2, 2, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lengths", "4,900"], "900 numbers are"),
        (["--lengths", "a"], "--lengths: expected whole numbers such as 0,4-7, got 'a'"),
        (["--heads", "3-1"], "--heads: invalid range '3-1': the start is larger than the end"),
        (
            ["--policy", "constant:2@1"],
            "--policy constant:2@1: a scan measures a policy in all layers",
        ),
        (["--policy", "tuned"], "no tuned calibration comes with sharpmax for these weights"),
        (["--policy", "softest"], "unknown policy 'softest': expected one of paper"),
        (["--prompt", "poem"], "unknown prompt 'poem'"),
        (["--prompt", "text"], "needs a file"),
        (["--layers", "9"], "layers: no 9 among 3"),
        (["--device", "tpu"], "tpu"),
        (["--dtype", "int8"], "int8"),
        (["--seed", "-1"], "--seed"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_an_error_leaves_nothing(saved_model, tmp_path, fail, arguments, message):
    assert message in fail("scan", saved_model, *arguments, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def _truncate(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def _delete_weights(folder):
    (folder / "model.safetensors").unlink()


def _pickle(folder):
    (folder / "model.safetensors").unlink()
    torch.save(llama().state_dict(), folder / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shutil.rmtree, "model"),
        (_delete_weights, "weights"),
        (_truncate, "damaged weights"),
        (_pickle, "pickle"),
    ],
)
def test_a_damaged_model_leaves_nothing(model_folder, tmp_path, fail, damage, message):
    damage(model_folder)
    assert message in fail("scan", model_folder, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_pickle_if_allowed(model_folder, tmp_path, succeed):
    _pickle(model_folder)
    options = ["--allow-pickle", "--lengths", "5", "--out", tmp_path / "out"]
    succeed("scan", model_folder, *options)
    assert (tmp_path / "out" / "scan.json").is_file()


def test_an_unsupported_combination(tmp_path, fail):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 4}
    config = Gemma2Config(**sizes, num_attention_heads=4, num_key_value_heads=4, vocab_size=128)
    Gemma2ForCausalLM(config).save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    options = ["--policy", "paper", "--lengths", "5", "--out", tmp_path / "out"]
    error = fail("scan", tmp_path / "model", *options)
    assert "softcap or a bias: scan it without a policy" in error
    assert not (tmp_path / "out").exists()


def test_an_interrupted_scan_resumes(saved_model, tmp_path, run, succeed, monkeypatch):
    out = tmp_path / "out"
    command = ["scan", saved_model, "--lengths", "4,6,8", "--out", out]
    passes = count_passes(monkeypatch, stop_after=2, error=KeyboardInterrupt)
    assert run(*command) == (130, "", "sharpmax: stopped\n")
    checkpoint = json.loads((out / "scan.part.json").read_text())
    assert list(checkpoint["measurements"]["seconds"]) == ["4", "6"]
    passes.stop_after = None
    succeed(*command)
    assert passes.number == 3
    assert not list(out.glob("*part*"))
    assert shf.Scan.load(out / "scan.json").lengths == [4, 6, 8]


def test_a_result_that_cannot_be_written_keeps_the_checkpoint(
    saved_model, tmp_path, fail, succeed, monkeypatch
):
    command = ["scan", saved_model, "--lengths", "4,6", "--out", tmp_path / "out"]
    passes = count_passes(monkeypatch)

    def no_space(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device", "scan.json")

    with monkeypatch.context() as patch:
        patch.setattr(shf.Scan, "save", no_space)
        assert "scan.json: No space left on device" in fail(*command)
    succeed(*command)
    assert passes.number == 2
