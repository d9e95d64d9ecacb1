"""Optimisers: every weight is trained by one of them, and Muon treats all directions alike."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from clrs_text.small import TINY

from sharpmax.experiments.clrs_text import optimisers
from sharpmax.experiments.clrs_text.model import initial_decoder

MUON = replace(TINY, optimiser="muon")


@pytest.mark.parametrize("shape", [(8, 8), (5, 12), (12, 5), (1, 7)])
def test_every_singular_value_comes_near_1(shape):
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(shape, generator=generator, dtype=torch.float64)
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    values = torch.linspace(1.0, 0.05, len(values), dtype=torch.float64) * 37
    result = optimisers.orthogonalise(left @ torch.diag(values) @ right)
    # The same directions, with singular values in the range of the polynomial.
    kept = torch.diagonal(left.T @ result @ right.T)
    assert (kept > 0.6).all()
    assert (kept < 1.3).all()
    torch.testing.assert_close(left @ torch.diag(kept) @ right, result)


def test_a_zero_gradient_is_no_step():
    assert (optimisers.orthogonalise(torch.zeros(3, 4)) == 0).all()


def test_a_step_is_as_long_however_small_the_gradient():
    taken = []
    for size in (1e-6, 1.0):
        weight = torch.nn.Parameter(torch.zeros(6, 4))
        weight.grad = size * torch.arange(24.0).reshape(6, 4).sin()
        optimisers.Muon([weight], lr=0.1, weight_decay=0.0).step()
        assert (weight * weight.grad).sum() < 0  # downhill
        taken.append(weight.detach().clone())
    torch.testing.assert_close(taken[0], taken[1], rtol=1e-3, atol=1e-5)
    assert taken[1].norm() > 0.05


def test_weights_decay_by_the_rate():
    weight = torch.nn.Parameter(torch.ones(3, 3))
    weight.grad = torch.zeros(3, 3)
    optimisers.Muon([weight], lr=0.1, weight_decay=0.5).step()
    torch.testing.assert_close(weight.detach(), torch.full((3, 3), 0.95))


@pytest.mark.parametrize("training", [TINY, MUON], ids=["adamw", "muon"])
def test_every_weight_is_trained_by_one(training):
    model = initial_decoder(training, seed=0).model
    groups = [
        group for one in optimisers.make_optimisers(model, training) for group in one.param_groups
    ]
    trained = [id(weight) for group in groups for weight in group["params"]]
    assert sorted(trained) == sorted(id(weight) for weight in model.parameters())
    for group in groups:
        for weight in group["params"]:
            assert group["weight_decay"] == (training.decay if weight.dim() > 1 else 0.0)


def test_embeddings_are_not_trained_by_muon():
    model = initial_decoder(MUON, seed=0).model
    muon, rest = optimisers.make_optimisers(model, MUON)
    table = model.get_input_embeddings().weight
    assert all(weight is not table for weight in muon.param_groups[0]["params"])
    assert any(weight is table for weight in rest.param_groups[0]["params"])
