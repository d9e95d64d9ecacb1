"""Policies that look at the varentropy, or at whole rows, in a model: for all heads and for some."""

from __future__ import annotations

import pytest
import torch

import sharpmax as sx
import sharpmax.hf as shf
from hf.small import llama, tokenizer

HEADS = 4
TOKENS = torch.arange(3, 33)[None] % 20 + 3


def logits_with(model, policy, **selection):
    with torch.no_grad(), shf.sharpen(model, policy, **selection):
        return model(input_ids=TOKENS).logits


@pytest.fixture(scope="module")
def model():
    return llama()


@pytest.mark.parametrize("exact", [False, True])
def test_all_heads_by_their_numbers_are_all_heads(model, exact):
    policy = sx.TargetEntropy(0.5, exact=exact)
    plain = logits_with(model, sx.Constant(1.0))
    every = logits_with(model, policy)
    assert (every - plain).abs().max() > 1e-3
    numbered = logits_with(model, policy, heads=range(HEADS))
    torch.testing.assert_close(numbered, every, rtol=1e-4, atol=1e-5)
    some = logits_with(model, policy, heads=[1])
    assert (some - plain).abs().max() > 1e-5
    assert (some - every).abs().max() > 1e-5


def test_the_exact_variant_holds_every_row_at_the_target(model):
    """As a scan of the sharpened model measures it."""
    policy = sx.TargetEntropy(0.5, largest=1e6, exact=True)
    scan = shf.scan(
        model, tokenizer(), [30], lambda length: TOKENS[0, :length].tolist(), policy=policy
    )
    assert scan.entropy.max() <= 0.5 + 1e-3
    plain = shf.scan(model, tokenizer(), [30], lambda length: TOKENS[0, :length].tolist())
    assert plain.entropy.max() > 1.0
