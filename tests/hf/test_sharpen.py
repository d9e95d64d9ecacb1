"""sharpen: the chosen heads, as long as the block lasts, and nothing else."""

from __future__ import annotations

import contextlib
import warnings

import pytest
import torch

import sharpmax as sx
import sharpmax.hf as shf
from hf.small import assert_nothing_is_patched, llama, random_tokens
from sharpmax import UserError
from sharpmax.hf.patch.layers import attention_layers
from sharpmax.hf.tune.calibration import ByRate
from sharpmax.policies import InfoScale

TOKENS = random_tokens(2, 17)
HARD = sx.Constant(3.0)


@pytest.fixture
def model():
    return llama()


def answer(model, **options):
    with torch.no_grad():
        return model(TOKENS, **options).logits


def by_hand(model, factors):
    """The model with each head's queries scaled in its projection: [layer][head] factors. RoPE is a
    rotation, so scaling before it is scaling after it.
    """
    copy = llama()
    copy.load_state_dict(model.state_dict())
    for layer, heads in zip(copy.model.layers, factors, strict=True):
        weight = layer.self_attn.q_proj.weight.data
        for head, factor in enumerate(heads):
            weight[head * 8 : head * 8 + 8] *= factor
    return answer(copy)


def test_a_constant_is_a_scaled_query_projection(model):
    with shf.sharpen(model, HARD):
        found = answer(model)
    expected = by_hand(model, [[3.0] * 4] * 3)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    assert (found - answer(model)).abs().max() > 0.1


@pytest.mark.parametrize(
    ("layers", "heads", "factors"),
    [
        ([1], None, [[1, 1, 1, 1], [3, 3, 3, 3], [1, 1, 1, 1]]),
        ([-1, 0], None, [[3, 3, 3, 3], [1, 1, 1, 1], [3, 3, 3, 3]]),
        (None, [2], [[1, 1, 3, 1]] * 3),
        ([0, 1], [0, -1], [[3, 1, 1, 3], [3, 1, 1, 3], [1, 1, 1, 1]]),
    ],
)
def test_only_the_chosen_layers_and_heads(model, layers, heads, factors):
    with shf.sharpen(model, HARD, layers=layers, heads=heads):
        found = answer(model)
    torch.testing.assert_close(found, by_hand(model, factors), rtol=0, atol=1e-4)


def test_an_entropy_guided_policy_on_one_head_equals_the_function(model, monkeypatch):
    """Head by head against `adaptive_temperature_softmax` on the model's own eager logits."""
    from transformers.models.llama import modeling_llama

    def eager(module, query, key, value, mask, scaling, **_):
        key, value = (part.repeat_interleave(2, 1) for part in (key, value))
        logits = query @ key.mT * scaling
        seen = (mask == 0).expand_as(logits)
        weights = sx.softmax(logits, where=seen)
        if module.layer_idx == 1:
            sharp = sx.adaptive_temperature_softmax(logits, where=seen)
            weights = torch.cat([weights[:, :2], sharp[:, 2:3], weights[:, 3:]], 1)
        return (weights @ value).transpose(1, 2), None

    with shf.sharpen(model, sx.PAPER, layers=[1], heads=[2]):
        found = answer(model)
    plain = answer(model)
    model.set_attn_implementation("eager")
    monkeypatch.setattr(modeling_llama, "eager_attention_forward", eager)
    torch.testing.assert_close(found, answer(model), rtol=0, atol=1e-5)
    assert (found - plain).abs().max() > 1e-3


@pytest.mark.parametrize("implementation", ["eager", "sdpa", "sharpmax"])
def test_undone_bit_for_bit_also_after_an_error(model, implementation):
    shf.register(sx.Constant(1.3))
    model.set_attn_implementation(implementation)
    before = answer(model)

    def fails():
        answer(model)
        raise KeyError

    with pytest.raises(KeyError), shf.sharpen(model, sx.PAPER):
        fails()
    assert torch.equal(answer(model), before)
    assert model.config._attn_implementation == implementation
    assert_nothing_is_patched()
    assert not model._forward_hooks


def test_blocks_may_be_nested_and_the_later_one_counts(model):
    with shf.sharpen(model, HARD, layers=[0, 1]):
        with shf.sharpen(model, sx.Constant(2.0), layers=[1], heads=[0]):
            inner = answer(model)
        outer = answer(model)
    torch.testing.assert_close(
        inner, by_hand(model, [[3] * 4, [2, 3, 3, 3], [1] * 4]), rtol=0, atol=1e-4
    )
    torch.testing.assert_close(
        outer, by_hand(model, [[3] * 4, [3] * 4, [1] * 4]), atol=1e-4, rtol=0
    )


