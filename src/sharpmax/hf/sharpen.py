"""Sharpen a model's attention for as long as a `with` block lasts."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from transformers import PreTrainedModel

from sharpmax._errors import UserError
from sharpmax.hf.model_info import describe_length_temperature, weights_fingerprint
from sharpmax.hf.patch.attention import LAYER_STATES, Patch, Rule
from sharpmax.hf.patch.layers import (
    Layer,
    attention_layers,
    check_numbers,
    count_heads,
    patched_attention,
    require_support,
    select_layers,
)
from sharpmax.hf.tune.calibration import Calibration, find_calibration
from sharpmax.policies import PAPER, Policy


class LengthTemperatureWarning(UserWarning):
    """The model already scales its attention with length, and a policy multiplies that."""


class OtherWeightsWarning(UserWarning):
    """A calibration was made for other weights of the same architecture."""


@contextmanager
def sharpen(
    model: PreTrainedModel,
    policy: Policy | Calibration | str | Path = PAPER,
    *,
    layers: Collection[int] | None = None,
    heads: Collection[int] | None = None,
) -> Iterator[PreTrainedModel]:
    """Sharpen the attention of a model inside a `with` block.

    Each row of each chosen head is sharpened by what the policy returns for it:

        weights = softmax(b * logits),   b = policy(entropy of softmax(logits), visible tokens)

    This holds for calls of the model, `generate` with any cache, batches with padding, and
    training. The other heads are plain attention. On leaving the block, also by an error, the model
    is what it was before. Blocks may be nested: where two name one head, the later one counts.

    A calibration changes nothing in inputs of at most `from_tokens` tokens: the output of a model
    that uses SDPA is the same bit for bit. Other policies can promise this too: see
    `sharpmax.policies.Traits.plain_up_to`.

    Args:
        model: A transformers model.
        policy: A `Calibration`, the path of its .json file, the name of one that comes with the
            package (`"smollm2"`, or `"tuned"` for the one with this model's weights), or a
            function of (entropy, count) that returns the inverse temperature.
        layers: The numbers of the attention layers, negative ones from the end. None means all.
        heads: The numbers of the heads in each of these layers, negative ones from the end. None
            means all.

    Yields:
        The model.

    Raises:
        UserError: The architecture is not supported, a layer or head does not exist, the
            calibration does not fit the model or was combined with `layers` or `heads`, or the
            model ran in the block without reaching its attention layers.
        TypeError: `policy` is none of the above.

    Examples:
        >>> with shf.sharpen(model, "smollm2"):
        ...     model.generate(**inputs)
    """
    every_layer = attention_layers(model)
    rules = _make_rules(model, every_layer, policy, layers, heads)
    require_support(model)
    _warn_of_length_temperature(model)
    with patched_attention(model, every_layer) as patch:
        for layer, rule in rules:
            LAYER_STATES[layer.module].rules += (rule,)
        try:
            yield model
            _require_attention_calls(model, patch)
        finally:
            for layer, rule in rules:
                state = LAYER_STATES[layer.module]
                state.rules = tuple(other for other in state.rules if other is not rule)


def _make_rules(
    model: PreTrainedModel,
    every_layer: list[Layer],
    policy: Policy | Calibration | str | Path,
    layers: Collection[int] | None,
    heads: Collection[int] | None,
) -> list[tuple[Layer, Rule]]:
    """Return the layers to sharpen, each with its rule."""
    if isinstance(policy, (str, Path)):
        policy = find_calibration(model, str(policy))
    if isinstance(policy, Calibration):
        if layers is not None or heads is not None:
            raise UserError("`layers` and `heads` cannot be combined with a calibration")
        policy.require_fit(model)
        if policy.weights != weights_fingerprint(model):
            warnings.warn(
                f"this calibration was made for other weights, of {policy.model}: its heads may "
                "do something else here; calibrate this model itself",
                OtherWeightsWarning,
                stacklevel=4,
            )
        return [
            (
                every_layer[number],
                Rule(policy.policy(number), frozenset(np.flatnonzero(rates).tolist())),
            )
            for number, rates in policy.rates().items()
        ]
    if not callable(policy):
        raise TypeError(
            "policy must be a function of (entropy, count), a calibration or the path of its .json "
            f"file, got {policy!r}"
        )
    selected = select_layers(every_layer, layers)
    rule = Rule(policy, None if heads is None else _check_heads(selected, heads))
    return [(layer, rule) for layer in selected]


def _check_heads(layers: list[Layer], heads: Collection[int]) -> frozenset[int]:
    """Return the numbers of heads, which must mean the same in all layers."""
    sizes = {count_heads(layer) for layer in layers}
    if len(sizes) != 1:
        raise UserError(
            f"heads={sorted(heads)}: the chosen layers have different numbers of heads "
            f"({sorted(sizes)}); choose layers that have the same"
        )
    return frozenset(check_numbers(heads, sizes.pop(), "heads"))


def _warn_of_length_temperature(model: PreTrainedModel) -> None:
    temperature = describe_length_temperature(model)
    if temperature is not None:
        warnings.warn(
            f"{type(model).__name__} already has a length temperature of its own, {temperature}: "
            "the policy is applied on top of it",
            LengthTemperatureWarning,
            stacklevel=4,
        )


def _require_attention_calls(model: PreTrainedModel, patch: Patch) -> None:
    """Refuse a model that ran although none of its layers computed attention."""
    if patch.forward_passes and not patch.attention_calls:
        raise UserError(
            f"{type(model).__name__} ran {patch.forward_passes} times inside sharpen, and none of "
            "its attention layers called transformers' AttentionInterface: nothing was sharpened"
        )
