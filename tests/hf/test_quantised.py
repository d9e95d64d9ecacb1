"""What results and hashes say of quantised weights."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from hf.families import FAMILIES, family_model
from hf.quantised_weights import dequantise, quantise
from hf.small import llama
from sharpmax.hf.model_info import (
    describe_model,
    describe_quantisation,
    quantised_tensors,
    weights_fingerprint,
)


@pytest.mark.parametrize("name", FAMILIES)
def test_plain_models_are_not_quantised(name):
    model = family_model(name)
    assert list(quantised_tensors(model)) == []
    assert describe_quantisation(model) is None


def test_a_description_names_the_method():
    model = quantise(llama())
    assert describe_quantisation(model) == "Int8Weight"
    model.config.quantization_config = {"quant_method": "torchao"}
    assert describe_quantisation(model) == "torchao"
    assert describe_model(model, None, [])["notes"] == ["the weights are quantised: torchao"]
    # Read from few bits and dequantised on loading: plain weights.
    plain = dequantise(model)
    assert describe_quantisation(plain) is None


def test_a_fingerprint_reads_integers_scales_and_settings():
    model = quantise(llama())
    fingerprint = weights_fingerprint(model)
    assert weights_fingerprint(quantise(llama())) == fingerprint
    assert weights_fingerprint(quantise(llama(seed=1))) != fingerprint
    assert weights_fingerprint(quantise(llama(), cut=True)) != fingerprint
    weight = model.model.layers[2].self_attn.k_proj.weight
    weight.integers[0, 0] += 1
    changed = weights_fingerprint(model)
    assert changed != fingerprint
    weight.scale[0] *= 2
    assert weights_fingerprint(model) not in (fingerprint, changed)


class Packed(nn.Module):
    """A layer whose weights are integers in a buffer, as those of GPTQ and AWQ."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("qweight", torch.arange(12, dtype=torch.int32).reshape(3, 4))


def test_a_fingerprint_reads_weights_in_buffers():
    model = llama()
    plain = weights_fingerprint(model)
    model.model.layers[0].mlp.up_proj = Packed()
    packed = weights_fingerprint(model)
    other = copy.deepcopy(model)
    other.model.layers[0].mlp.up_proj.qweight[2, 3] = 0
    assert len({plain, packed, weights_fingerprint(other)}) == 3
    assert describe_quantisation(model) == "int32"


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn])
def test_parameters_of_few_bits(dtype):
    model = llama()
    linear = model.model.layers[0].mlp.up_proj
    linear.weight = nn.Parameter((10 * linear.weight.detach()).abs().to(dtype), requires_grad=False)
    assert describe_quantisation(model) == str(dtype).removeprefix("torch.")
    fingerprint = weights_fingerprint(model)
    with torch.no_grad():
        linear.weight[0, 0] = 7
    assert weights_fingerprint(model) != fingerprint