def test_nested_blocks_change_no_bit_of_short_inputs(model):
    """Up to `from_tokens`, as long as none of the rules that hold sharpens."""
    model.set_attn_implementation("sdpa")
    plain = answer(model)
    short = ByRate((0.5, -0.5, 0.0, 2.0), from_tokens=TOKENS.shape[1])
    with shf.sharpen(model, short):
        assert torch.equal(answer(model), plain)
        with shf.sharpen(model, sx.LogLength(TOKENS.shape[1]), layers=[0], heads=[3]):
            assert torch.equal(answer(model), plain)
            with shf.sharpen(model.model, HARD, layers=[1], heads=[0]):
                inner = answer(model)
            assert torch.equal(answer(model), plain)
        with shf.sharpen(model, HARD), shf.sharpen(model, short, layers=[0, 1]):
            last = answer(model)
        assert torch.equal(answer(model), plain)
    torch.testing.assert_close(
        inner, by_hand(model, [[1] * 4, [3, 1, 1, 1], [1] * 4]), rtol=0, atol=1e-4
    )
    torch.testing.assert_close(last, by_hand(model, [[1] * 4, [1] * 4, [3] * 4]), rtol=0, atol=1e-4)


def test_training_on_short_inputs_has_the_same_gradients(model):
    model.set_attn_implementation("sdpa")
    model.train()

    def gradients():
        model.zero_grad()
        model(TOKENS, labels=TOKENS).loss.backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    plain = gradients()
    # Nothing follows the last token, so that its answer is not part of the loss.
    for tokens, equal in ((TOKENS.shape[1], True), (TOKENS.shape[1] - 2, False)):
        with shf.sharpen(model, ByRate((0.5, -0.5, 0.0, 2.0), tokens)):
            assert all(map(torch.equal, gradients(), plain)) == equal


def test_a_model_and_its_body_share_their_layers(model):
    plain = answer(model)
    with shf.sharpen(model, HARD, layers=[0]):
        with shf.sharpen(model.model, HARD, layers=[2]):
            both = answer(model)
        one = answer(model)
    torch.testing.assert_close(both, by_hand(model, [[3] * 4, [1] * 4, [3] * 4]), atol=1e-4, rtol=0)
    torch.testing.assert_close(one, by_hand(model, [[3] * 4, [1] * 4, [1] * 4]), atol=1e-4, rtol=0)
    assert torch.equal(answer(model), plain)


def test_two_models_at_once_ending_in_any_order(model):
    """Made from one config object, which transformers lets them share."""
    other = type(model)(model.config)
    torch.manual_seed(1)
    other.load_state_dict(
        {name: torch.randn_like(w) * 0.3 for name, w in other.state_dict().items()}
    )
    before = answer(model), answer(other)
    implementation = model.config._attn_implementation
    first, second = contextlib.ExitStack(), contextlib.ExitStack()
    first.enter_context(shf.sharpen(model, HARD))
    torch.testing.assert_close(answer(other), before[1], rtol=1e-4, atol=1e-4)
    second.enter_context(shf.sharpen(other, HARD))
    sharp = answer(other)
    first.close()
    assert torch.equal(answer(other), sharp)  # still inside its own block
    torch.testing.assert_close(answer(model), before[0], rtol=1e-4, atol=1e-4)
    second.close()
    assert torch.equal(answer(model), before[0])
    assert torch.equal(answer(other), before[1])
    assert model.config._attn_implementation == implementation
    assert (sharp - before[1]).abs().max() > 0.1


def test_a_policy_gets_the_size_of_the_heads(model):
    """Everywhere: in a block, in an export and in a model that is sharpened from loading on."""
    with shf.sharpen(model, InfoScale(4, head_size=8)):
        expected = answer(model)
    with shf.sharpen(model, InfoScale(4)):
        found = answer(model)
    shf.register(InfoScale(4))
    model.set_attn_implementation("sharpmax")
    assert (found - answer(llama())).abs().max() > 1e-3
    for ours in (found, answer(model)):
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-6)


def test_on_a_model_that_is_sharpened_altogether(model):
    """What no rule speaks of stays as `attn_implementation` has it."""
    shf.register(sx.Constant(2.0))
    model.set_attn_implementation("sharpmax")
    with shf.sharpen(model, HARD, layers=[1]):
        found = answer(model)
    model.set_attn_implementation("eager")
    expected = by_hand(model, [[2] * 4, [3] * 4, [2] * 4])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_generate_with_caches_and_padding(model):
    """Decoding with a cache gives what computing all of it again gives."""
    model.generation_config.eos_token_id = None
    padded = TOKENS.clone()
    padded[1, :5] = 0
    mask = (padded != 0).long()
    with shf.sharpen(model, sx.PAPER):
        kinds = {
            kind: model.generate(
                padded, attention_mask=mask, max_new_tokens=5, do_sample=False, **options
            )
            for kind, options in {
                "none": {"use_cache": False},
                "dynamic": {},
                "static": {"cache_implementation": "static"},
            }.items()
        }
    plain = model.generate(padded, attention_mask=mask, max_new_tokens=5, do_sample=False)
    assert torch.equal(kinds["dynamic"], kinds["none"])
    assert torch.equal(kinds["static"], kinds["none"])
    assert not torch.equal(plain, kinds["none"])


