"""The folded model is the paper's function: the same answers and the same gradients."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sharpmax as sx
from sharpmax.experiments.max_retrieval import data, model
from sharpmax.experiments.max_retrieval.model import Design
from sharpmax.normalisers import (
    Differential,
    Entmax,
    ScalableSoftmax,
    Stieltjes,
    ThresholdedDifferential,
)

initial_weights = jax.jit(model.initial_weights, static_argnums=1)
forward = jax.jit(model.forward, static_argnums=2, static_argnames="scaled")


def doubles(tree):
    """Return float64 weights with biases that are not zero, so that a forgotten one shows."""
    rng = np.random.default_rng(3)
    return {
        name: jnp.asarray(np.asarray(array, np.float64) + 0.1 * rng.normal(size=array.shape))
        for name, array in tree.items()
    }


@pytest.fixture(scope="module")
def weights():
    return doubles(initial_weights(jax.random.key(0), Design()))


@pytest.fixture(scope="module")
def sets():
    drawn = jax.jit(data.draw, static_argnums=(0, 2, 3, 4))("max", jax.random.key(1), 7, 1, 13)
    return drawn._replace(
        priority=drawn.priority.astype(jnp.float64), query=drawn.query.astype(jnp.float64)
    )


def raw(logits, *, where):
    """Return weights that do not sum to one: unlike softmax it notices an added constant."""
    return jnp.where(where, jnp.tanh(logits) / 3, 0.0)


DESIGNS = {
    "softmax": Design(),
    "raw stepped": Design(raw, stepped=True),
    "learned normed": Design(ScalableSoftmax(0.3), learned=ScalableSoftmax.parameters, normed=True),
    "paired": Design(Differential(), learned=("second_weight",), paired=True),
    "limited": Design(Stieltjes(scale=0.3), learned=Stieltjes.parameters),
    "adaptive": Design(sx.adaptive_temperature_softmax),
    "thresholded": Design(ThresholdedDifferential(threshold=-0.5), paired=True, normed=True),
    "normed": Design(normed=True),
    "stepped": Design(stepped=True),
}


@pytest.mark.parametrize(
    ("name", "scaled"),
    [
        ("softmax", True),
        ("raw stepped", False),
        ("learned normed", True),
        ("paired", False),
        ("thresholded", True),
        *(
            pytest.param(name, scaled, marks=pytest.mark.slow)
            for name, scaled in (
                ("softmax", False),
                ("raw stepped", True),
                ("limited", True),
                ("adaptive", False),
                ("normed", False),
                ("stepped", True),
            )
        ),
    ],
)
def test_folding_changes_neither_answers_nor_gradients(sets, name, scaled):
    design = DESIGNS[name]
    weights = doubles(initial_weights(jax.random.key(0), design))

    def total(forward):
        @jax.jit
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
    (plain,), (scaled,) = (
        model.encode(weights, sets, scaled=flag).logits for flag in (False, True)
    )
    np.testing.assert_allclose(plain, scaled * np.sqrt(model.WIDTH), rtol=1e-12)


def test_learned_fields_start_at_the_normaliser_s_values_and_keep_their_limits():
    design = Design(Stieltjes(power=2.0, scale=0.3, bias=0.7), learned=Stieltjes.parameters)
    fresh = model.bind_normaliser(initial_weights(jax.random.key(0), design), design)
    assert [float(getattr(fresh, name).item()) for name in design.learned] == pytest.approx(
        [2.0, 0.3, 0.7]
    )
    moved = {f"normaliser_{name}": jnp.full((1, 1), -5.0) for name in design.learned}
    bound = model.bind_normaliser(moved, design)
    assert [float(getattr(bound, name).item()) for name in design.learned] == pytest.approx(
        [2 * np.exp(-5), -4.7, -4.3]
    )
    alpha = model.bind_normaliser(
        {"normaliser_alpha": jnp.full((1, 1), -9.0)}, Design(Entmax(), ("alpha",))
    )
    assert 1 < float(alpha.alpha.item()) < 1.001


def test_a_normed_head_does_not_fade(weights, sets):
    """Weights that are ten times smaller change little: only the epsilon of the norm."""

    def faint(logits, *, where):
        return 0.1 * sx.softmax(logits, where=where)

    normed = doubles(initial_weights(jax.random.key(0), Design(normed=True)))
    for design, same in ((Design(normed=True), True), (Design(), False)):
        out = forward(normed, sets, design, scaled=True)
        small = forward(normed, sets, replace(design, normaliser=faint), scaled=True)
        assert np.allclose(out, small, atol=0.05 * np.abs(out).max()) is same


def test_a_step_is_0_or_1_and_has_the_gradient_of_a_sigmoid():
    values = jnp.asarray([-2.0, -1e-9, 0.0, 1e-9, 3.0])
    np.testing.assert_array_equal(model._step(values), [0, 0, 0, 1, 1])
    slope = jax.grad(lambda x: model._step(x).sum())(values)
    np.testing.assert_allclose(slope, jax.nn.sigmoid(values) * jax.nn.sigmoid(-values))


def test_padding_equals_a_smaller_set(weights, sets):
    """Padding does not count, whatever it contains."""
    whole = forward(weights, sets, Design(), scaled=True)
    spoiled = sets._replace(
        priority=jnp.where(sets.present, sets.priority, 1e3),
        label=jnp.where(sets.present, sets.label, 0),
    )
    np.testing.assert_allclose(forward(weights, spoiled, Design(), scaled=True), whole, rtol=1e-12)
    sizes = np.asarray(sets.present).sum(1)
    for index in (int(sizes.argmin()), int(np.argsort(sizes)[3])):
        cut = data.Sets(
            *(array[index : index + 1, : sizes[index]] for array in sets[:3]),
            sets.query[index : index + 1],
            None,
        )
        np.testing.assert_allclose(
            forward(weights, cut, Design(), scaled=True)[0], whole[index], rtol=1e-12
        )


def test_the_order_of_items_does_not_matter(weights, sets):
    order = np.random.default_rng(0).permutation(13)
    shuffled = sets._replace(**{name: getattr(sets, name)[:, order] for name in sets._fields[:3]})
    np.testing.assert_allclose(
        forward(weights, shuffled, Design(), scaled=True),
        forward(weights, sets, Design(), scaled=True),
        rtol=1e-11,
    )


def test_initial_weights_have_the_right_size_and_variance():
    fresh = initial_weights(jax.random.key(0), Design())
    assert sum(array.size for array in fresh.values()) == 101_770
    assert {array.dtype for array in fresh.values()} == {jnp.dtype("float32")}
    for name, array in fresh.items():
        if name.endswith("_bias"):
            assert not array.any()
        elif array.size > 5_000:
            assert float(array.std()) == pytest.approx(array.shape[0] ** -0.5, rel=0.05)
