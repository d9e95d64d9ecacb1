"""Other laws, and LoRA: what they do to a model, and that nothing of it stays."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf.small import llama, random_tokens
from sharpmax.experiments.tune_comparison.learnables import ByLaw, LawRates, attached_lora
from sharpmax.hf.tune.settings import LAW

RATES = st.floats(-2, 2, width=32)


@given(st.lists(st.tuples(RATES, RATES), min_size=4, max_size=4), st.integers(1, 5000))
def test_laws_are_the_formulas(pairs, count):
    rates, offsets = (torch.tensor(row, dtype=torch.float64) for row in zip(*pairs, strict=True))
    entropy = torch.zeros(1, 2, 2, 1, dtype=torch.float64)
    counts = torch.full_like(entropy, count)
    power = ByLaw(rates, None, 128)(entropy, counts).flatten()
    shifted = ByLaw(rates, offsets, 128)(entropy, counts).flatten()
    for head, (rate, offset) in enumerate(pairs):
        if count <= 128:
            assert power[head] == shifted[head] == 1
            continue
        expected = (count / 128) ** rate
        assert power[head].item() == pytest.approx(min(max(expected, LAW.low), LAW.high))
        expected = 1 + offset + rate * math.log(count / 128)
        assert shifted[head].item() == pytest.approx(min(max(expected, LAW.low), LAW.high))


@pytest.mark.parametrize(("name", "numbers"), [("power", 12), ("offset", 24)])
def test_a_law_learns_one_or_two_numbers_per_head(name, numbers):
    model, tokens = llama(), random_tokens(1, 40)
    learnable = LawRates(model, 8, name)
    assert sum(parameter.numel() for parameter in learnable.parameters) == numbers
    assert all(parameter.requires_grad for parameter in learnable.parameters)
    plain = model(tokens).logits.detach()
    with learnable.applied():
        torch.testing.assert_close(model(tokens).logits, plain)
        with torch.no_grad():
            learnable.parameters[-1].fill_(0.5)
        changed = model(tokens).logits
        changed.sum().backward()
        assert (changed[:, 8:] - plain[:, 8:]).abs().max() > 1e-3
        torch.testing.assert_close(changed[:, :8], plain[:, :8])
        with learnable.plain():
            torch.testing.assert_close(model(tokens).logits, plain)
    assert all(parameter.grad.abs().max() > 0 for parameter in learnable.parameters)


def test_lora_acts_while_it_is_attached_only():
    pytest.importorskip("peft")
    model, tokens = llama(), random_tokens(1, 20)
    model.lm_head.weight.requires_grad_(False)
    with torch.no_grad():
        plain = model(tokens).logits
    names = [name for name, _ in model.named_parameters()]
    with attached_lora(model, 2, seed=1) as lora:
        first = [parameter.clone() for parameter in lora.parameters]
        # Per layer 32 inputs and 32 outputs of the query projection, times the rank.
        assert sum(parameter.numel() for parameter in lora.parameters) == 3 * 2 * (32 + 32)
        with torch.no_grad(), lora.applied():
            assert torch.equal(model(tokens).logits, plain)
            for parameter in lora.parameters:
                parameter.add_(0.1)
            assert (model(tokens).logits - plain)[:, 1:].abs().max() > 1e-3
            assert torch.equal(model(tokens).logits[:, 0], plain[:, 0])
            with lora.plain():
                assert torch.equal(model(tokens).logits, plain)
    with torch.no_grad():
        assert torch.equal(model(tokens).logits, plain)
    assert [name for name, _ in model.named_parameters()] == names
    free = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert free == {"lm_head.weight"}
    with attached_lora(model, 2, seed=1) as again:
        assert all(map(torch.equal, first, again.parameters))
    with attached_lora(model, 2, seed=2) as other:
        assert not all(map(torch.equal, first, other.parameters))