def test_frozen_weights_with_gradients_on(model):
    model.requires_grad_(False)
    with shf.sharpen(model, sx.Saturating(sx.PAPER), heads=[1]):
        found = model(TOKENS).logits
    with shf.sharpen(model, sx.Saturating(sx.PAPER), heads=[1]):
        assert torch.equal(found, answer(model))


def test_a_learned_policy_gets_its_gradient(model):
    model.requires_grad_(False)
    factor = torch.tensor(1.5, requires_grad=True)
    with shf.sharpen(model, lambda entropy, count: factor.expand(entropy.shape), heads=[1, 2]):
        model(TOKENS).logits.square().mean().backward()
    assert factor.grad.abs() > 1e-6


def test_rates_that_are_learned_have_a_gradient_on_short_inputs_too(model):
    """It is zero, but the loss must still have a graph."""
    model.requires_grad_(False)
    rates = torch.tensor((0.5, -0.5, 0.0, 2.0), requires_grad=True)
    with shf.sharpen(model, ByRate(rates, from_tokens=TOKENS.shape[1])):
        model(TOKENS).logits.square().mean().backward()
        assert torch.equal(rates.grad, torch.zeros(4))
        plain = answer(model)  # without gradients
    assert torch.equal(plain, answer(model))


def test_training_has_gradients_through_the_policy(model):
    model.train()
    with shf.sharpen(model, sx.PAPER):
        loss = model(TOKENS, labels=TOKENS).loss
    loss.backward()
    weight = model.model.layers[0].self_attn.q_proj.weight
    exact = weight.grad[3, 5].item()
    sides = []
    for step in (1e-2, -1e-2):
        with torch.no_grad(), shf.sharpen(model, sx.PAPER):
            weight[3, 5] += step
            sides.append(model(TOKENS, labels=TOKENS).loss.item())
            weight[3, 5] -= step
    assert exact == pytest.approx((sides[0] - sides[1]) / 2e-2, rel=0.05, abs=1e-5)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"layers": [3]}, UserError, "layers: no 3 among 3, which are 0 to 2"),
        ({"layers": []}, UserError, "layers=[]: expected several numbers"),
        ({"layers": 1}, UserError, "layers=1: expected several numbers"),
        ({"heads": [0, 4]}, UserError, "heads: no 4 among 4, which are 0 to 3"),
        ({"heads": ["a"]}, UserError, "heads: no 'a' among 4"),
        ({"policy": "paper"}, UserError, "unknown calibration 'paper': expected the path of"),
        ({"policy": 1.5}, TypeError, "got 1.5"),
    ],
)
def test_mistakes_are_named_and_change_nothing(model, options, error, message):
    before = model.config._attn_implementation
    with pytest.raises(error) as caught, shf.sharpen(model, **{"policy": sx.PAPER, **options}):
        pass
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert model.config._attn_implementation == before


def test_heads_mean_nothing_in_layers_of_different_sizes(model):
    model.model.layers[1].self_attn.num_heads = 2
    message = r"heads=\[1\]: the chosen layers have different numbers of heads \(\[2, 4\]\)"
    with pytest.raises(UserError, match=message), shf.sharpen(model, HARD, heads=[1]):
        pass
    with shf.sharpen(model, HARD, layers=[0, 2], heads=[1]):
        pass


def test_something_else_than_a_model():
    with (
        pytest.raises(UserError, match="expected a transformers model"),
        shf.sharpen(torch.nn.ReLU(), sx.PAPER),
    ):
        pass


def test_a_policy_that_fails_leaves_the_model_as_it_was(model):
    before = answer(model)

    def broken(entropy, count):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), shf.sharpen(model, broken):
        answer(model)
    assert torch.equal(answer(model), before)


def test_a_model_that_runs_without_reaching_its_layers_is_reported(model, monkeypatch):
    """The layers exist, but a patched forward never calls them."""
    monkeypatch.setattr(
        type(model.model.layers[0]), "forward", lambda self, hidden, **options: hidden
    )
    with (
        pytest.raises(UserError, match="none of its attention layers called"),
        shf.sharpen(model, sx.PAPER),
    ):
        answer(model)


def test_its_own_length_temperature_is_mentioned():
    yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}
    model = llama(rope_parameters=yarn | {"original_max_position_embeddings": 128})
    with (
        pytest.warns(shf.LengthTemperatureWarning, match="rope_type=yarn") as caught,
        shf.sharpen(model, sx.PAPER),
    ):
        pass
    assert caught[0].filename == __file__  # it points at the user's line
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with shf.sharpen(llama(), sx.PAPER):
            pass


def test_layers_are_numbered_in_order(model):
    assert [layer.name for layer in attention_layers(model)] == [
        f"model.layers.{index}.self_attn" for index in range(3)
    ]
