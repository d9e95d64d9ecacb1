"""Statistics of one forward pass."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf.small import llama
from sharpmax.hf.patch.scope import PLAIN
from sharpmax.hf.scan.forward import Selection, _first_logit, measure_forward_pass
from sharpmax.torch import attention_stats

KEY_HEADS, KEYS = 2, 7


@st.composite
def attention_arguments(draw):
    """What an observer gets, with any combination of options."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    heads = KEY_HEADS * draw(st.integers(1, 3))
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))

    def random(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    causal = draw(st.booleans())
    bias = random(1, heads, KEYS, KEYS).to(dtype)
    visible = random(1, 1, KEYS, KEYS) > 0
    masks = {
        "none": None,
        "boolean": visible,
        "bias": bias,
        "lowest": bias.masked_fill(~visible, torch.finfo(dtype).min),
        "-inf": bias.masked_fill(~visible, -torch.inf),
    }
    return {
        "query": random(1, heads, KEYS, 4).to(dtype),
        "key": random(1, KEY_HEADS, KEYS, 4).to(dtype),
        "attn_mask": masks[draw(st.sampled_from(list(masks)))],
        "is_causal": causal,
        "scale": draw(st.sampled_from([None, 0.3])),
        "enable_gqa": True,
        "softcap": draw(st.sampled_from([None, 0.7])),
        "window": draw(st.sampled_from([None, 1, 3])),
    }


@given(arguments=attention_arguments())
def test_the_logit_of_the_first_token_is_that_of_attention(arguments):
    """The log-sum-exp of attention to a single key is its logit."""
    mask = arguments["attn_mask"]
    first_only = {
        **arguments,
        "key": arguments["key"][:, :, :1],
        "attn_mask": None if mask is None else mask[..., :1],
    }
    expected = attention_stats(**first_only, policy=PLAIN).log_sum_exp
    logit = _first_logit(arguments)
    assert logit.dtype == expected.dtype
    # Sums of 4 products and a bias, of at most about 10 in size.
    torch.testing.assert_close(logit, expected, rtol=0, atol=64 * torch.finfo(logit.dtype).eps)


@pytest.mark.parametrize("heads", [None, [1, 3]])
def test_each_layer_is_announced_once(heads):
    model, finished = llama(), []
    selection = Selection.create(model, [0, 2], heads)
    arrays = measure_forward_pass(
        model, selection, [5, 6, 7], finish_layer=lambda: finished.append(1)
    ).arrays
    assert len(finished) == 2
    assert arrays["last_entropy"].shape == (2, 4 if heads is None else 2)
    assert (arrays["last_count"] == 3).all()
