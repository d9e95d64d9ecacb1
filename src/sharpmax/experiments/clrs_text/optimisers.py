"""AdamW, and Muon, with which a small decoder learns in far fewer steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed, nn
from torch.optim import AdamW, Optimizer

from sharpmax.experiments.clrs_text.config import Training

if TYPE_CHECKING:
    from jaxtyping import Float

ADAM = {"betas": (0.9, 0.95), "eps": 1e-8}
MOMENTUM = 0.95
POLYNOMIAL = (3.4445, -4.7750, 2.0315)
"""x -> a x + b x³ + c x⁵. Applied five times, it brings singular values from 0.01 to 1 near 1."""
ITERATIONS = 5


class Muon(Optimizer):
    """Momentum with all singular values brought near 1 (Jordan et al., 2024).

    All directions of a matrix then learn at one speed. We do not use torch.optim.Muon because it
    multiplies in bfloat16, which most CPUs do not have: there a step takes longer than computing
    its gradients.
    """

    def __init__(self, matrices: Iterable[nn.Parameter], lr: float, weight_decay: float) -> None:
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update all matrices that have a gradient."""
        for group in self.param_groups:
            trained = [matrix for matrix in group["params"] if matrix.grad is not None]
            directions = _orthogonal_directions(trained, self._nesterov)
            for matrix, direction in zip(trained, directions, strict=True):
                # With this scale an entry's step is about as large as AdamW's at the same rate.
                scale = 0.2 * math.sqrt(max(matrix.shape))
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
                matrix.add_(direction, alpha=-group["lr"] * scale)

    def _nesterov(self, matrix: nn.Parameter) -> Tensor:
        """Add the gradient to the momentum and return Nesterov's look-ahead of it."""
        state = self.state[matrix]
        if not state:
            state["exp_avg"] = torch.zeros_like(matrix)
        assert matrix.grad is not None
        average = state["exp_avg"].lerp_(matrix.grad, 1 - MOMENTUM)
        return matrix.grad.lerp(average, MOMENTUM)


def _orthogonal_directions(
    matrices: list[nn.Parameter], direction: Callable[[nn.Parameter], Tensor]
) -> Iterator[Tensor]:
    """Yield the orthogonalised direction of each matrix, which is most of the work of a step.

    One process computes them one by one, so that only one is in memory. Several processes have the
    same gradients, so each orthogonalises some of the directions and receives the others.
    """
    several = distributed.is_available() and distributed.is_initialized()
    processes = distributed.get_world_size() if several else 1
    if processes == 1:
        yield from (orthogonalise(direction(matrix)) for matrix in matrices)
        return
    rank = distributed.get_rank()
    directions = [direction(matrix) for matrix in matrices]
    for index, each in enumerate(directions):
        mine = index % processes == rank
        directions[index] = orthogonalise(each) if mine else torch.zeros_like(each)
    flat = torch.cat([each.flatten() for each in directions])
    distributed.all_reduce(flat)
    parts = flat.split([each.numel() for each in directions])
    yield from (part.view_as(each) for part, each in zip(parts, directions, strict=True))


def orthogonalise(matrix: Float[Tensor, "rows columns"]) -> Float[Tensor, "rows columns"]:
    """Bring the singular values of a matrix near 1, with multiplications only."""
    if matrix.shape[0] > matrix.shape[1]:
        return orthogonalise(matrix.T).T
    first, third, fifth = POLYNOMIAL
    matrix = matrix / matrix.norm().clamp(min=1e-7)
    for _ in range(ITERATIONS):
        square = matrix @ matrix.T
        matrix = first * matrix + (third * square + fifth * square @ square) @ matrix
    return matrix


def make_optimisers(model: Any, training: Training) -> tuple[Optimizer, ...]:
    """Return the optimisers that together train all weights; matrices decay, scales do not."""
    parameters = list(model.parameters())
    matrices = [parameter for parameter in parameters if parameter.dim() > 1]
    scales = [parameter for parameter in parameters if parameter.dim() < 2]
    rate, decay = training.learning_rate, training.decay
    if training.optimiser == "adamw":
        return (_adamw(matrices, scales, rate, decay),)
    # The rows of an embedding are not a map from one space to another: Muon is not for them.
    ends = [layer.weight for layer in (model.get_input_embeddings(), model.get_output_embeddings())]
    tables = [matrix for matrix in matrices if any(matrix is end for end in ends)]
    inner = [matrix for matrix in matrices if all(matrix is not end for end in ends)]
    return Muon(inner, rate, decay), _adamw(tables, scales, rate, decay)


def _adamw(
    matrices: list[nn.Parameter], scales: list[nn.Parameter], rate: float, decay: float
) -> AdamW:
    groups = [
        {"params": matrices, "weight_decay": decay},
        {"params": scales, "weight_decay": 0.0},
    ]
    return AdamW(groups, lr=rate, **ADAM)  # type: ignore[arg-type]
