"""Models quantised by torchao, if it is installed: `pip install torchao`."""

from __future__ import annotations

import logging

import pytest
import torch
from transformers import AutoModelForCausalLM

import sharpmax.hf as shf
from hf.patch import parallel_worker
from hf.patch.parallel_worker import make_calibration, short_task
from hf.small import llama, random_tokens, tokenizer
from sharpmax import UserError
from sharpmax.hf.loading.loader import load
from sharpmax.hf.model_info import quantised_tensors, weights_fingerprint

pytest.importorskip("torchao")
quantization = pytest.importorskip("torchao.quantization")
TorchAoConfig = pytest.importorskip("transformers").TorchAoConfig

pytestmark = pytest.mark.slow

GROUPS = quantization.PerGroup(16)
WEIGHTS_ONLY = {
    "int8": quantization.Int8WeightOnlyConfig(),
    "int4": quantization.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=GROUPS),
}
INPUTS_TOO = {"int8": quantization.Int8DynamicActivationInt8WeightConfig()}


def quantise(config):
    model = llama(context=700)
    quantization.quantize_(model, config)
    return model


def dequantise(model):
    plain, weights = llama(context=700), model.state_dict()
    for name, _ in quantised_tensors(model):
        weights[name] = weights[name].dequantize()
    plain.load_state_dict(weights)
    return plain


@pytest.mark.parametrize("name", WEIGHTS_ONLY)
def test_every_function_gives_what_the_dequantised_model_gives(name, tmp_path):
    model = quantise(WEIGHTS_ONLY[name])
    results = [parallel_worker.run(model, tmp_path / "a"), parallel_worker.run(dequantise(model), tmp_path / "b")]  # fmt: skip
    for result in results:
        for calibration in ("calibrate, answers", "calibrate, entropy", "tune"):
            if isinstance(result[calibration], dict):
                del result[calibration]["weights"]
    assert_close(*results)
    refused = parallel_worker.refusals(model, tmp_path)
    for verb in ("export", "certify"):
        assert "layers.0.self_attn.q_proj.weight is quantised" in refused[verb]


def assert_close(found, expected):
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert_close(found[name], value)
    elif isinstance(expected, (str, list)):
        assert found == expected
    else:
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("name", WEIGHTS_ONLY)
def test_a_folder_is_loaded(name, tmp_path):
    llama().save_pretrained(tmp_path / "plain")
    config = TorchAoConfig(WEIGHTS_ONLY[name])
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "plain", quantization_config=config)
    model.save_pretrained(tmp_path / "quantised")
    tokenizer().save_pretrained(tmp_path / "quantised")
    loaded = load(str(tmp_path / "quantised"))
    assert weights_fingerprint(loaded.model) == weights_fingerprint(model)
    tokens = random_tokens(2, 9)
    with torch.no_grad():
        assert torch.equal(loaded.model(tokens).logits, model(tokens).logits)
    scan = shf.scan(loaded.model, loaded.tokenizer, [4])
    assert scan.config["notes"] == ["the weights are quantised: torchao"]
    with pytest.raises(UserError, match="is quantised in a way that cannot be offloaded to disk"):
        load(str(tmp_path / "quantised"), device_map="auto", max_memory={"cpu": "10KB"})


@pytest.mark.parametrize("name", INPUTS_TOO)
def test_gradients_through_quantised_inputs_are_refused(name, caplog):
    model = quantise(INPUTS_TOO[name])
    with pytest.raises(UserError, match=r"tune needs gradients, and .* gives none to its input"):
        shf.tune(model, tokenizer(), {short_task: [10]}, from_tokens=8, steps=1)
    with shf.sharpen(model, make_calibration(model)), caplog.at_level(logging.ERROR):
        assert model(random_tokens(1, 9)).logits.isfinite().all()
