"""certify: measured spreads never exceed the bound, inputs exist that reach it, and whatever is not
covered is refused by name.
"""

from __future__ import annotations

import copy
import functools

import numpy as np
import pytest
import torch
from torch import nn

import sharpmax.hf as shf
from hf.families import FAMILIES, VARIANTS, VOCABULARY, Family, decoder, variant
from hf.small import llama, tokenizer
from sharpmax import UserError, theory
from sharpmax.hf.certify.architectures import COVERED, read_logit_parameters
from sharpmax.hf.certify.bounds import query_and_key_ellipsoids, read_norm, read_rotary
from sharpmax.hf.certify.certify import log10_items
from sharpmax.hf.patch.context import observed_layers, patched_attention
from sharpmax.hf.patch.layers import attention_layers
from sharpmax.policies import Constant
from sharpmax.results import Result
from sharpmax.torch import attention as attend

YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 8.0,
    "original_max_position_embeddings": 8,
}
_BERT = {**FAMILIES["BERT"].options, "pad_token_id": 1}
MORE: dict[str, Family] = {
    "Granite": decoder("granite", "Granite", attention_multiplier=0.7),
    "Mixtral": decoder("mixtral", "Mixtral", num_local_experts=2, num_experts_per_tok=1),
    "Phi": decoder("phi", "Phi"),
    "Phi, normalised": decoder("phi", "Phi", qk_layernorm=True),
    "Qwen 2 MoE": decoder("qwen2_moe", "Qwen2Moe", moe_intermediate_size=8, shared_expert_intermediate_size=8, num_experts=2, num_experts_per_tok=1),
    "Qwen 3 MoE": decoder("qwen3_moe", "Qwen3Moe", head_dim=8, moe_intermediate_size=8, num_experts=2, num_experts_per_tok=1),
    "RoBERTa": Family("roberta", "RobertaForMaskedLM", "RobertaConfig", _BERT, kind="encoder"),
    "XLM-R": Family("xlm-roberta", "XLMRobertaForMaskedLM", "XLMRobertaConfig", _BERT, kind="encoder"),
    "SmolLM3": decoder("smollm3", "SmolLM3", no_rope_layers=[1, 0]),
    "StarCoder 2": decoder("starcoder2", "Starcoder2"),
    "Llama, YaRN": variant("Llama", rope_parameters=YARN),
    "Llama, biased": variant("Llama", attention_bias=True),
    "GPT-NeoX, half rotated": variant("GPT-NeoX", rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}),
    "Gemma 2, unscaled": variant("Gemma 2", query_pre_attn_scalar=1, attn_logit_softcapping=40.0),
    "GPT-2, by layer": variant("GPT-2", scale_attn_by_inverse_layer_idx=True),
    "BERT, decoder": VARIANTS["BERT, decoder"],
}  # fmt: skip
ALL = {name: family for name, family in (FAMILIES | MORE).items() if family.model_type in COVERED}


@functools.cache
def cached_model(name):
    model = ALL[name].make()
    return model.get_encoder() if name == "T5" else model


def observe(model, seed=0, tokens=24):
    """Return (query, key, largest spread of a row [head]) of each layer, on random tokens."""
    observed = []

    def observer(arguments):
        output, stats = attend(**arguments)
        observed.append((arguments["query"], arguments["key"], stats.spread[0].amax(-1).numpy()))
        return output

    ids = torch.randint(3, VOCABULARY, (1, tokens), generator=torch.Generator().manual_seed(seed))
    layers = attention_layers(model)
    with (
        torch.no_grad(),
        patched_attention(model, layers),
        observed_layers(layers, lambda layer: observer),
    ):
        model(input_ids=ids)
    return observed


def test_every_covered_architecture_is_tested():
    assert {family.model_type for family in ALL.values()} == set(COVERED)


@pytest.mark.parametrize("name", ALL)
def test_measured_never_exceeds_certified(name):
    model = copy.deepcopy(cached_model(name))
    for factor in (1.0, 4.0):  # then 16 times the logits, unless a norm or softcap holds them
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(factor if parameter.ndim > 1 else 1.0)
        bound = shf.certify(model).spread_bound
        for seed in range(3):
            measured = np.stack([spread for _, _, spread in observe(model, seed)])
            assert measured.shape == bound.shape
            assert (measured <= bound * (1 + 1e-4)).all(), (factor, seed)
            assert (measured > 0.01 * bound).all()  # the bound is not far off


