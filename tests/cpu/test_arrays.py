"""NumPy in, NumPy out: the same answers as for tensors, and mistakes named."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import sharpmax as sx
from attention_cases import STATS, make, mask_of
from sharpmax import cpu
from sharpmax.torch import attention

QUERY = np.ones((2, 4, 5, 8), np.float32)
KEY = np.ones((2, 4, 7, 8), np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("kind", ["none", "padding", "heads", "bias"])
@pytest.mark.parametrize("options", [{}, {"softcap": 2.5, "sinks": True}, {"window": 4}], ids=str)
def test_arrays_are_attended_to_as_tensors_are(rng, dtype, kind, options):
    arrays = [array.astype(dtype) for array in make(rng, 13, 29, kv_heads=2)]
    mask, _ = mask_of(rng, kind, 13, 29)
    mask = mask.float() if kind == "bias" else mask
    both = options | {"is_causal": True, "enable_gqa": True, "policy": sx.Saturating(sx.PAPER)}
    sinks = rng.normal(size=4).astype(np.float32) if "sinks" in options else None
    found = cpu.attention(
        *arrays, **both | {"attn_mask": None if mask is None else mask.numpy(), "sinks": sinks}
    )
    expected = attention(
        *map(torch.tensor, arrays),
        **both | {"attn_mask": mask, "sinks": None if sinks is None else torch.tensor(sinks)},
        impl="cpu",
    )
    assert found.output.dtype == dtype
    np.testing.assert_array_equal(found.output, expected.output.numpy())
    for name in STATS:
        np.testing.assert_array_equal(
            getattr(found.stats, name), getattr(expected.stats, name).numpy()
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
    arrays = [array.astype(np.float32) for array in make(rng, 13, 13)]
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
        ({"sinks": np.zeros(3)}, ValueError, "sinks of shape (3,) must be one a head, (4,)"),
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
