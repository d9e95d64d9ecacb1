"""Sharpen a model's attention, inside a `with` block or until a handle is removed."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from contextlib import ContextDecorator, ExitStack
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn
from transformers import PreTrainedModel

from sharpmax._errors import UserError
from sharpmax.hf.model_info import describe_length_temperature, weights_fingerprint
from sharpmax.hf.patch.context import patch_model
from sharpmax.hf.patch.layers import (
    Layer,
    attention_layers,
    bind_policy,
    check_numbers,
    count_heads,
    select_layers,
)
from sharpmax.hf.patch.parity import require_support
from sharpmax.hf.patch.scope import Rule
from sharpmax.hf.patch.wrappers import unwrap_model
from sharpmax.hf.tune.calibration import TUNED, Calibration, find_calibration
from sharpmax.policies import Policy
from sharpmax.results.calibration import EXPORT_MARK


class LengthTemperatureWarning(UserWarning):
    """The model already scales its attention with length, and a policy multiplies that."""


class OtherWeightsWarning(UserWarning):
    """A calibration was made for other weights of the same architecture."""


def sharpen(
    model: PreTrainedModel,
    policy: Policy | Calibration | str | Path = TUNED,
    *,
    layers: Collection[int] | None = None,
    heads: Collection[int] | None = None,
) -> Sharpened:
    """Sharpen the attention of a model inside a `with` block.

    Each row of each chosen head is sharpened by what the policy returns for it:

        weights = softmax(b * logits),   b = policy(entropy of softmax(logits), visible tokens)

    This applies to calls of the model, `generate` with any cache, batches with padding, and
    training. The other heads keep plain attention. On leaving the block, also by an error, the
    model is restored. Blocks may be nested; if two name the same head, the inner one counts.

    The block applies to the thread or asyncio task that entered it. Others run the same model
    unchanged, or in blocks of their own. A thread that you start inside a block does not inherit it
    (start it with `contextvars.copy_context().run`); for servers use `apply`. A deep copy of the
    model is a model of its own, which is not sharpened.

    A calibration changes nothing in inputs of at most `from_tokens` tokens: the output of a model
    that uses SDPA is the same bit for bit. Other policies can promise this too: see
    `sharpmax.policies.Traits.plain_up_to`.

    Args:
        model: A transformers model, or a PEFT, DistributedDataParallel or `torch.compile`d model
            around one.
        policy: A `Calibration`, the path of its .json file, the name of one that comes with the
            package (`"smollm2"`, or `"tuned"`, the default, for the one with this model's weights),
            or a function of (entropy, count) that returns the inverse temperature.
        layers: The numbers of the attention layers, negative ones from the end. None means all.
        heads: The numbers of the heads in each of these layers, negative ones from the end. None
            means all.

    Returns:
        A context manager that yields the model. It can be entered again.

    Raises:
        UserError: The architecture is not supported, a layer or head does not exist, the
            calibration does not fit the model or was combined with `layers` or `heads`, or the
            model runs in the block without reaching its attention layers.
        TypeError: `policy` is none of the above.

    Examples:
        >>> with shf.sharpen(model, "smollm2"):
        ...     model.generate(**inputs)
    """
    return Sharpened(model, policy, layers, heads)


class Sharpened(ContextDecorator):
    """Sharpen a model inside a `with` block: what `sharpen` returns.

    It can be entered several times, also inside itself, and used as a decorator.

    Args:
        model: A transformers model.
        policy: A calibration, its path or name, or a function of (entropy, count).
        layers: The numbers of the attention layers; None means all.
        heads: The numbers of the heads in each of these layers; None means all.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        policy: Policy | Calibration | str | Path,
        layers: Collection[int] | None,
        heads: Collection[int] | None,
    ) -> None:
        """Check the arguments; nothing is changed before the block is entered."""
        self.yielded = model
        self.model = model = unwrap_model(model, runs=False)
        self.every_layer = attention_layers(model)
        self.rules = make_rules(model, self.every_layer, policy, layers, heads)
        require_support(model)
        _warn_of_length_temperature(model)
        self._entered: ContextVar[tuple[ExitStack, ...]] = ContextVar("entered", default=())

    def __enter__(self) -> PreTrainedModel:
        """Sharpen the model and return it."""
        patch = patch_model(self.model, self.every_layer, self.rules)
        self._entered.set((*self._entered.get(), patch))
        return self.yielded

    def __exit__(self, *_: Any) -> None:
        """Restore the model."""
        *others, patch = self._entered.get()
        self._entered.set(tuple(others))
        patch.close()


class Applied:
    """Undo what `apply` did to a model: the handle that it returns.

    Args:
        patch: What ends the patch of the model.
    """

    def __init__(self, patch: ExitStack) -> None:
        """Keep what ends the patch."""
        self._patch = patch

    def remove(self) -> None:
        """Restore the model. Calling it again does nothing."""
        self._patch.close()


def apply(
    model: PreTrainedModel,
    policy: Policy | Calibration | str | Path = TUNED,
    *,
    layers: Collection[int] | None = None,
    heads: Collection[int] | None = None,
) -> Applied:
    """Sharpen the attention of a model until the handle is removed, in all threads.

    Use it in servers and notebooks, where a `with` block is inconvenient. It does what `sharpen`
    does. A block of `sharpen` in one thread overrides it for the heads that it names.

    Args:
        model: A transformers model.
        policy: A calibration, its path or name, or a function of (entropy, count).
        layers: The numbers of the attention layers; None means all.
        heads: The numbers of the heads in each of these layers; None means all.

    Returns:
        A handle whose `remove()` undoes it.

    Raises:
        UserError: As for `sharpen`.
        TypeError: `policy` is none of the above.

    Examples:
        >>> handle = shf.apply(model, "smollm2")
        >>> model.generate(**inputs)
        >>> handle.remove()
    """
    block = Sharpened(model, policy, layers, heads)
    return Applied(patch_model(block.model, block.every_layer, block.rules, everywhere=True))


def make_rules(
    model: PreTrainedModel,
    every_layer: list[Layer],
    policy: Policy | Calibration | str | Path,
    layers: Collection[int] | None,
    heads: Collection[int] | None,
) -> dict[nn.Module, tuple[Rule, ...]]:
    """Return the layers to sharpen, each with its rule."""
    if isinstance(policy, (str, Path)):
        policy = find_calibration(model, str(policy))
    if isinstance(policy, Calibration):
        if layers is not None or heads is not None:
            raise UserError("`layers` and `heads` cannot be combined with a calibration")
        policy.require_fit(model)
        if hasattr(model.config, EXPORT_MARK):
            raise UserError(
                f"{model.config._name_or_path} was written by sharpmax export, and a calibration "
                "is in its weights already: use it as it is, or sharpen the original model"
            )
        if policy.weights != weights_fingerprint(model):
            warnings.warn(
                f"this calibration was made for other weights, of {policy.model}: its heads may "
                "do something else here; calibrate this model itself",
                OtherWeightsWarning,
                stacklevel=4,
            )
        return {
            every_layer[number].module: (
                Rule(policy.policy(number), frozenset(np.flatnonzero(rates).tolist())),
            )
            for number, rates in policy.rates().items()
        }
    if not callable(policy):
        raise TypeError(
            "policy must be a function of (entropy, count), a calibration or the path of its .json "
            f"file, got {policy!r}"
        )
    selected = select_layers(every_layer, layers)
    numbers = None if heads is None else _check_heads(selected, heads)
    return {layer.module: (Rule(bind_policy(policy, layer.module), numbers),) for layer in selected}


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
