"""Heads of a layer that is split among processes by tensor parallelism.

Each process computes neighbouring heads of every layer. Rules, calibrations and statistics number
the heads of the whole model, so each process must know which ones are its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from sharpmax._errors import UserError
from sharpmax.hf.model_info import describe_quantisation, quantised_tensors
from sharpmax.hf.patch.layers import Layer, attention_layers, count_module_heads
from sharpmax.hf.patch.wrappers import is_fully_sharded
from sharpmax.policies import Policy, ask, traits

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch.distributed import ProcessGroup
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class HeadShare:
    """The heads of a layer that this process computes.

    Attributes:
        first: The number of the first one.
        heads: How many.
        total: How many the layer has.
        group: The processes that share the layer.
    """

    first: int
    heads: int
    total: int
    group: Any


def find_share(module: nn.Module, total: int | None = None) -> HeadShare | None:
    """Return which of a layer's heads this process computes; None if all.

    Args:
        module: The layer.
        total: The number of its heads, if it is known already.

    Raises:
        UserError: The heads are not split evenly.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return None
    for name, parameter in module.named_parameters():
        if not isinstance(parameter, DTensor):
            continue
        if "tp" not in (parameter.device_mesh.mesh_dim_names or ()):
            continue
        mesh = parameter.device_mesh["tp"]
        size, rank = mesh.size(), mesh.get_local_rank()
        if size == 1:
            return None
        total = count_module_heads(module) if total is None else total
        if total % size:
            raise UserError(
                f"{type(module).__name__}.{name} is split among {size} processes, and its {total} "
                "heads cannot be split evenly: use a number of processes that divides them"
            )
        key_heads = getattr(getattr(module, "config", None), "num_key_value_heads", None) or total
        if key_heads % size:
            raise UserError(
                f"{type(module).__name__} has {key_heads} key heads, which cannot be split evenly "
                f"among {size} processes: use a number of processes that divides them"
            )
        heads = total // size
        return HeadShare(rank * heads, heads, total, mesh.get_group())
    return None


@dataclass(frozen=True)
class PolicyOfShare:
    """A policy that differs by head, asked for the heads of this process only.

    The policy sees arrays for all heads of the layer; those of other processes hold zeros.
    """

    policy: Policy
    share: HeadShare
    by_head: ClassVar[bool] = True

    @property
    def needs_entropy(self) -> bool:
        return traits(self.policy).needs_entropy

    @property
    def learned(self) -> bool:
        return traits(self.policy).learned

    @property
    def plain_up_to(self) -> int:
        return traits(self.policy).plain_up_to

    @property
    def needs_varentropy(self) -> bool:
        return traits(self.policy).needs_varentropy

    def __call__(
        self, entropy: Any, count: Any, varentropy: Any = None, /
    ) -> Float[Tensor, "batch kv_heads group query"]:
        share, local = self.share, entropy.shape
        own = slice(share.first, share.first + share.heads)
        kv_heads = share.total // local[2]
        whole = []
        for values in (entropy, count, *([] if varentropy is None else [varentropy])):
            padded = values.new_zeros(local[0], share.total, local[3])
            padded[:, own] = values.flatten(1, 2)
            whole.append(padded.unflatten(1, (kv_heads, local[2])))
        answer = ask(self.policy, *whole)
        if not isinstance(answer, Tensor):
            return torch.full_like(entropy, answer)
        return answer.flatten(1, 2)[:, own].reshape(local)


def own_heads(policy: Policy, module: nn.Module, total: int, heads: int) -> Policy:
    """Return what a policy that differs by head says of the heads that this process computes.

    Args:
        policy: The policy of all heads of the layer.
        module: The layer.
        total: The number of its heads.
        heads: The number of heads that are being computed.

    Raises:
        UserError: It is not known which heads these are.
    """
    if heads == total:
        return policy
    share = find_share(module, total)
    if share is None or share.heads != heads:
        raise UserError(
            f"{type(module).__name__} computes {heads} of its {total} heads here, and sharpmax "
            "does not know which: use transformers' tensor parallelism (DistributedConfig), or a "
            "policy for all heads"
        )
    return PolicyOfShare(policy, share)


def share_of(layer: Layer) -> HeadShare | None:
    """Return which heads of a layer this process computes; None if all."""
    return find_share(layer.module)


def group_of(model: PreTrainedModel) -> ProcessGroup | None:
    """Return the processes that run a model together; None if one runs it alone.

    They share its heads (tensor parallelism) or its weights (`fully_shard`), and do the same work.

    Raises:
        UserError: The heads cannot be split evenly among them.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return None
    if is_fully_sharded(model):
        return dist.group.WORLD
    shares = [share_of(layer) for layer in attention_layers(model)]
    return next((share.group for share in shares if share is not None), None)


def require_whole_weights(model: PreTrainedModel, verb: str) -> None:
    """Refuse a model whose weights are split among processes, offloaded or quantised.

    Args:
        model: The model.
        verb: What needs all weights in one process, for the error.

    Raises:
        UserError: A parameter is a DTensor or has no values here, or weights are quantised.
    """
    for name, parameter in model.named_parameters():
        if isinstance(parameter, DTensor):
            raise UserError(
                f"{verb} reads whole weights, and {name} is split among processes: load the model "
                "in one process for it"
            )
        if parameter.is_meta:
            raise UserError(
                f"{verb} reads whole weights, and {name} is offloaded to CPU memory or disk: load "
                "the model on one device for it (without device_map, --device-map)"
            )
    quantised = next((name for name, _ in quantised_tensors(model)), None)
    if quantised is not None:
        raise UserError(
            f"{verb} reads whole weights, and {quantised} is quantised "
            f"({describe_quantisation(model)}), with scales that sharpmax does not know: load the "
            "model without quantisation for it, or give its GGUF file"
        )


def sum_over_shares(tensors: Sequence[Tensor], layers: Sequence[Layer]) -> None:
    """Add up tensors of which each process knows the part of its own heads."""
    share = share_of(layers[0])
    if share is not None:
        for tensor in tensors:
            dist.all_reduce(tensor, group=share.group)


def gather_heads(values: np.ndarray, share: HeadShare | None, axis: int = 0) -> np.ndarray:
    """Return an array of all heads of a layer, of which each process has its own along an axis."""
    if share is None:
        return values
    parts: list[Any] = [None] * dist.get_world_size(share.group)
    dist.all_gather_object(parts, values, group=share.group)
    return np.concatenate(parts, axis)
