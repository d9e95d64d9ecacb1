"""Every implementation gives the same answer: that of the visible keys alone."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sharpmax as sx
from attention_cases import (
    ALL,
    EVERY_OPTION,
    SMOOTH,
    STATS,
    TRITON,
    Call,
    assert_right,
    calls,
    small_blocks,  # noqa: F401  # a fixture
    tensor,
    widest,
)
from sharpmax.torch import (
    attention,
    attention_stats,
    fused,
    reference,
    scaled_dot_product_attention,
    streaming,
)
from sharpmax.torch.interface import prepare_inputs
from sharpmax.torch.triton import attention as triton


def make(impl, queries, keys, heads=4, dim=8, seed=7):
    """Query, key and value in the type of an implementation."""
    rng = np.random.default_rng(seed)
    shapes = ((2, heads, queries, dim), (2, heads, keys, dim), (2, heads, keys, dim))
    query, key, value = (tensor(rng.normal(size=shape), impl) for shape in shapes)
    return [3 * query, key, value]


def exact(impl):
    """Relative and absolute tolerance of comparisons of numbers of about 1."""
    eps = torch.finfo(widest(impl)).eps
    return {"rtol": 1e3 * eps, "atol": 1e3 * eps}


@pytest.mark.parametrize("impl", ["reference", "streaming", "fused", "cpu"])
@given(data=st.data())
def test_equals_attention_to_the_visible_keys(impl, data):
    call = data.draw(calls(impl))
    dtypes = [torch.float32, torch.bfloat16, torch.float16]
    dtype = data.draw(st.sampled_from(dtypes if impl == "cpu" else [torch.float64, *dtypes]))
    call = call.rounded(dtype)
    assert_right(call.run(impl, dtype), call, dtype)


@pytest.mark.parametrize("impl", ALL)
@pytest.mark.parametrize("queries", [1, 2])
def test_short_queries_of_heads_that_share_keys(rng, impl, queries):
    """They are stacked in one block, though each head has its own mask and sink."""
    seen = rng.random((2, 6, queries, 9)) < 0.7
    shapes = ((2, 6, queries, 4), (2, 2, 9, 4), (2, 2, 9, 4))
    query, key, value = (rng.normal(size=shape) for shape in shapes)
    bias = np.where(seen, rng.normal(size=seen.shape), -np.inf)
    sinks = rng.normal(size=6)
    for mask in ({"visible": seen},) if impl == "fused" else ({"visible": seen}, {"bias": bias}):
        call = Call(3 * query, key, value, **mask, sinks=sinks).rounded(widest(impl))
        assert_right(call.run(impl), call, widest(impl))


@pytest.mark.parametrize("impl", [TRITON])
@settings(max_examples=30)
@given(data=st.data())
def test_triton_equals_attention_to_the_visible_keys(impl, data):
    call = data.draw(calls(impl, longest=20))
    dtypes = [widest(impl), torch.float32]
    dtype = data.draw(st.sampled_from(dtypes))
    call = call.rounded(dtype)
    assert_right(call.run(impl, dtype), call, dtype)


@pytest.mark.parametrize("impl", ["streaming", "fused", "cpu", TRITON])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lower_precision_is_as_exact_as_the_reference(rng, impl, dtype):
    """The tolerance is derived: a few times the error of the readable version in the same type."""
    call = Call(
        query=rng.normal(size=(1, 4, 29, 8)) * 3,
        key=rng.normal(size=(1, 2, 37, 8)),
        value=rng.normal(size=(1, 2, 37, 8)),
        visible=rng.random((29, 37)) < 0.6,
    ).rounded(dtype)
    exact, plain, ours = (
        call.run(*how) for how in (("reference",), ("reference", dtype), (impl, dtype))
    )
    assert ours.output.dtype == dtype
    for name in set(STATS) - {"count"}:
        true, low, found = (getattr(it.stats, name).cpu() for it in (exact, plain, ours))
        error = (low.double() - true).abs().max().item()
        assert found.dtype == torch.float32
        bound = 8 * error + 16 * torch.finfo(torch.float32).eps * true.abs().max().item()
        assert (found.double() - true).abs().max().item() <= bound, name
    error = (plain.output.double() - exact.output).abs().max().item()
    assert (ours.output.cpu().double() - exact.output).abs().max().item() <= 4 * error


@pytest.mark.parametrize("impl", ALL)
def test_statistics_alone_are_the_same(rng, impl):
    query, key, value = make(impl, 13, 29)
    mask = tensor(rng.random((13, 29)) < 0.6, impl, torch.bool)
    options = {"attn_mask": mask, "is_causal": True, "impl": impl}
    both = attention(query, key, value, **options).stats
    alone = attention_stats(query, key, **options)
    for name in (*STATS, "max_weight", "spread", "effective_items"):
        torch.testing.assert_close(getattr(alone, name), getattr(both, name), rtol=0, atol=1e-13)


@pytest.mark.parametrize("impl", ALL)
def test_derived_statistics(impl):
    query, key, _ = make(impl, 5, 9)
    mask = torch.ones(5, 9, dtype=torch.bool, device=query.device)
    mask[2] = False
    stats = attention_stats(query, key, attn_mask=mask, impl=impl)
    weights = torch.softmax((query @ key.mT / math.sqrt(8)).masked_fill(~mask, -torch.inf), -1)
    torch.testing.assert_close(stats.max_weight, weights.amax(-1).nan_to_num(0.0), **exact(impl))
    logits = query @ key.mT / math.sqrt(8)
    spread = (logits.amax(-1) - logits.amin(-1)) * mask[:, 0]
    torch.testing.assert_close(stats.spread, spread, **exact(impl))
    assert (stats.effective_items[:, :, 2] == 0).all()
    assert torch.equal(stats.effective_items[:, :, 0], stats.entropy[:, :, 0].exp())


@pytest.mark.parametrize("impl", ALL)
def test_a_mask_is_a_shorter_sequence(impl):
    """Also at extreme temperatures, and whatever the hidden keys and values hold."""
    query, key, value = make(impl, 6, 20)
    mask = torch.arange(20, device=query.device)[None] < 11
    garbage = key.clone()
    garbage[:, :, 11:] = 1e6
    for policy in (sx.PAPER, sx.Constant(1e-30), sx.Constant(1e-18), sx.Constant(1e3)):
        options = {"policy": policy, "impl": impl}
        masked = attention(query, garbage, value, attn_mask=mask, **options)
        short = attention(query, key[:, :, :11], value[:, :, :11], **options)
        for ours, theirs in ((masked.output, short.output), (masked[1].entropy, short[1].entropy)):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e3 * exact(impl)["atol"])
        assert torch.equal(masked.stats.count, short.stats.count)


@pytest.mark.parametrize("impl", EVERY_OPTION)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_lowest_number_of_a_mask_s_type_hides_as_infinity_does(impl, dtype):
    query, key, value = (array.float() for array in make(impl, 6, 9, heads=2))
    hidden = torch.rand(6, 9, generator=torch.Generator().manual_seed(1)).to(query.device) < 0.4
    hidden[3] = True
    boolean = attention(query, key, value, attn_mask=~hidden, impl=impl)
    lowest = torch.zeros(6, 9, dtype=dtype, device=query.device)
    lowest = lowest.masked_fill(hidden, torch.finfo(dtype).min)
    found = attention(query, key, value, attn_mask=lowest, impl=impl)
    assert torch.equal(found.stats.count, boolean.stats.count)
    torch.testing.assert_close(found.output, boolean.output)
    torch.testing.assert_close(found.stats.entropy, boolean.stats.entropy)


@pytest.mark.parametrize("impl", [*ALL, "auto"])
@pytest.mark.parametrize("scale", [0.0, -0.0, -0.4, -1e-60, 1e-60])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_any_sign_of_the_scale(impl, scale, causal, masked):
    """torch's own kernel multiplies by the scale after writing -inf above the diagonal."""
    mask = np.random.default_rng(0).random((9, 11)) < 0.8
    for policy in (sx.PAPER, sx.Constant(1.5)):
        arrays = [array.cpu().numpy() for array in make("reference", 9, 11)]
        visible = mask if masked else None
        call = Call(*arrays, visible=visible, causal=causal, scale=scale, policy=policy)
        dtype = widest("cpu" if impl == "auto" else impl)
        assert_right(call.run(impl, dtype), call.rounded(dtype), dtype)


