"""Optimisers: every weight is trained by one of them, and Muon steps in all directions alike."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from clrs_text.small import TINY

from sharpmax.experiments.clrs_text import optimisers
from sharpmax.experiments.clrs_text.model import begun

MUON = replace(TINY, optimiser="muon")


@pytest.mark.parametrize("shape", [(8, 8), (5, 12), (12, 5), (1, 7)])
def test_every_singular_value_comes_near_1(shape):
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(shape, generator=generator, dtype=torch.float64)
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    values = torch.linspace(1.0, 0.05, len(values), dtype=torch.float64) * 37
    found = optimisers.orthogonal(left @ torch.diag(values) @ right)
    # The same directions, and what is left of each between the ends that the polynomial has.
    kept = torch.diagonal(left.T @ found @ right.T)
    assert (kept > 0.6).all()
    assert (kept < 1.3).all()
    torch.testing.assert_close(left @ torch.diag(kept) @ right, found)


def test_no_direction_at_all_is_no_step():
    assert (optimisers.orthogonal(torch.zeros(3, 4)) == 0).all()


def test_a_step_is_as_long_however_small_the_gradient():
    taken = []
    for size in (1e-6, 1.0):
        weight = torch.nn.Parameter(torch.zeros(6, 4))
        weight.grad = size * torch.arange(24.0).reshape(6, 4).sin()
        optimisers.Muon([weight], lr=0.1, weight_decay=0.0).step()
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
    model = begun(training, seed=0).model
    groups = [group for one in optimisers.made(model, training) for group in one.param_groups]
    trained = [id(weight) for group in groups for weight in group["params"]]
    assert sorted(trained) == sorted(id(weight) for weight in model.parameters())
    for group in groups:
        for weight in group["params"]:
            assert group["weight_decay"] == (training.decay if weight.dim() > 1 else 0.0)


def test_tables_of_tokens_are_not_for_muon():
    model = begun(MUON, seed=0).model
    muon, rest = optimisers.made(model, MUON)
    table = model.get_input_embeddings().weight
    assert all(weight is not table for weight in muon.param_groups[0]["params"])
    assert any(weight is table for weight in rest.param_groups[0]["params"])
