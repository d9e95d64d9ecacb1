"""Every tested family of models: plain sharpmax attention gives the answers of eager attention, with
padding, caches, `generate` and gradients; sharpening changes them; afterwards nothing has changed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel, StaticCache

import sharpmax as sx
import sharpmax.hf as shf
from hf.families import (
    FAMILIES,
    HEADS,
    TOKENS,
    VARIANTS,
    assert_close,
    assert_far,
    difference,
    family_model,
    is_real,
    run,
    tolerance,
)
from hf.small import assert_nothing_is_patched
from sharpmax.hf.patch.layers import attention_layers, count_heads
from sharpmax.hf.patch.parity import TESTED_MODEL_TYPES
from sharpmax.hf.patch.scope import current_scope

PLAIN = sx.Constant(1.0)
GENERATING = [name for name, family in FAMILIES.items() if family.generates]
PADDED = [name for name, family in FAMILIES.items() if family.pads]
NEW_TOKENS = 6


@contextmanager
def registered(model: PreTrainedModel, policy: Any) -> Iterator[None]:
    """The model with `attn_implementation="sharpmax"`."""
    shf.register(policy)
    model.set_attn_implementation("sharpmax")
    try:
        yield
    finally:
        model.set_attn_implementation("eager")


METHODS = {"sharpen": shf.sharpen, "register": registered}


def test_every_tested_architecture_is_in_the_table():
    assert {family.model_type for family in FAMILIES.values()} == TESTED_MODEL_TYPES


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_constant_of_one_is_eager_attention(name, method):
    model, family = family_model(name), FAMILIES[name]
    for padded in (None, "left", "right") if family.pads else (None,):
        inputs = family.example(padded)
        expected = run(model, inputs)
        with METHODS[method](model, PLAIN):
            assert model.config._attn_implementation.startswith("sharpmax")
            assert_close(run(model, inputs), expected)


@pytest.mark.parametrize("name", VARIANTS)
def test_variants(name):
    model = family_model(name)
    for padded in (None, "left", "right"):
        inputs = VARIANTS[name].example(padded)
        expected = run(model, inputs)
        with shf.sharpen(model, PLAIN):
            assert_close(run(model, inputs), expected)
        with shf.sharpen(model, sx.PAPER):
            assert_far(run(model, inputs), expected)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_model_made_with_it(name):
    inputs = FAMILIES[name].example("left")
    shf.register(PLAIN)
    made = FAMILIES[name].make("sharpmax")
    assert made.config._attn_implementation == "sharpmax"
    assert_close(run(made, inputs), run(family_model(name), inputs))


@pytest.mark.parametrize("name", ["Llama", "T5"])
def test_a_model_loaded_with_it(name, tmp_path):
    family, model = FAMILIES[name], family_model(name)
    model.save_pretrained(tmp_path)
    shf.register(PLAIN)
    loaded = getattr(transformers, family.model).from_pretrained(
        tmp_path, attn_implementation="sharpmax"
    )
    assert_close(run(loaded, family.example("left")), run(model, family.example("left")))


@pytest.mark.parametrize("name", FAMILIES)
def test_sharpening_changes_the_answers_equally_by_both_methods(name):
    model, inputs = family_model(name), FAMILIES[name].example("left")
    plain = run(model, inputs)
    for policy in (sx.PAPER, sx.Constant(3.0)):
        with shf.sharpen(model, policy):
            sharpened = run(model, inputs)
        assert_far(sharpened, plain)
        with registered(model, policy):
            # A constant is a factor on the query in one, and part of the scale in the other.
            assert_close(run(model, inputs), sharpened)


@pytest.mark.parametrize("name", PADDED)
def test_padding_matters(name):
    """So a lost mask would be seen above."""
    model, inputs = family_model(name), FAMILIES[name].example("left")
    real = is_real(inputs)
    unmasked = {key: value for key, value in inputs.items() if not key.endswith("mask")}
    with torch.no_grad():
        lost = model(**unmasked)[0][real]
    assert_far(lost, run(model, inputs))


@pytest.mark.parametrize(
    "name", [name for name, family in FAMILIES.items() if "sliding_window" in family.options]
)
def test_the_window_matters(name):
    model, inputs = family_model(name), FAMILIES[name].example()
    expected = run(model, inputs)
    window = model.config.sliding_window
    model.config.sliding_window = window + 1
    try:
        assert_far(run(model, inputs), expected)
    finally:
        model.config.sliding_window = window


def generate(model: PreTrainedModel, prompt: dict[str, Tensor], **options: Any) -> Any:
    return model.generate(
        **prompt,
        max_new_tokens=NEW_TOKENS,
        min_new_tokens=NEW_TOKENS,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
        **options,
    )


@pytest.mark.parametrize(
    ("name", "padded", "method"),
    [
        *((name, None, "sharpen") for name in GENERATING),
        *((name, "left", "sharpen") for name in GENERATING if FAMILIES[name].inputs == "tokens"),
        *((name, "left", "register") for name in ("Llama", "Gemma 3", "T5")),
    ],
)
def test_generated_tokens_are_those_of_eager_attention(name, padded, method):
    model, prompt = family_model(name), FAMILIES[name].prompt(padded)
    for cache in ("dynamic", "static", None) if method == "sharpen" else ("static",):
        options = {"use_cache": False} if cache is None else {"cache_implementation": cache}
        expected = generate(model, prompt, **options)
        logits = torch.stack(expected.logits)
        with METHODS[method](model, PLAIN):
            answer = generate(model, prompt, **options)
        assert len(answer.logits) == NEW_TOKENS
        assert_close(torch.stack(answer.logits), logits)
        assert torch.equal(answer.sequences, expected.sequences)
        first, second = logits.topk(2).values.unbind(-1)
        assert float((first - second).min()) > 2 * tolerance(logits)  # so the tokens are decided
        with METHODS[method](model, sx.Constant(3.0)):
            assert_far(generate(model, prompt, **options).logits[0], expected.logits[0])


def empty_cache(model: PreTrainedModel, kind: str) -> Any:
    def cache(length: int) -> Any:
        if kind == "dynamic":
            return DynamicCache(config=model.config)
        return StaticCache(config=model.config, max_cache_len=length)

    if model.config.is_encoder_decoder:
        return EncoderDecoderCache(cache(20), cache(TOKENS))
    return cache(20)


@pytest.mark.parametrize("padded", [None, "left"])
@pytest.mark.parametrize("name", GENERATING)
def test_a_prompt_in_two_parts(name, padded):
    """The second part has several queries, which stand at the end of the keys."""
    model, inputs = family_model(name), FAMILIES[name].example(padded)
    expected = run(model, inputs)
    key = "decoder_input_ids" if "decoder_input_ids" in inputs else "input_ids"
    mask = key.replace("input_ids", "attention_mask")
    for cache in ("dynamic", "static"):
        answers = []
        with shf.sharpen(model, PLAIN), torch.no_grad():
            past = empty_cache(model, cache)
            for start, stop in ((0, 5), (5, inputs[key].shape[1])):
                part = {key: inputs[key][:, start:stop], mask: inputs[mask][:, :stop]}
                answers.append(model(**{**inputs, **part}, past_key_values=past, use_cache=True)[0])
        assert_close(torch.cat(answers, 1)[is_real(inputs)], expected)


def gradients(model: PreTrainedModel, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Of a random sum of the answers, in training mode."""
    model.train()
    try:
        answer = model(**inputs)[0][is_real(inputs)]
        weights = torch.randn(answer.shape, generator=torch.Generator().manual_seed(2))
        (answer * weights).sum().backward()
        return {
            name: parameter.grad
            for name, parameter in model.named_parameters()
            if parameter.grad is not None
        }
    finally:
        model.zero_grad()
        model.eval()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", FAMILIES)
