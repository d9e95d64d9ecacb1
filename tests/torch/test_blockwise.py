"""Blocks bound the memory: only the reference makes an array of queries times keys."""

from __future__ import annotations

import math

import pytest
import torch

import sharpmax as sx
from attention_cases import Largest
from sharpmax.torch import attention, attention_stats, blockwise, scaled_dot_product_attention

TOKENS = 1024


@pytest.fixture
def tensors(monkeypatch):
    monkeypatch.setattr(blockwise, "MAX_LOGITS", 1 << 15)
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, 4, TOKENS, 8, generator=generator) for _ in range(3)]


@pytest.mark.parametrize("impl", ["streaming", "fused", "auto"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("backward", [False, True])
def test_attention(tensors, impl, causal, backward):
    query, key, value = (tensor.requires_grad_(backward) for tensor in tensors)
    with Largest() as largest:
        output = attention(query, key, value, is_causal=causal, impl=impl)
        assert output.stats.max_logit.shape == query.shape[:-1]
        if backward:
            (output.output.sum() + output.stats.entropy.sum()).backward()
    assert 0 < largest.made <= 1 << 15


@pytest.mark.parametrize("impl", ["streaming", "fused", "auto"])
def test_statistics(tensors, impl):
    with Largest() as largest:
        stats = attention_stats(*tensors[:2], is_causal=True, impl=impl)
        assert stats.spread.shape == (1, 4, TOKENS)
    assert largest.made <= 1 << 15


def test_the_reference_does_and_the_count_sees_it(tensors):
    with Largest() as largest:
        scaled_dot_product_attention(*tensors, impl="reference", policy=sx.Constant(1.0))
    assert largest.made == 4 * TOKENS**2


def test_one_query_reads_the_keys_as_they_are():
    """Decoding: nothing as large as the keys is made, whatever their layout."""
    query = torch.randn(2, 8, 1, 16)
    key, value = (torch.randn(2, 512, 2, 16).transpose(1, 2) for _ in range(2))
    with Largest() as largest:
        for impl in ("streaming", "fused"):
            scaled_dot_product_attention(query, key, value, enable_gqa=True, impl=impl)
    assert largest.made <= math.prod(key.shape) // 2


@pytest.mark.parametrize("impl", ["streaming", "fused"])
@pytest.mark.parametrize("causal", [False, True])
def test_what_is_kept_for_the_gradient(tensors, impl, causal):
    """Blocks are computed again on the way back; their sum, the matrix, is never kept."""
    query, key, value = (tensor.requires_grad_() for tensor in tensors)
    kept = {}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes() // 4
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output, stats = attention(query, key, value, is_causal=causal, impl=impl)
        assert stats.max_logit.requires_grad
    assert sum(kept.values()) < TOKENS**2 / 2, "half of one head's matrix"
    assert output.requires_grad


@pytest.mark.parametrize("causal", [False, True])
def test_a_window_computes_no_block_outside_it(causal, monkeypatch):
    """Its cost is that of the window, whatever the number of keys."""
    monkeypatch.setattr(blockwise, "MAX_ROWS", 4)
    tensors = torch.randn(3, 1, 2, 64, 8, generator=torch.Generator().manual_seed(0)).double()
    widths = []
    compute_logits = blockwise.compute_logits

    def spy(*arguments):
        logits, where = compute_logits(*arguments)
        widths.append(logits.shape[-1])
        return logits, where

    monkeypatch.setattr(blockwise, "compute_logits", spy)
    attention(*tensors, is_causal=causal, window=5, impl="streaming")
    assert max(widths) == 5 + 3 + (0 if causal else 4)


def test_a_causal_block_ends_at_its_last_row(monkeypatch):
    monkeypatch.setattr(blockwise, "MAX_ROWS", 4)
    tensors = torch.randn(3, 1, 2, 12, 8, generator=torch.Generator().manual_seed(0)).double()
    keys = []
    compute_logits = blockwise.compute_logits

    def spy(inputs, block):
        keys.append(block.keys.stop)
        return compute_logits(inputs, block)

    monkeypatch.setattr(blockwise, "compute_logits", spy)
    attention(*tensors, is_causal=True, impl="streaming")
    assert keys == [4, 8, 12]
