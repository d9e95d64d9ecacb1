"""Rows of flash attention, which takes padding and packed sequences instead of a mask."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import flash_attention_mask
from transformers.utils import is_flash_attn_2_available

import sharpmax.hf as shf
from hf.families import FAMILIES, run
from hf.small import llama, random_tokens
from sharpmax import UserError
from sharpmax.hf.train.rows import STATISTICS, Call, find_visible, measure_rows, pick_rows

NAME = "made_up_flash_attention"


def attend(module, query, key, value, mask, *, scaling=None, sliding_window=None, **options):
    """Compute what flash attention does, and take the arguments that it takes."""
    assert mask is None or mask.ndim == 2
    queries, keys = query.shape[2], key.shape[2]
    place = torch.arange(keys)
    visible = (place <= place[-queries:, None])[None, None]
    if sliding_window is not None:
        visible = visible & (place[-queries:, None] - place < sliding_window)
    if mask is not None:
        visible = visible & mask.bool()[:, None, None, :]
    visible = visible | torch.eye(keys, dtype=torch.bool)[-queries:]  # rows of padding
    answer = functional.scaled_dot_product_attention(
        query, key, value, visible, scale=scaling, enable_gqa=True
    )
    return answer.transpose(1, 2).contiguous(), None


@pytest.fixture
def flash():
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, flash_attention_mask)
    yield NAME
    del AttentionInterface._global_mapping[NAME]
    del AttentionMaskInterface._global_mapping[NAME]


@pytest.mark.parametrize("padded", [None, "left", "right"])
@pytest.mark.parametrize("name", ["Llama", "Mistral", "GPT-NeoX"])
def test_what_takes_padding_has_the_statistics_of_eager_attention(flash, name, padded):
    inputs, found = FAMILIES[name].example(padded), []
    for implementation in ("eager", flash):
        model = FAMILIES[name].make()
        model.config._attn_implementation = implementation
        with shf.attention_statistics(model) as statistics, shf.max_logits(model) as largest:
            run(model, inputs)
        found.append([*(statistics.array(name) for name in STATISTICS), largest.values])
    for eager, own in zip(*found, strict=True):
        np.testing.assert_allclose(own, eager, rtol=2e-4, atol=2e-4)


@pytest.mark.skipif(
    not (torch.cuda.is_available() and is_flash_attn_2_available()),
    reason="needs a GPU and the package flash-attn",
)
def test_flash_attention_on_a_gpu():
    tokens, found = random_tokens(2, 40).cuda(), []
    for implementation in ("eager", "flash_attention_2"):
        model = llama(attn_implementation=implementation).to("cuda", torch.bfloat16)
        with torch.no_grad():
            expected = model(tokens).logits
            with shf.attention_statistics(model) as statistics:
                assert torch.equal(model(tokens).logits, expected)
        found.append(statistics)
    for name in STATISTICS:
        np.testing.assert_allclose(
            found[0].array(name)[0], found[1].array(name)[0], rtol=0.02, atol=0.02
        )


def call(length=9, implementation="flash_attention_2", mask=None, **options):
    generator = torch.Generator().manual_seed(3)
    query, key = torch.randn(2, 1, 4, length, 8, generator=generator)
    module = torch.nn.Module()
    module.is_causal = True
    return Call(implementation, module, query, key, mask, options)


PACKED = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 0, 1]])
STARTS = torch.tensor([0, 4, 7, 9])


@pytest.mark.parametrize(
    "options", [{"position_ids": PACKED}, {"cu_seq_lens_q": STARTS}], ids=["positions", "starts"]
)
@pytest.mark.parametrize("window", [None, 3])
def test_packed_sequences_do_not_see_each_other(options, window):
    whole = call(sliding_window=window, **options)
    visible, real = find_visible(whole, 1, torch.arange(9), 9)
    assert real.all()
    place = np.arange(9)
    segment = np.searchsorted(STARTS[1:].numpy(), place, side="right")
    expected = (place <= place[:, None]) & (segment == segment[:, None])
    if window is not None:
        expected &= place[:, None] - place < window
    np.testing.assert_array_equal(visible[0, 0], expected)
    # The same as each sequence alone, weighed by its rows.
    sums, largest = 0.0, -np.inf
    for first, last in itertools.pairwise(STARTS):
        part = Call(
            "sdpa",
            whole.module,
            whole.query[:, :, first:last],
            whole.key[:, :, first:last],
            None,
            {"sliding_window": window},
        )
        measured = measure_rows(part, 9, 1)
        sums, largest = sums + measured[:, :-1], np.maximum(largest, measured[:, -1].numpy())
    found = measure_rows(whole, 9, 1)
    np.testing.assert_allclose(found[:, :-1], sums, rtol=1e-5)
    np.testing.assert_allclose(found[:, -1], largest, rtol=1e-6)


def test_positions_that_are_not_packed_are_one_sequence():
    plain = call(implementation="sdpa", position_ids=PACKED)  # sdpa has a mask for that
    visible, _ = find_visible(plain, 1, torch.arange(9), 9)
    np.testing.assert_array_equal(visible[0, 0], np.tri(9, dtype=bool))


def test_rows_are_spread_evenly_and_end_with_the_last():
    cpu = torch.device("cpu")
    assert pick_rows(100, 4, cpu).tolist() == [24, 49, 74, 99]
    assert pick_rows(3, 32, cpu).tolist() == [0, 1, 2]
    assert pick_rows(7, 3, cpu).tolist() == [1, 3, 6]
    assert pick_rows(7, [0, 6, 7], cpu).tolist() == [0, 6]


def test_a_mask_that_cannot_be_read_is_refused():
    for mask in ("block mask", torch.ones(3)):
        with pytest.raises(UserError, match=r"'other' passes a mask of type .*, which cannot be"):
            find_visible(call(implementation="other", mask=mask), 1, torch.arange(9), 9)
