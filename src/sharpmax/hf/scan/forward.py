"""Run one forward pass and record attention statistics for selected layers and heads.

The statistics come from the logits of each row; no matrix of tokens by tokens is held.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from sharpmax._errors import UserError
from sharpmax.hf.patch.context import observed_layers, patched_attention
from sharpmax.hf.patch.layers import (
    Layer,
    attention_layers,
    check_numbers,
    count_heads,
    evaluation_mode,
    select_layers,
)
from sharpmax.hf.patch.parallel import HeadShare, gather_heads, share_of
from sharpmax.hf.patch.scope import PLAIN, Observer
from sharpmax.hf.patch.wrappers import input_device, is_fully_sharded
from sharpmax.hf.sharpen import sharpen
from sharpmax.hf.tune.calibration import Calibration
from sharpmax.policies import Policy
from sharpmax.theory.growth import GAPS, count_competitors
from sharpmax.torch import (
    AttentionStats,
    attention,
    attention_stats,
    scaled_dot_product_attention,
)

if TYPE_CHECKING:
    from jaxtyping import Float, Int

STATISTICS = (
    "entropy",
    "normalised_entropy",
    "effective_tokens",
    "max_weight",
    "sink",
    "spread",
    "varentropy",
)

STRONGEST = 8
"""Tokens that are kept per head: those with the largest weights at the last position."""

FORWARD_OPTIONS = {"use_cache": False, "logits_to_keep": 1}
"""Options of a pass, for models that have them."""

LOGIT_ARGUMENTS = ("key", "attn_mask", "is_causal", "scale", "enable_gqa", "softcap", "window")
"""The arguments of attention that, with the queries, decide the logits."""


@dataclass(frozen=True)
class Selection:
    """Which layers and heads to measure.

    Attributes:
        every_layer: All attention layers of the model.
        layers: The layers to measure.
        heads: The heads to measure in each of them.
        all_heads: Whether these are all heads; a layer may then have fewer.
    """

    every_layer: list[Layer]
    layers: list[Layer]
    heads: list[int]
    all_heads: bool

    @staticmethod
    def create(
        model: PreTrainedModel,
        layers: Collection[int] | None = None,
        heads: Collection[int] | None = None,
    ) -> Selection:
        """Select layers and heads by their numbers; None selects all."""
        every_layer = attention_layers(model)
        selected = select_layers(every_layer, layers)
        sizes = [count_heads(layer) for layer in selected]
        if heads is None:
            return Selection(every_layer, selected, list(range(max(sizes))), True)
        return Selection(every_layer, selected, check_numbers(heads, min(sizes), "heads"), False)


@dataclass(frozen=True)
class PassStatistics:
    """Attention statistics of one forward pass.

    Attributes:
        arrays: `last_NAME` and `mean_NAME` for each statistic, [layer, head], and `last_count`.
            Where a layer has fewer heads they are NaN, and the count is 0.
        seconds: How long the pass took.
    """

    arrays: dict[str, np.ndarray]
    seconds: float


@dataclass(frozen=True)
class _LayerStatistics:
    """Statistics by name of one layer, [head]: at the last position, and the mean over positions.

    `count` is the number of tokens that the last position sees. `strongest` has the positions of
    the tokens of largest weight there, and `strongest_weight` these weights, [head, token].
    `competitors` counts the tokens within each of `GAPS` of the largest logit there; the first
    token is left out, since heads put there what they do not use.
    """

    last: dict[str, np.ndarray]
    mean: dict[str, np.ndarray]
    count: Int[np.ndarray, " head"]
    strongest: Int[np.ndarray, "head token"]
    strongest_weight: Float[np.ndarray, "head token"]
    competitors: Int[np.ndarray, "head gap"]

    def gather(self, share: HeadShare, heads: list[int] | None) -> _LayerStatistics:
        """Return the statistics of some heads, of which each process measured its own."""
        selected = slice(None) if heads is None else heads
        return _LayerStatistics(
            {name: gather_heads(row, share)[selected] for name, row in self.last.items()},
            {name: gather_heads(row, share)[selected] for name, row in self.mean.items()},
            *(
                gather_heads(rows, share)[selected]
                for rows in (self.count, self.strongest, self.strongest_weight, self.competitors)
            ),
        )


class _AllLayersMeasured(Exception):  # noqa: N818 - not an error: ends the pass early
    pass


@torch.no_grad()
def measure_forward_pass(
    model: PreTrainedModel,
    selection: Selection,
    tokens: list[int],
    policy: Policy | Calibration | None = None,
    finish_layer: Callable[[], None] | None = None,
) -> PassStatistics:
    """Run a model on tokens and measure the selected layers.

    The pass ends after the last of these layers, unless `fully_shard` split the model among
    processes. No keys and values are kept. The logits, which would take tokens times vocabulary
    numbers, are not computed, or those of the last token only.

    Args:
        model: The model.
        selection: The layers and heads to measure.
        tokens: The input.
        policy: Sharpen the model by this policy or calibration, and measure the sharpened weights.
        finish_layer: Called after each measured layer.

    Raises:
        UserError: The pass did not reach a selected layer.
    """
    begin = time.perf_counter()
    # An exception would leave the modules that are running gathered on this process.
    ends_early = not is_fully_sharded(model)
    measured: dict[int, _LayerStatistics] = {}

    def make_observer(layer: Layer) -> Observer:
        def observe(arguments: dict[str, Any]) -> Tensor:
            heads = None if selection.all_heads else selection.heads
            share = share_of(layer)
            if share is None:
                output, measured[layer.index] = _measure_layer(arguments, heads)
            else:
                output, own = _measure_layer(arguments, None)
                measured[layer.index] = own.gather(share, heads)
            if finish_layer is not None:
                finish_layer()
            if ends_early and len(measured) == len(selection.layers):
                raise _AllLayersMeasured
            return output

        return observe

    options: dict[str, Any] = {"input_ids": torch.tensor([tokens], device=input_device(model))}
    known = inspect.signature(model.forward).parameters
    options |= {key: value for key, value in FORWARD_OPTIONS.items() if key in known}
    sharpened: AbstractContextManager[Any] = (
        nullcontext() if policy is None else sharpen(model, policy)
    )
    with (
        suppress(_AllLayersMeasured),
        patched_attention(model, selection.every_layer),
        sharpened,
        observed_layers(selection.layers, make_observer),
        evaluation_mode(model),
    ):
        model(**options)
    missing = [layer.name for layer in selection.layers if layer.index not in measured]
    if missing:
        raise UserError(
            f"{type(model).__name__}: attention of {', '.join(missing[:3])} was not reached by a "
            "forward pass: this model is not supported"
        )
    return PassStatistics(_join_layers(selection, measured), time.perf_counter() - begin)


def _join_layers(
    selection: Selection, measured: dict[int, _LayerStatistics]
) -> dict[str, np.ndarray]:
    shape = (len(selection.layers), len(selection.heads))
    names = {name for layer in measured.values() for name in layer.last}
    arrays = {
        f"{which}_{name}": np.full(shape, np.nan)
        for name in (*STATISTICS, *sorted(names - set(STATISTICS)))
        for which in ("last", "mean")
    }
    arrays["last_count"] = np.zeros(shape, np.int64)
    # -1 where a head sees fewer tokens.
    arrays["strongest"] = np.full((*shape, STRONGEST), -1, np.int32)
    arrays["strongest_weight"] = np.zeros((*shape, STRONGEST), np.float32)
    arrays["competitors"] = np.zeros((*shape, len(GAPS)), np.int32)
    for row, layer in enumerate(selection.layers):
        statistics = measured[layer.index]
        for which, values in (("last", statistics.last), ("mean", statistics.mean)):
            for name, by_head in values.items():
                arrays[f"{which}_{name}"][row, : len(by_head)] = by_head
        heads = len(statistics.count)
        arrays["last_count"][row, :heads] = statistics.count
        kept = statistics.strongest.shape[1]
        arrays["strongest"][row, :heads, :kept] = statistics.strongest
        arrays["strongest_weight"][row, :heads, :kept] = statistics.strongest_weight
        arrays["competitors"][row, :heads] = statistics.competitors
    return arrays


def _measure_layer(
    arguments: dict[str, Any], heads: list[int] | None
) -> tuple[Tensor, _LayerStatistics]:
    """Compute a layer's attention by its policy, and the statistics of its (sharpened) weights."""
    plain = arguments["policy"] == PLAIN
    if plain and heads is None:
        output, stats = attention(**arguments)
        return output, _summarise(stats, arguments)
    if plain:
        output = scaled_dot_product_attention(**arguments)
    else:
        output, stats = attention(**arguments)
        arguments = _fold_temperature(arguments, stats.inverse_temperature)
    if heads is not None:
        arguments = _select_heads(arguments, heads)
    logits = {name: arguments[name] for name in LOGIT_ARGUMENTS if name in arguments}
    stats = attention_stats(arguments["query"], policy=PLAIN, **logits)
    return output, _summarise(stats, arguments)


