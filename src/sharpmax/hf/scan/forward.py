"""One forward pass of a model with an eye on some of its layers."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from sharpmax._errors import UserError
from sharpmax.hf.patch import attention
from sharpmax.hf.patch.context import evaluating, ruled
from sharpmax.hf.patch.layers import Layer, attention_layers, chosen, heads_of, select
from sharpmax.hf.scan.statistics import STATISTICS, Seen, observe
from sharpmax.hf.sharpen import sharpen
from sharpmax.policies import Policy


@dataclass(frozen=True)
class Plan:
    """Which layers and heads to look at."""

    every: list[Layer]
    layers: list[Layer]
    heads: list[int]
    all_heads: bool

    @staticmethod
    def of(
        model: PreTrainedModel, layers: Collection[int] | None, heads: Collection[int] | None
    ) -> Plan:
        every = attention_layers(model)
        some = select(every, layers)
        sizes = [heads_of(layer) for layer in some]
        if None in sizes:
            unknown = some[sizes.index(None)]
            raise UserError(f"{type(unknown.module).__name__} does not say how many heads it has")
        known = [size for size in sizes if size is not None]
        if heads is None:
            return Plan(every, some, list(range(max(known))), True)
        return Plan(every, some, chosen(heads, min(known), "heads"), False)

    @property
    def numbers(self) -> dict[str, list[int]]:
        return {"layers": [layer.index for layer in self.layers], "heads": self.heads}


@dataclass(frozen=True)
class Pass:
    """What was seen, [layer, head]; NaN, or a count of 0, where a layer has fewer heads."""

    arrays: dict[str, np.ndarray]
    seconds: float


class _Enough(Exception):  # noqa: N818 - not an error: all layers of the plan have been seen
    pass


@torch.no_grad()
def run(
    model: PreTrainedModel,
    plan: Plan,
    tokens: list[int],
    policy: Policy | None,
    seen_one: Callable[[], None],
) -> Pass:
    """Let the model read the tokens, and look at the layers of the plan; `seen_one` is called after
    each of them.
    """
    begin = time.perf_counter()
    found: dict[int, Seen] = {}

    def observer(layer: Layer) -> Callable[[dict[str, Any]], Tensor]:
        def look(arguments: dict[str, Any]) -> Tensor:
            output, seen = observe(arguments, None if plan.all_heads else plan.heads)
            found[layer.index] = seen
            seen_one()
            if len(found) == len(plan.layers):
                raise _Enough
            return output

        return look

    sharpened: AbstractContextManager[Any] = (
        nullcontext() if policy is None else sharpen(model, policy)
    )
    with ruled(model, plan.every), sharpened:
        for layer in plan.layers:
            attention.OBSERVERS[layer.module] = observer(layer)
        try:
            _read(model, tokens)
        except _Enough:
            pass
        finally:
            for layer in plan.layers:
                attention.OBSERVERS.pop(layer.module, None)
    missing = [layer.name for layer in plan.layers if layer.index not in found]
    if missing:
        raise UserError(
            f"{type(model).__name__}: attention of {', '.join(missing[:3])} was not reached by a "
            "forward pass: this model is not supported"
        )
    return Pass(_joined(plan, found), time.perf_counter() - begin)


def _read(model: PreTrainedModel, tokens: list[int]) -> None:
    """Without keeping keys and values. The output layer, whose logits would take tokens times
    vocabulary numbers, is not reached: `run` has seen enough before.
    """
    options: dict[str, Any] = {}
    if "use_cache" in inspect.signature(model.forward).parameters:
        options["use_cache"] = False
    with evaluating(model):
        model(input_ids=torch.tensor([tokens], device=model.device), **options)


def _joined(plan: Plan, found: dict[int, Seen]) -> dict[str, np.ndarray]:
    shape = (len(plan.layers), len(plan.heads))
    extra = {name for seen in found.values() for name in seen.last if name not in STATISTICS}
    arrays = {
        f"{where}_{name}": np.full(shape, np.nan)
        for name in (*STATISTICS, *sorted(extra))
        for where in ("last", "mean")
    }
    arrays["last_count"] = np.zeros(shape, np.int64)
    for row, layer in enumerate(plan.layers):
        seen = found[layer.index]
        for where, values in (("last", seen.last), ("mean", seen.mean)):
            for name, numbers in values.items():
                arrays[f"{where}_{name}"][row, : len(numbers)] = numbers
        arrays["last_count"][row, : len(seen.count)] = seen.count
    return arrays
