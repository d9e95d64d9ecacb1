"""Adaptive attention for models built of `torch.nn.MultiheadAttention`, checkpoints included."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn import functional

from sharpmax.ops import adaptive_temperature_softmax
from sharpmax.policies import PAPER, Policy
from sharpmax.torch import reference
from sharpmax.torch.api import IMPLEMENTATIONS, scaled_dot_product_attention
from sharpmax.torch.problem import pose

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    Heads = Float[Tensor, "batch heads length dim"]
    PaddingMask = Bool[Tensor, "*batch key"] | Float[Tensor, "*batch key"]
    AttentionMask = Bool[Tensor, "*batch_heads query key"] | Float[Tensor, "*batch_heads query key"]


class MultiheadAttention(nn.MultiheadAttention):
    """Sharpen the attention of an existing model without touching the rest of it: in place of
    `torch.nn.MultiheadAttention`, with the same arguments, parameters and state dict.

        head_i = sum_j softmax_j(b_i * <q_i, k_j> / sqrt(d)) v_j,    b_i = policy(H_i, n_i)

    `policy=sharpmax.Constant(1.0)` is `torch.nn.MultiheadAttention`. `impl` says how the output is
    computed when no weights are asked for, as in `sharpmax.torch.scaled_dot_product_attention`.

    Not as torch: a query that sees nothing has weights of zero (torch: NaN); the two masks may have
    different types; nested tensors are refused; `torch.nn.TransformerEncoderLayer` does not take
    its fused path, which knows no policy, and `torch.nn.TransformerEncoder` warns of that unless
    built with `enable_nested_tensor=False`.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        policy: Policy = PAPER,
        impl: str = "auto",
    ) -> None:
        if not callable(policy):
            raise TypeError(f"policy must be a function of (entropy, count), got {policy!r}")
        if impl not in IMPLEMENTATIONS:
            raise ValueError(f"impl must be one of {IMPLEMENTATIONS}, got {impl!r}")
        options = (dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first)
        super().__init__(embed_dim, num_heads, *options, device=device, dtype=dtype)
        self.policy = policy
        self.impl = impl

    @classmethod
    def of(
        cls, module: nn.MultiheadAttention, *, policy: Policy = PAPER, impl: str = "auto"
    ) -> MultiheadAttention:
        """One that shares an existing module's parameters and has its mode; hooks stay behind."""
        kept = ("embed_dim", "num_heads", "dropout", "add_zero_attn", "kdim", "vdim", "batch_first")
        made = cls(
            **{name: getattr(module, name) for name in kept},
            bias=module.in_proj_bias is not None,
            add_bias_kv=module.bias_k is not None,
            device="meta",  # no memory for parameters that are replaced
            policy=policy,
            impl=impl,
        )
        for name in tuple(made._parameters):
            setattr(made, name, getattr(module, name))
        made.out_proj = module.out_proj
        made.training = module.training
        return made

    def forward(
        self,
        query: Float[Tensor, "*batch query embed"],
        key: Float[Tensor, "*batch key kdim"],
        value: Float[Tensor, "*batch key vdim"],
        key_padding_mask: PaddingMask | None = None,
        need_weights: bool = True,
        attn_mask: AttentionMask | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Float[Tensor, "*batch query embed"], Float[Tensor, "*batch query key"] | None]:
        """Output and weights. Asking for weights, as torch does by default, holds the whole matrix,
        batch * heads * queries * keys; `need_weights=False` never does.

        Shapes are those of `batch_first`, else the first two axes change places. A boolean mask is
        True where a key is *hidden*, as all over `torch.nn`; a float one is added to the logits.
        `is_causal` promises that `attn_mask`, which must be given, is causal; the mask is then not
        read, unless weights or a `key_padding_mask` are in play.
        """
        batch, queries, keys = self._sizes(query, key, value)
        _check_mask("key_padding_mask", key_padding_mask, (batch, keys)[3 - query.ndim :])
        several = (batch * self.num_heads, queries, keys)
        _check_mask("attn_mask", attn_mask, several[1:], several)
        if is_causal and attn_mask is None:
            raise RuntimeError(
                "is_causal=True only says of what kind attn_mask is, and attn_mask is None: give "
                "it too, as torch.nn.Transformer.generate_square_subsequent_mask makes it"
            )
        # When torch does, and as torch does: the causal edge then hides appended keys too.
        causal = is_causal and key_padding_mask is None and not need_weights
        q, k, v = self._project(query, key, value)
        mask = self._merge(None if causal else attn_mask, key_padding_mask, q.dtype)
        dropout = self.dropout if self.training else 0.0
        if not need_weights:
            output = scaled_dot_product_attention(
                q, k, v, mask, dropout, causal, policy=self.policy, impl=self.impl
            )
            return self._join(output, query.ndim), None
        output, weights = self._weigh(q, k, v, mask, dropout)
        weights = (weights.mean(1) if average_attn_weights else weights).to(q.dtype)
        return self._join(output, query.ndim), weights if query.ndim == 3 else weights[0]

    def _sizes(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[int, int, int]:
        """How many in a batch, queries and keys, once all the shapes agree."""
        given = {"query": query, "key": key, "value": value}
        for name, tensor in given.items():
            if tensor.is_nested:
                raise TypeError(
                    f"{name} is a nested tensor, expected a dense one: pad it, or if it comes from "
                    "a torch.nn.TransformerEncoder set use_nested_tensor = False on that"
                )
        batched = query.ndim == 3
        length = 1 if batched and self.batch_first else 0
        widths = (self.embed_dim, self.kdim, self.vdim)
        fits = key.ndim == query.ndim in (2, 3) and key.shape[:-1] == value.shape[:-1]
        fits = fits and widths == (query.shape[-1], key.shape[-1], value.shape[-1])
        if not fits or (batched and key.shape[1 - length] != query.shape[1 - length]):
            shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in given.items())
            axes = "batch, length" if self.batch_first else "length, batch"
            raise ValueError(
                f"{shapes}: expected [{axes}, width] or [length, width], one batch size, as many "
                f"values as keys, and the widths {widths}"
            )
        return query.shape[1 - length] if batched else 1, query.shape[length], key.shape[length]

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Heads, Heads, Heads]:
        """All three projected and split into heads, with the keys and values that are appended."""
        packed, bias = self.in_proj_weight, self.in_proj_bias
        if packed is not None and query is key and key is value:
            q, k, v = map(self._split, functional.linear(query, packed, bias).chunk(3, -1))
        else:
            apart = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
            weights = apart if packed is None else packed.chunk(3)
            biases = (None, None, None) if bias is None else bias.chunk(3)
            projected = map(functional.linear, (query, key, value), weights, biases)
            q, k, v = map(self._split, projected)
        if self.bias_k is not None and self.bias_v is not None:
            k, v = self._append(k, self.bias_k), self._append(v, self.bias_v)
        if self.add_zero_attn:
            k, v = (functional.pad(tensor, (0, 0, 0, 1)) for tensor in (k, v))
        return q, k, v

    def _split(self, projected: Float[Tensor, "*batch length embed"]) -> Heads:
        if projected.ndim == 2:
            projected = projected[None]
        elif not self.batch_first:
            projected = projected.transpose(0, 1)
        return projected.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def _append(self, heads: Heads, row: Float[Tensor, "1 1 embed"]) -> Heads:
        # To the type of autocast's projections: concatenation would go back to the wider one.
        row = self._split(row[0]).to(heads.dtype)
        return torch.cat([heads, row.expand(heads.shape[0], -1, -1, -1)], 2)

    def _merge(
        self, attn_mask: Tensor | None, key_padding_mask: Tensor | None, dtype: torch.dtype
    ) -> Tensor | None:
        """Both masks in one: boolean (True = visible) if both are, which fused kernels serve."""
        masks = []
        if attn_mask is not None:
            shared = attn_mask.ndim == 2
            masks.append(attn_mask if shared else attn_mask.unflatten(0, (-1, self.num_heads)))
        if key_padding_mask is not None:
            masks.append(key_padding_mask[..., None, None, :])
        appended = (self.bias_k is not None) + bool(self.add_zero_attn)
        if appended:  # keys that the masks do not speak of: False and 0 leave them visible
            masks = [functional.pad(mask, (0, appended)) for mask in masks]
        if all(mask.dtype == torch.bool for mask in masks):
            return ~functools.reduce(torch.logical_or, masks) if masks else None
        zero = torch.zeros((), dtype=dtype, device=masks[0].device)
        to_add = (m if m.is_floating_point() else zero.masked_fill(m, -torch.inf) for m in masks)
        return functools.reduce(torch.add, to_add)

    def _join(self, heads: Heads, axes: int) -> Float[Tensor, "*batch length embed"]:
        """The output in the caller's order of axes, and dense in it, so that it can be viewed."""
        order = (0, 2, 1, 3) if self.batch_first or axes == 2 else (2, 0, 1, 3)
        joined = heads.permute(order).flatten(2)
        return self.out_proj(joined if axes == 3 else joined[0])

    def _weigh(
        self, q: Heads, k: Heads, v: Heads, mask: Tensor | None, dropout: float
    ) -> tuple[Heads, Float[Tensor, "batch heads query key"]]:
        """Output and weights; torch gives the weights after dropout, and so does this."""
        problem = pose(q, k, None, attn_mask=mask)
        weights = adaptive_temperature_softmax(
            reference.logits_of(problem), policy=self.policy, where=reference.visible(problem)
        )
        weights = torch.dropout(problem.restore(weights), dropout, True)
        return (weights @ v.to(problem.wide)).to(q.dtype), weights

    def _reset_parameters(self) -> None:
        # In eval mode TransformerEncoderLayer gives our parameters to a kernel of plain attention,
        # and TransformerEncoder makes nested tensors for it, unless this flag is off. All else that
        # they look at has a meaning. The flag has one only to torch's constructor, which ends with
        # this function, and to its version of this function.
        self._qkv_same_embed_dim = self.in_proj_weight is not None
        super()._reset_parameters()
        self._qkv_same_embed_dim = False

    def merge_masks(self, *_: Any, **__: Any) -> NoReturn:
        """Refuses: only a fused path calls it, on its way to a kernel that knows no policy."""
        raise RuntimeError(
            f"torch was about to run plain attention in place of policy={self.policy!r}, because "
            f"_qkv_same_embed_dim is {self._qkv_same_embed_dim}, expected False: do not set it"
        )

    def extra_repr(self) -> str:
        return f"policy={self.policy!r}, impl={self.impl!r}"


def _check_mask(name: str, mask: Tensor | None, *shapes: tuple[int, ...]) -> None:
    if mask is None:
        return
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise TypeError(
            f"{name} must be boolean (True = hidden) or floating (added to the logits), got "
            f"{mask.dtype}: convert it"
        )
    if tuple(mask.shape) not in shapes:
        expected = " or ".join(map(str, shapes))
        raise ValueError(f"{name} of shape {tuple(mask.shape)} must have the shape {expected}")