@pytest.mark.parametrize("impl", ["streaming", "fused", "auto", TRITON])
@pytest.mark.parametrize("scale", [0.0, -0.4, -1e-60])
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_with_any_sign_of_the_scale(impl, scale, causal):
    def gradients(how):
        tensors = [array.requires_grad_() for array in make(how, 9, 11)]
        output, stats = attention(*tensors, scale=scale, is_causal=causal, policy=SMOOTH, impl=how)
        loss = output.square().sum() + stats.entropy.sum() + stats.log_sum_exp.sin().sum()
        return torch.autograd.grad(loss, tensors)

    for ours, right in zip(gradients(impl), gradients("reference"), strict=True):
        torch.testing.assert_close(ours.cpu().double(), right, **exact(impl))


HIDING = {
    torch.float64: (-1e300, -3e38, -1e38),
    torch.float32: (-3e38, -1e38),
    torch.bfloat16: (-3e38, -1e38),
    torch.float16: (),
}
"""Besides -inf and the lowest number of the type."""


@pytest.mark.parametrize("impl", EVERY_OPTION)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mask_dtype", HIDING)
def test_which_numbers_of_a_mask_hide_a_key(impl, dtype, mask_dtype):
    """In float32 nothing may overflow: it would hide a key that is counted."""
    if dtype == torch.float64 and widest(impl) != dtype:
        pytest.skip("no float64")
    query, key, value = (array.to(dtype) for array in make(impl, 3, 9))
    hiding = (-torch.inf, torch.finfo(mask_dtype).min, *HIDING[mask_dtype])
    visible = (0.0, -65472.0, *([] if mask_dtype == torch.float16 else [-9e37]))
    numbers = torch.tensor([*hiding, *visible, *[0.0] * 9], dtype=mask_dtype)[:9].to(query.device)
    mask = torch.zeros(3, 9, dtype=mask_dtype, device=query.device)
    mask[1] = numbers
    mask[2, :] = numbers[: len(hiding)].repeat(9)[:9]
    output, stats = attention(query, key, value, attn_mask=mask, impl=impl)
    assert (stats.count[:, :, 0] == 9).all()
    assert (stats.count[:, :, 1] == 9 - len(hiding)).all()
    assert (stats.count[:, :, 2] == 0).all()
    assert (output[:, :, 2] == 0).all()
    assert output.isfinite().all()
    assert stats.min_logit[:, :, :2].isfinite().all()


