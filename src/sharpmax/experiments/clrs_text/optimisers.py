"""How gradients become steps: AdamW, or Muon, from which a small decoder learns in far fewer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed, nn
from torch.optim import AdamW, Optimizer

from sharpmax.experiments.clrs_text.settings import Training

if TYPE_CHECKING:
    from jaxtyping import Float

ADAM = {"betas": (0.9, 0.95), "eps": 1e-8}
MOMENTUM = 0.95
POLYNOMIAL = (3.4445, -4.7750, 2.0315)
"""x -> a x + b x³ + c x⁵: five times, and a singular value between 0.01 and 1 is about 1."""
ITERATIONS = 5


class Muon(Optimizer):
    """Momentum whose every singular value is made about 1 (Jordan et al., 2024), so that all
    directions of a matrix learn at one speed.

    By hand, since torch.optim.Muon multiplies in bfloat16, which most CPUs do not have: there a
    step takes longer than all of its gradients.
    """

    def __init__(self, matrices: Iterable[nn.Parameter], lr: float, weight_decay: float) -> None:
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            trained = [matrix for matrix in group["params"] if matrix.grad is not None]
            for matrix, direction in zip(trained, _shared_out(trained, self._ahead), strict=True):
                # So scaled, an entry's step is as large as AdamW's usually is, at the same rate.
                scale = 0.2 * math.sqrt(max(matrix.shape))
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
                matrix.add_(direction, alpha=-group["lr"] * scale)

    def _ahead(self, matrix: nn.Parameter) -> Tensor:
        """The momentum, moved on by this step's gradient, as Nesterov looks at it."""
        state = self.state[matrix]
        if not state:
            state["exp_avg"] = torch.zeros_like(matrix)
        assert matrix.grad is not None
        average = state["exp_avg"].lerp_(matrix.grad, 1 - MOMENTUM)
        return matrix.grad.lerp(average, MOMENTUM)


def _shared_out(
    matrices: list[nn.Parameter], ahead: Callable[[nn.Parameter], Tensor]
) -> Iterator[Tensor]:
    """The orthogonal direction of each. Several processes have the same gradients: each makes some
    directions orthogonal, which is most of the work, and gets those of the others.
    """
    several = distributed.is_available() and distributed.is_initialized()
    processes = distributed.get_world_size() if several else 1
    if processes == 1:
        yield from (orthogonal(ahead(matrix)) for matrix in matrices)
        return
    every = [ahead(matrix) for matrix in matrices]
    mine = distributed.get_rank()
    for place, one in enumerate(every):
        every[place] = orthogonal(one) if place % processes == mine else torch.zeros_like(one)
    flat = torch.cat([one.flatten() for one in every])
    distributed.all_reduce(flat)
    parts = flat.split([one.numel() for one in every])
    yield from (part.view_as(one) for part, one in zip(parts, every, strict=True))


def orthogonal(matrix: Float[Tensor, "rows columns"]) -> Float[Tensor, "rows columns"]:
    """The matrix with its singular values brought near 1, by multiplications alone."""
    if matrix.shape[0] > matrix.shape[1]:
        return orthogonal(matrix.T).T
    first, third, fifth = POLYNOMIAL
    found = matrix / matrix.norm().clamp(min=1e-7)
    for _ in range(ITERATIONS):
        square = found @ found.T
        found = first * found + (third * square + fifth * square @ square) @ found
    return found


def made(model: Any, training: Training) -> tuple[Optimizer, ...]:
    """Those that together train all weights; matrices decay, scales do not."""
    parameters = list(model.parameters())
    matrices = [one for one in parameters if one.dim() > 1]
    scales = [one for one in parameters if one.dim() < 2]
    rate, decay = training.learning_rate, training.decay
    if training.optimiser == "adamw":
        return (_adamw(matrices, scales, rate, decay),)
    # Rows of an embedding are no map from one space to another: Muon is not for them.
    ends = [layer.weight for layer in (model.get_input_embeddings(), model.get_output_embeddings())]
    tables = [one for one in matrices if any(one is end for end in ends)]
    inner = [one for one in matrices if all(one is not end for end in ends)]
    return Muon(inner, rate, decay), _adamw(tables, scales, rate, decay)


def _adamw(
    matrices: list[nn.Parameter], scales: list[nn.Parameter], rate: float, decay: float
) -> AdamW:
    groups = [
        {"params": matrices, "weight_decay": decay},
        {"params": scales, "weight_decay": 0.0},
    ]
    return AdamW(groups, lr=rate, **ADAM)  # type: ignore[arg-type]
