"""Every implementation gives the same answer: that of the visible keys alone."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

import sharpmax as sx
import truth
from attention_cases import OPTIONS, SIZES, STATS, assert_is, make, mask_of
from sharpmax.torch import (
    attention,
    attention_stats,
    blockwise,
    fused,
    scaled_dot_product_attention,
)
from sharpmax.torch.interface import prepare_inputs

IMPLEMENTATIONS = ("reference", "streaming", "fused")


@pytest.fixture(autouse=True)
def many_blocks(monkeypatch):
    """Blocks so small that every problem here has several, of uneven sizes."""
    monkeypatch.setattr(blockwise, "MAX_LOGITS", 300)
    monkeypatch.setattr(blockwise, "MAX_ROWS", 4)
    monkeypatch.setattr(blockwise, "MIN_WORKSPACE", 40)


def attend(arrays, mask, causal, impl, options):
    tensors = map(torch.tensor, arrays)
    settings = {"attn_mask": mask, "is_causal": causal, "enable_gqa": True, "impl": impl}
    return attention(*tensors, **settings, **options)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", ["none", "padding", "rows", "heads", "bias"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("queries", "keys", "kv_heads"), SIZES)
def test_equals_attention_to_the_visible_keys(rng, options, kind, causal, queries, keys, kv_heads):
    if "sinks" in options:
        options = options | {"sinks": rng.normal(size=4)}
    arrays = make(rng, queries, keys, kv_heads=kv_heads)
    mask, meaning = mask_of(rng, kind, queries, keys)
    expected = truth.attention(*arrays, **meaning, causal=causal, **options)
    if "sinks" in options:
        options = options | {"sinks": torch.tensor(options["sinks"])}
    for impl in IMPLEMENTATIONS:
        if impl == "fused" and ("softcap" in options or kind == "bias"):
            continue  # refused by name, see test_api
        found = attend(arrays, mask, causal, impl, options)
        # Logits reach 40 here, entropies lose their last digits: 1e-15 * 40 * a few sums.
        assert_is(found, expected, 1e-12)


@pytest.mark.parametrize("impl", ["reference", "streaming"])
@pytest.mark.parametrize("window", [1, 3, 6, 100])
@pytest.mark.parametrize("kind", ["none", "padding", "rows", "bias"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("queries", "keys", "kv_heads"), SIZES)
def test_a_window_is_the_keys_near_the_query(
    rng, impl, window, kind, causal, queries, keys, kv_heads
):
    arrays = make(rng, queries, keys, kv_heads=kv_heads)
    mask, meaning = mask_of(rng, kind, queries, keys)
    options = {"softcap": 2.5, "window": window}
    expected = truth.attention(*arrays, **meaning, causal=causal, **options)
    assert_is(attend(arrays, mask, causal, impl, options), expected, 1e-12)


def test_a_window_computes_no_block_outside_it(rng, monkeypatch):
    """Its cost is that of the window, whatever the number of keys."""
    query, key, value = map(torch.tensor, make(rng, 64, 64))
    widths = []
    compute_logits = blockwise.compute_logits

    def spy(*arguments):
        logits, where = compute_logits(*arguments)
        widths.append(logits.shape[-1])
        return logits, where

    monkeypatch.setattr(blockwise, "compute_logits", spy)
    attention(query, key, value, is_causal=True, window=5)
    assert max(widths) <= 5 + blockwise.MAX_ROWS - 1


@pytest.mark.parametrize("causal", [False, True])
def test_a_window_has_the_gradient_of_the_reference(rng, causal):
    for impl in ("reference", "streaming"):
        leaves = [torch.tensor(array, requires_grad=True) for array in make(rng, 9, 11)]
        found = attention(*leaves, is_causal=causal, window=3, impl=impl)
        (found.output.square().sum() + found.stats.entropy.sum()).backward()
        gradients = [leaf.grad for leaf in leaves]
        if impl == "reference":
            rng = np.random.default_rng(7)
            expected = gradients
    for ours, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("impl", ["streaming", "fused"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["none", "rows"])
def test_lower_precision_is_as_exact_as_the_reference(rng, impl, dtype, causal, kind):
    """The tolerance is derived: a few times the error of the readable version in the same type."""
    arrays = [torch.tensor(array).to(dtype) for array in make(rng, 29, 37, kv_heads=2)]
    mask, _ = mask_of(rng, kind, 29, 37)
    options = {"attn_mask": mask, "is_causal": causal, "enable_gqa": True}
    exact = attention(*(array.double() for array in arrays), impl="reference", **options)
    plain = attention(*arrays, impl="reference", **options)
    ours = attention(*arrays, impl=impl, **options)
    assert ours.output.dtype == dtype
    for name in STATS[:4] + STATS[5:]:
        true, low, found = (getattr(it.stats, name) for it in (exact, plain, ours))
        seen = exact.stats.count > 0
        error = (low.double() - true)[seen].abs().max().item()
        assert found.dtype == torch.float32
        size = true[seen].abs().max().item()
        bound = 8 * error + 16 * torch.finfo(torch.float32).eps * size
        assert (found.double() - true)[seen].abs().max().item() <= bound, name
    error = (plain.output.double() - exact.output).abs().max().item()
    assert (ours.output.double() - exact.output).abs().max().item() <= 4 * error


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_statistics_alone_are_the_same(rng, impl):
    query, key, value = map(torch.tensor, make(rng, 13, 29))
    mask, _ = mask_of(rng, "rows", 13, 29)
    both = attention(query, key, value, attn_mask=mask, is_causal=True, impl=impl).stats
    alone = attention_stats(query, key, attn_mask=mask, is_causal=True, impl=impl)
    for name in (*STATS, "max_weight", "spread", "effective_items"):
        torch.testing.assert_close(getattr(alone, name), getattr(both, name), rtol=0, atol=1e-13)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_derived_statistics(rng, impl):
    query, key, _ = map(torch.tensor, make(rng, 5, 9))
    mask = torch.ones(5, 9, dtype=torch.bool)
    mask[2] = False
    stats = attention_stats(query, key, attn_mask=mask, impl=impl)
    weights = torch.softmax((query @ key.mT / math.sqrt(8)).masked_fill(~mask, -torch.inf), -1)
    expected = weights.amax(-1).nan_to_num(0.0)
    torch.testing.assert_close(stats.max_weight, expected, rtol=0, atol=1e-13)
    assert (stats.spread[:, :, 2] == 0).all()
    assert (stats.effective_items[:, :, 2] == 0).all()
    assert torch.equal(stats.effective_items[:, :, 0], stats.entropy[:, :, 0].exp())


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_a_mask_is_a_shorter_sequence(rng, impl):
    query, key, value = map(torch.tensor, make(rng, 6, 20))
    mask = torch.zeros(20, dtype=torch.bool)
    mask[:11] = True
    garbage = key.clone()
    garbage[:, :, 11:] = 1e6
    masked = attention(query, garbage, value, attn_mask=mask[None], impl=impl)
    short = attention(query, key[:, :, :11], value[:, :, :11], impl=impl)
    torch.testing.assert_close(masked.output, short.output, rtol=0, atol=1e-12)
    torch.testing.assert_close(masked.stats.entropy, short.stats.entropy, rtol=0, atol=1e-12)
    assert torch.equal(masked.stats.count, short.stats.count)


@pytest.mark.parametrize("impl", ["reference", "streaming"])
def test_the_lowest_number_of_a_mask_s_type_hides_as_infinity_does(rng, impl):
    query, key, value = (torch.tensor(array).float() for array in make(rng, 6, 9))
    hidden = torch.rand(6, 9, generator=torch.Generator().manual_seed(1)) < 0.4
    hidden[3] = True
    boolean = attention(query, key, value, attn_mask=~hidden, impl=impl)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        lowest = torch.zeros(6, 9, dtype=dtype).masked_fill(hidden, torch.finfo(dtype).min)
        found = attention(query, key, value, attn_mask=lowest, impl=impl)
        assert torch.equal(found.stats.count, boolean.stats.count)
        torch.testing.assert_close(found.output, boolean.output)
        torch.testing.assert_close(found.stats.entropy, boolean.stats.entropy)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 1, 3), (2, 2, 1, 3)])
def test_any_number_of_batch_axes(rng, impl, shape):
    """[..., heads, length, dim], as torch has it: two axes are one head alone."""
    query, key, value = (torch.tensor(rng.normal(size=(*shape, n, 8))) for n in (6, 9, 9))
    found = attention(query, key, value, impl=impl)
    flat = [tensor.reshape(1, -1, *tensor.shape[-2:]) for tensor in (query, key, value)]
    expected = attention(*flat, impl="reference")
    assert found.output.shape == query.shape
    assert found.stats.entropy.shape == query.shape[:-1]
    torch.testing.assert_close(found.output.reshape(flat[0].shape), expected.output)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_batch_axes_broadcast(rng, impl):
    query = torch.tensor(rng.normal(size=(3, 2, 4, 6, 8)))
    key, value = (torch.tensor(rng.normal(size=(2, 4, 9, 8))) for _ in range(2))
    with pytest.raises(ValueError, match="same number of axes"):
        attention(query, key, value, impl=impl)
    mask = torch.tensor(rng.random((3, 1, 1, 6, 9)) < 0.7)
    found = attention(query, key[None], value[None], attn_mask=mask, impl=impl)
    for i, j in itertools.product(range(3), range(2)):
        alone = attention(query[i, j], key[j], value[j], attn_mask=mask[i, 0, 0], impl="reference")
        torch.testing.assert_close(found.output[i, j], alone.output)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("layout", ["transposed", "strided", "expanded"])
def test_any_layout_in_memory(rng, impl, layout):
    """The CPU kernel is silently wrong on a last axis with a stride, unless it is protected."""
    arrays = [torch.tensor(array) for array in make(rng, 13, 13)]
    expected = attention(*arrays, impl="reference").output
    if layout == "transposed":  # as models lay it out: [batch, length, heads, dim]
        arrays = [array.transpose(1, 2).contiguous().transpose(1, 2) for array in arrays]
    elif layout == "strided":
        arrays = [array.mT.contiguous().mT for array in arrays]
    else:
        arrays[1] = arrays[1][:1].expand(2, -1, -1, -1)
        expected = attention(*arrays, impl="reference").output
    torch.testing.assert_close(attention(*arrays, impl=impl).output, expected)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("causal", [False, True])
def test_a_row_that_sees_nothing(rng, impl, causal):
    query, key, value = (torch.tensor(array, requires_grad=True) for array in make(rng, 9, 9))
    mask = torch.ones(9, 9, dtype=torch.bool)
    mask[[0, 4, 8]] = False
    output, stats = attention(query, key, value, attn_mask=mask, is_causal=causal, impl=impl)
    empty = [0, 4, 8]
    assert (output[:, :, empty] == 0).all()
    assert (stats.entropy[:, :, empty] == 0).all()
    assert (stats.count[:, :, empty] == 0).all()
    assert (stats.log_sum_exp[:, :, empty] == -torch.inf).all()
    assert (stats.inverse_temperature[:, :, empty] == 1).all()
    assert output.isfinite().all()
    (output.square().sum() + stats.entropy.sum() + stats.max_weight.sum()).backward()
    for tensor in (query, key, value):
        assert tensor.grad.isfinite().all()
    assert (query.grad[:, :, empty] == 0).all()


@pytest.mark.parametrize("impl", ["reference", "streaming"])
def test_a_row_that_sees_nothing_but_a_sink(rng, impl):
    query, key, value = (torch.tensor(array, requires_grad=True) for array in make(rng, 5, 9))
    sinks = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    mask = torch.ones(5, 9, dtype=torch.bool)
    mask[2] = False
    output = scaled_dot_product_attention(
        query, key, value, mask, sinks=sinks, policy=lambda h, n: h, impl=impl
    )
    assert (output[:, :, 2] == 0).all()
    output.square().sum().backward()
    for tensor in (query, key, value, sinks):
        assert tensor.grad.isfinite().all()


@pytest.mark.parametrize("impl", ["reference", "streaming"])
def test_nothing_at_all(impl):
    empty = torch.zeros(2, 3, 0, 8)
    some = torch.ones(2, 3, 5, 8)
    no_keys = attention(some, empty, empty, impl=impl)
    assert torch.equal(no_keys.output, torch.zeros(2, 3, 5, 8))
    assert (no_keys.stats.count == 0).all()
    assert (no_keys.stats.max_logit == -torch.inf).all()
    assert (no_keys.stats.min_logit == torch.inf).all()
    assert attention(empty, some, some, impl=impl).output.shape == (2, 3, 0, 8)
    assert attention(some[:0], some[:0], some[:0], impl=impl).output.shape == (0, 3, 5, 8)


@pytest.mark.parametrize("impl", ["reference", "streaming"])
def test_infinities_and_nans_stay_in_their_rows(rng, impl):
    """+inf shares the mass, NaN spoils the rows that see it, and a hidden one spoils nothing."""
    query, key, value = map(torch.tensor, make(rng, 4, 6))
    bias = torch.zeros(4, 6, dtype=torch.float64)
    bias[0, 1] = bias[0, 3] = torch.inf
    bias[1, 2] = torch.nan
    output, stats = attention(query, key, value, attn_mask=bias, impl=impl)
    both = (value[:, :, 1] + value[:, :, 3]) / 2
    torch.testing.assert_close(output[:, :, 0], both)
    torch.testing.assert_close(stats.entropy[:, :, 0], torch.full((2, 4), math.log(2.0)).double())
    clean = attention(query, key, value, impl=impl).output
    torch.testing.assert_close(output[:, :, 2:], clean[:, :, 2:])
    key[:, :, 5] = torch.nan
    visible = torch.ones(4, 6, dtype=torch.bool)
    visible[:, 5] = False
    hidden = attention(query, key, value, attn_mask=visible, impl=impl).output
    assert hidden.isfinite().all()


def test_hidden_keys_have_no_weight_at_any_temperature(rng):
    query, key, value = map(torch.tensor, make(rng, 5, 9))
    mask = torch.ones(5, 9, dtype=torch.bool)
    mask[:, 4:] = False
    for factor in (1e-30, 1e-18, 1e-3, 1e3):
        policy = sx.Constant(factor)
        for impl in IMPLEMENTATIONS:
            output = attention(query, key, value, attn_mask=mask, policy=policy, impl=impl).output
            short = attention(
                query, key[:, :, :4], value[:, :, :4], policy=policy, impl="reference"
            )
            torch.testing.assert_close(output, short.output, rtol=0, atol=1e-10)


@pytest.mark.parametrize("impl", ["reference", "streaming"])
def test_dropout(rng, impl):
    query, key = (torch.tensor(array) for array in make(rng, 64, 50)[:2])
    value = torch.eye(50, dtype=torch.float64).expand(2, 4, 50, 50)  # the output is the weights
    weights = scaled_dot_product_attention(query, key, value, impl=impl)
    torch.manual_seed(0)
    dropped = scaled_dot_product_attention(query, key, value, dropout_p=0.3, impl=impl)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], weights[kept] / 0.7)
    # 25,600 coins: four standard deviations are 0.012.
    assert abs(kept.double().mean().item() - 0.7) < 0.012
    everything = scaled_dot_product_attention(query, key, value, dropout_p=1.0, impl=impl)
    assert (everything == 0).all()


def test_dropout_is_the_same_on_the_way_back(rng):
    """A block is computed again for its gradient, with the same coins."""
    query, key, value = (torch.tensor(array, requires_grad=True) for array in make(rng, 13, 9))
    torch.manual_seed(3)
    output = scaled_dot_product_attention(query, key, value, dropout_p=0.5, impl="streaming")
    (gradient,) = torch.autograd.grad(output.sum(), value)
    probe = torch.eye(9, dtype=torch.float64).expand(2, 4, 9, 9)
    torch.manual_seed(3)
    weights = scaled_dot_product_attention(
        query.detach(), key.detach(), probe, dropout_p=0.5, impl="streaming"
    )
    torch.testing.assert_close(gradient, weights.sum(2)[..., None].expand_as(gradient))


class ByHead:
    """Sharpens the second query head only."""

    by_head = True

    def __call__(self, entropy, count):
        heads = torch.arange(4).view(entropy.shape[1], entropy.shape[2], 1)
        return torch.where(heads == 1, 1 + entropy, 1.0)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_a_policy_that_differs_by_head_sees_all_heads(rng, kv_heads):
    """However small the blocks are: here several would fit one head only."""
    query, key, value = map(torch.tensor, make(rng, 13, 40, kv_heads=kv_heads))
    found, expected = (
        attention(query, key, value, enable_gqa=True, policy=ByHead(), impl=impl)
        for impl in ("streaming", "reference")
    )
    assert (expected.stats.inverse_temperature[:, 1] > 1).all()
    assert (expected.stats.inverse_temperature[:, [0, 2, 3]] == 1).all()
    torch.testing.assert_close(found.output, expected.output)
    torch.testing.assert_close(found.stats.inverse_temperature, expected.stats.inverse_temperature)
    with pytest.raises(NotImplementedError, match="a policy that differs by head"):
        attention(*(one.float() for one in (query, query, query)), policy=ByHead(), impl="cpu")


def test_counting_keys_agrees(rng):
    """`fused` counts without the logits."""
    query, key, _ = map(torch.tensor, make(rng, 13, 9))
    for kind, causal in itertools.product(("none", "padding", "rows", "heads"), (False, True)):
        mask, _ = mask_of(rng, kind, 13, 9)
        problem = prepare_inputs(query, key, None, attn_mask=mask, is_causal=causal)
        expected = attention_stats(
            query, key, attn_mask=mask, is_causal=causal, impl="reference"
        ).count
        assert torch.equal(problem.restore_shape(fused.count_visible(problem)), expected)