@pytest.mark.parametrize("impl", ALL)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 2, 1, 3)])
def test_any_number_of_batch_axes(rng, impl, shape):
    """[..., heads, length, dim], as torch has it: two axes are one head alone."""
    query, key, value = (tensor(rng.normal(size=(*shape, n, 8)), impl) for n in (6, 9, 9))
    found = attention(query, key, value, impl=impl)
    flat = [array.reshape(1, -1, *array.shape[-2:]) for array in (query, key, value)]
    expected = attention(*flat, impl="reference")
    assert found.output.shape == query.shape
    assert found.stats.entropy.shape == query.shape[:-1]
    torch.testing.assert_close(found.output.reshape(flat[0].shape), expected.output)


@pytest.mark.parametrize("impl", ALL)
def test_batch_axes_broadcast(rng, impl):
    query = tensor(rng.normal(size=(3, 2, 4, 6, 8)), impl)
    key, value = (tensor(rng.normal(size=(2, 4, 9, 8)), impl) for _ in range(2))
    with pytest.raises(ValueError, match="same number of axes"):
        attention(query, key, value, impl=impl)
    mask = tensor(rng.random((3, 1, 1, 6, 9)) < 0.7, impl, torch.bool)
    found = attention(query, key[None], value[None], attn_mask=mask, impl=impl)
    for i, j in itertools.product(range(3), range(2)):
        alone = attention(query[i, j], key[j], value[j], attn_mask=mask[i, 0, 0], impl="reference")
        torch.testing.assert_close(found.output[i, j], alone.output)


