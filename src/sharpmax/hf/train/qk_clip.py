"""QK-clip: bound the largest logit of every head by shrinking the weights of its queries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import (
    PreTrainedModel,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.pytorch_utils import Conv1D

from sharpmax import _array
from sharpmax._errors import UserError
from sharpmax.hf.export.fold import NORMS, query_rows, scale_rows
from sharpmax.hf.patch.layers import Layer, attention_layers, count_heads
from sharpmax.hf.patch.parallel import require_whole_weights
from sharpmax.hf.patch.wrappers import unwrap_model
from sharpmax.hf.train.rows import Call, find_visible
from sharpmax.hf.train.watch import watchable_model, watched_layers

if TYPE_CHECKING:
    from jaxtyping import Float

TAU = 100.0
"""The default of MuonClip."""
MAX_ENTRIES = 1 << 24
"""Most logits that are held at a time."""
LATENT = ("q_b_proj", "kv_b_proj", "kv_a_proj_with_mqa")
"""Projections of multi-head latent attention (MLA), whose heads share rotary keys."""


class LargestLogits:
    """The largest logit of every head in the forward passes of a block, over all rows.

    Args:
        layers: All attention layers of the model.
    """

    def __init__(self, layers: list[Layer]) -> None:
        heads = [count_heads(layer) for layer in layers]
        self.values: Float[np.ndarray, "layers heads"] = np.full((len(layers), max(heads)), -np.inf)
        """An array [layer, head], -inf where nothing was seen yet."""

    def record(self, layer: Layer, call: Call) -> None:
        """Raise the maxima of a layer to those of a call.

        Args:
            layer: The layer.
            call: A call of its attention.
        """
        found = largest_logits(call).double().cpu().numpy()
        row = self.values[layer.index, : len(found)]
        np.maximum(row, found, out=row)


@contextmanager
def max_logits(model: PreTrainedModel) -> Iterator[LargestLogits]:
    """Record the largest logit of every head inside a `with` block, over all rows and passes.

    A logit is the scaled product of a query and a key that it sees, before any softcap. The model
    runs its own attention, and nothing about it changes. It costs one more product of queries and
    keys.

    Args:
        model: A transformers model, or a wrapper such as DistributedDataParallel.

    Yields:
        The largest logits so far.

    Raises:
        UserError: The model is not supported or is compiled.

    Examples:
        >>> with shf.max_logits(model) as largest:
        ...     model(**batch).loss.backward()
        >>> optimizer.step()
        >>> shf.qk_clip(model, 100.0, largest)
    """
    inner = watchable_model(model)
    layers = attention_layers(inner)
    largest = LargestLogits(layers)
    with watched_layers(inner, layers, largest.record):
        yield largest


@torch.no_grad()
def largest_logits(call: Call) -> Float[Tensor, " heads"]:
    """Return the largest logit of each head in a call, without holding the whole matrix."""
    if call.options.get("position_bias") is not None:
        raise UserError(
            f"{type(call.module).__name__} adds a bias by position to its logits, which QK-clip "
            "cannot shrink"
        )
    query, key = call.query.detach(), call.key.detach()
    dtype = torch.promote_types(query.dtype, torch.float32)
    scale = _array.logit_scale(call.options.get("scaling"), query.shape[-1])
    step = max(1, MAX_ENTRIES // (query.shape[0] * query.shape[1] * key.shape[2]))
    largest = torch.full((query.shape[1],), -torch.inf, dtype=dtype, device=query.device)
    with torch.autocast(query.device.type, enabled=False):
        for first in range(0, query.shape[2], step):
            picked = torch.arange(first, min(first + step, query.shape[2]), device=query.device)
            grouped = query[:, :, picked].to(dtype).unflatten(1, (key.shape[1], -1))
            logits = torch.einsum("bgrqd,bgkd->bgrqk", grouped, key.to(dtype)).flatten(1, 2)
            visible, real = find_visible(call, len(query), picked, key.shape[2])
            counted = visible & real[:, None, :, None]
            hidden = (logits * scale).masked_fill(~counted, -torch.inf)
            largest = torch.maximum(largest, hidden.amax((0, 2, 3)))
    return largest


def qk_clip(
    model: PreTrainedModel,
    tau: float = TAU,
    largest: LargestLogits | None = None,
    *,
    inputs: Mapping[str, Any] | None = None,
) -> list[tuple[int, int, float]]:
    """Shrink the query weights of every head whose largest logit is above `tau`.

        W_q of a head is multiplied by tau / S,    S = its largest logit,    where S > tau

    Logits that grow without bound make training unstable. MuonClip (arXiv 2507.20534) clips after
    each optimiser step, by the largest logits of the forward pass before it: record them with
    `max_logits`. It splits the factor between queries and keys. Here the queries take all of it,
    which gives the same logits and leaves other heads alone that share the key.

    A clipped layer changes the inputs of later layers, and so their logits. With `inputs` the model
    reads them again until no head exceeds `tau`: at most once per layer, usually twice.

    Args:
        model: A transformers model.
        tau: The largest logit that is left alone.
        largest: What `max_logits` recorded. Give this or `inputs`.
        inputs: Arguments of the model; its largest logits on them are at most `tau` afterwards.

    Returns:
        The layer, head and factor of each clipped head. Several passes may name a head again.

    Raises:
        UserError: Clipping is not defined for the model: QK-norm, latent attention (MLA), a bias by
            position; or its weights are quantised, split or not known.

    Examples:
        >>> shf.qk_clip(model, 100.0, inputs=batch)
    """
    if isinstance(tau, bool) or not isinstance(tau, (int, float)) or not 0 < tau < np.inf:
        raise UserError(f"tau={tau!r}: give a positive number")
    if (largest is None) == (inputs is None):
        raise UserError("qk_clip needs the largest logits: give `largest` or `inputs`, not both")
    inner = unwrap_model(model, runs=inputs is not None)
    layers = attention_layers(inner)
    require_clipping(inner, layers)
    if largest is not None:
        if largest.values.shape[0] != len(layers):
            raise UserError(
                f"`largest` is of a model with {largest.values.shape[0]} layers, and this one has "
                f"{len(layers)}: record it with max_logits of the same model"
            )
        if np.isneginf(largest.values).all():
            raise UserError(
                "`largest` has seen no attention: run the model inside the block of max_logits, "
                "and do not change its attn_implementation there"
            )
        return _clip(layers, largest.values, tau)
    clipped: list[tuple[int, int, float]] = []
    for _ in range(len(layers) + 1):
        with torch.no_grad(), max_logits(inner) as found:
            inner(**(inputs or {}))
        new = _clip(layers, found.values, tau)
        clipped += new
        if not new:
            return clipped
    return clipped


def require_clipping(model: PreTrainedModel, layers: list[Layer]) -> None:
    """Refuse a model for which QK-clip is not defined, by the name of what stands in the way."""
    require_whole_weights(model, "QK-clip")
    for layer in layers:
        module: Any = layer.module
        kind = type(module).__name__
        norm = next((name for name in NORMS if getattr(module, name, None) is not None), None)
        if norm is not None:
            raise UserError(
                f"{kind} has QK-norm ({norm}), which bounds its logits and undoes QK-clip: it "
                "needs no clipping"
            )
        if any(getattr(module, name, None) is not None for name in LATENT):
            raise UserError(
                f"{kind} is latent attention (MLA), whose heads share rotary keys: QK-clip for it "
                "is not supported"
            )
        if hasattr(module, "has_relative_attention_bias"):
            raise UserError(
                f"{kind} adds a bias by position to its logits, which QK-clip cannot shrink"
            )
        name, _ = query_rows(layer)
        if type(getattr(module, name)) not in (nn.Linear, Conv1D):
            raise UserError(
                f"{kind}.{name} is {type(getattr(module, name)).__name__}, not a plain Linear: "
                "merge adapters into the weights before clipping"
            )


@torch.no_grad()
def _clip(
    layers: list[Layer], largest: Float[np.ndarray, "layers heads"], tau: float
) -> list[tuple[int, int, float]]:
    """Shrink the heads above tau, in place; return which, and by how much."""
    clipped = []
    for layer in layers:
        values = largest[layer.index, : count_heads(layer)]
        if np.isnan(values).any():
            head = int(np.argmax(np.isnan(values)))
            raise UserError(
                f"the logits of layer {layer.index} head {head} are NaN: the training has diverged"
            )
        over = values > tau
        if not over.any():
            continue
        factors = np.where(over, tau / np.where(over, values, 1.0), 1.0)
        name, rows = query_rows(layer)
        linear: Any = getattr(layer.module, name)
        for parameter in (linear.weight, linear.bias):
            if parameter is not None:
                parameter.copy_(scale_rows(parameter, rows, factors, linear))
        clipped += [(layer.index, int(head), float(factors[head])) for head in np.flatnonzero(over)]
    return clipped


def _combine_maxima(largest: LargestLogits) -> None:
    """Take the maxima over the processes of a distributed training; all must call it."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        parts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(parts, largest.values)
        largest.values = np.max(parts, axis=0)


