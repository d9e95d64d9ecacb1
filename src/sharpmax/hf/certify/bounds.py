"""The largest spread of logits that each head of a layer can have, from its weights alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from torch import nn
from transformers import PreTrainedModel

from sharpmax._errors import UserError
from sharpmax.hf.certify.architectures import Wiring, wiring_of
from sharpmax.hf.certify.ellipsoids import Ellipsoid, aligned_spread_bound, rotary_spread_bound
from sharpmax.hf.certify.norms import Normalised, normalised
from sharpmax.hf.patch.layers import Layer

if TYPE_CHECKING:
    from jaxtyping import Float

    from sharpmax.hf.certify.projections import Rows


def spread_bounds(model: PreTrainedModel, layer: Layer) -> Float[np.ndarray, " heads"]:
    """What max e - min e of a head's row of logits can never exceed.

    Proposition 3.1 of arXiv 2410.01104, with what the layer has: the logits are

        e = softcap(scale * <R q, R' k>) + bias,   q = Q norm(x) + b,

    where norm(x) fills an ellipsoid, and so do q and k. c tanh(e / c) turns a spread d into at most
    2 c tanh(d / 2c), since it is odd and flattens outwards; a bias adds its range. A learned sink
    takes no part: it can only take weight from the tokens.
    """
    wiring = wiring_of(model, layer)
    query, key = _ellipsoids(wiring)
    if wiring.rotated:
        rotated, constant = rotary(model)
        spread = constant**2 * rotary_spread_bound(query, key, rotated)
    else:
        spread = aligned_spread_bound(query, key)
    spread = spread * abs(wiring.scale)
    if wiring.softcap is not None:
        spread = 2 * wiring.softcap * np.tanh(spread / (2 * wiring.softcap))
    return spread if wiring.bias_range is None else spread + wiring.bias_range


def _ellipsoids(wiring: Wiring) -> tuple[Ellipsoid, Ellipsoid]:
    """What queries and keys can be."""
    front = None if wiring.norm is None else normalised(wiring.norm)
    return (
        _filled(front, wiring.query, wiring.query_norm),
        _filled(front, wiring.key, wiring.key_norm),
    )


def _filled(front: Normalised | None, rows: Rows, own: nn.Module | None) -> Ellipsoid:
    if own is not None:
        # Whatever the projection gives, this clamps it.
        return _of_own_norm(normalised(own), *rows[1].shape)
    if front is None:
        raise UserError("a layer with no normalisation before its logits has no bound")
    return Ellipsoid.of(*front.through(*rows), front.radius)


def _of_own_norm(norm: Normalised, heads: int, dim: int) -> Ellipsoid:
    """Normalised by head, or all heads together: then one of them may have all of the norm."""
    size = len(norm.weight)
    every = np.broadcast_to(np.eye(size), (1, size, size))
    shape, centre = norm.through(every, np.zeros((1, size)))
    if size == dim:
        shape, centre = np.repeat(shape, heads, axis=0), np.repeat(centre, heads, axis=0)
    else:
        group = heads * dim // size
        shape, centre = shape.reshape(-1, dim, size), centre.reshape(-1, dim)
        shape, centre = np.repeat(shape, group, axis=0), np.repeat(centre, group, axis=0)
    return Ellipsoid.of(shape, centre, norm.radius)


def rotary(model: PreTrainedModel) -> tuple[int, float]:
    """(how many channels of a head turn, the constant that YaRN and LongRoPE multiply queries and
    keys by, at least 1).
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
            f"{type(model).__name__} has rotary embeddings of {len(sizes)} sizes, one was "
            "expected: not certified"
        )
    return sizes.pop(), max(constants)
