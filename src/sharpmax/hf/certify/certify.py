"""Certify how sharp each head of a model can ever be, from its weights alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from transformers import PreTrainedModel

from sharpmax import theory
from sharpmax._errors import UserError
from sharpmax.hf.certify.bounds import bound_spreads
from sharpmax.hf.model_info import (
    context_length,
    describe_growing_temperature,
    describe_model,
    is_encoder_decoder,
)
from sharpmax.hf.patch.layers import Layer, attention_layers
from sharpmax.hf.patch.parallel import require_whole_weights
from sharpmax.hf.patch.parity import require_softmax
from sharpmax.hf.patch.wrappers import count_parameters, unwrap_model
from sharpmax.hf.scan.scan import Scan
from sharpmax.results import Result, Stopwatch

if TYPE_CHECKING:
    from jaxtyping import Float

EPSILONS = (0.01, 0.1, 0.5)
"""Attention weights for which a certificate says from how many tokens on none can reach them."""


class Certificate(Result):
    """The result of `certify`: bounds per layer and head that hold for every input."""

    kind: Literal["certify"] = "certify"
    """The kind of result."""

    @property
    def spread_bound(self) -> Float[np.ndarray, "layers heads"]:
        """What the largest logit minus the smallest of a row can never exceed."""
        return self.arrays["spread_bound"]

    @property
    def measured_spread(self) -> Float[np.ndarray, "layers heads"] | None:
        """The largest spread in the scan, if one was given; NaN for heads that it did not scan."""
        return self.arrays.get("measured_spread")

    @property
    def ratio(self) -> Float[np.ndarray, "layers heads"] | None:
        """The bound divided by the measured spread; at least 1."""
        return None if self.measured_spread is None else self.spread_bound / self.measured_spread

    def items_until_dispersed(self, epsilon: float) -> Float[np.ndarray, "layers heads"]:
        """Return the number of tokens from which on no weight of a head can reach epsilon.

        Args:
            epsilon: An attention weight between 0 and 1.

        Returns:
            The number per head; infinity where it exceeds the range of floats.
        """
        return np.asarray(theory.items_until_dispersed(self.spread_bound, epsilon))

    def log10_items(self, epsilon: float) -> Float[np.ndarray, "layers heads"]:
        """Return the decimal logarithm of `items_until_dispersed`, finite for every head.

        Args:
            epsilon: An attention weight between 0 and 1.

        Returns:
            The logarithm per head.
        """
        return log10_items(self.spread_bound, epsilon)


def log10_items(spread: Float[np.ndarray, "*shape"], epsilon: float) -> Float[np.ndarray, "*shape"]:
    """Return the decimal logarithm of `theory.items_until_dispersed`, also beyond floats.

    There it follows from n - 1 > (1 / epsilon - 1) exp(spread), and rounding n to a whole number
    does not matter.
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
    """Bound the spread of every head's logits, for all inputs of all lengths.

    A head whose logits have a bounded spread must disperse as inputs grow. The bound follows from
    the weights alone (Proposition 3.1 of arXiv 2410.01104, refined for the architecture), and with
    it the number of tokens from which on no weight can reach 1, 10 or 50 % (Lemma 2.1, tight). The
    model reads no text.

    It holds for exact arithmetic in evaluation mode; low-precision weights may exceed it by their
    rounding error.

    Args:
        model: A model of transformers of an architecture in
            `sharpmax.hf.certify.architectures.COVERED`.
        scan: A scan of the same model, whose measured spreads are put beside the bounds.
        name: The model's name in the result.
        notes: Notes to keep in the result.

    Returns:
        The bounds, per layer and head.

    Raises:
        UserError: The architecture has no known bound, a weight is not finite, or the scan is of
            another or a sharpened model.

    Examples:
        >>> certificate = certify(model)
        >>> certificate.spread_bound[0, 3], certificate.log10_items(0.1)[0, 3]
    """
    model = unwrap_model(model)
    require_softmax(model)
    require_whole_weights(model, "certify")
    watch = Stopwatch()
    layers = attention_layers(model)
    _require_bounded(model)
    bounds = np.stack([bound_spreads(model, layer) for layer in layers])
    arrays = {"spread_bound": bounds}
    if scan is not None:
        arrays["measured_spread"] = _measured_spread(model, bounds, scan)
    return Certificate(
        config={
            **describe_model(model, name, notes),
            "epsilons": list(EPSILONS),
            "context": context_length(model),
            "scan": None if scan is None else _describe_scan(scan),
        },
        seeds=(),
        measurements={
            "layers": [
                _summarise(layer, {key: array[row] for key, array in arrays.items()})
                for row, layer in enumerate(layers)
            ],
            "heads": list(range(bounds.shape[1])),
        },
        provenance=watch.provenance(),
    ).with_arrays(**arrays)


def _require_bounded(model: PreTrainedModel) -> None:
    """Raise for models whose logits are not bounded by the weights of their layers."""
    if is_encoder_decoder(model):
        raise UserError(
            f"{type(model).__name__} is an encoder-decoder: certify its encoder, "
            "model.get_encoder()"
        )
    growing = describe_growing_temperature(model)
    if growing is not None:
        raise UserError(
            f"{type(model).__name__} cannot be certified: its spread has no bound because of "
            f"{growing}"
        )


def _summarise(layer: Layer, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Summarise the heads of one layer for the table of the result."""
    module: Any = layer.module
    window = getattr(module, "sliding_window", getattr(module.config, "sliding_window", None))
    bound = arrays["spread_bound"]
    log10 = {epsilon: log10_items(bound, epsilon).max() for epsilon in EPSILONS}
    summary: dict[str, Any] = {
        "index": layer.index,
        "name": layer.name,
        "window": window if isinstance(window, int) else None,
        "smallest": bound.min(),
        "median": np.median(bound),
        "largest": bound.max(),
        "log10_items": {str(epsilon): float(value) for epsilon, value in log10.items()},
    }
    measured = arrays.get("measured_spread")
    if measured is not None:
        known = measured[~np.isnan(measured)]
        summary["measured"] = float(known.max()) if known.size else None
    return summary


def _describe_scan(scan: Scan) -> dict[str, Any]:
    return {
        "model": scan.config["model"],
        "prompt": scan.config["prompt"],
        "tokens": max(scan.tokens),
    }


def _measured_spread(
    model: PreTrainedModel, bounds: Float[np.ndarray, "layers heads"], scan: Scan
) -> Float[np.ndarray, "layers heads"]:
    """Return the largest spread of each head in a scan; raise if the scan is of another model."""
    config = scan.config
    if config["policy"] is not None:
        raise UserError(f"the scan is of a sharpened model ({config['policy']}): scan it plain")
    parameters = count_parameters(model)
    if (model.config.model_type, parameters) != (config["model_type"], config["parameters"]):
        raise UserError(
            f"the scan is of {config['model']}, {config['model_type']} with "
            f"{config['parameters']:,} parameters, not of this {model.config.model_type} with "
            f"{parameters:,}"
        )
    measured = np.full(bounds.shape, np.nan)
    measured[np.ix_(config["layers"], config["heads"])] = np.nanmax(scan.spread, axis=0)
    slack = 1 + 16 * torch.finfo(getattr(torch, config["dtype"])).eps
    if np.any(measured > slack * bounds):
        layer, head = np.argwhere(measured > slack * bounds)[0]
        raise UserError(
            f"the scan is of another model: it measured a spread of {measured[layer, head]:.4g} at "
            f"layer {layer}, head {head}, and these weights allow {bounds[layer, head]:.4g}"
        )
    return measured