@pytest.mark.parametrize("name", ALL)
def test_queries_and_keys_lie_in_their_ellipsoids(name):
    """At the first position, where nothing is rotated: a wrong row, head, norm or bias would put
    some outside.
    """
    model = cached_model(name)
    for layer, (query, key, _) in zip(attention_layers(model), observe(model), strict=True):
        parameters = read_logit_parameters(model, layer)
        constant = read_rotary(model)[1] if parameters.rotated else 1.0
        group = query.shape[1] // key.shape[1]
        for ellipsoid, vectors in zip(
            query_and_key_ellipsoids(parameters),
            (query, key.repeat_interleave(group, 1)),
            strict=True,
        ):
            offset = vectors[0, :, 0].double().numpy() / constant - ellipsoid.centre
            unit = (np.linalg.pinv(ellipsoid.shape) @ offset[..., None])[..., 0]
            reached = (ellipsoid.shape @ unit[..., None])[..., 0]
            np.testing.assert_allclose(reached, offset, atol=1e-4)
            assert (np.linalg.norm(unit, axis=1) <= 1 + 1e-4).all()


def extreme_pair(ellipsoids, head):
    """Return the coordinates of a query and a key whose logit is the largest."""
    query, key = ellipsoids
    transformed = query.transform(np.swapaxes(key.shape, 1, 2))
    shape, centre = transformed.shape[head], transformed.centre[head]
    candidates = []
    for u in np.random.default_rng(0).normal(size=(20, shape.shape[1])):
        for _ in range(300):
            u = shape.T @ (centre + shape @ (u / np.linalg.norm(u)))
        u /= np.linalg.norm(u)
        candidates.append((u, centre + shape @ u))
    return max(candidates, key=lambda pair: np.linalg.norm(pair[1]))


@pytest.mark.parametrize("name", ["GPT-2", "T5"])
def test_the_bound_is_reached_without_rotations(name):
    """Random weights, biases and norms; three tokens whose embeddings are the extremes."""
    family = ALL[name]
    count = {"n_layer": 1} if name == "GPT-2" else {"num_layers": 1}
    model = variant(name, **count).make()
    model = model.get_encoder() if name == "T5" else model
    layer, head = attention_layers(model)[0], 2
    parameters = read_logit_parameters(model, layer)
    ellipsoids = query_and_key_ellipsoids(parameters)
    u, v = extreme_pair(ellipsoids, head)
    # From the ellipsoids' coordinates back to the inputs of the norm that give them.
    norm = read_norm(parameters.input_norm)
    inputs = []
    for ellipsoid, projection, unit in zip(
        ellipsoids, (parameters.query, parameters.key), (u, v), strict=True
    ):
        matrix, _ = norm.project(projection)
        target = ellipsoid.shape[head] @ (unit / np.linalg.norm(unit))
        inputs.append(np.linalg.pinv(matrix[head]) @ target)
    table = model.get_input_embeddings().weight
    with torch.no_grad():
        if name == "GPT-2":
            model.transformer.wpe.weight.zero_()
        else:
            layer.module.relative_attention_bias.weight.zero_()
        for token, vector in zip((3, 4, 5), (inputs[1], -inputs[1], inputs[0]), strict=True):
            table[token] = 1000 * torch.tensor(vector, dtype=family.dtype)
    bound = shf.certify(model).spread_bound[0, head]
    scan = shf.scan(model, tokenizer(), [3], prompt=lambda length: [3, 4, 5])
    assert 0.99 * bound <= scan.spread[0, 0, head] <= bound * (1 + 1e-4)


def test_the_bound_is_reached_with_rotations():
    """Queries and keys in the pair that rotates slowest, along one direction of the input."""
    model = llama(layers=1)
    block = model.model.layers[0]
    slow = 3  # of eight channels: rotates by 0.001 per token
    with torch.no_grad():
        direction = torch.randn(32, generator=torch.Generator().manual_seed(0))
        block.self_attn.q_proj.weight.zero_()[slow] = direction
        block.self_attn.k_proj.weight.zero_()[slow] = direction
        block.input_layernorm.weight.uniform_(0.5, 2.0)
        best = direction * block.input_layernorm.weight
        model.model.embed_tokens.weight[3] = 1000 * best
        model.model.embed_tokens.weight[4] = -1000 * best
    bound = shf.certify(model).spread_bound[0, 0]
    scan = shf.scan(model, tokenizer(), [3], prompt=lambda length: [3, 4, 3])
    assert 0.99 * bound <= scan.spread[0, 0, 0] <= bound * (1 + 1e-4)


def test_larger_weights_allow_more():
    before = shf.certify(llama()).spread_bound
    model = llama()
    with torch.no_grad():
        model.model.layers[1].self_attn.q_proj.weight.mul_(3.0)
        model.model.layers[2].input_layernorm.weight.mul_(2.0)
    factors = shf.certify(model).spread_bound / before
    np.testing.assert_allclose(factors, [[1.0] * 4, [3.0] * 4, [4.0] * 4], rtol=1e-6)


