"""How sharp each head of a model can ever be, from its weights alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from transformers import PreTrainedModel

from sharpmax import theory
from sharpmax._errors import UserError
from sharpmax.hf.certify.bounds import spread_bounds
from sharpmax.hf.model_info import (
    context_length,
    describe_growing_temperature,
    describe_model,
    is_encoder_decoder,
)
from sharpmax.hf.patch.layers import Layer, attention_layers
from sharpmax.hf.scan.scan import Scan
from sharpmax.results import Result, Stopwatch

if TYPE_CHECKING:
    from jaxtyping import Float

EPSILONS = (0.01, 0.1, 0.5)
"""Weights that a result says of when they are out of reach."""


class Certificate(Result):
    """What `certify` found: arrays [layer, head]."""

    kind: Literal["certify"] = "certify"

    @property
    def spread_bound(self) -> Float[np.ndarray, "layers heads"]:
        """What the largest logit minus the smallest can never exceed, whatever the input."""
        return self.arrays["spread_bound"]

    @property
    def measured_spread(self) -> Float[np.ndarray, "layers heads"] | None:
        """The largest spread in the scan that was given; NaN where it did not look."""
        return self.arrays.get("measured_spread")

    @property
    def ratio(self) -> Float[np.ndarray, "layers heads"] | None:
        """Certified over measured spread."""
        return None if self.measured_spread is None else self.spread_bound / self.measured_spread

    def items_until_dispersed(self, epsilon: float) -> Float[np.ndarray, "layers heads"]:
        """The first number of tokens at which no weight of a head can reach epsilon; inf beyond
        floats.
        """
        return np.asarray(theory.items_until_dispersed(self.spread_bound, epsilon))

    def log10_items(self, epsilon: float) -> Float[np.ndarray, "layers heads"]:
        """The logarithm of that number, which is a number for every head."""
        return log10_items(self.spread_bound, epsilon)


def log10_items(spread: Float[np.ndarray, "*any"], epsilon: float) -> Float[np.ndarray, "*any"]:
    """log10 of `theory.items_until_dispersed`, also where that is beyond floats: from n - 1 >
    (1 / epsilon - 1) exp(spread), where rounding to a whole number no longer matters.
    """
    items = np.asarray(theory.items_until_dispersed(spread, epsilon))
    large = (spread + math.log(1 / epsilon - 1)) / math.log(10)
    return np.where(np.isfinite(items), np.log10(np.where(np.isfinite(items), items, 1)), large)


def certify(
    model: PreTrainedModel,
    *,
    scan: Scan | None = None,
    name: str | None = None,
    notes: Sequence[str] = (),
) -> Certificate:
    """Bound the spread of every head's logits for all inputs of all lengths, by Proposition 3.1 of
    arXiv 2410.01104 with what the architecture has, and say from how many tokens on no weight can
    reach 1, 10 and 50 % (Lemma 2.1, tight). No text is read.

    `scan` puts the measured spread beside it. Holds for exact arithmetic, in evaluation mode;
    numbers of few bits may exceed it by as much as they round. An architecture whose bound is not
    known is refused by name: `sharpmax.hf.certify.architectures` has the table.
    """
    watch = Stopwatch()
    layers = attention_layers(model)
    _refuse(model)
    bounds = np.stack([spread_bounds(model, layer) for layer in layers])
    arrays = {"spread_bound": bounds}
    if scan is not None:
        arrays["measured_spread"] = _measured(model, bounds, scan)
    return Certificate(
        config={
            **describe_model(model, name, notes),
            "epsilons": list(EPSILONS),
            "context": context_length(model),
            "scan": None if scan is None else _of_scan(scan),
        },
        seeds=(),
        measurements={
            "layers": [
                _summary(layer, {key: array[row] for key, array in arrays.items()})
                for row, layer in enumerate(layers)
            ],
            "heads": list(range(bounds.shape[1])),
        },
        provenance=watch.provenance(),
    ).with_arrays(**arrays)


def _refuse(model: PreTrainedModel) -> None:
    """What no table of wirings would tell."""
    if is_encoder_decoder(model):
        raise UserError(
            f"{type(model).__name__} is an encoder-decoder: certify its encoder, "
            "model.get_encoder()"
        )
    growing = describe_growing_temperature(model)
    if growing is not None:
        raise UserError(
            f"{type(model).__name__} cannot be certified: its spread has no bound, by {growing}"
        )


def _summary(layer: Layer, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """One layer's line in the table."""
    module: Any = layer.module
    window = getattr(module, "sliding_window", getattr(module.config, "sliding_window", None))
    bound = arrays["spread_bound"]
    found: dict[str, Any] = {
        "index": layer.index,
        "name": layer.name,
        "window": window if isinstance(window, int) else None,
        "smallest": bound.min(),
        "median": np.median(bound),
        "largest": bound.max(),
        "log10_items": {
            str(epsilon): float(log10_items(bound.max(), epsilon)) for epsilon in EPSILONS
        },
    }
    measured = arrays.get("measured_spread")
    if measured is not None:
        known = measured[~np.isnan(measured)]
        found["measured"] = float(known.max()) if known.size else None
    return found


def _of_scan(scan: Scan) -> dict[str, Any]:
    return {
        "model": scan.config["model"],
        "prompt": scan.config["prompt"],
        "tokens": max(scan.tokens),
    }


def _measured(
    model: PreTrainedModel, bounds: Float[np.ndarray, "layers heads"], scan: Scan
) -> Float[np.ndarray, "layers heads"]:
    """The largest spread that the scan saw, of each head at the places of `bounds`."""
    config = scan.config
    if config["policy"] is not None:
        raise UserError(f"the scan is of a sharpened model ({config['policy']}): scan it plain")
    ours = (model.config.model_type, sum(one.numel() for one in model.parameters()))
    if ours != (config["model_type"], config["parameters"]):
        raise UserError(
            f"the scan is of {config['model']}, {config['model_type']} with "
            f"{config['parameters']:,} parameters, not of this {ours[0]} with {ours[1]:,}"
        )
    found = np.full(bounds.shape, np.nan)
    # The spread of a row is what the last token of each length saw.
    found[np.ix_(config["layers"], config["heads"])] = np.nanmax(scan.spread, axis=0)
    slack = 1 + 16 * torch.finfo(getattr(torch, config["dtype"])).eps
    if np.any(found > slack * bounds):
        layer, head = np.argwhere(found > slack * bounds)[0]
        raise UserError(
            f"the scan measured a spread of {found[layer, head]:.4g} at layer {layer}, head "
            f"{head}, where these weights allow {bounds[layer, head]:.4g}: it is of another model"
        )
    return found
