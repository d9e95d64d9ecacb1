"""The attention function that Hugging Face models call, and what it has been told about each of
their layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers.utils.output_capturing import _active_collector

from sharpmax.hf.patch.masks import Window
from sharpmax.policies import Constant, Policy, needs_entropy
from sharpmax.torch import scaled_dot_product_attention

if TYPE_CHECKING:
    from jaxtyping import Float

PLAIN = Constant(1.0)

HARMLESS = frozenset(
    (
        "cache_position",
        "deterministic",
        "encoder_hidden_states",
        "max_length_k",
        "max_length_q",
        "num_items_in_batch",
        "output_hidden_states",
        "output_router_logits",
        "position_embeddings",
        "position_ids",
        "return_dict",
        "sliding_window",  # the mask has it
        "token_type_ids",
        "use_cache",
    )
)
"""Keywords of models' attention calls that do not change what is attended to, or how."""


@dataclass(frozen=True, eq=False)
class Rule:
    """Sharpen these heads of a layer by this policy."""

    policy: Policy
    heads: frozenset[int] | None
    """All of them if None."""


RULES: WeakKeyDictionary[nn.Module, tuple[Rule, ...]] = WeakKeyDictionary()
"""What holds for a layer; of several rules for one head the last one counts."""

Observer = Callable[[dict[str, Any]], Tensor]
OBSERVERS: WeakKeyDictionary[nn.Module, Observer] = WeakKeyDictionary()
"""Who computes a layer's attention instead, to look at it: a function of the arguments of
`sharpmax.torch.scaled_dot_product_attention`."""

CALLS: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
"""How often a layer that has rules was computed here."""


@dataclass(frozen=True)
class ByHead:
    """A policy that follows each head's last rule."""

    rules: tuple[Rule, ...]
    by_head: ClassVar[bool] = True

    @property
    def needs_entropy(self) -> bool:
        return any(needs_entropy(rule.policy) for rule in self.rules)

    def __call__(
        self,
        entropy: Float[Tensor, "batch kv_heads group query"],
        count: Float[Tensor, "batch kv_heads group query"],
        /,
    ) -> Any:
        factor = torch.ones_like(entropy)
        number = torch.arange(entropy.shape[1] * entropy.shape[2], device=entropy.device)
        head = number.view(entropy.shape[1], entropy.shape[2], 1)
        for rule in self.rules:
            answer = rule.policy(entropy, count)
            if rule.heads is None:
                factor = answer if isinstance(answer, Tensor) else torch.full_like(factor, answer)
            else:
                chosen = torch.isin(head, torch.tensor(sorted(rule.heads), device=head.device))
                factor = torch.where(chosen, answer, factor)
        return factor


def policy_of(rules: tuple[Rule, ...]) -> Policy | ByHead:
    """One policy for a layer."""
    everywhere = [place for place, rule in enumerate(rules) if rule.heads is None]
    rules = rules[everywhere[-1] :] if everywhere else rules
    if not rules:
        return PLAIN
    return rules[0].policy if len(rules) == 1 and rules[0].heads is None else ByHead(rules)


def attend(
    default: Policy,
    module: nn.Module,
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    value: Float[Tensor, "batch kv_heads key value_dim"],
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: Float[Tensor, " heads"] | None = None,
    position_bias: Float[Tensor, "1 heads query key"] | None = None,
    is_causal: bool | None = None,
    output_attentions: bool | None = None,
    **others: Any,
) -> tuple[Float[Tensor, "batch query heads value_dim"], None]:
    """What transformers calls in each layer; the layer's rules, or else `default`, say how much to
    sharpen. A query that sees nothing, padding, gives zeros.
    """
    _refuse(module, output_attentions, others)
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    arguments = {
        "query": query,
        "key": key,
        "value": value,
        "dropout_p": dropout,
        "scale": scaling,
        "enable_gqa": True,
        "softcap": softcap,
        "sinks": s_aux,
        **_visible(attention_mask, position_bias, causal=bool(causal), queries=query.shape[2]),
    }
    _check_window(module, attention_mask, others.get("sliding_window"), arguments)
    rules = RULES.get(module)
    arguments["policy"] = default if rules is None else policy_of(rules)
    if rules is not None:
        CALLS[module] = CALLS.get(module, 0) + 1
    observer = OBSERVERS.get(module)
    output = observer(arguments) if observer else scaled_dot_product_attention(**arguments)
    return output.transpose(1, 2).contiguous(), None


def _refuse(module: nn.Module, output_attentions: bool | None, others: dict[str, Any]) -> None:
    """An option that is not served may change the scores, so it is never dropped."""
    name = type(module).__name__
    if output_attentions or _collects_weights():
        raise NotImplementedError(
            f"{name}: sharpmax holds no matrix of weights to return for output_attentions=True; "
            'use attn_implementation="eager" for the matrix or sharpmax.hf.scan for its statistics'
        )
    unknown = sorted(
        keyword
        for keyword, value in others.items()
        if value is not None and keyword not in HARMLESS
    )
    if unknown:
        raise NotImplementedError(
            f"{name} passes {', '.join(unknown)} to its attention, which sharpmax does not serve; "
            'use attn_implementation="eager" for this model'
        )


def _collects_weights() -> bool:
    """Whether transformers is collecting the layers' weights and would return an empty tuple of
    them: not every model passes `output_attentions` on, and a config may ask for it as well.
    """
    return any(key.endswith("attentions") for key in _active_collector.get() or ())


def _visible(
    mask: Tensor | None, bias: Tensor | None, *, causal: bool, queries: int
) -> dict[str, Any]:
    """The mask that `make_mask` made, or the user gave, as attention's arguments."""
    if isinstance(mask, Window):
        return {"attn_mask": bias, "is_causal": mask.causal, "window": mask.window}
    if mask is None:
        # Without a mask one query is a decoding step, which sees all keys; several stand at the
        # beginning of the keys, and what is left of them in a static cache is empty.
        return {"attn_mask": bias, "is_causal": causal and queries > 1}
    if bias is None:
        return {"attn_mask": mask}
    if mask.dtype == torch.bool:
        hidden = torch.finfo(bias.dtype).min
        return {"attn_mask": torch.where(mask, bias, hidden)}
    return {"attn_mask": mask + bias}


def _check_window(
    module: nn.Module, mask: Tensor | None, window: int | None, arguments: dict[str, Any]
) -> None:
    """A window that the model speaks of and its mask does not have would be lost in silence."""
    keys = arguments["key"].shape[2]
    if mask is None and window is not None and keys > window and arguments["query"].shape[2] > 1:
        raise NotImplementedError(
            f"{type(module).__name__} has a sliding window of {window} tokens, but its model made "
            f"no mask for {keys}: sharpmax does not serve it"
        )
