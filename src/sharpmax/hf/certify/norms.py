"""What can come out of a normalisation layer, whatever goes in: an ellipsoid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from sharpmax._errors import UserError
from sharpmax.hf.certify.projections import numbers

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class Normalised:
    """The vectors weight * u + bias with |u| <= sqrt(size), and mean(u) = 0 if `centred`.

    u = x / sqrt(mean(x^2) + eps) has norm sqrt(size) for eps = 0, and eps > 0 only shortens it.
    LayerNorm takes the mean out of x before.
    """

    weight: Float[np.ndarray, " size"]
    bias: Float[np.ndarray, " size"]
    centred: bool

    @property
    def radius(self) -> float:
        return len(self.weight) ** 0.5

    def through(
        self, matrix: Float[np.ndarray, "heads dim size"], bias: Float[np.ndarray, "heads dim"]
    ) -> tuple[Float[np.ndarray, "heads dim size"], Float[np.ndarray, "heads dim"]]:
        """(A, a) such that a projection behind the layer gives A u + a."""
        acting = matrix * self.weight
        if self.centred:
            # u = u - mean(u): what acts alike on all of u does not act at all.
            acting = acting - acting.mean(-1, keepdims=True)
        return acting, matrix @ self.bias + bias


def normalised(norm: nn.Module) -> Normalised:
    """What this layer can give. Its class says how to read its weights, and is believed only if a
    random vector comes out as that predicts.
    """
    module: Any = norm
    kind = type(norm).__name__
    centred = type(norm) is nn.LayerNorm
    if not (centred or kind.endswith("RMSNorm") or kind == "T5LayerNorm"):
        raise UserError(f"{kind} in front of attention is not a normalisation that sharpmax knows")
    size = module.normalized_shape[-1] if centred else len(module.weight)
    plain = getattr(module, "weight", None)
    weight = np.ones(size) if plain is None else numbers(plain, f"{kind}.weight")
    if kind.startswith("Gemma"):
        weight = 1.0 + weight
    shift = getattr(module, "bias", None)
    bias = np.zeros(size) if shift is None else numbers(shift, f"{kind}.bias")
    found = Normalised(weight, bias, centred)
    _verify(norm, found)
    return found


@torch.no_grad()
def _verify(norm: nn.Module, expected: Normalised) -> None:
    generator = torch.Generator().manual_seed(0)
    one = next(norm.parameters(), torch.zeros(0))
    vector = 100.0 * torch.randn(len(expected.weight), generator=generator).to(one)
    unit = vector.double().cpu().numpy()
    unit = unit - unit.mean() if expected.centred else unit
    unit = unit / np.sqrt(np.mean(unit**2))
    wanted = expected.weight * unit + expected.bias
    found = norm(vector[None])[0].double().cpu().numpy()
    # Three roundings, of input, product and sum, and an eps that is nothing beside 100^2.
    tolerance = 8 * torch.finfo(one.dtype).eps + 1e-6
    if not np.abs(found - wanted).max() <= tolerance * (np.abs(wanted).max() + 1e-12):
        raise UserError(
            f"{type(norm).__name__} does not normalise as its name says: the model cannot be "
            "certified"
        )