class QKClipCallback(TrainerCallback):
    """Clip after every optimiser step of the Trainer, by the largest logits of that step.

    Args:
        tau: The largest logit that is left alone.

    Raises:
        UserError: As for `qk_clip`, at the beginning of the training.

    Examples:
        >>> trainer.add_callback(shf.QKClipCallback(tau=100.0))
    """

    def __init__(self, tau: float = TAU) -> None:
        """Keep the limit; the model is checked when the training begins."""
        self.tau = tau
        self.clipped: list[tuple[int, int, int, float]] = []
        """Step, layer, head and factor of each clipping."""
        self._largest: LargestLogits | None = None
        self._watching = ExitStack()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Refuse a model that cannot be clipped.

        Args:
            args: The arguments of the Trainer.
            state: The state of the training.
            control: What the Trainer does next.
            kwargs: The model and other parts of the Trainer.
        """
        model = watchable_model(kwargs["model"], will_compile=args.torch_compile)
        require_clipping(model, attention_layers(model))

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Watch the forward passes of the step.

        Args:
            args: The arguments of the Trainer.
            state: The state of the training.
            control: What the Trainer does next.
            kwargs: The model and other parts of the Trainer.
        """
        self._watching.close()
        self._largest = self._watching.enter_context(max_logits(kwargs["model"]))

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Clip by the largest logits of all processes.

        Args:
            args: The arguments of the Trainer.
            state: The state of the training.
            control: What the Trainer does next.
            kwargs: The model and other parts of the Trainer.
        """
        self._watching.close()
        if self._largest is None:
            return
        _combine_maxima(self._largest)
        clipped = qk_clip(kwargs["model"], self.tau, self._largest)
        self.clipped += [(state.global_step + 1, *entry) for entry in clipped]

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Stop watching.

        Args:
            args: The arguments of the Trainer.
            state: The state of the training.
            control: What the Trainer does next.
            kwargs: The model and other parts of the Trainer.
        """
        self._watching.close()
