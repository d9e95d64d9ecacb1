"""The logits processor: the same function as on arrays, in `generate`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import LogitsProcessorList, TopKLogitsWarper

import sharpmax as sx
from hf.small import llama, random_tokens
from sharpmax.hf import AdaptiveTemperatureLogitsProcessor

TOKENS = random_tokens(3, 4)
"""The tokens so far, which do not matter."""


def test_equals_the_function_on_arrays():
    scores = torch.randn(3, 300, generator=torch.Generator().manual_seed(0)) * 2
    found = AdaptiveTemperatureLogitsProcessor()(TOKENS, scores)
    np.testing.assert_allclose(
        torch.softmax(found.double(), -1),
        sx.adaptive_temperature_softmax(scores.double().numpy()),
        rtol=1e-5,
        atol=1e-9,
    )
    assert (found.argmax(-1) == scores.argmax(-1)).all()
    assert not torch.equal(found, scores)


def test_tokens_that_are_ruled_out_count_nowhere():
    scores = torch.randn(3, 40, generator=torch.Generator().manual_seed(0))
    hidden = scores.clone()
    hidden[:, 7:] = -torch.inf
    for policy in (sx.PAPER, sx.LogLength(4)):
        processor = AdaptiveTemperatureLogitsProcessor(policy)
        found = processor(TOKENS, hidden)
        torch.testing.assert_close(found[:, :7], processor(TOKENS, scores[:, :7]))
        assert (found[:, 7:] == -torch.inf).all()
    flat = AdaptiveTemperatureLogitsProcessor(lambda entropy, count: 0 * entropy + 1e-17)(
        TOKENS, hidden
    )
    assert (flat[:, :7].abs() < 1e-15).all()
    assert (flat[:, 7:] == -torch.inf).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_full(dtype):
    scores = (torch.randn(3, 200, generator=torch.Generator().manual_seed(0)) * 3).to(dtype)
    processor = AdaptiveTemperatureLogitsProcessor()
    found = processor(TOKENS, scores)
    assert found.dtype == dtype
    assert torch.equal(found, processor(TOKENS, scores.float()).to(dtype))


def test_in_generate():
    model = llama()
    model.generation_config.eos_token_id = None
    tokens = random_tokens(2, 5)

    def sample(*processors):
        torch.manual_seed(0)
        return model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=20,
            do_sample=True,
            logits_processor=LogitsProcessorList(processors),
        )

    plain, sharp = sample(), sample(AdaptiveTemperatureLogitsProcessor(sx.Constant(1e4)))
    greedy = model.generate(
        tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=20, do_sample=False
    )
    assert torch.equal(sharp, greedy)
    assert not torch.equal(plain, greedy)
    both = sample(TopKLogitsWarper(1), AdaptiveTemperatureLogitsProcessor())
    assert torch.equal(both, greedy)


def test_a_policy_is_asked_for_and_shown():
    with pytest.raises(TypeError, match="policy must be a function"):
        AdaptiveTemperatureLogitsProcessor(2.0)
    assert "Constant" in repr(AdaptiveTemperatureLogitsProcessor(sx.Constant(2.0)))