def test_gradients_in_training_mode(name, method):
    model, inputs = family_model(name), FAMILIES[name].example("left")
    expected = gradients(model, inputs)
    with METHODS[method](model, PLAIN):
        found = gradients(model, inputs)
    assert found.keys() == expected.keys()
    largest = torch.stack([gradient.abs().max() for gradient in expected.values()])
    for key, gradient in expected.items():
        assert difference(found[key], gradient) <= tolerance(largest)
    with METHODS[method](model, sx.PAPER):
        sharpened = gradients(model, inputs)
    assert all(gradient.isfinite().all() for gradient in sharpened.values())
    assert max(difference(sharpened[key], expected[key]) for key in expected) > 1000 * tolerance(
        largest
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_bfloat16(name):
    """As close to eager attention in bfloat16 as two orders of rounding are, and no worse."""
    model, inputs = family_model(name), FAMILIES[name].example("left")
    truth = run(model, inputs)
    half = copy.deepcopy(model).bfloat16()
    inputs = {
        key: value.bfloat16() if value.is_floating_point() else value
        for key, value in inputs.items()
    }
    eager = run(half, inputs)
    with shf.sharpen(half, PLAIN):
        ours = run(half, inputs)
    assert ours.dtype == torch.bfloat16
    assert_close(ours, eager, factor=8)
    assert error(ours, truth) <= 1.25 * error(eager, truth)


def error(found: Tensor, truth: Tensor) -> float:
    return float((found.double() - truth.double()).square().mean().sqrt())


@pytest.mark.parametrize("name", FAMILIES)
def test_afterwards_the_model_is_what_it_was(name):
    model, inputs = family_model(name), FAMILIES[name].example("left")
    state = {key: value.clone() for key, value in model.state_dict().items()}
    expected, text = run(model, inputs), repr(model)
    with shf.sharpen(model, sx.PAPER):
        run(model, inputs)
    assert torch.equal(run(model, inputs), expected)
    with pytest.raises(ZeroDivisionError), shf.sharpen(model, sx.PAPER):
        stop_after(run(model, inputs))
    assert torch.equal(run(model, inputs), expected)
    with pytest.raises(ValueError, match="a bad policy"), shf.sharpen(model, bad_policy):
        run(model, inputs)
    assert torch.equal(run(model, inputs), expected)
    assert repr(model) == text
    assert model.config._attn_implementation == "eager"
    assert_nothing_is_patched()
    for key, value in model.state_dict().items():
        assert torch.equal(value, state[key])


def stop_after(_: Tensor) -> None:
    raise ZeroDivisionError


def bad_policy(entropy: Tensor, count: Tensor) -> Tensor:
    raise ValueError("a bad policy")


def layers_by_config(config: Any) -> int:
    """How many attention layers the config speaks of; a decoder block with an encoder has two."""
    if config.model_type == "t5":
        return config.num_layers + 2 * config.num_decoder_layers
    if config.model_type == "whisper":
        return config.encoder_layers + 2 * config.decoder_layers
    return config.num_hidden_layers


@pytest.mark.parametrize("name", FAMILIES)
def test_all_attention_layers_are_found_and_reached(name):
    model = family_model(name)
    layers = attention_layers(model)
    assert len(layers) == layers_by_config(model.config) >= 2
    assert [layer.index for layer in layers] == list(range(len(layers)))
    assert all(model.get_submodule(layer.name) is layer.module for layer in layers)
    assert [count_heads(layer) for layer in layers] == [HEADS] * len(layers)
    with shf.sharpen(model, PLAIN):
        run(model, FAMILIES[name].example())
        assert current_scope().calls.now == len(layers)
