"""The folded model is the paper's function: the same answers and gradients, at a fraction of the work."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sharpmax as sx
from sharpmax.experiments.max_retrieval import data, model
from sharpmax.experiments.max_retrieval.model import Design
from sharpmax.normalisers import Differential, Entmax, Stieltjes


def doubles(tree):
    """In float64, and with biases that are not zero: a forgotten one shows."""
    rng = np.random.default_rng(3)
    return {
        name: jnp.asarray(np.asarray(array, np.float64) + 0.1 * rng.normal(size=array.shape))
        for name, array in tree.items()
    }


@pytest.fixture(scope="module")
def weights():
    return doubles(model.initial(jax.random.key(0)))


@pytest.fixture(scope="module")
def sets():
    drawn = data.draw("max", jax.random.key(1), 7, 1, 13)
    return drawn._replace(
        priority=drawn.priority.astype(jnp.float64), query=drawn.query.astype(jnp.float64)
    )


def raw(logits, *, where):
    """Weights that do not sum to one: constants that softmax forgives count here."""
    return jnp.where(where, jnp.tanh(logits) / 3, 0.0)


DESIGNS = {
    "softmax": Design(),
    "adaptive": Design(sx.adaptive_temperature_softmax),
    "raw": Design(raw),
    "learned": Design(Stieltjes(scale=0.3), learned=Stieltjes.parameters),
    "paired": Design(Differential(), learned=("second_weight",), paired=True),
    "normed": Design(normed=True),
    "stepped": Design(stepped=True),
}


@pytest.mark.parametrize("design", DESIGNS.values(), ids=DESIGNS)
@pytest.mark.parametrize("scaled", [True, False])
def test_folding_changes_neither_answers_nor_gradients(sets, design, scaled):
    weights = doubles(model.initial(jax.random.key(0), design))

    def total(forward):
        def of(weights):
            out = forward(weights, sets, design, scaled=scaled)
            return jnp.sum(jnp.sin(out)), out

        return jax.value_and_grad(of, has_aux=True)(weights)

    (_, folded), folded_gradient = total(model.forward)
    (_, plain), plain_gradient = total(model.reference)
    np.testing.assert_allclose(folded, plain, rtol=0, atol=1e-13 * np.abs(plain).max())
    for name, expected in plain_gradient.items():
        size = np.abs(expected).max()
        assert size > 0 or name in ("item2_bias", "key"), name
        np.testing.assert_allclose(
            folded_gradient[name], expected, rtol=0, atol=1e-12 * max(size, 1.0), err_msg=name
        )


def test_scaling_divides_the_logits(weights, sets):
    (plain,), (scaled,) = (model.look(weights, sets, scaled=flag).logits for flag in (False, True))
    np.testing.assert_allclose(plain, scaled * np.sqrt(model.WIDTH), rtol=1e-12)


def test_learned_fields_begin_where_the_normaliser_is_and_keep_their_bounds(weights):
    design = Design(Stieltjes(power=2.0, scale=0.3, bias=0.7), learned=Stieltjes.parameters)
    fresh = model.bound(model.initial(jax.random.key(0), design), design)
    assert [float(getattr(fresh, name).item()) for name in design.learned] == pytest.approx(
        [2.0, 0.3, 0.7]
    )
    moved = {f"normaliser_{name}": jnp.full((1, 1), -5.0) for name in design.learned}
    found = model.bound(moved, design)
    assert [float(getattr(found, name).item()) for name in design.learned] == pytest.approx(
        [2 * np.exp(-5), -4.7, -4.3]
    )
    alpha = model.bound({"normaliser_alpha": jnp.full((1, 1), -9.0)}, Design(Entmax(), ("alpha",)))
    assert 1 < float(alpha.alpha.item()) < 1.001


def test_a_normed_head_does_not_fade(weights, sets):
    """Weights ten times smaller change little: the epsilon of the norm."""

    def faint(logits, *, where):
        return 0.1 * sx.softmax(logits, where=where)

    normed = doubles(model.initial(jax.random.key(0), Design(normed=True)))
    for design, same in ((Design(normed=True), True), (Design(), False)):
        out = model.forward(normed, sets, design, scaled=True)
        small = model.forward(normed, sets, replace(design, normaliser=faint), scaled=True)
        assert np.allclose(out, small, atol=0.05 * np.abs(out).max()) is same


def test_a_step_is_one_or_nothing_and_has_a_slope():
    values = jnp.asarray([-2.0, -1e-9, 0.0, 1e-9, 3.0])
    np.testing.assert_array_equal(model._step(values), [0, 0, 0, 1, 1])
    slope = jax.grad(lambda x: model._step(x).sum())(values)
    np.testing.assert_allclose(slope, jax.nn.sigmoid(values) * jax.nn.sigmoid(-values))


def test_padding_equals_a_smaller_set(weights, sets):
    """What lies beyond a set's size does not count, however it is filled."""
    whole = model.forward(weights, sets, scaled=True)
    spoiled = sets._replace(
        priority=jnp.where(sets.present, sets.priority, 1e3),
        label=jnp.where(sets.present, sets.label, 0),
    )
    np.testing.assert_allclose(model.forward(weights, spoiled, scaled=True), whole, rtol=1e-12)
    for place, size in enumerate(np.asarray(sets.present).sum(1)):
        cut = data.Sets(
            *(array[place : place + 1, :size] for array in sets[:3]),
            sets.query[place : place + 1],
            None,
        )
        np.testing.assert_allclose(
            model.forward(weights, cut, scaled=True)[0], whole[place], rtol=1e-12
        )


def test_the_order_of_items_does_not_matter(weights, sets):
    order = np.random.default_rng(0).permutation(13)
    shuffled = sets._replace(**{name: getattr(sets, name)[:, order] for name in sets._fields[:3]})
    np.testing.assert_allclose(
        model.forward(weights, shuffled, scaled=True),
        model.forward(weights, sets, scaled=True),
        rtol=1e-11,
    )


def test_size_and_beginning(weights):
    fresh = model.initial(jax.random.key(0))
    assert sum(array.size for array in fresh.values()) == 101_770
    assert {array.dtype for array in fresh.values()} == {jnp.dtype("float32")}
    for name, array in fresh.items():
        if name.endswith("_bias"):
            assert not array.any()
        elif array.size > 5_000:
            assert float(array.std()) == pytest.approx(array.shape[0] ** -0.5, rel=0.05)