@pytest.mark.parametrize("impl", ALL)
@pytest.mark.parametrize("layout", ["transposed", "strided", "expanded"])
def test_any_layout_in_memory(impl, layout):
    """The CPU kernel is silently wrong on a last axis with a stride, unless it is protected."""
    arrays = make(impl, 13, 13)
    if layout == "transposed":  # as models lay it out: [batch, length, heads, dim]
        arrays = [array.transpose(1, 2).contiguous().transpose(1, 2) for array in arrays]
    elif layout == "strided":
        arrays = [array.mT.contiguous().mT for array in arrays]
    else:
        arrays[1] = arrays[1][:1].expand(2, -1, -1, -1)
    expected = attention(*arrays, impl="reference").output
    torch.testing.assert_close(attention(*arrays, impl=impl).output, expected)


@pytest.mark.parametrize("impl", ALL)
@pytest.mark.parametrize("causal", [False, True])
def test_a_row_that_sees_nothing(impl, causal):
    tensors = [array.requires_grad_(impl != "cpu") for array in make(impl, 9, 9)]
    empty = [0, 4, 8]
    mask = torch.ones(9, 9, dtype=torch.bool, device=tensors[0].device)
    mask[empty] = False
    output, stats = attention(*tensors, attn_mask=mask, is_causal=causal, impl=impl)
    assert (output[:, :, empty] == 0).all()
    assert (stats.entropy[:, :, empty] == 0).all()
    assert (stats.count[:, :, empty] == 0).all()
    assert (stats.log_sum_exp[:, :, empty] == -torch.inf).all()
    assert (stats.inverse_temperature[:, :, empty] == 1).all()
    assert output.isfinite().all()
    if impl == "cpu":
        return
    (output.square().sum() + stats.entropy.sum() + stats.max_weight.sum()).backward()
    for array in tensors:
        assert array.grad.isfinite().all()
    assert (tensors[0].grad[:, :, empty] == 0).all()


@pytest.mark.parametrize("impl", ["reference", "streaming", TRITON])
def test_a_row_that_sees_nothing_but_a_sink(impl):
    tensors = [array.requires_grad_() for array in make(impl, 5, 9)]
    sinks = torch.zeros_like(tensors[0][0, :, 0, 0]).requires_grad_()
    mask = torch.ones(5, 9, dtype=torch.bool, device=sinks.device)
    mask[2] = False
    output = scaled_dot_product_attention(
        *tensors, mask, sinks=sinks, policy=lambda h, n: 0.1 + h, impl=impl
    )
    assert (output[:, :, 2] == 0).all()
    output.square().sum().backward()
    for array in (*tensors, sinks):
        assert array.grad.isfinite().all()


@pytest.mark.parametrize("impl", EVERY_OPTION)
def test_nothing_at_all(impl):
    empty, some = tensor(np.zeros((2, 3, 0, 8)), impl), tensor(np.ones((2, 3, 5, 8)), impl)
    no_keys = attention(some, empty, empty, impl=impl)
    assert torch.equal(no_keys.output, torch.zeros_like(some))
    assert (no_keys.stats.count == 0).all()
    assert (no_keys.stats.max_logit == -torch.inf).all()
    assert (no_keys.stats.min_logit == torch.inf).all()
    assert attention(empty, some, some, impl=impl).output.shape == (2, 3, 0, 8)
    assert attention(some[:0], some[:0], some[:0], impl=impl).output.shape == (0, 3, 5, 8)


@pytest.mark.parametrize("impl", EVERY_OPTION)
def test_infinities_stay_in_their_rows(impl):
    """+inf shares the mass of its row."""
    query, key, value = make(impl, 6, 18, heads=2)
    bias = torch.zeros_like(query[0, 0, :, :1] * key[0, 0, :, 0])
    bias[0, 1] = bias[0, 17] = torch.inf
    output, stats = attention(query, key, value, attn_mask=bias, impl=impl)
    both = (value[:, :, 1] + value[:, :, 17]) / 2
    torch.testing.assert_close(output[:, :, 0], both)
    torch.testing.assert_close(stats.entropy[:, :, 0], torch.full_like(both[..., 0], math.log(2)))
    assert (stats.log_sum_exp[:, :, 0] == torch.inf).all()
    clean = attention(query, key, value, impl=impl).output
    torch.testing.assert_close(output[:, :, 1:], clean[:, :, 1:])


