"""Facts about models: what results say of them, and how they scale their attention themselves."""

from __future__ import annotations

import copy
from contextlib import ExitStack
from typing import Any

import pytest
import torch
import transformers
from accelerate import cpu_offload
from transformers import PreTrainedModel

import sharpmax as sx
import sharpmax.hf as shf
from hf.families import DECODER, FAMILIES, assert_close, family_model
from hf.small import llama
from sharpmax.hf.model_info import (
    context_length,
    describe_length_temperature,
    describe_model,
    is_encoder_decoder,
    weights_fingerprint,
)
from sharpmax.hf.patch.wrappers import input_device


def test_a_description_names_what_was_measured():
    model = llama(layers=1)
    description = describe_model(model, None, ["a note"])
    assert description == {
        "model": "LlamaForCausalLM",
        "architecture": "LlamaForCausalLM",
        "model_type": "llama",
        "parameters": model.num_parameters(),
        "dtype": "float32",
        "device": "cpu",
        "notes": ["a note"],
    }
    assert describe_model(model.bfloat16(), "mine", [])["dtype"] == "bfloat16"
    assert describe_model(model, "mine", [])["model"] == "mine"


def test_a_fingerprint_tells_weights_apart():
    model = llama()
    fingerprint = weights_fingerprint(model)
    assert weights_fingerprint(llama()) == fingerprint
    assert weights_fingerprint(llama(seed=1)) != fingerprint
    with torch.no_grad():
        model.model.layers[2].self_attn.k_proj.weight[0, 0] += 1
    assert weights_fingerprint(model) != fingerprint


@pytest.mark.parametrize("name", FAMILIES)
def test_a_fingerprint_and_a_count_reach_offloaded_and_tied_weights(name):
    model = copy.deepcopy(family_model(name))
    fingerprint, parameters = (
        weights_fingerprint(model),
        describe_model(model, None, [])["parameters"],
    )
    model = cpu_offload(model)
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    assert weights_fingerprint(model) == fingerprint
    description = describe_model(model, None, [])
    assert (description["parameters"], description["device"]) == (parameters, "cpu")
    assert "weights were spread over CPU memory or disk, and brought" in description["notes"][-1]


EMBEDDING_STAYS = {"model.embed_tokens": "cpu", "model.layers": "disk", "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu"}  # fmt: skip


@pytest.mark.parametrize("places", [{"": "disk"}, EMBEDDING_STAYS])
@pytest.mark.parametrize("tied", [False, True])
def test_a_fingerprint_reaches_the_disk(tmp_path, places, tied):
    model = llama(tie_word_embeddings=tied)
    model.save_pretrained(tmp_path)
    offloaded = type(model).from_pretrained(
        tmp_path, device_map=places, offload_folder=str(tmp_path / "offloaded")
    )
    assert any(parameter.is_meta for parameter in offloaded.parameters())
    assert weights_fingerprint(offloaded) == weights_fingerprint(model)
    count = describe_model(offloaded, None, [])["parameters"]
    assert count == describe_model(model, None, [])["parameters"]


def test_weights_without_values_are_refused():
    with torch.device("meta"):
        model = llama()
    for job in (weights_fingerprint, input_device, lambda model: describe_model(model, None, [])):
        with pytest.raises(sx.UserError, match=r"device meta\): load"):
            job(model)


@pytest.mark.parametrize(("name", "expected"), [("Llama", 64), ("GPT-2", 64), ("T5", None)])
def test_the_context_is_what_the_config_says(name, expected):
    assert context_length(family_model(name)) == expected


def test_an_encoder_or_a_decoder_alone_is_no_encoder_decoder():
    model = family_model("T5")
    assert is_encoder_decoder(model)
    assert not is_encoder_decoder(model.get_encoder())
    assert not is_encoder_decoder(family_model("Llama"))
    assert not is_encoder_decoder(family_model("BERT"))


def small(name: str, **options: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**{**DECODER, **options})
    model = getattr(transformers, f"{name.removesuffix('Text')}ForCausalLM")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2) if parameter.ndim > 1 else parameter.fill_(1)
    return model.eval()


YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 16}  # fmt: skip
LONG = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "original_max_position_embeddings": 16, "factor": 4.0}  # fmt: skip
MINISTRAL = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.1, "beta_fast": 32.0, "beta_slow": 1.0}  # fmt: skip
LLAMA_4 = {"head_dim": 8, "intermediate_size_mlp": 48, "num_local_experts": 2, "attention_chunk_size": 5}  # fmt: skip

TEMPERATURES: list[tuple[str, dict[str, Any], str]] = [
    ("Llama4Text", {**LLAMA_4, "attn_temperature_tuning": True}, "attn_temperature_tuning"),
    ("Ministral3", {"head_dim": 8, "rope_parameters": MINISTRAL}, "llama_4_scaling_beta"),
    ("Llama", {"rope_parameters": YARN}, "rope_type=yarn"),
    ("Phi3", {"rope_parameters": LONG, "original_max_position_embeddings": 16}, "rope_type=longrope"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "options", "description"),
    TEMPERATURES,
    ids=[description for *_, description in TEMPERATURES],
)
@torch.no_grad()
def test_a_length_temperature_is_described_and_warned_of(name, options, description):
    model = small(name, **options)
    assert describe_length_temperature(model).startswith(description)
    ids = torch.arange(3, 15)[None]
    model.set_attn_implementation("eager")
    expected = model(input_ids=ids)[0]
    with ExitStack() as block:
        with pytest.warns(shf.LengthTemperatureWarning, match=description) as caught:
            block.enter_context(shf.sharpen(model, sx.Constant(1.0)))
        assert len(caught) == 1
        assert_close(model(input_ids=ids)[0], expected)


@pytest.mark.parametrize("name", FAMILIES)
def test_no_tested_family_has_a_length_temperature(name):
    assert describe_length_temperature(family_model(name)) is None


def test_llama_4_without_its_length_temperature():
    assert (
        describe_length_temperature(small("Llama4Text", **LLAMA_4, attn_temperature_tuning=False))
        is None
    )
