"""QK-clip bounds the largest logit of every head and touches nothing else."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import transformers

import sharpmax.hf as shf
from hf.families import BATCH, FAMILIES, VARIANTS, family_model, run
from hf.small import llama, random_tokens
from hf.train.literal import eager_logits
from hf.train.tiny import make_trainer
from sharpmax import UserError
from sharpmax.hf.export.fold import query_rows
from sharpmax.hf.patch.layers import attention_layers

ALL = {**FAMILIES, **VARIANTS}
REFUSED = {
    "Gemma 3": r"Gemma3Attention has QK-norm \(q_norm\), which bounds its logits",
    "Qwen 3": r"has QK-norm \(q_norm\)",
    "OLMo 2": r"has QK-norm \(q_norm\)",
    "T5": "T5Attention adds a bias by position to its logits, which QK-clip cannot shrink",
}
CLIPPED = [name for name in ALL if not name.startswith(tuple(REFUSED))]
ROUNDING = 1e-5


def literal_maxima(name, inputs):
    """Return the largest visible logit of each layer and head, from the softmax of eager attention."""
    with eager_logits(family_model(name)) as logits:
        run(family_model(name), inputs)
    return [logits[index] for index in sorted(logits)]


def find_maxima(model, inputs):
    with shf.max_logits(model) as largest:
        run(model, inputs)
    return largest.values


@pytest.mark.parametrize("padded", [None, "left"])
@pytest.mark.parametrize("name", CLIPPED)
def test_largest_logits_are_those_of_eager_attention(name, padded):
    family = ALL[name]
    inputs = family.example(padded if family.pads else None)
    found = find_maxima(family_model(name), inputs)
    for layer, logits in enumerate(literal_maxima(name, inputs)):
        expected = logits.expand(BATCH, -1, -1, -1).clone()
        mask = inputs.get("attention_mask")
        if mask is not None and expected.shape[2] == mask.shape[1]:
            expected[~mask.bool()[:, None].expand(expected.shape[:3])] = -torch.inf
        # The limit is on logits before the softcap of Gemma 2, here 1.
        largest = np.tanh(found[layer]) if name == "Gemma 2" else found[layer]
        np.testing.assert_allclose(largest, expected.amax((0, 2, 3)), rtol=1e-4)


@pytest.mark.parametrize("name", CLIPPED)
def test_no_logit_is_above_tau_and_other_heads_are_untouched(name):
    model, inputs = copy.deepcopy(family_model(name)), ALL[name].example()
    before = find_maxima(model, inputs)
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    tau = float(np.median(before))
    clipped = shf.qk_clip(model, tau, inputs=inputs)
    assert find_maxima(model, inputs).max() <= tau * (1 + ROUNDING)
    # A clipped layer changes what later ones read, so that more heads may be clipped than these.
    named = {(layer, head) for layer, head, _ in clipped}
    assert {(0, head) for head in np.flatnonzero(before[0] > tau)} <= named
    changed = model.state_dict()
    for layer in attention_layers(model):
        projection, rows = query_rows(layer)
        heads = [head for index, head, _ in clipped if index == layer.index]
        for part in ("weight", "bias"):
            key = f"{layer.name}.{projection}.{part}"
            if key in weights and heads:
                by_row = (changed[key] != weights[key]).numpy()
                if by_row.ndim == 2:
                    by_row = by_row.any(0 if "GPT-2" in name else 1)
                touched = np.unique(rows[np.unique(heads)])
                assert set(np.flatnonzero(by_row)) <= set(touched)
                assert by_row.any()
                weights[key] = changed[key]
    assert all(torch.equal(changed[key], value) for key, value in weights.items())


@pytest.mark.parametrize("name", CLIPPED)
def test_a_head_is_scaled_by_its_factor_alone(name):
    """Layer 0 has the same inputs afterwards, so that its logits tell what became of each head."""
    model, inputs = copy.deepcopy(family_model(name)), ALL[name].example()
    before = find_maxima(model, inputs)
    with shf.max_logits(model) as largest:
        run(model, inputs)
    tau = float(np.sort(before[0])[-2]) * 0.9  # two heads are above
    clipped = shf.qk_clip(model, tau, largest)
    expected = np.minimum(before[0], tau)
    np.testing.assert_allclose(find_maxima(model, inputs)[0], expected, rtol=ROUNDING)
    first = {head: factor for layer, head, factor in clipped if layer == 0}
    assert set(first) == set(np.flatnonzero(before[0] > tau))
    for head, factor in first.items():
        assert factor == pytest.approx(tau / before[0, head])


def test_nothing_happens_below_tau():
    model, inputs = llama(), {"input_ids": random_tokens(2, 12)}
    before = {key: value.clone() for key, value in model.state_dict().items()}
    assert shf.qk_clip(model, 1e6, inputs=inputs) == []
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_maxima_are_of_all_passes_and_of_blocks_of_rows(monkeypatch):
    model, texts = llama(), random_tokens(4, 30)
    whole = find_maxima(model, {"input_ids": texts})
    monkeypatch.setattr("sharpmax.hf.train.qk_clip.MAX_ENTRIES", 1000)
    with shf.max_logits(model) as largest, torch.no_grad():
        for text in texts:
            model(text[None])
    np.testing.assert_allclose(largest.values, whole, rtol=1e-5)


@pytest.mark.parametrize("name", [name for name in ALL if name not in CLIPPED])
def test_where_clipping_is_not_defined_it_is_refused_by_name(name):
    reason = next(text for known, text in REFUSED.items() if name.startswith(known))
    with pytest.raises(UserError, match=reason):
        shf.qk_clip(family_model(name), 1.0, inputs=ALL[name].example())


def test_latent_attention_is_refused():
    config = transformers.DeepseekV3Config(
        vocab_size=61,
        hidden_size=32,
        intermediate_size=48,
        moe_intermediate_size=16,
        num_hidden_layers=1,
        first_k_dense_replace=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
    )
    model = transformers.DeepseekV3ForCausalLM(config).eval()
    with pytest.raises(UserError, match=r"is latent attention \(MLA\), whose heads share rotary"):
        shf.qk_clip(model, 1.0, inputs={"input_ids": random_tokens(1, 5) % 61})


@pytest.mark.parametrize("tau", [0, -1.0, float("nan"), float("inf"), "100", True, None])
def test_a_limit_that_makes_no_sense_is_refused(tau):
    with pytest.raises(UserError, match=r"tau=.*: give a positive number"):
        shf.qk_clip(llama(layers=1), tau, inputs={})


def test_what_was_recorded_must_fit():
    model = llama(layers=1)
    message = "needs the largest logits: give `largest` or `inputs`, not both"
    with pytest.raises(UserError, match=message):
        shf.qk_clip(model, 1.0)
    with shf.max_logits(model) as largest:
        model(random_tokens(1, 5))
    with pytest.raises(UserError, match=message):
        shf.qk_clip(model, 1.0, largest, inputs={})
    with pytest.raises(UserError, match="is of a model with 1 layers, and this one has 2"):
        shf.qk_clip(llama(layers=2), 1.0, largest)
    largest.values[0, 2] = np.nan
    with pytest.raises(UserError, match="layer 0 head 2 are NaN: the training has diverged"):
        shf.qk_clip(model, 1.0, largest)


def test_nothing_seen_is_refused():
    model = llama(layers=1)
    with shf.max_logits(model) as largest:
        pass
    with pytest.raises(UserError, match="`largest` has seen no attention: run the model inside"):
        shf.qk_clip(model, 1.0, largest)


def test_an_adapter_is_refused():
    model = llama(layers=1)
    projection = model.model.layers[0].self_attn.q_proj

    class Adapter(torch.nn.Linear):
        pass

    model.model.layers[0].self_attn.q_proj = Adapter(
        projection.in_features, projection.out_features, bias=False
    )
    with pytest.raises(UserError, match="q_proj is Adapter, not a plain Linear: merge adapters"):
        shf.qk_clip(model, 1.0, inputs={})


@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 2}, {"bf16": True}])
def test_the_callback_clips_after_each_step(tmp_path, options):
    """Each clipping is by the largest logits of the step before it."""
    seen = []

    class Spy(shf.QKClipCallback):
        def on_optimizer_step(self, args, state, control, **kwargs):
            recorded = self._largest
            super().on_optimizer_step(args, state, control, **kwargs)
            seen.append(recorded.values)

    tau = 0.5
    callback = Spy(tau)
    trainer = make_trainer(tmp_path, llama(layers=1), [callback], learning_rate=1e-9, **options)
    trainer.train()
    assert len(seen) == 6
    expected = [
        (step + 1, 0, head, pytest.approx(tau / values[0, head]))
        for step, values in enumerate(seen)
        for head in range(4)
        if values[0, head] > tau
    ]
    assert callback.clipped == expected
    assert expected
    # The batches differ, and shrink a head at most to what they need.
    assert seen[-1].max() < seen[0].max()


def test_training_below_tau_is_the_same_bit_for_bit(tmp_path):
    plain, clipped = make_trainer(tmp_path), make_trainer(tmp_path)
    callback = shf.QKClipCallback(1e6)
    clipped.add_callback(callback)
    plain.train()
    clipped.train()
    assert callback.clipped == []
    expected = plain.model.state_dict()
    assert all(
        torch.equal(value, expected[key]) for key, value in clipped.model.state_dict().items()
    )


def test_the_callback_refuses_before_the_training(tmp_path):
    model = FAMILIES["Qwen 3"].make("sdpa")
    trainer = make_trainer(tmp_path, model, [shf.QKClipCallback()])
    with pytest.raises(UserError, match=r"has QK-norm \(q_norm\)"):
        trainer.train()
    assert trainer.state.global_step == 0
