"""Folded weights do what `sharpen` does with the same constants, or the architecture is refused."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import sharpmax as sx
from hf.families import (
    FACTOR,
    FAMILIES,
    TOKENS,
    VARIANTS,
    assert_close,
    difference,
    family_model,
    run,
)
from hf.small import llama
from sharpmax import UserError
from sharpmax.hf.export import fold as folding
from sharpmax.hf.export.factors import Sharpening, fixed_rules
from sharpmax.hf.export.fold import fold
from sharpmax.hf.patch.context import observed_layers, patched_attention
from sharpmax.hf.patch.layers import attention_layers, count_visible
from sharpmax.hf.tune.calibration import ByRate
from sharpmax.torch import attention

FACTORS = np.array([1.0, 2.25, 0.4, 1.7])
REFUSED = {
    "Gemma 2": "softcap",
    "Gemma 3": r"q_norm normalises .* shf\.sharpen, shf\.apply or sharpmax's vLLM plugin",
    "Qwen 3": "q_norm normalises",
    "T5": "adds a bias by position",
}


def by_layer(model):
    return {layer.index: np.roll(FACTORS, layer.index) for layer in attention_layers(model)}


def with_weights(model, changed):
    twin = copy.deepcopy(model)
    twin.load_state_dict(changed, strict=False)
    return twin


@pytest.mark.parametrize("name", [*FAMILIES, *VARIANTS])
def test_folded_weights_equal_sharpen(name):
    family, model = {**FAMILIES, **VARIANTS}[name], family_model(name)
    refusal = next((reason for known, reason in REFUSED.items() if name.startswith(known)), None)
    factors = by_layer(model)
    if refusal is not None:
        with pytest.raises(UserError, match=refusal):
            fold(model, factors)
        return
    before = {key: value.clone() for key, value in model.state_dict().items()}
    inputs = family.example("left" if family.pads else None)
    layers = attention_layers(model)
    with patched_attention(model, layers, fixed_rules(layers, factors)):
        expected = run(model, inputs)
    found = run(with_weights(model, fold(model, factors)), inputs)
    # Rounding errors of logits grow with the factors, 2.25 in each of two layers.
    assert_close(found, expected, 2.25**2 * FACTOR)
    assert difference(found, run(model, inputs)) > 100 * difference(found, expected)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", ["Gemma 3", "Qwen 3"])
def test_one_factor_for_all_heads_fits_a_shared_norm(name):
    model, inputs = family_model(name), FAMILIES[name].example()
    factors = {0: np.full(4, 1.6), 1: np.full(4, 0.7)}
    layers = attention_layers(model)
    with patched_attention(model, layers, fixed_rules(layers, factors)):
        expected = run(model, inputs)
    assert_close(run(with_weights(model, fold(model, factors)), inputs), expected)


def test_a_fold_into_the_wrong_rows_is_noticed(monkeypatch):
    model, rows = llama(), folding.query_rows

    def wrong(layer):
        name, right = rows(layer)
        return name, right[[1, 0, 2, 3]]

    monkeypatch.setattr(folding, "query_rows", wrong)
    with pytest.raises(UserError, match="with folded weights differs from sharpen by"):
        fold(model, by_layer(model))


def test_adapters_are_refused():
    model = llama()
    attention = model.model.layers[1].self_attn

    class Adapted(torch.nn.Linear):
        pass

    attention.q_proj.__class__ = Adapted
    with pytest.raises(UserError, match=r"q_proj is Adapted, .*merge_and_unload"):
        fold(model, {1: FACTORS})


def test_factors_are_those_of_the_policy_at_that_length():
    model = llama()
    rates = (0.5, -0.5, 0.0, 9.0)
    policy = ByRate(rates, from_tokens=16)
    factors = Sharpening.create(model, policy, layers=[0, 2]).at_length(64)
    expected = np.clip(1 + np.array(rates) * np.log(64 / 16), 0, 2)
    assert sorted(factors) == [0, 2]
    np.testing.assert_allclose(factors[0], expected, rtol=1e-12)
    some = Sharpening.create(model, sx.LogLength(4), heads=[3]).at_length(16)
    np.testing.assert_allclose(some[1], [1, 1, 1, 2], rtol=1e-12)
    assert Sharpening.create(model, policy).at_length(16) == {}


@pytest.mark.parametrize("name", [name for name in (*FAMILIES, *VARIANTS) if "T5" not in name])
def test_windows_are_counted_as_attention_counts_them(name):
    family, model = {**FAMILIES, **VARIANTS}[name], family_model(name)
    if family.kind not in ("decoder", "encoder") or "encoder" in name:
        pytest.skip("its layers do not all see the tokens of one input")
    layers, counts = attention_layers(model), {}

    def make_observer(layer):
        def observe(arguments):
            output, stats = attention(**arguments)
            counts[layer.index] = int(stats.count.max())
            return output

        return observe

    with torch.no_grad(), patched_attention(model, layers), observed_layers(layers, make_observer):
        model(**family.example())
    assert counts == {layer.index: count_visible(layer, TOKENS) for layer in layers}


def test_a_policy_of_the_entropy_is_refused():
    with pytest.raises(UserError, match=r"looks at the entropy .* export a calibration"):
        Sharpening.create(llama(), sx.PAPER)
