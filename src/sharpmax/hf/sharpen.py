"""Sharpen a model's attention for as long as a `with` block lasts."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from transformers import PreTrainedModel

from sharpmax._errors import UserError
from sharpmax.hf.model_info import fingerprint
from sharpmax.hf.patch import attention
from sharpmax.hf.patch.attention import Rule
from sharpmax.hf.patch.context import Block, ruled
from sharpmax.hf.patch.layers import (
    Layer,
    attention_layers,
    chosen,
    heads_of,
    own_temperature,
    select,
)
from sharpmax.hf.patch.parity import require_support
from sharpmax.hf.tune.calibration import Calibration
from sharpmax.policies import PAPER, Policy


class LengthTemperatureWarning(UserWarning):
    """The model already scales its attention by length; a policy comes on top of that."""


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
    """Inside the block each chosen head's rows are sharpened by what the policy answers:

        weights = softmax(b * logits),   b = policy(entropy of softmax(logits), visible tokens)

    in calls of the model, `generate` with any cache, batches with padding, training. The other
    heads are plain attention. On leaving the block, also by an error, the model is what it was
    before.

    `layers` and `heads` are numbers, negative ones from the end; a head is meant in every chosen
    layer. Blocks may be nested: where two speak of one head the later one counts.

    A `Calibration` in place of a policy, or the path of its file, says itself which heads to
    sharpen.
    """
    every = attention_layers(model)
    rules = _rules(model, every, policy, layers, heads)
    require_support(model)
    _mention_own_temperature(model)
    with ruled(model, every) as block:
        for layer, rule in rules:
            attention.RULES[layer.module] = (*attention.RULES[layer.module], rule)
        try:
            yield model
            _require_reached(model, block)
        finally:
            for layer, rule in rules:
                left = attention.RULES.get(layer.module, ())
                attention.RULES[layer.module] = tuple(one for one in left if one is not rule)


def _rules(
    model: PreTrainedModel,
    every: list[Layer],
    policy: Policy | Calibration | str | Path,
    layers: Collection[int] | None,
    heads: Collection[int] | None,
) -> list[tuple[Layer, Rule]]:
    if isinstance(policy, Path) or (isinstance(policy, str) and policy.endswith(".json")):
        policy = Calibration.load(policy)
    if isinstance(policy, Calibration):
        if layers is not None or heads is not None:
            raise UserError(
                "a calibration says itself which heads to sharpen: leave layers and heads out"
            )
        policy.require_fit(model)
        if policy.weights != fingerprint(model):
            warnings.warn(
                f"this calibration was made for other weights, of {policy.model}: its heads may "
                "do something else here; calibrate this model itself",
                OtherWeightsWarning,
                stacklevel=4,
            )
        return [
            (every[number], Rule(policy.policy(number), frozenset(np.flatnonzero(rates).tolist())))
            for number, rates in policy.rates().items()
        ]
    if not callable(policy):
        raise TypeError(
            "policy must be a function of (entropy, count), a calibration or the path of its .json "
            f"file, got {policy!r}"
        )
    some = select(every, layers)
    rule = Rule(policy, None if heads is None else _heads(some, heads))
    return [(layer, rule) for layer in some]


def _heads(layers: list[Layer], heads: Collection[int]) -> frozenset[int]:
    sizes = {heads_of(layer) for layer in layers}
    if len(sizes) != 1 or None in sizes:
        raise UserError(
            f"heads={sorted(heads)}: the chosen layers have different numbers of heads "
            f"({sorted(map(str, sizes))}); choose layers that have the same"
        )
    (size,) = sizes
    assert size is not None
    return frozenset(chosen(heads, size, "heads"))


def _mention_own_temperature(model: PreTrainedModel) -> None:
    found = own_temperature(model)
    if found is not None:
        warnings.warn(
            f"{type(model).__name__} already has a length temperature of its own, {found}: the "
            "policy is applied on top of it",
            LengthTemperatureWarning,
            stacklevel=4,
        )


def _require_reached(model: PreTrainedModel, block: Block) -> None:
    """A model that ran without any of its layers asking for attention was not sharpened."""
    if block.passes and not block.calls:
        raise UserError(
            f"{type(model).__name__} ran {block.passes} times inside sharpen, and none of its "
            "attention layers called transformers' AttentionInterface: nothing was sharpened"
        )