@pytest.mark.parametrize("impl", EVERY_OPTION)
def test_nans_stay_in_their_rows(impl):
    """NaN of either sign spoils the rows that see it; a hidden one spoils nothing."""
    query, key, value = make(impl, 6, 18, heads=2)
    clean = attention(query, key, value, impl=impl).output
    spoilt = query.clone()
    spoilt[:, :, 2] = torch.nan
    spoilt[:, :, 3] = -torch.tensor(torch.nan)
    for policy in (sx.PAPER, sx.Constant(1.0)):
        output, stats = attention(spoilt, key, value, policy=policy, impl=impl)
        for numbers in (output[..., 0], stats.entropy, stats.max_logit, stats.log_sum_exp):
            assert numbers[:, :, 2:4].isnan().all()
            assert not numbers[:, :, [0, 1, 4, 5]].isnan().any()
        if policy is sx.PAPER:
            torch.testing.assert_close(output[:, :, 4:], clean[:, :, 4:])
    key[:, :, 5] = torch.nan
    visible = torch.ones(6, 18, dtype=torch.bool, device=query.device)
    visible[:, 5] = False
    assert attention(query, key, value, attn_mask=visible, impl=impl).output.isfinite().all()


@pytest.mark.parametrize("impl", EVERY_OPTION)
def test_nan_in_a_mask_spoils_its_row(impl):
    """Of either sign, also beside infinities."""
    query, key, value = make(impl, 6, 16, heads=2)
    bias = torch.zeros_like(query[0, 0, :, :1] * key[0, 0, :, 0])
    bias[1, 2] = bias[3, 9] = torch.nan
    bias[2, 14] = -torch.tensor(torch.nan)
    bias[3, 0] = torch.inf
    for policy in (sx.PAPER, sx.Constant(1.0)):
        options = {"attn_mask": bias, "policy": policy, "impl": impl}
        output, stats = attention(query, key, value, **options)
        assert output[:, :, 1:4].isnan().all()
        assert stats.entropy[:, :, 1:4].isnan().all()
        assert output[:, :, [0, 4, 5]].isfinite().all()
        assert (stats.count == 16).all()


@pytest.mark.parametrize("impl", ["reference", "streaming"])
def test_dropout(impl):
    query, key, _ = make(impl, 64, 50)
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


def test_dropout_is_the_same_on_the_way_back():
    """A block is computed again for its gradient, with the same coins."""
    query, key, value = (array.requires_grad_() for array in make("streaming", 13, 9))
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
def test_a_policy_that_differs_by_head_sees_all_heads(kv_heads):
    """However small the blocks are: here several would fit one head only."""
    query, key, value = make("streaming", 13, 40)
    key, value = key[:, :kv_heads], value[:, :kv_heads]
    found, expected = (
        attention(query, key, value, enable_gqa=True, policy=ByHead(), impl=impl)
        for impl in ("streaming", "reference")
    )
    assert (expected.stats.inverse_temperature[:, 1] > 1).all()
    assert (expected.stats.inverse_temperature[:, [0, 2, 3]] == 1).all()
    torch.testing.assert_close(found.output, expected.output)
    torch.testing.assert_close(found.stats.inverse_temperature, expected.stats.inverse_temperature)
    tensors = [array.float() for array in (query, key, value)]
    compiled = attention(*tensors, enable_gqa=True, policy=ByHead(), impl="cpu")
    torch.testing.assert_close(compiled.output.double(), expected.output, **exact("cpu"))
    factor = compiled.stats.inverse_temperature.double()
    torch.testing.assert_close(factor, expected.stats.inverse_temperature, **exact("cpu"))