def test_neighbouring_query_heads_share_a_key_head():
    before, model = shf.certify(llama()).spread_bound, llama()
    with torch.no_grad():
        model.model.layers[0].self_attn.k_proj.weight[8:].mul_(2.0)  # the second of two
    factors = shf.certify(model).spread_bound[0] / before[0]
    np.testing.assert_allclose(factors, [1.0, 1.0, 2.0, 2.0], rtol=1e-6)


def test_with_a_norm_of_queries_their_projection_does_not_matter():
    model = copy.deepcopy(cached_model("Qwen 3"))
    before = shf.certify(model).spread_bound
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight.mul_(5.0)
        model.model.layers[1].self_attn.q_norm.weight.mul_(5.0)
    factors = (shf.certify(model).spread_bound / before).round(6)
    assert factors.tolist() == [[1.0] * 4, [5.0] * 4]
    norms = [getattr(model.model.layers[0].self_attn, name).weight for name in ("q_norm", "k_norm")]
    largest = (norms[0].abs().view(2, 4).amax(0) * norms[1].abs().view(2, 4).amax(0)).max().item()
    assert before[0, 0] == pytest.approx(2 * 8 * largest * 8**-0.5, rel=1e-6)


def test_a_layer_norm_removes_what_is_the_same_for_all_channels():
    model = copy.deepcopy(cached_model("GPT-2"))
    blocks = model.transformer.h
    with torch.no_grad():
        for block in blocks:
            block.ln_1.weight.copy_(torch.linspace(0.5, 2.0, len(block.ln_1.weight)))
            block.ln_1.bias.zero_()
        before = shf.certify(model).spread_bound
        for block in blocks:
            block.attn.c_attn.weight.add_(3 / block.ln_1.weight[:, None])
    np.testing.assert_allclose(shf.certify(model).spread_bound, before, rtol=1e-4)


def test_a_softcap_bounds_the_spread():
    raw = shf.certify(variant("Gemma 2", attn_logit_softcapping=None).make()).spread_bound
    for cap in (1.0, 30.0):
        capped = shf.certify(variant("Gemma 2", attn_logit_softcapping=cap).make()).spread_bound
        assert (capped <= 2 * cap).all()
        np.testing.assert_allclose(capped, 2 * cap * np.tanh(raw / 2 / cap), rtol=1e-9)


def test_a_position_bias_adds_its_range():
    model = copy.deepcopy(cached_model("T5"))
    before = shf.certify(model).spread_bound
    table = attention_layers(model)[0].module.relative_attention_bias.weight
    ranges = (table.amax(0) - table.amin(0)).detach().numpy()
    with torch.no_grad():
        table.mul_(3.0)
    after = shf.certify(model).spread_bound
    np.testing.assert_allclose(after - before, np.stack([2 * ranges] * 2), rtol=1e-4)


def _growing_temperature():
    model = llama()
    model.config.attn_temperature_tuning = True
    return model


class Packed(nn.Linear):
    pass


class Odd(nn.Module):
    pass


def _changed(change):
    model = llama()
    block = model.model.layers[0]
    change(block)
    return model


def _odd_norm():
    """A model with a layer that is called a norm and does not normalise."""

    def change(block):
        kind = type(block.input_layernorm)
        other = type(kind.__name__, (kind,), {"forward": lambda self, x: 3 * x})
        block.input_layernorm.__class__ = other

    return _changed(change)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (FAMILIES["ViT"].make, r"ViTModel \(vit\) cannot be certified: .*covered are bert, gemma"),
        (FAMILIES["Whisper"].make, "WhisperForConditionalGeneration is an encoder-decoder"),
        (FAMILIES["T5"].make, r"certify its encoder, model\.get_encoder\(\)"),
        (VARIANTS["BERT, decoder with an encoder"].make, "crossattention.* attends to another"),
        (VARIANTS["GPT-2, scaled by layer, with an encoder"].make, "attends to another model's"),
        (_growing_temperature, "no bound because of attn_temperature_tuning"),
        (lambda: _changed(lambda block: setattr(block.self_attn, "q_proj", Packed(32, 32))), r"LlamaAttention\.q_proj is Packed, not a plain Linear"),
        (lambda: _changed(lambda block: setattr(block, "input_layernorm", Odd())), "Odd in front of attention"),
        (_odd_norm, "LlamaRMSNorm does not normalise as its name says"),
        (lambda: _changed(lambda block: block.self_attn.k_proj.weight.data.fill_(torch.nan)), r"k_proj\.weight holds NaN"),
        (lambda: _changed(lambda block: delattr(block, "input_layernorm")), "it is not built as the llama that sharpmax knows"),
        (lambda: nn.Linear(2, 2), r"expected a transformers model \(PreTrainedModel\), got Linear"),
    ],
)  # fmt: skip
def test_what_is_not_covered_is_refused_by_name(model, message):
    with pytest.raises(UserError, match=message) as caught:
        shf.certify(model())
    assert "\n" not in str(caught.value)


