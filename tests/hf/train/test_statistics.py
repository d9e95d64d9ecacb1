"""Statistics beside a model's own attention are those of its logits, and leave it as it is."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import sharpmax as sx
import sharpmax.hf as shf
from hf.families import (
    BATCH,
    FAMILIES,
    TOKENS,
    VARIANTS,
    family_model,
    run,
)
from hf.small import llama, random_tokens
from hf.train.literal import eager_logits, literal_statistics
from sharpmax import UserError
from sharpmax.hf.patch.layers import attention_layers, count_heads
from sharpmax.hf.train.rows import STATISTICS

ALL = {**FAMILIES, **VARIANTS}
TOLERANCE = 2e-4
"""Of float32, for logits of up to a few dozen."""
BY_SDPA = sorted(set(FAMILIES) - {"Gemma 2", "gpt-oss"})
"""Families that transformers lets run SDPA."""


def positions(family, inputs, layer, queries):
    """Return which rows of a layer count, and where each sequence begins."""
    real = torch.ones(BATCH, queries, dtype=torch.bool)
    first = torch.zeros(BATCH, dtype=torch.long)
    masks = [value.bool() for name, value in inputs.items() if name.endswith("attention_mask")]
    is_cross = "Cross" in type(layer.module).__name__ or "EncDec" in layer.name
    is_cross |= "crossattention" in layer.name or "encoder_attn" in layer.name
    for mask in masks:
        if mask.shape[1] == queries and not is_cross:
            real = mask
    keys = next((mask for mask in masks if mask.shape[1] == TOKENS), None) if is_cross else real
    if keys is not None:
        first = keys.int().argmax(1)
    return real, first


@pytest.mark.parametrize("padded", [None, "left", "right"])
@pytest.mark.parametrize("name", ALL)
def test_statistics_are_those_of_eager_logits(name, padded):
    family, model = ALL[name], family_model(name)
    if padded and not family.pads:
        pytest.skip("images have no padding")
    inputs = family.example(padded)
    with eager_logits(model) as logits:
        expected = run(model, inputs)
    with shf.attention_statistics(model, rows=TOKENS + 50, sequences=BATCH) as statistics:
        assert torch.equal(run(model, inputs), expected)
    layers = attention_layers(model)
    assert set(logits) == {layer.index for layer in layers}
    for layer in layers:
        known = logits[layer.index].expand(BATCH, -1, -1, -1)
        real, first = positions(family, inputs, layer, known.shape[2])
        literal = literal_statistics(known, real, first)
        for statistic in STATISTICS:
            found = statistics.array(statistic)[layer.index, : count_heads(layer)]
            np.testing.assert_allclose(
                found, literal[statistic], rtol=TOLERANCE, atol=TOLERANCE, err_msg=statistic
            )


@pytest.mark.parametrize("name", BY_SDPA)
def test_sdpa_has_the_statistics_of_eager_attention(name):
    family = FAMILIES[name]
    inputs = family.example("left" if family.pads else None)
    found = []
    for model in (family_model(name), family.make("sdpa")):
        with shf.attention_statistics(model, rows=5, sequences=1) as statistics:
            run(model, inputs)
        found.append(statistics)
    for statistic in STATISTICS:
        np.testing.assert_allclose(
            found[1].array(statistic), found[0].array(statistic), rtol=TOLERANCE, atol=TOLERANCE
        )


def enter(model, **options):
    with shf.attention_statistics(model, **options):
        pass


def train_once(model, tokens, autocast=False):
    """Return the loss, and the gradient of every weight."""
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    return [loss, *(parameter.grad.clone() for parameter in model.parameters())]


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("case", ["plain", "autocast", "gradient checkpointing", "half precision"])
def test_gradients_are_the_same_bit_for_bit(implementation, case):
    model, tokens = llama(attn_implementation=implementation).train(), random_tokens(3, 20)
    if case == "half precision":
        model.to(torch.bfloat16)
    if case == "gradient checkpointing":
        model.gradient_checkpointing_enable()
    before = dict(AttentionInterface._global_mapping)
    expected = train_once(model, tokens, case == "autocast")
    with shf.attention_statistics(model) as statistics:
        found = train_once(model, tokens, case == "autocast")
    assert all(map(torch.equal, found, expected))
    assert before == AttentionInterface._global_mapping
    assert not np.isnan(statistics.entropy).any()
    assert statistics.entropy.shape == (3, 4)
    # As if measured without training.
    low = torch.autocast("cpu", torch.bfloat16, enabled=case == "autocast")
    with torch.no_grad(), low, shf.attention_statistics(model.eval()) as again:
        model(tokens)
    np.testing.assert_array_equal(again.sums, statistics.sums)


def test_a_function_that_another_package_has_put_in_is_seen_and_kept(monkeypatch):
    model, tokens = llama(), random_tokens(2, 9)
    local, plain = ALL_ATTENTION_FUNCTIONS._local_mapping, ALL_ATTENTION_FUNCTIONS["sdpa"]
    calls = []

    def attend(module, *arguments, **options):
        calls.append(module)
        return plain(module, *arguments, **options)

    monkeypatch.setitem(local, "sdpa", attend)
    with torch.no_grad(), shf.attention_statistics(model) as statistics:
        model(tokens)
    assert len(calls) == 3
    assert not np.isnan(statistics.entropy).any()
    assert local == {"sdpa": attend}


def test_only_the_first_pass_and_some_rows_are_measured():
    model, tokens = llama(), random_tokens(3, 20)
    with torch.no_grad():
        with shf.attention_statistics(model, rows=3, sequences=2) as sampled:
            model(tokens)
            model(random_tokens(3, 20, seed=1))
        by_row = []
        for row in (5, 12, 19):  # evenly spaced, with the last
            with shf.attention_statistics(model, rows=[row, 400], sequences=2) as statistics:
                model(tokens)
            by_row.append(statistics)
    for name in STATISTICS:
        values = [statistics.array(name) for statistics in by_row]
        expected = np.max(values, 0) if name == "max_logit" else np.mean(values, 0)
        np.testing.assert_allclose(sampled.array(name), expected, rtol=1e-5, err_msg=name)
        np.testing.assert_array_equal(getattr(sampled, name), sampled.array(name))


def test_a_cache_is_no_padding():
    model, tokens = llama(), random_tokens(1, 20)
    with torch.no_grad():
        with shf.attention_statistics(model, rows=[19]) as whole:
            model(tokens)
        cache = model(tokens[:, :-1], use_cache=True).past_key_values
        with shf.attention_statistics(model, rows=1) as last:
            model(tokens[:, -1:], past_key_values=cache)
    np.testing.assert_allclose(last.sums, whole.sums, rtol=1e-4)


def test_nothing_is_measured_outside_a_pass():
    model = llama()
    with shf.attention_statistics(model) as statistics:
        pass
    assert np.isnan(statistics.entropy).all()
    assert np.isnan(statistics.max_logit).all()


def test_statistics_are_of_the_logits_before_sharpening():
    model, tokens = llama(layers=1), random_tokens(2, 20)
    with torch.no_grad():
        with shf.attention_statistics(model) as plain:
            model(tokens)
        with shf.sharpen(model, sx.Constant(3.0)):
            expected = model(tokens).logits
            with shf.attention_statistics(model) as sharpened:
                assert torch.equal(model(tokens).logits, expected)
    np.testing.assert_allclose(sharpened.entropy, plain.entropy, rtol=1e-5)


def test_several_blocks_watch_one_model_and_an_error_leaves_nothing():
    model, tokens = llama(), random_tokens(2, 9)
    before = dict(AttentionInterface._global_mapping)
    with torch.no_grad(), shf.attention_statistics(model) as outer:
        with shf.attention_statistics(model) as inner, pytest.raises(IndexError):
            model(tokens + 1000)
        with shf.attention_statistics(model) as inner:
            model(tokens)
        other = copy.deepcopy(model)  # is not watched
        other(random_tokens(2, 9, seed=3))
    np.testing.assert_array_equal(outer.sums, inner.sums)
    assert before == AttentionInterface._global_mapping


@pytest.mark.parametrize("name", ["scalable-softmax", "entmax", "adaptive-temperature", "sigmoid"])
def test_statistics_of_another_normaliser_are_those_of_its_weights(name):
    model, tokens = llama(layers=1), random_tokens(1, 12)
    with eager_logits(llama(layers=1, attn_implementation="eager")) as logits:
        plain = llama(layers=1, attn_implementation="eager")
    with eager_logits(plain) as logits, torch.no_grad():
        plain(tokens)
    shf.with_normaliser(model, name)
    with torch.no_grad(), shf.attention_statistics(model, rows=[11]) as statistics:
        model(tokens)
    weights = sx.NORMALISERS[name](logits[0][0, :, -1])
    weights = weights / weights.sum(-1, keepdim=True)
    entropy = torch.special.entr(weights).sum(-1)
    np.testing.assert_allclose(statistics.entropy[0], entropy, rtol=1e-4)
    np.testing.assert_allclose(statistics.max_weight[0], weights.amax(-1), rtol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": 0}, r"rows=0: give a whole number of at least 1, or positions"),
        ({"rows": 1.5}, r"rows=1\.5: give a whole number"),
        ({"rows": True}, "rows=True: give a whole number"),
        ({"rows": [3, -1]}, r"rows=\[3, -1\]: give positions of at least 0"),
        ({"rows": []}, r"rows=\[\]: give a whole number of at least 1, or positions"),
        ({"sequences": 0}, "sequences=0: give a whole number of at least 1"),
    ],
)
def test_bad_sampling_is_refused(options, message):
    with pytest.raises(UserError, match=message):
        enter(llama(), **options)


def test_what_cannot_be_watched_is_refused():
    with pytest.raises(UserError, match="expected a transformers model"):
        enter(torch.nn.Linear(2, 2))
    model = llama()
    model.config._attn_implementation = "flex_attention"
    with pytest.raises(UserError, match="'flex_attention' of LlamaForCausalLM cannot be watched"):
        enter(model)
    with shf.attention_statistics(llama()) as statistics:
        with pytest.raises(UserError, match="unknown statistic 'mean': expected one of entropy"):
            statistics.array("mean")
        with pytest.raises(AttributeError, match="'AttentionStatistics' object has no attribute"):
            statistics.mean  # noqa: B018


def test_a_compiled_model_is_refused():
    model = llama(layers=1)
    inner = llama(layers=1)
    inner.model.layers[0].compile(backend="eager")
    for compiled in (torch.compile(model, backend="eager"), inner):
        with pytest.raises(UserError, match="LlamaForCausalLM is compiled, and watching its"):
            enter(compiled)
