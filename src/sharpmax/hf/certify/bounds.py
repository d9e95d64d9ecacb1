"""Bound the spread of logits that each head of a layer can have, from its weights alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from sharpmax._errors import UserError
from sharpmax.hf.certify.architectures import (
    LogitParameters,
    Projection,
    read_logit_parameters,
    to_float64,
)
from sharpmax.hf.certify.ellipsoids import Ellipsoid, aligned_spread_bound, rotary_spread_bound
from sharpmax.hf.patch.layers import Layer

if TYPE_CHECKING:
    from jaxtyping import Float


def bound_spreads(model: PreTrainedModel, layer: Layer) -> Float[np.ndarray, " heads"]:
    """Return what max e - min e of a row of logits e can never exceed, per head of a layer.

    Proposition 3.1 of arXiv 2410.01104 for the actual layer. Its logits are

        e = softcap(scale * <R q, R' k>) + bias,   q = Q norm(x) + b,

    where norm(x), and therefore q and k, lie in ellipsoids. The softcap c tanh(e / c) turns a
    spread d into at most 2 c tanh(d / 2c), because it is odd and concave for e > 0. A bias adds its
    range. A learned sink is not a token: it only takes weight from the tokens.
    """
    parameters = read_logit_parameters(model, layer)
    query, key = query_and_key_ellipsoids(parameters)
    if parameters.rotated:
        channels, constant = read_rotary(model)
        spread = constant**2 * rotary_spread_bound(query, key, channels)
    else:
        spread = aligned_spread_bound(query, key)
    spread = spread * abs(parameters.scale)
    if parameters.softcap is not None:
        spread = 2 * parameters.softcap * np.tanh(spread / (2 * parameters.softcap))
    return spread if parameters.bias_range is None else spread + parameters.bias_range


def query_and_key_ellipsoids(parameters: LogitParameters) -> tuple[Ellipsoid, Ellipsoid]:
    """Return the ellipsoids that contain all queries and all keys, before rotation."""
    norm = None if parameters.input_norm is None else read_norm(parameters.input_norm)
    return (
        _ellipsoid(norm, parameters.query, parameters.query_norm),
        _ellipsoid(norm, parameters.key, parameters.key_norm),
    )


def _ellipsoid(
    input_norm: NormParameters | None, projection: Projection, own_norm: nn.Module | None
) -> Ellipsoid:
    """Return the ellipsoid of a projection's outputs, or of their own norm's if they have one."""
    if own_norm is not None:
        return _own_norm_ellipsoid(read_norm(own_norm), *projection.bias.shape)
    if input_norm is None:
        raise UserError("a layer without a normalisation before its logits has no bound")
    return Ellipsoid.from_ball(*input_norm.project(projection), input_norm.radius)


def _own_norm_ellipsoid(norm: NormParameters, heads: int, dim: int) -> Ellipsoid:
    """Return the ellipsoid of normalised queries or keys.

    They are normalised per head, or all heads together: then one head may have all of the norm.
    """
    size = len(norm.weight)
    identity = Projection(np.eye(size)[None], np.zeros((1, size)))
    shape, centre = norm.project(identity)
    shape, centre = shape.reshape(-1, dim, size), centre.reshape(-1, dim)
    repeats = heads // len(shape)
    shape, centre = np.repeat(shape, repeats, axis=0), np.repeat(centre, repeats, axis=0)
    return Ellipsoid.from_ball(shape, centre, norm.radius)


@dataclass(frozen=True)
class NormParameters:
    """The outputs of a normalisation layer: weight * u + bias with |u| <= sqrt(size).

    u = x / sqrt(mean(x^2) + eps) has norm sqrt(size) for eps = 0; eps > 0 only shortens it. If
    `centred` (LayerNorm), the mean of x is subtracted before, so that mean(u) = 0.
    """

    weight: Float[np.ndarray, " size"]
    bias: Float[np.ndarray, " size"]
    centred: bool

    @property
    def radius(self) -> float:
        """The largest norm of u."""
        return len(self.weight) ** 0.5

    def project(
        self, projection: Projection
    ) -> tuple[Float[np.ndarray, "heads dim size"], Float[np.ndarray, "heads dim"]]:
        """Return (A, a) such that a projection of this layer's output is A u + a."""
        matrix = projection.weight * self.weight
        if self.centred:
            # u = u - mean(u), so the part of a row that is the same for all channels has no effect.
            matrix = matrix - matrix.mean(-1, keepdims=True)
        return matrix, projection.weight @ self.bias + projection.bias


def read_norm(module: nn.Module) -> NormParameters:
    """Read the parameters of a normalisation layer.

    Its class tells how to interpret its weights. A random vector then checks the interpretation.
    """
    norm: Any = module
    kind = type(module).__name__
    centred = type(module) is nn.LayerNorm
    if not (centred or kind.endswith("RMSNorm") or kind == "T5LayerNorm"):
        raise UserError(f"{kind} in front of attention is not a normalisation that sharpmax knows")
    size = norm.normalized_shape[-1] if centred else len(norm.weight)
    raw_weight, raw_bias = getattr(norm, "weight", None), getattr(norm, "bias", None)
    weight = np.ones(size) if raw_weight is None else to_float64(raw_weight, f"{kind}.weight")
    if kind.startswith("Gemma"):
        weight = 1.0 + weight
    bias = np.zeros(size) if raw_bias is None else to_float64(raw_bias, f"{kind}.bias")
    parameters = NormParameters(weight, bias, centred)
    _check_norm(module, parameters)
    return parameters


@torch.no_grad()
def _check_norm(module: nn.Module, parameters: NormParameters) -> None:
    """Raise unless the layer maps a random vector to what its parameters predict."""
    generator = torch.Generator().manual_seed(0)
    like = next(module.parameters(), torch.zeros(0))
    vector = 100.0 * torch.randn(len(parameters.weight), generator=generator).to(like)
    unit = vector.double().cpu().numpy()
    unit = unit - unit.mean() if parameters.centred else unit
    unit = unit / np.sqrt(np.mean(unit**2))
    expected = parameters.weight * unit + parameters.bias
    output = module(vector[None])[0].double().cpu().numpy()
    # Three roundings (input, product, sum), and an eps that is negligible beside 100^2.
    tolerance = 8 * torch.finfo(like.dtype).eps + 1e-6
    if not np.abs(output - expected).max() <= tolerance * (np.abs(expected).max() + 1e-12):
        raise UserError(
            f"{type(module).__name__} does not normalise as its name says: the model cannot be "
            "certified"
        )


def read_rotary(model: PreTrainedModel) -> tuple[int, float]:
    """Return the number of rotated channels per head, and the factor on queries and keys.

    The factor is the constant of YaRN and LongRoPE, at least 1.
    """
    sizes, constants = set(), {1.0}
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name.endswith("inv_freq"):
                sizes.add(2 * len(buffer))
        for name, value in vars(module).items():
            if name.endswith("attention_scaling"):
                constants.add(float(value))
    if len(sizes) != 1:
        raise UserError(
            f"{type(model).__name__} cannot be certified: expected rotary embeddings of one size, "
            f"found {len(sizes)}"
        )
    return sizes.pop(), max(constants)
