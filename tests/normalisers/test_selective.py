"""Selective attention: what earlier tokens ask to forget, summed, and only by later ones."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import scipy.special
import torch

import sharpmax as sx
from libraries import Library
from sharpmax.normalisers import Selective


def slow(logits: np.ndarray, where: np.ndarray, selection: np.ndarray) -> np.ndarray:
    """One matrix, one query at a time, with what has been forgotten so far carried along."""
    size = len(logits)
    present = np.flatnonzero(where.any(0))
    weights, forgotten = np.zeros((size, size)), np.zeros(size)
    for query in range(size):
        seen = where[query]
        if seen.any():
            weights[query, seen] = scipy.special.softmax((logits[query] - forgotten)[seen])
        for item in range(query):
            if seen[item] and item != present[0]:
                forgotten[item] += max(selection[query, item], 0)
    return weights


def slow_all(logits, where, selection):
    where = np.broadcast_to(where, logits.shape)
    selection = np.broadcast_to(selection, logits.shape)
    return np.array([slow(*one) for one in zip(logits, where, selection, strict=True)])


CAUSAL = np.tri(8, dtype=bool)


def test_equals_the_slow_one(quick: Library, rng):
    logits = rng.normal(size=(3, 8, 8))
    ours = Selective()(quick.array(logits), where=quick.array(CAUSAL, "bool"))
    np.testing.assert_allclose(quick.numpy(ours), slow_all(logits, CAUSAL, logits), rtol=1e-12)
    np.testing.assert_allclose(quick.numpy(ours).sum(-1), 1, atol=1e-14)
    plain = sx.softmax(logits, where=CAUSAL)
    assert np.abs(quick.numpy(ours) - plain).max() > 0.1
    np.testing.assert_allclose(quick.numpy(ours)[:, :2], plain[:, :2], rtol=1e-12)


def test_one_head_selects_for_all(quick: Library, rng):
    logits, chosen = rng.normal(size=(4, 8, 8)), rng.normal(size=(1, 8, 8))
    ours = Selective()(
        quick.array(logits), selection=quick.array(chosen), where=quick.array(CAUSAL, "bool")
    )
    np.testing.assert_allclose(quick.numpy(ours), slow_all(logits, CAUSAL, chosen), rtol=1e-12)


def test_masking_a_token_is_leaving_it_out(quick: Library, rng):
    """As a query and as an item; padding at the left does not move the first item."""
    logits = rng.normal(size=(8, 8))
    for kept in ([0, 1, 3, 4, 6, 7], [2, 3, 4, 5, 6, 7]):
        alive = np.isin(np.arange(8), kept)
        where = CAUSAL & alive & alive[:, None]
        filled = np.where(where, logits, np.nan)
        ours = quick.numpy(Selective()(quick.array(filled), where=quick.array(where, "bool")))
        short = logits[np.ix_(kept, kept)]
        alone = Selective()(quick.array(short), where=quick.array(np.tri(6), "bool"))
        np.testing.assert_allclose(ours[np.ix_(kept, kept)], quick.numpy(alone), rtol=1e-12)
        assert (ours[~alive] == 0).all()


def test_other_axes(quick: Library, rng):
    logits = rng.normal(size=(3, 8, 8))
    plain = slow_all(logits, CAUSAL, logits)
    turned = quick.array(np.moveaxis(logits, (1, 2), (2, 0)))  # items, batch, queries
    causal = quick.array(np.moveaxis(np.broadcast_to(CAUSAL, logits.shape), (1, 2), (2, 0)), "bool")
    ours = quick.numpy(Selective(query_axis=2)(turned, where=causal, axis=0))
    np.testing.assert_allclose(np.moveaxis(ours, (2, 0), (1, 2)), plain, rtol=1e-12)


def test_infinities_and_nan(quick: Library, rng):
    """An item that a token asks for infinitely is gone for later ones, but for one that asks for it
    infinitely itself; and NaN stays in its row.
    """
    logits = rng.normal(size=(2, 8, 8))
    logits[0, [3, 5], 1] = np.inf
    logits[1, 7, 2] = np.nan
    ours = quick.numpy(Selective()(quick.array(logits), where=quick.array(CAUSAL, "bool")))
    assert ours[0, 3:, 1].tolist() == [1, 0, 1, 0, 0]
    assert np.isnan(ours[1, 7]).all()
    assert np.isfinite(ours[0]).all()
    assert np.isfinite(ours[1, :7]).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(rng, dtype):
    logits = torch.tensor(rng.normal(size=(2, 8, 8))).to(getattr(torch, dtype))
    ours = Selective()(logits, where=torch.tensor(CAUSAL))
    assert ours.dtype == logits.dtype
    wide = logits.double().numpy()
    exact = slow_all(wide, CAUSAL, wide)
    unit = float(torch.finfo(logits.dtype).eps) / 2
    # Rounded once; sums of 8 logits of up to 3 in float32 inside.
    assert (np.abs(ours.double().numpy() - exact) <= exact * (1.01 * unit + 24 * 8 * 2**-24)).all()


def test_gradients(rng):
    leaves = [torch.tensor(rng.normal(size=(5, 5)), requires_grad=True) for _ in range(2)]
    causal = torch.tensor(np.tri(5, dtype=bool))
    assert torch.autograd.gradcheck(lambda x, s: Selective()(x, selection=s, where=causal), leaves)
    direction = rng.normal(size=(5, 5))

    def loss(x):
        return (Selective()(x, where=jax.numpy.asarray(causal.numpy())) * direction).sum()

    logits = leaves[0]
    (Selective()(logits, where=causal) * torch.tensor(direction)).sum().backward()
    theirs = jax.jit(jax.grad(loss))(jax.numpy.asarray(logits.detach().numpy()))
    np.testing.assert_allclose(logits.grad, theirs, rtol=1e-9, atol=1e-14)
    assert np.isfinite(theirs).all()


def test_empty(quick: Library):
    assert Selective()(quick.array(np.zeros((2, 0, 0)))).shape == (2, 0, 0)
    ours = Selective()(quick.array(np.full((3, 3), -np.inf)))
    assert (quick.numpy(ours) == 0).all()


@pytest.mark.parametrize(
    ("logits", "options", "kind", "message"),
    [
        (np.zeros(4), {}, ValueError, r"needs logits \[..., queries, items\], got shape \(4,\)"),
        (np.zeros((3, 4)), {}, ValueError, r"as many queries as items.* got shape \(3, 4\)"),
        (np.zeros((4, 4)), {"axis": -2}, ValueError, "with query_axis=-2 and axis=-2"),
        (np.zeros((4, 4)), {"selection": torch.zeros(4, 4)}, TypeError, "one library"),
        (np.zeros((4, 4)), {"selection": np.zeros((3, 4))}, ValueError, "as many queries as items"),
    ],
)
def test_what_it_cannot_do(logits, options, kind, message):
    with pytest.raises(kind, match=message):
        sx.NORMALISERS["selective"](logits, **options)