def test_beside_a_scan_and_back_from_disk(tmp_path):
    model = llama()
    scan = shf.scan(model, tokenizer(), [4, 30])
    found = shf.certify(model, scan=scan, name="tiny", notes=["a note"])
    assert found.config["model"] == "tiny"
    assert found.config["notes"] == ["a note"]
    np.testing.assert_array_equal(found.measured_spread, scan.spread.max(0))
    assert (found.ratio >= 1).all()
    back = shf.Certificate.load(found.save(tmp_path / "certify.json"))
    np.testing.assert_array_equal(back.spread_bound, found.spread_bound)
    line = back.measurements["layers"][1]
    assert line["largest"] == found.spread_bound[1].max()
    assert line["measured"] == scan.spread.max(0)[1].max()
    assert line["log10_items"]["0.1"] == pytest.approx(found.log10_items(0.1)[1].max())
    assert Result.load(tmp_path / "certify.json").kind == "certify"


def test_a_scan_of_some_heads_only():
    scan = shf.scan(llama(), tokenizer(), [9], layers=[2], heads=[1, 3])
    found = shf.certify(llama(), scan=scan)
    assert np.isnan(found.measured_spread).sum() == 10
    np.testing.assert_array_equal(found.measured_spread[2, [1, 3]], scan.spread[0, 0])
    assert found.measurements["layers"][0]["measured"] is None


def test_a_scan_of_something_else_is_refused():
    with pytest.raises(UserError, match=r"the scan is of .*, llama with .* parameters, not of"):
        shf.certify(llama(), scan=shf.scan(llama(layers=2), tokenizer(), [4]))
    with pytest.raises(UserError, match=r"sharpened model \(Constant.*scan it plain"):
        shf.certify(llama(), scan=shf.scan(llama(), tokenizer(), [4], policy=Constant(2.0)))
    model = llama()
    scan = shf.scan(model, tokenizer(), [9])
    with torch.no_grad():
        model.model.layers[1].self_attn.q_proj.weight.mul_(1e-3)
    with pytest.raises(
        UserError, match=r"of another model: it measured a spread of .* at layer 1, head"
    ):
        shf.certify(model, scan=scan)


def test_numbers_of_tokens_beyond_floats_have_a_logarithm():
    spread = np.array([0.0, 5.0, 700.0, 5000.0])
    found = log10_items(spread, 0.1)
    np.testing.assert_allclose(10 ** found[:2], [11, 1337], rtol=1e-12)
    assert theory.items_until_dispersed(5000.0, 0.1) == np.inf
    np.testing.assert_allclose(found[2:], (spread[2:] + np.log(9)) / np.log(10), rtol=1e-12)
    certificate = shf.certify(llama())
    below = np.asarray(
        theory.weight_bounds(certificate.items_until_dispersed(0.5), certificate.spread_bound)[1]
    )
    assert (below <= 0.5).all()  # as near as floats tell so many tokens apart


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in ALL
        if read_logit_parameters(
            cached_model(name), attention_layers(cached_model(name))[0]
        ).query_norm
        is None
    ],
)
def test_queries_and_keys_are_projections_of_the_normalised_input(name):
    """At the first position, where nothing is rotated."""
    model = cached_model(name)
    layers = [read_logit_parameters(model, layer) for layer in attention_layers(model)]
    outputs = {}
    hooks = [
        layer.input_norm.register_forward_hook(
            lambda norm, _, output: outputs.update({norm: output})
        )
        for layer in layers
    ]
    observed = observe(model)
    for hook in hooks:
        hook.remove()
    for layer, (query, key, _) in zip(layers, observed, strict=True):
        constant = read_rotary(model)[1] if layer.rotated else 1.0
        given = outputs[layer.input_norm][0, 0].double().numpy()
        group = query.shape[1] // key.shape[1]
        for projection, vectors in (
            (layer.query, query),
            (layer.key, key.repeat_interleave(group, 1)),
        ):
            expected = constant * (projection.weight @ given + projection.bias)
            np.testing.assert_allclose(vectors[0, :, 0].double().numpy(), expected, atol=1e-3)


def test_the_constant_of_yarn_counts_in_queries_and_keys():
    constant = read_rotary(cached_model("Llama, YaRN"))[1]
    assert constant > 1.1
    factors = (
        shf.certify(cached_model("Llama, YaRN")).spread_bound
        / shf.certify(cached_model("Llama")).spread_bound
    )
    np.testing.assert_allclose(factors, constant**2, rtol=1e-9)
