"""Random rows for the functions on arrays, against literal float64 versions."""

from __future__ import annotations

import itertools
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import torch

import sharpmax as sx
from attention_cases import POLICIES

LIBRARIES = {
    "numpy": (lambda array: array, np.asarray),
    "torch": (lambda array: torch.from_numpy(np.array(array)), lambda array: array.numpy()),
    "jax": (jnp.asarray, np.asarray),
}
SHAPES = ((5,), (2, 3), (1, 7), (4, 1), (2, 0), (0, 3), (2, 3, 4))
"""Few, because JAX compiles for each."""


def random_rows(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Draw logits of any size, some infinite or equal, and which of them take part."""
    logits = rng.normal(size=shape) * rng.choice([1e-3, 1.0, 30.0, 1e4, 1e25])
    if rng.random() < 0.3:
        logits = np.round(logits)
    if rng.random() < 0.2:
        logits = np.where(rng.random(shape) < 0.3, rng.choice([-np.inf, np.inf]), logits)
    return logits, rng.random(shape) < rng.choice([0.3, 0.8, 1.0])


def literal(logits: np.ndarray, shown: np.ndarray, scale: float) -> tuple[np.ndarray, float]:
    """Return the weights and the entropy of one row, from its visible items alone."""
    weights = np.zeros(logits.shape)
    shown = shown & (logits > -np.inf)
    if not shown.any():
        return weights, 0.0
    top = logits[shown].max()
    with np.errstate(invalid="ignore"):
        offsets = np.where(logits == top, 0.0, (logits - top) * scale)
    weights[shown] = scipy.special.softmax(offsets[shown])
    return weights, float(scipy.special.entr(weights).sum())


def check_rows(number: int) -> None:
    """Compare softmax, entropy, the adaptive softmax and merged states of one case."""
    rng = np.random.default_rng(number)
    names = ("jax",) if number % 50 == 0 else ("numpy", "torch")
    make, read = LIBRARIES[names[rng.integers(len(names))]]
    shape = SHAPES[rng.integers(len(SHAPES))]
    logits, shown = random_rows(rng, shape)
    temperature = float(rng.choice([1.0, 0.01, 7.0, 1e20, 1e30]))
    policies = [policy for policy in POLICIES if hasattr(policy, "any_library")]
    policy = policies[rng.integers(len(policies))]
    array, where = make(logits), make(shown)
    rows = list(itertools.product(*map(range, shape[:-1])))
    finite = np.abs(logits[np.isfinite(logits)]).max(initial=0.0)
    weights = read(sx.softmax(array, temperature=temperature, where=where))
    nats = read(sx.entropy(array, temperature=temperature, where=where))
    sharp = read(sx.adaptive_temperature_softmax(array, policy=policy, where=where))
    cut = int(rng.integers(shape[-1] + 1))
    halves = [slice(None, cut), slice(cut, None)]
    state = sx.SoftmaxState.of(array[..., halves[0]], where[..., halves[0]])
    state = state.merge(sx.SoftmaxState.of(array[..., halves[1]], where[..., halves[1]]))
    # The exponent of a logit of size L at temperature T is wrong by a few eps * L / T, its own
    # rounding; so is the entropy, times the exponents' spread. An exponent below -750 weighs 0.
    unit = 8 * np.finfo(np.float64).eps
    bound = unit * (1 + min(finite / temperature, 750.0)) ** 2
    steep = unit * 30 * (1 + min(finite, 750.0)) ** 2
    for row in rows:
        right, entropy = literal(logits[row], shown[row], 1 / temperature)
        np.testing.assert_allclose(weights[row], right, rtol=0, atol=bound)
        np.testing.assert_allclose(nats[row], entropy, rtol=0, atol=bound * (1 + len(right)))
        plain, entropy = literal(logits[row], shown[row], 1.0)
        visible = shown[row] & (logits[row] > -np.inf)
        factor = policy(entropy, int(visible.sum()))
        right, _ = literal(logits[row], shown[row], factor)
        np.testing.assert_allclose(sharp[row], right, rtol=0, atol=steep)
        check_state(state, read, row, plain, entropy, logits[row][visible], steep)


def check_state(
    state: Any,
    read: Any,
    row: tuple[int, ...],
    weights: np.ndarray,
    entropy: float,
    logits: np.ndarray,
    bound: float,
) -> None:
    """Compare a merged state with the whole row."""
    assert read(state.count)[row] == logits.size
    assert read(state.max)[row] == logits.max(initial=-np.inf)
    assert read(state.min)[row] == logits.min(initial=np.inf)
    np.testing.assert_allclose(read(state.entropy)[row], entropy, rtol=0, atol=bound * 8)
    np.testing.assert_allclose(
        read(state.max_weight)[row], weights.max(initial=0.0), rtol=0, atol=bound
    )
    if logits.size:
        total = scipy.special.logsumexp(logits) if np.isfinite(logits).all() else logits.max()
        np.testing.assert_allclose(read(state.log_sum_exp)[row], total, rtol=1e-15, atol=bound)


def repeat(first: int, last: int) -> None:
    """Run cases `first` to `last - 1`; every 50th is JAX's, which compiles for half a minute."""
    for number in range(first, last):
        try:
            check_rows(number)
        except Exception as error:
            raise AssertionError(f"check_rows({number})") from error


def test_some_rows():
    repeat(1, 50)
    repeat(51, 100)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_many_rows(part):
    repeat(1000 + 1000 * part, 2000 + 1000 * part)
