"""`sharpmax scan`: one command on a model in a folder; a mistake is one line and leaves nothing."""

from __future__ import annotations

import errno
import json
import shutil

import numpy as np
import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM

import sharpmax.hf as shf
from hf.small import count_passes, llama, tokenizer
from sharpmax import cli
from sharpmax._errors import UserError
from sharpmax.cli.policies import policy_named
from sharpmax.cli.scan import numbers
from sharpmax.policies import PAPER, Constant, LogLength, Saturating


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "tiny"
    llama().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "model")


def run(capsys, *arguments):
    code = cli.main(["scan", *map(str, arguments)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_a_model_in_a_folder(folder, tmp_path, capsys):
    out = tmp_path / "out"
    code, printed, errors = run(capsys, folder, "--lengths", "4,8,16", "--seed", "3", "--out", out)
    assert code == 0, errors
    found = shf.Scan.load(out / "scan.json")
    assert found.lengths == [4, 8, 16]
    direct = shf.scan(llama(), tokenizer(), [4, 8, 16], seed=3)
    np.testing.assert_allclose(found.entropy, direct.entropy, atol=1e-5)
    assert f"{direct.entropy[2].mean():.2f}" in printed
    assert "Of 12 heads" in printed
    assert sorted(path.suffix for path in out.iterdir()) == [
        ".html",
        ".json",
        ".npz",
        ".png",
        ".svg",
    ]
    page = (out / "scan.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert found.provenance.command.split()[0] != ""

    before = {path: path.read_bytes() for path in out.iterdir()}
    code, printed, errors = run(capsys, folder, "--out", out)
    assert (code, printed) == (2, "")
    assert "scan.json" in errors
    assert "exists already" in errors
    assert {path: path.read_bytes() for path in out.iterdir()} == before
    code, _, errors = run(capsys, folder, "--lengths", "5", "--out", out, "--overwrite")
    assert code == 0, errors
    assert shf.Scan.load(out / "scan.json").lengths == [5]


def test_some_layers_sharpened_on_a_text(folder, tmp_path, capsys):
    text = tmp_path / "story.txt"
    text.write_text("Once upon a time there was a head that looked at everything. " * 5)
    options = ["--prompt", "text", "--text", text, "--lengths", "20,40", "--layers", "0-1"]
    code, _, errors = run(
        capsys,
        folder,
        *options,
        "--heads",
        "1,3",
        "--policy",
        "constant:2",
        "--out",
        tmp_path / "o",
    )
    assert code == 0, errors
    found = shf.Scan.load(tmp_path / "o" / "scan.json")
    assert found.entropy.shape == (2, 2, 2)
    assert found.config["policy"] == repr(Constant(2.0))
    assert found.config["prompt"] == "text story.txt"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lengths", "4,900"], "900 numbers are"),
        (["--lengths", "a"], "--lengths a: expected whole numbers"),
        (["--policy", "softest"], "unknown policy 'softest': expected one of paper"),
        (["--policy", "paper:2"], "paper takes no number"),
        (["--policy", "constant"], "needs a number"),
        (["--policy", "constant:-1"], "policy 'constant:-1'"),
        (["--prompt", "poem"], "unknown prompt 'poem'"),
        (["--prompt", "text"], "needs a file"),
        (["--layers", "9"], "layers: no 9 among 3"),
        (["--device", "tpu"], "tpu"),
        (["--dtype", "int8"], "int8"),
        (["--seed", "-1"], "--seed"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(folder, tmp_path, capsys, arguments, message):
    code, printed, errors = run(capsys, folder, *arguments, "--out", tmp_path / "out")
    assert (code, printed) == (2, "")
    assert message in errors
    assert len(errors.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def _truncated(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def _no_weights(folder):
    (folder / "model.safetensors").unlink()


def _pickled(folder):
    (folder / "model.safetensors").unlink()
    torch.save(llama().state_dict(), folder / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shutil.rmtree, "model"),
        (_no_weights, "weights"),
        (_truncated, "damaged weights"),
        (_pickled, "pickle"),
    ],
)
def test_a_damaged_model_is_one_line_and_leaves_nothing(folder, tmp_path, capsys, damage, message):
    damage(folder)
    code, printed, errors = run(capsys, folder, "--out", tmp_path / "out")
    assert (code, printed) == (2, "")
    assert message in errors
    assert len(errors.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_measured_is_one_line(tmp_path, capsys):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 4}
    config = Gemma2Config(**sizes, num_attention_heads=4, num_key_value_heads=4, vocab_size=128)
    Gemma2ForCausalLM(config).save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    capsys.readouterr()
    code, printed, errors = run(
        capsys, tmp_path / "model", "--policy", "paper", "--lengths", "5", "--out", tmp_path / "out"
    )
    assert (code, printed) == (2, "")
    assert "softcap or a bias: scan it without a policy" in errors
    assert len(errors.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_pickle_if_asked(folder, tmp_path, capsys):
    _pickled(folder)
    code, _, errors = run(
        capsys, folder, "--allow-pickle", "--lengths", "5", "--out", tmp_path / "out"
    )
    assert code == 0, errors


def test_a_stopped_scan_goes_on(folder, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    passed = count_passes(monkeypatch, stop_after=2, error=KeyboardInterrupt)
    code, _, errors = run(capsys, folder, "--lengths", "4,6,8", "--out", out)
    assert code == 130
    assert "stopped" in errors
    part = json.loads((out / "scan.part.json").read_text())
    assert list(part["measurements"]["seconds"]) == ["4", "6"]
    passed.stop_after = None
    code, _, errors = run(capsys, folder, "--lengths", "4,6,8", "--out", out)
    assert code == 0, errors
    assert passed.number == 3
    assert not list(out.glob("*part*"))
    assert shf.Scan.load(out / "scan.json").lengths == [4, 6, 8]


def test_figure_3_of_another_model(folder, tmp_path, capsys):
    arguments = ["reproduce", "figure3", "--model", str(folder), "--out", str(tmp_path / "out")]
    assert cli.main(arguments) == 2  # 512 numbers do not fit its context
    assert "the context of this model is 512" in capsys.readouterr().err
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 4096}))
    assert cli.main(arguments) == 0
    found = json.loads((tmp_path / "out" / "figure3.json").read_text())
    assert found["measurements"]["model"] == str(folder)
    assert np.shape(found["measurements"]["entropy"]) == (5, 7, 4)
    assert cli.main(["reproduce", "figure1", "--model", "x", "--out", str(tmp_path / "1")]) == 2
    assert "--model x goes with figure3" in capsys.readouterr().err


def test_a_result_that_cannot_be_written_costs_no_work(folder, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    passed = count_passes(monkeypatch)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device", "scan.json")

    with monkeypatch.context() as patch:
        patch.setattr(shf.Scan, "save", full)
        code, _, errors = run(capsys, folder, "--lengths", "4,6", "--out", out)
    assert code == 2
    assert "scan.json: No space left on device" in errors
    code, _, errors = run(capsys, folder, "--lengths", "4,6", "--out", out)
    assert code == 0, errors
    assert passed.number == 2


def test_policies_by_name():
    assert policy_named("paper") is PAPER
    assert policy_named("saturating") == Saturating(PAPER)
    assert policy_named("constant:1.5") == Constant(1.5)
    assert policy_named("log-length:512") == LogLength(512.0)


def test_ranges_of_numbers():
    assert numbers("--layers", "0, 4-6,2") == [0, 4, 5, 6, 2]
    for wrong in ("", "1-", "-1", "a-b", "1.5"):
        with pytest.raises(UserError, match="expected whole numbers"):
            numbers("--layers", wrong)
