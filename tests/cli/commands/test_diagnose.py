"""`sharpmax diagnose` on a model in a folder."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest

import sharpmax.hf as shf
from hf.small import llama, tokenizer
from sharpmax import Constant

SMALL = ["--lengths", "2,3", "--prompts", "3", "--questions", "2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "tiny"
    llama(context=700).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def test_a_diagnosis_is_printed_and_written(folder, tmp_path, succeed, fail):
    out = tmp_path / "out"
    options = [*SMALL, "--policy", "constant:1.5@1-2", "--out", out]
    printed = " ".join(succeed("diagnose", folder, *options).out.split())
    result = shf.Diagnosis.load(out / "diagnose.json")
    direct = shf.diagnose(
        llama(context=700),
        tokenizer(),
        lengths=[2, 3],
        prompts=3,
        questions=2,
        policy=shf.Condition(Constant(1.5), layers=[1, 2]),
    )
    np.testing.assert_allclose(result.weight, direct.weight, atol=1e-3)
    assert f"{len(direct.retrieval_heads) or 'None'} of 12 heads" in printed
    names = {path.name for path in out.iterdir()}
    assert names == {result.arrays_file, "diagnose.json", "diagnose.png", "diagnose.svg"}
    assert "exists already" in fail("diagnose", folder, *options)


def test_an_interrupted_diagnosis_resumes(folder, tmp_path, run, succeed, monkeypatch):
    module, out, calls = import_module("sharpmax.hf.tune.diagnose"), tmp_path / "out", []
    monkeypatch.setattr(module, "SECONDS_BETWEEN_SAVES", 0.0)
    measure = module.measure_needle_rows

    def interrupt(*arguments):
        if len(calls) == 4:
            raise KeyboardInterrupt
        calls.append(1)
        return measure(*arguments)

    monkeypatch.setattr(module, "measure_needle_rows", interrupt)
    assert run("diagnose", folder, *SMALL, "--out", out).code == 130
    assert (out / "diagnose.part.json").exists()
    calls[:] = [1, 1]  # two prompts are left
    succeed("diagnose", folder, *SMALL, "--out", out)
    assert len(calls) == 4
    assert not list(out.glob("*.part*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "poem"], "unknown task 'poem': expected one of max, passkey, lookup"),
        (["--policy", "softest"], "unknown policy 'softest': expected one of paper"),
        (["--policy", "paper@7"], "layers: no 7 among 3"),
        (["--lengths", "4"], "lengths=[4]: give at least two"),
        (["--lengths", "2,90"], "90 names make"),
        (["--questions", "3"], "asks for 3 different names of 2"),
    ],
)
def test_an_error_leaves_nothing(folder, tmp_path, fail, arguments, message):
    assert message in fail("diagnose", folder, *SMALL, *arguments, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()
