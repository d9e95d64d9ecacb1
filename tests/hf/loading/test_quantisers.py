"""Folders whose config names a quantisation that cannot run here are refused in one line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from hf.small import llama, tokenizer
from sharpmax import UserError
from sharpmax.hf.loading import quantisers
from sharpmax.hf.loading.loader import load


@pytest.fixture(autouse=True)
def nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantisers, "_is_missing", lambda module: module != "optimum")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "llama"
    llama(layers=1).save_pretrained(path)
    tokenizer().save_pretrained(path)
    return path


def refusal(folder: Path, quantisation: dict[str, Any]) -> str:
    file = folder / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | {"quantization_config": quantisation}))
    try:
        with pytest.raises(UserError) as caught:
            load(str(folder))
    finally:
        file.write_text(json.dumps(config))
    message = str(caught.value)
    assert message.startswith(str(folder))
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("bitsandbytes", "needs bitsandbytes: pip install bitsandbytes"),
        ("gptq", "needs gptqmodel: pip install gptqmodel"),
        ("awq", "needs gptqmodel: pip install gptqmodel"),
        ("torchao", "needs torchao: pip install torchao"),
        ("compressed-tensors", "needs compressed-tensors: pip install compressed-tensors"),
        ("quanto", "needs optimum-quanto: pip install optimum-quanto"),
        ("higgs", "needs flute-kernel and fast_hadamard_transform: pip install flute-kernel fast"),
        ("aqlm", "needs aqlm[cpu,gpu]: pip install 'aqlm[cpu,gpu]'"),
    ],
)
def test_a_missing_package_is_named(folder: Path, method: str, expected: str):
    config = {"quant_method": method, "bits": 4, "load_in_4bit": True, "group_size": 32}
    assert f"is quantised ({method}), which {expected}" in refusal(folder, config)


def test_an_unknown_method_is_named(folder: Path):
    assert "is quantised by 'frobnicate', unknown to this transformers" in refusal(
        folder, {"quant_method": "frobnicate"}
    )


def test_what_needs_a_gpu_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(quantisers, "_is_missing", lambda _: False)
    message = refusal(folder, {"quant_method": "fp_quant"})
    assert "is quantised in a way that this machine cannot run" in message
    assert "GPU" in message


def test_every_method_of_transformers_is_known():
    """Methods that need no package are listed here, so that a new one is looked at."""
    from transformers.utils.quantization_config import QuantizationMethod

    without = {"bitnet", "fp8", "gemma", "gguf", "mxfp4", "mxfp8"}
    methods = {method.value for method in QuantizationMethod}
    assert methods - without - {"eetq"} <= quantisers.PACKAGES.keys()
    assert not without & quantisers.PACKAGES.keys()


def test_a_package_that_is_too_old_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(quantisers, "_is_missing", lambda _: False)
    monkeypatch.setitem(sys.modules, "hqq", None)
    message = refusal(folder, {"quant_method": "hqq"})
    assert "needs a package that is missing or too old" in message
    assert "HQQ" in message