@pytest.mark.parametrize("impl", ["reference", "streaming", TRITON])
@pytest.mark.parametrize("first_key", [0, 4, 30])
def test_keys_may_begin_later(impl, first_key):
    """As the keys of a shard of a longer sequence do."""
    tensors = make(impl, 19, 21, heads=2)
    attend = {"reference": reference, "streaming": streaming, "triton": triton}[impl].attend
    for options in ({"is_causal": True}, {"is_causal": True, "window": 9}, {"window": 9}):
        inputs = prepare_inputs(*tensors, **options)._replace(first_key=first_key)
        output, stats = attend(inputs, sx.PAPER, *([] if impl == "reference" else [True]))
        position, key = torch.arange(19)[:, None], torch.arange(21) + first_key
        mask = torch.ones(19, 21, dtype=torch.bool)
        if "is_causal" in options:
            mask &= key <= position
        if "window" in options:
            mask &= (key - position).abs() < 9
        mask = mask.to(tensors[0].device)
        expected = attention(*tensors, attn_mask=mask, impl="reference")
        torch.testing.assert_close(output, expected.output)
        assert torch.equal(stats.count, expected.stats.count)


@given(call=calls("fused"))
def test_fused_counts_keys_without_the_logits(call):
    tensors, options = call.tensors("fused"), call.options("fused")
    for name in ("policy", "impl"):
        del options[name]
    inputs = prepare_inputs(*tensors, **options)
    assert torch.equal(
        inputs.restore_shape(fused.count_visible(inputs)), torch.tensor(call.truth.count)
    )


@pytest.mark.parametrize("impl", ["reference", "streaming", "fused", "cpu", "auto"])
@pytest.mark.parametrize("garbage", [math.nan, math.inf])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("queries", [1, 6])
def test_what_hidden_keys_and_values_hold_changes_nothing(impl, garbage, causal, queries):
    """Neither the rows that do not see them nor any gradient; other rows are not finite."""
    clean = make("cpu" if impl == "cpu" else "reference", queries, 9)
    spoilt = [array.clone() for array in clean]
    visible = torch.ones(queries, 9, dtype=torch.bool)
    visible[:, 7:] = False  # hidden from all
    visible[-1] = False  # a row that sees nothing
    for array in spoilt[1:]:
        array[:, 0, 7:, 1] = garbage
        array[:, 0, 4:, 2] = garbage  # seen by rows 4 and on, if causal
    good = min(4, queries) if causal else 0
    grad = impl != "cpu"
    for policy in (SMOOTH, sx.Constant(1.5)):
        found = []
        for arrays in (clean, spoilt):
            leaves = [array.clone().requires_grad_(grad) for array in arrays]
            output, stats = attention(
                *leaves, attn_mask=visible, is_causal=causal, policy=policy, impl=impl
            )
            numbers = [output[:, 1], output[:, :, :good], output[:, :, -1], stats.entropy[:, 1]]
            numbers.append(stats.entropy[:, :, :good])
            if grad:
                loss = sum(number.square().sum() for number in numbers)
                gradients = torch.autograd.grad(loss, leaves)
                numbers += [gradients[0][:, :, :good], gradients[1][:, 1], gradients[2][:, 1]]
            found.append(numbers)
            if arrays is spoilt and math.isnan(garbage) and not causal and queries > 1:
                assert not output[:, 0, :-1, 2].isfinite().any()
        for ours, right in zip(*found, strict=True):
            torch.testing.assert_close(ours, right, **exact(impl if impl == "cpu" else "reference"))


@pytest.mark.parametrize("impl", ["reference", "streaming", "fused", "cpu", "auto"])
@pytest.mark.parametrize("masked", [False, True])
def test_nan_in_a_query_is_never_lost(impl, masked):
    """The fused kernel answers zeros for some."""
    for queries, keys in ((5, 1), (5, 5), (5, 31), (5, 33), (5, 40)):
        query, key, value = make("cpu" if impl == "cpu" else "reference", queries, keys)
        query[0, 1, 3, 2] = math.nan
        mask = torch.ones(queries, keys, dtype=torch.bool).tril(2) if masked else None
        for policy in (SMOOTH, sx.Constant(1.5)):
            options = {"attn_mask": mask, "policy": policy}
            output, stats = attention(query, key, value, **options, impl=impl)
            assert output[0, 1, 3].isnan().all()
            assert stats.entropy[0, 1, 3].isnan()
            assert output.isnan().sum() == 8