def _fold_temperature(
    arguments: dict[str, Any], inverse_temperature: Float[Tensor, "batch heads query"]
) -> dict[str, Any]:
    """Return the arguments of plain attention with the same weights, by scaling its queries."""
    mask = arguments.get("attn_mask")
    if arguments["softcap"] is not None or (mask is not None and mask.dtype != torch.bool):
        raise NotImplementedError(
            "statistics of sharpened weights need logits that are plain products of queries and "
            "keys; this layer has a softcap or a bias: scan it without a policy"
        )
    query = arguments["query"]
    scaled = (query * inverse_temperature[..., None]).to(query.dtype)
    return {**arguments, "query": scaled, "policy": PLAIN}


def _select_heads(arguments: dict[str, Any], heads: list[int]) -> dict[str, Any]:
    query, key = arguments["query"], arguments["key"]
    group = query.shape[1] // key.shape[1]
    selected = {
        **arguments,
        "query": query[:, heads],
        "key": key[:, [head // group for head in heads]],
    }
    mask = arguments.get("attn_mask")
    if mask is not None and mask.shape[1] > 1:
        selected["attn_mask"] = mask[:, heads]
    if arguments["sinks"] is not None:
        selected["sinks"] = arguments["sinks"][heads]
    return selected


def _summarise(stats: AttentionStats, arguments: dict[str, Any]) -> _LayerStatistics:
    """Reduce the rows of one prompt, [1, head, query], to numbers per head."""
    entropy, log_sum_exp, count = stats.entropy, stats.log_sum_exp, stats.count
    # The logit is rounded in another order than the sum, so the quotient may exceed 1 slightly.
    sink = (_first_logit(arguments) - log_sum_exp).exp().clamp(max=1.0)
    rows = {
        "entropy": entropy,
        "normalised_entropy": torch.where(count > 1, entropy / count.double().log(), torch.nan),
        "effective_tokens": stats.effective_items,
        "max_weight": stats.max_weight,
        "sink": torch.where(count > 0, sink, 0.0),
        "spread": stats.spread,
        "varentropy": stats.varentropy,
    }
    if arguments["sinks"] is not None:
        learned = arguments["sinks"].to(log_sum_exp.dtype)[:, None]
        rows["learned_sink"] = torch.sigmoid(learned - log_sum_exp)
    numbers = {name: row[0].double().cpu().numpy() for name, row in rows.items()}
    last = _logits_of_last(arguments)
    weights = (last - log_sum_exp[..., -1, None]).exp().clamp(max=1.0)[0]
    strongest = torch.where(weights.isnan(), 0.0, weights).topk(min(STRONGEST, weights.shape[-1]))
    return _LayerStatistics(
        last={name: row[:, -1] for name, row in numbers.items()},
        mean={name: _mean_over_positions(row) for name, row in numbers.items()},
        count=count[0, :, -1].cpu().numpy(),
        strongest=torch.where(strongest.values > 0, strongest.indices, -1).cpu().numpy(),
        strongest_weight=strongest.values.float().cpu().numpy(),
        competitors=count_competitors(last[0, :, 1:]).cpu().numpy(),
    )


def _first_logit(arguments: dict[str, Any]) -> Float[Tensor, "batch heads query"]:
    """Return each row's logit of the first token; -inf where it is hidden."""
    query, key = arguments["query"], arguments["key"]
    dtype = torch.promote_types(query.dtype, torch.float32)
    first_key = key[:, :, :1].repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    scale = arguments["scale"] if arguments["scale"] is not None else query.shape[-1] ** -0.5
    # Not as a matrix product, which autocast would compute in half precision.
    logit = scale * (query.to(dtype) * first_key.to(dtype)).sum(-1)
    if arguments["softcap"] is not None:
        logit = arguments["softcap"] * torch.tanh(logit / arguments["softcap"])
    mask, window = arguments.get("attn_mask"), arguments.get("window")
    if mask is not None and mask.dtype == torch.bool:
        logit = logit.masked_fill(~mask[..., 0], -torch.inf)
    elif mask is not None:
        hidden = mask[..., 0] <= torch.finfo(mask.dtype).min
        logit = (logit + mask[..., 0]).masked_fill(hidden, -torch.inf)
    if window is not None:
        logit[..., window:] = -torch.inf
    return logit


def _logits_of_last(arguments: dict[str, Any]) -> Float[Tensor, "batch heads key"]:
    """Return the logits of the last query for all keys; -inf where they are hidden."""
    query, key = arguments["query"][:, :, -1], arguments["key"]
    dtype = torch.promote_types(query.dtype, torch.float32)
    scale = arguments["scale"] if arguments["scale"] is not None else query.shape[-1] ** -0.5
    group = query.shape[1] // key.shape[1]
    by_group = query.to(dtype).unflatten(1, (key.shape[1], group))
    # Not as a matrix product, which autocast would compute in half precision.
    logit = torch.stack(
        [(key.to(dtype) * by_group[:, :, head, None]).sum(-1) for head in range(group)], dim=2
    ).flatten(1, 2)
    logit = scale * logit
    if arguments["softcap"] is not None:
        logit = arguments["softcap"] * torch.tanh(logit / arguments["softcap"])
    mask, window = arguments.get("attn_mask"), arguments.get("window")
    if mask is not None and mask.dtype == torch.bool:
        logit = logit.masked_fill(~mask[..., -1, :], -torch.inf)
    elif mask is not None:
        last = mask[..., -1, :]
        logit = (logit + last).masked_fill(last <= torch.finfo(mask.dtype).min, -torch.inf)
    if window is not None and window < logit.shape[-1]:
        logit[..., :-window] = -torch.inf
    return logit


def _mean_over_positions(rows: Float[np.ndarray, "head query"]) -> Float[np.ndarray, " head"]:
    """Average over positions without NaN: one that sees one token has no normalised entropy."""
    known = ~np.isnan(rows)
    number = known.sum(-1)
    total = np.where(known, rows, 0.0).sum(-1)
    return np.where(number > 0, total / np.maximum(number, 1), np.nan)
