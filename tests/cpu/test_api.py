"""NumPy in, NumPy out: the same answers as for tensors, and mistakes named."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sharpmax as sx
from attention_cases import STATS, calls, policy_for_tensors, small_blocks  # noqa: F401
from sharpmax import cpu
from sharpmax.torch import attention

QUERY = np.ones((2, 4, 5, 8), np.float32)
KEY = np.ones((2, 4, 7, 8), np.float32)


@settings(max_examples=60)
@given(call=calls("cpu"), dtype=st.sampled_from([torch.float32, torch.float16]))
def test_arrays_give_what_tensors_give(call, dtype):
    options, tensors = call.options("cpu", dtype), call.tensors("cpu", dtype)
    del options["impl"]
    if call.policy is policy_for_tensors:
        options["policy"] = sx.PAPER  # the tensors' policy would be asked with tensors
    expected = attention(*tensors, **options, impl="cpu")
    for name in ("attn_mask", "sinks"):
        options[name] = None if options[name] is None else options[name].numpy()
    found = cpu.attention(*(tensor.numpy() for tensor in tensors), **options)
    assert found.output.dtype == expected.output.numpy().dtype
    np.testing.assert_array_equal(found.output, expected.output.numpy())
    for name in STATS:
        np.testing.assert_array_equal(
            getattr(found.stats, name), getattr(expected.stats, name).numpy(), err_msg=name
        )


@pytest.mark.parametrize("shape", [(), (3,), (2, 2, 3)])
def test_any_number_of_axes_and_threads(rng, shape):
    query, key, value = (rng.normal(size=(*shape, n, 8)).astype(np.float32) for n in (6, 9, 9))
    one, three = (cpu.attention(query, key, value, threads=threads) for threads in (1, 3))
    np.testing.assert_array_equal(one.output, three.output)
    alone = cpu.attention_stats(query, key)
    assert one.output.shape == query.shape
    assert alone.entropy.shape == query.shape[:-1]
    np.testing.assert_array_equal(alone.entropy, one.stats.entropy)


def test_strided_arrays_are_read_as_they_lie(rng):
    arrays = [rng.normal(size=(2, 4, 13, 8)).astype(np.float32) for _ in range(3)]
    expected = cpu.attention(*arrays).output
    turned = [np.ascontiguousarray(array.swapaxes(1, 2)).swapaxes(1, 2) for array in arrays]
    np.testing.assert_array_equal(cpu.attention(*turned).output, expected)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"query": QUERY.astype(np.float64)}, TypeError, "float32 or float16, got float64"),
        (
            {"query": [1.0]},
            TypeError,
            "query must be a NumPy array of float32 or float16, got list",
        ),
        ({"key": KEY[0]}, ValueError, "expected the same axes"),
        ({"key": KEY[..., :6]}, ValueError, "must be equal"),
        ({"value": KEY[:, :, :6]}, ValueError, "must be equal"),
        ({"key": KEY[:, :2], "value": KEY[:, :2]}, ValueError, "with enable_gqa=True"),
        ({"value": KEY[:, :2]}, ValueError, "the same number of heads"),
        ({"attn_mask": np.ones((5, 6), bool)}, ValueError, "does not fit the logits, (2, 4, 5, 7)"),
        (
            {"attn_mask": np.ones((5, 7), int)},
            TypeError,
            "attn_mask must be a NumPy array, boolean",
        ),
        (
            {"sinks": np.zeros(3)},
            ValueError,
            "sinks of shape (3,) must hold one logit per head, (4,)",
        ),
        ({"scale": float("nan")}, ValueError, "scale must be a finite number"),
        ({"softcap": -1.0}, ValueError, "softcap must be a positive finite number"),
        ({"window": 0}, ValueError, "window must be a whole number, 1 or more, got 0"),
        ({"threads": 0}, ValueError, "threads must be a whole number, 1 or more, got 0"),
    ],
)
def test_mistakes_are_explained_in_one_sentence(changes, error, message):
    call = {"query": QUERY, "key": KEY, "value": KEY} | changes
    with pytest.raises(error) as caught:
        cpu.attention(**call)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("lead", [(), (0,), (2,), (0, 2), (2, 0), (1, 2)])
@pytest.mark.parametrize(("queries", "keys", "dim", "value_dim"), [
    (0, 3, 4, 4), (5, 0, 4, 4), (0, 0, 4, 4), (5, 3, 0, 4), (5, 3, 4, 0),
])  # fmt: skip
def test_any_axis_may_be_empty(lead, queries, keys, dim, value_dim):
    """With every kind of mask; a query without keys gives zeros."""
    query, key, value = (
        np.ones((*lead, *shape), np.float32)
        for shape in ((queries, dim), (keys, dim), (keys, value_dim))
    )
    heads = lead[-1] if lead else 1
    boolean, added = np.ones((1, keys), bool), np.zeros((queries, keys), np.float16)
    for options in (
        {},
        {"is_causal": True, "window": 2},
        {"attn_mask": boolean, "softcap": 2.0},
        {"attn_mask": np.broadcast_to(added, (*lead, queries, keys))},
        {"sinks": np.zeros(heads, np.float32), "threads": 2},
    ):
        output, stats = cpu.attention(query, key, value, **options)
        assert output.shape == (*lead, queries, value_dim)
        assert stats.count.shape == (*lead, queries)
        options.pop("sinks", None)
        alone = cpu.attention_stats(query, key, **options)
        np.testing.assert_array_equal(alone.entropy, stats.entropy)
        if keys == 0:
            assert (output == 0).all()
            assert (stats.count == 0).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_very_low_mask_hides(dtype):
    """As in every implementation: nothing overflows unseen."""
    mask = np.zeros((5, 7), dtype)
    mask[0], mask[1, :3] = -3e38, -9e37
    output, stats = cpu.attention(QUERY, KEY, KEY, attn_mask=mask)
    assert (stats.count[..., 0] == 0).all()
    assert (stats.count[..., 1:] == 7).all()
    assert (output[..., 0, :] == 0).all()
    assert np.isfinite(stats.min_logit[..., 1]).all()


def test_the_order_of_bytes_does_not_matter(rng):
    arrays = [rng.normal(size=(2, 5, 8)).astype(np.float32) for _ in range(3)]
    mask = rng.normal(size=(5, 5)).astype(np.float32)
    expected = cpu.attention(*arrays, attn_mask=mask).output
    swapped = [array.astype(">f4") for array in arrays]
    found = cpu.attention(*swapped, attn_mask=mask.astype(">f8")).output
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == np.dtype(">f4")


@pytest.mark.parametrize("queries", [1, 3, 40])
def test_what_hidden_values_hold_changes_nothing(rng, queries):
    query, key, value = (rng.normal(size=(2, n, 8)).astype(np.float32) for n in (queries, 9, 9))
    mask = rng.random((2, queries, 9)) < 0.6
    mask[:, -1] = False
    mask[0, :, 4] = False
    spoilt = value.copy()
    spoilt[0, 4, 2], spoilt[1, 4, 3] = np.nan, np.inf
    expected = cpu.attention(query, key, value, attn_mask=mask).output
    found = cpu.attention(query, key, spoilt, attn_mask=mask).output
    np.testing.assert_allclose(found[0], expected[0], rtol=0, atol=1e-6)
    spoils = mask[1, :, 4]
    assert (np.isfinite(found[1, :, 3]) == ~spoils).all()
    found[1, spoils, 3] = expected[1, spoils, 3]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    assert (found[:, -1] == 0).all()
