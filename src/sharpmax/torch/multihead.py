"""Adaptive attention for models built with `torch.nn.MultiheadAttention`."""

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
from sharpmax.torch.interface import prepare_inputs

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    Mask = Bool[Tensor, "..."] | Float[Tensor, "..."]


class MultiheadAttention(nn.MultiheadAttention):
    """Replace `torch.nn.MultiheadAttention` by attention that is sharpened per row.

    The arguments, parameters and state dict are those of torch's module, so that you can sharpen an
    existing model without touching the rest of it:

        head_i = sum_j softmax_j(b_i * <q_i, k_j> / sqrt(d)) v_j,    b_i = policy(H_i, n_i)

    With `policy=sharpmax.Constant(1.0)` it is `torch.nn.MultiheadAttention`.

    Differences from torch: a query that sees no key has weights of zero (torch: NaN); the two masks
    may have different types; nested tensors are refused; `torch.nn.TransformerEncoderLayer` does
    not take its fused path, which ignores the policy, and `torch.nn.TransformerEncoder` warns about
    that unless it is built with `enable_nested_tensor=False`.

    Args:
        embed_dim: Width of the model.
        num_heads: Number of heads; divides `embed_dim`.
        dropout: Probability of dropping a weight in training.
        bias: Whether the projections have a bias.
        add_bias_kv: Append one learned key and value.
        add_zero_attn: Append one key and value of zeros.
        kdim: Width of the keys; by default `embed_dim`.
        vdim: Width of the values; by default `embed_dim`.
        batch_first: Whether inputs are [batch, length, width] instead of [length, batch, width].
        device: Device of the parameters.
        dtype: Type of the parameters.
        policy: Function of (entropy, count) that returns the inverse temperature of each row.
        impl: How to compute the output when no weights are asked for, as in
            `sharpmax.torch.scaled_dot_product_attention`.

    Raises:
        TypeError: If `policy` is not callable.
        ValueError: If `impl` is unknown.

    Examples:
        >>> layer = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True).eval()
        >>> layer.self_attn = MultiheadAttention.of(layer.self_attn)
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
            raise TypeError(
                f"policy must be a function of (entropy, count), got {policy!r}; "
                "sharpmax.Constant(1.0) is plain attention"
            )
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
        """Return a module that shares the parameters and the mode of an existing one.

        Hooks are not copied.

        Args:
            module: The module to replace.
            policy: Function of (entropy, count) that returns the inverse temperature of each row.
            impl: How to compute the output.

        Returns:
            The replacement.
        """
        options = (
            "embed_dim",
            "num_heads",
            "dropout",
            "add_zero_attn",
            "kdim",
            "vdim",
            "batch_first",
        )
        replacement = cls(
            **{name: getattr(module, name) for name in options},
            bias=module.in_proj_bias is not None,
            add_bias_kv=module.bias_k is not None,
            device="meta",  # its parameters are replaced below and need no memory
            policy=policy,
            impl=impl,
        )
        for name in tuple(replacement._parameters):
            setattr(replacement, name, getattr(module, name))
        replacement.out_proj = module.out_proj
        replacement.training = module.training
        return replacement

    def forward(
        self,
        query: Float[Tensor, "*query_axes embed"],
        key: Float[Tensor, "*key_axes kdim"],
        value: Float[Tensor, "*key_axes vdim"],
        key_padding_mask: Mask | None = None,
        need_weights: bool = True,
        attn_mask: Mask | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Float[Tensor, "*query_axes embed"], Float[Tensor, "..."] | None]:
        """Return output and weights.

        Asking for weights, as torch does by default, holds the whole matrix of
        batch * heads * queries * keys numbers. `need_weights=False` does not.

        A boolean mask is True where a key is *hidden*, as everywhere in `torch.nn`; a floating mask
        is added to the logits.

        Args:
            query: [batch, query, embed_dim] with `batch_first`, else [query, batch, embed_dim]; or
                [query, embed_dim].
            key: The same with `kdim`.
            value: The same with `vdim`.
            key_padding_mask: [batch, key], or [key] without a batch.
            need_weights: Whether to return the weights.
            attn_mask: [query, key] or [batch * heads, query, key].
            average_attn_weights: Average the weights over the heads.
            is_causal: Promises that `attn_mask`, which must be given, is causal. The mask is then
                not read, unless weights or a `key_padding_mask` are used.

        Returns:
            The output in the shape of `query`, and the weights, [batch, query, key] or per head
            [batch, heads, query, key], or None.

        Raises:
            TypeError: If a tensor is nested, or a mask neither boolean nor floating.
            ValueError: If shapes do not fit.
            RuntimeError: If `is_causal` is given without `attn_mask`.
        """
        batch, queries, keys = self._sizes(query, key, value)
        _check_mask("key_padding_mask", key_padding_mask, (batch, keys)[3 - query.ndim :])
        per_head = (batch * self.num_heads, queries, keys)
        _check_mask("attn_mask", attn_mask, per_head[1:], per_head)
        if is_causal and attn_mask is None:
            raise RuntimeError(
                "is_causal=True only describes attn_mask, which is None: pass it too, as "
                "torch.nn.Transformer.generate_square_subsequent_mask returns it"
            )
        # The same rule as torch's: the causal edge then hides appended keys too.
        causal = is_causal and key_padding_mask is None and not need_weights
        q, k, v = self._project(query, key, value)
        mask = self._combine_masks(None if causal else attn_mask, key_padding_mask, q.dtype)
        dropout = self.dropout if self.training else 0.0
        if not need_weights:
            output = scaled_dot_product_attention(
                q, k, v, mask, dropout, causal, policy=self.policy, impl=self.impl
            )
            return self._join_heads(output, query.ndim), None
        output, weights = self._attend_with_weights(q, k, v, mask, dropout)
        weights = (weights.mean(1) if average_attn_weights else weights).to(q.dtype)
        return self._join_heads(output, query.ndim), weights if query.ndim == 3 else weights[0]

    def _sizes(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[int, int, int]:
        """Check the shapes; return the sizes of the batch, the queries and the keys."""
        tensors = {"query": query, "key": key, "value": value}
        for name, tensor in tensors.items():
            if tensor.is_nested:
                raise TypeError(
                    f"{name} is a nested tensor, expected a dense one: pad it, or if it comes from "
                    "a torch.nn.TransformerEncoder set its use_nested_tensor = False"
                )
        batched = query.ndim == 3
        length = 1 if batched and self.batch_first else 0
        widths = (self.embed_dim, self.kdim, self.vdim)
        fits = key.ndim == query.ndim in (2, 3) and key.shape[:-1] == value.shape[:-1]
        fits = fits and widths == (query.shape[-1], key.shape[-1], value.shape[-1])
        if not fits or (batched and key.shape[1 - length] != query.shape[1 - length]):
            shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items())
            axes = "batch, length" if self.batch_first else "length, batch"
            raise ValueError(
                f"{shapes}: expected [{axes}, width] or [length, width], one batch size, as many "
                f"values as keys, and the widths {widths}"
            )
        return query.shape[1 - length] if batched else 1, query.shape[length], key.shape[length]

    def _project(
        self, query: Tensor, key: Tensor, value: Tensor
    ) -> tuple[
        Float[Tensor, "batch heads query dim"],
        Float[Tensor, "batch heads key dim"],
        Float[Tensor, "batch heads key dim"],
    ]:
        """Project all three and split them into heads; append the extra keys and values."""
        packed, bias = self.in_proj_weight, self.in_proj_bias
        if packed is not None and query is key and key is value:
            q, k, v = map(self._split_heads, functional.linear(query, packed, bias).chunk(3, -1))
        else:
            separate = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
            weights = separate if packed is None else packed.chunk(3)
            biases = (None, None, None) if bias is None else bias.chunk(3)
            projected = map(functional.linear, (query, key, value), weights, biases)
            q, k, v = map(self._split_heads, projected)
        if self.bias_k is not None and self.bias_v is not None:
            k, v = self._append(k, self.bias_k), self._append(v, self.bias_v)
        if self.add_zero_attn:
            k, v = (functional.pad(tensor, (0, 0, 0, 1)) for tensor in (k, v))
        return q, k, v

    def _split_heads(
        self, projected: Float[Tensor, "... embed"]
    ) -> Float[Tensor, "batch heads length dim"]:
        if projected.ndim == 2:
            projected = projected[None]
        elif not self.batch_first:
            projected = projected.transpose(0, 1)
        return projected.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def _append(
        self, heads: Float[Tensor, "batch heads length dim"], row: Float[Tensor, "1 1 embed"]
    ) -> Float[Tensor, "batch heads _ dim"]:
        """Append one more key or value to every head."""
        # In the type of autocast's projections: concatenation would return the wider one.
        row = self._split_heads(row[0]).to(heads.dtype)
        return torch.cat([heads, row.expand(heads.shape[0], -1, -1, -1)], 2)

    def _combine_masks(
        self, attn_mask: Tensor | None, key_padding_mask: Tensor | None, dtype: torch.dtype
    ) -> Tensor | None:
        """Combine both masks: boolean (True = visible) if both are, which fused kernels take."""
        masks = []
        if attn_mask is not None:
            shared = attn_mask.ndim == 2
            masks.append(attn_mask if shared else attn_mask.unflatten(0, (-1, self.num_heads)))
        if key_padding_mask is not None:
            masks.append(key_padding_mask[..., None, None, :])
        appended = (self.bias_k is not None) + bool(self.add_zero_attn)
        if appended:  # the masks do not cover these keys: False and 0 leave them visible
            masks = [functional.pad(mask, (0, appended)) for mask in masks]
        if all(mask.dtype == torch.bool for mask in masks):
            return ~functools.reduce(torch.logical_or, masks) if masks else None
        zero = torch.zeros((), dtype=dtype, device=masks[0].device)
        terms = (m if m.is_floating_point() else zero.masked_fill(m, -torch.inf) for m in masks)
        return functools.reduce(torch.add, terms)

    def _join_heads(
        self, heads: Float[Tensor, "batch heads length dim"], axes: int
    ) -> Float[Tensor, "... embed"]:
        """Project the output in the caller's order of axes, contiguous in it."""
        order = (0, 2, 1, 3) if self.batch_first or axes == 2 else (2, 0, 1, 3)
        joined = heads.permute(order).flatten(2)
        return self.out_proj(joined if axes == 3 else joined[0])

    def _attend_with_weights(
        self,
        q: Float[Tensor, "batch heads query dim"],
        k: Float[Tensor, "batch heads key dim"],
        v: Float[Tensor, "batch heads key dim"],
        mask: Tensor | None,
        dropout: float,
    ) -> tuple[Float[Tensor, "batch heads query dim"], Float[Tensor, "batch heads query key"]]:
        """Return output and weights; the weights after dropout, as torch does."""
        inputs = prepare_inputs(q, k, None, attn_mask=mask)
        weights = adaptive_temperature_softmax(
            reference.compute_logits(inputs),
            policy=self.policy,
            where=reference.visible_keys(inputs),
        )
        weights = torch.dropout(inputs.restore_shape(weights), dropout, True)
        return (weights @ v.to(inputs.stats_dtype)).to(q.dtype), weights

    def _reset_parameters(self) -> None:
        # In eval mode TransformerEncoderLayer passes our parameters to a kernel of plain attention,
        # and TransformerEncoder makes nested tensors for it, unless this flag is off. Everything
        # else that they check has a meaning of its own. The flag is read only by torch's
        # constructor, which ends with this function, and by torch's version of this function.
        self._qkv_same_embed_dim = self.in_proj_weight is not None
        super()._reset_parameters()
        self._qkv_same_embed_dim = False

    def merge_masks(self, *_: Any, **__: Any) -> NoReturn:
        """Raise: only torch's fused path calls this, and its kernel ignores the policy."""
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
