"""The attention function that patched models use, and how transformers finds it.

transformers looks attention and mask functions up by the name of an attention implementation. They
are registered together: an attention function without a mask function gets no mask at all, for
every model and without a warning, so that padding, windows and causality are lost.

The name of a patched model is set on its configs, which all threads share. What holds in a thread
or asyncio task is in its scope. Where the scope says nothing of a model, the functions that the
model had before run.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils import checkpoint
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils.output_capturing import _active_collector

from sharpmax._errors import UserError
from sharpmax.hf.patch.layers import count_module_heads
from sharpmax.hf.patch.masks import WindowMask, bound_visible, count_visible, make_mask
from sharpmax.hf.patch.parallel import own_heads
from sharpmax.hf.patch.scope import LayerState, Scope, current_scope
from sharpmax.policies import Policy, inverse_temperatures
from sharpmax.torch import scaled_dot_product_attention

if TYPE_CHECKING:
    from jaxtyping import Float

IMPLEMENTATION = "sharpmax"
"""The `attn_implementation` of `registered.register`. It must contain none of "sdpa", "flash",
"flex_attention" and "/": transformers searches names for these words and then behaves differently.
"""

NORMALISED = "sharpmax.hf.load_with_normaliser"
"""The `attn_implementation` of models that `with_normaliser` changed, also in their config.json.
transformers without sharpmax refuses it, and its error shows the name, which says what to do."""

PATCHED_NAMES = {"sharpmax_patched": "sdpa", "sharpmax_patched_matrix": "eager"}
"""The implementation of a patched model, and the one that it used before."""

HARMLESS_KEYWORDS = frozenset(
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

KNOWN_KEYWORDS = HARMLESS_KEYWORDS | {
    "dropout",
    "is_causal",
    "output_attentions",
    "position_bias",
    "s_aux",
    "scaling",
    "softcap",
}
"""With those that `attend_by` heeds."""

MAX_WINDOW_MATRIX = 1 << 24
"""Entries of the largest `WindowMask` that is turned into a matrix for SDPA: 4,096 tokens. Beyond,
the two numbers take less memory and time."""

LENGTHS_AT_ONCE = 64
"""For how many numbers of keys a policy is asked at once while a model generates."""

CHECKPOINT = inspect.unwrap(checkpoint.checkpoint).__code__
"""The code of torch's gradient checkpointing, to find on the stack."""


# The function that transformers calls.


def attend_patched(
    original: str | None,
    module: nn.Module,
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    value: Float[Tensor, "batch kv_heads key value_dim"],
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Float[Tensor, "batch query heads value_dim"], Any]:
    """Compute one layer's attention in a patched model, which used `original` before.

    Where no row is sharpened, or by its length alone, the layer runs SDPA, if it did before.
    """
    scope = current_scope()
    state = scope.state(module)
    if state is None or _computed_again_without_scope(scope):
        _refuse_replica(module)
        run = original_attention(original, module)
        return run(module, query, key, value, attention_mask, **options)
    scope.calls.now += 1
    return compute_layer(original, state, module, query, key, value, attention_mask, options)


def compute_layer(
    original: str | None,
    state: LayerState,
    module: nn.Module,
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    value: Float[Tensor, "batch kv_heads key value_dim"],
    mask: Tensor | None,
    options: dict[str, Any],
) -> tuple[Float[Tensor, "batch query heads value_dim"], Any]:
    """Compute one layer's attention as its state says: by SDPA where that can, else by our own."""
    refuse_options(module, query, key, mask, options)
    if state.policy_traits.by_head and not state.own_heads:
        total = count_module_heads(module)
        state.policy = own_heads(state.policy, module, total, query.shape[1])
        state.own_heads = True
    # transformers' function repeats shared key heads by this attribute.
    known_heads = query.shape[1] == key.shape[1] or hasattr(module, "num_key_value_groups")
    by_sdpa = original == "sdpa" and state.observer is None and known_heads
    if by_sdpa and is_plain_product(options):
        call = _prepare_sdpa(state, query, key, mask, is_causal(module, options))
        if call is not None:
            scaled, sdpa_mask = call
            run = ALL_ATTENTION_FUNCTIONS["sdpa"]
            return run(module, scaled, key, value, sdpa_mask, **options)
    compute = state.observer or compute_attention
    return attend_by(compute, state.policy, module, query, key, value, mask, **options)


def attend_by(
    compute: Callable[[dict[str, Any]], Tensor],
    policy: Policy | None,
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
    position_bias: Float[Tensor, "#batch heads query key"] | None = None,
    **options: Any,
) -> tuple[Float[Tensor, "batch query heads value_dim"], None]:
    """Compute one layer's attention by our own functions, or let an observer do it.

    A query that sees nothing, such as padding, gives zeros.
    """
    causal = is_causal(module, options)
    device = query.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        # Rotary embeddings return queries and keys in float32, and values are in half precision.
        dtype = functools.reduce(torch.promote_types, (query.dtype, key.dtype, value.dtype))
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    arguments = {
        "query": query,
        "key": key,
        "value": value,
        "dropout_p": dropout,
        "scale": scaling,
        "enable_gqa": True,
        "softcap": softcap,
        "sinks": s_aux,
        "policy": policy,
        **_mask_arguments(attention_mask, position_bias, causal, query.shape[2]),
    }
    return compute(arguments).transpose(1, 2).contiguous(), None


def compute_attention(arguments: dict[str, Any]) -> Tensor:
    """Compute attention: what an observer that observes nothing does."""
    return scaled_dot_product_attention(**arguments)


def original_attention(name: str | None, module: nn.Module) -> Callable[..., Any]:
    """Return the attention function of a layer that is not patched.

    transformers does not register eager attention: each model's file has its own.
    """
    files = (sys.modules.get(parent.__module__) for parent in type(module).__mro__)
    eager = (getattr(file, "eager_attention_forward", None) for file in files)
    default = next((function for function in eager if function is not None), None)
    function: Callable[..., Any] | None = ALL_ATTENTION_FUNCTIONS.get(str(name), default)
    if function is None:
        raise UserError(
            f"{type(module).__name__} is patched in another thread, and the attention function "
            f"that it had before ({name}) was not found: use shf.apply in one thread only"
        )
    return function


def mask_patched(original: str | None, *arguments: Any, config: Any = None, **options: Any) -> Any:
    """Make the mask for one kind of layer of a patched model, which used `original` before."""
    scope = current_scope()
    if original == IMPLEMENTATION or scope.holds(config) or (config is None and scope.patches):
        return make_mask(*arguments, config=config, **options)
    name = "eager" if original is None else original
    return ALL_MASK_ATTENTION_FUNCTIONS[name](*arguments, config=config, **options)


# SDPA for what depends on the length alone.


def is_plain_product(options: dict[str, Any]) -> bool:
    """Return whether the logits are scaled products of queries and keys."""
    return all(options.get(name) is None for name in ("softcap", "s_aux", "position_bias"))


def is_causal(module: nn.Module, options: dict[str, Any]) -> bool:
    asked = options.get("is_causal")
    return bool(getattr(module, "is_causal", True) if asked is None else asked)


def _prepare_sdpa(
    state: LayerState,
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    mask: Tensor | None,
    causal: bool,
) -> tuple[Tensor, Tensor | None] | None:
    """Return the query and the mask for which SDPA is the layer's attention, or None.

    A factor on a row's logits is a factor on its query.

    SDPA gives zeros for a row without keys if the mask is boolean, and a mean over all keys if it
    is additive, so that additive masks are left to our own attention.
    """
    if not (mask is None or mask.dtype == torch.bool):
        return None
    if isinstance(mask, WindowMask) and math.prod(mask.shape) > MAX_WINDOW_MATRIX:
        return None
    queries, keys = query.shape[2], key.shape[2]
    fewest, most = bound_visible(mask, causal, queries, keys)
    about = state.policy_traits
    # Even a gradient of zero needs its graph.
    if most > about.plain_up_to or (about.learned and torch.is_grad_enabled()):
        if about.needs_entropy:
            return None
        if fewest == most and queries == 1 and not about.learned:
            factor = decoding_factor(state, query, key.shape[1], most)
        else:
            count = count_visible(mask, causal, queries, keys, query.device)
            factor = _ask(state.policy, query, key.shape[1], count)
        query = (query * factor).to(query.dtype)
    return query, mask.matrix() if isinstance(mask, WindowMask) else mask


def _ask(
    policy: Policy, query: Float[Tensor, "batch heads query dim"], kv_heads: int, count: Tensor
) -> Float[Tensor, "#batch heads counts 1"]:
    """Return the factor of each row by a policy that depends on the number of keys alone."""
    heads = query.shape[1]
    if count.shape[1] == 1:
        count = count.expand(-1, heads, -1)
    count = count.unflatten(1, (kv_heads, heads // kv_heads))
    dtype = torch.promote_types(query.dtype, torch.float32)
    entropy = torch.zeros(count.shape, dtype=dtype, device=query.device)
    return inverse_temperatures(policy, entropy, count).flatten(1, 2)[..., None]


def decoding_factor(
    state: LayerState, query: Float[Tensor, "batch heads 1 dim"], kv_heads: int, keys: int
) -> Float[Tensor, "1 heads 1 1"]:
    """Return the policy's factor of each head, for a query that sees this many keys.

    A policy takes longer than attention to few keys, so it is asked once for many lengths: each
    generated token adds one key. It must be a fixed function of the number of keys.
    """
    if torch.compiler.is_compiling():
        count = torch.full((1, 1, 1), keys, dtype=torch.int32, device=query.device)
        return _ask(state.policy, query, kv_heads, count)
    block, place = divmod(keys, LENGTHS_AT_ONCE)
    question = (block, query.shape[1], kv_heads, query.dtype, query.device)
    asked, answers = state.answers
    if asked != question:
        # A tensor that is made in inference mode cannot be used in training later.
        with torch.inference_mode(False), torch.no_grad():
            count = torch.arange(LENGTHS_AT_ONCE, dtype=torch.int32, device=query.device)
            count = (count + block * LENGTHS_AT_ONCE)[None, None]
            answers = _ask(state.policy, query, kv_heads, count)[..., None, :].unbind(2)
        state.answers = question, answers
    return answers[place]


# What is refused.


def refuse_options(
    module: nn.Module, query: Tensor, key: Tensor, mask: Tensor | None, options: dict[str, Any]
) -> None:
    """Refuse options that are not supported: they may change the logits."""
    # transformers may be collecting the weights of all layers, although not every model passes
    # `output_attentions` on, and a config may ask for it too. It would return an empty tuple.
    collected = _active_collector.get()
    asked = options.get("output_attentions")
    if asked or (collected and any(key.endswith("attentions") for key in collected)):
        raise NotImplementedError(
            f"{type(module).__name__}: sharpmax holds no matrix of weights to return for "
            'output_attentions=True; use attn_implementation="eager" for the matrix or '
            "sharpmax.hf.scan for its statistics"
        )
    unknown = [
        keyword
        for keyword, value in options.items()
        if value is not None and keyword not in KNOWN_KEYWORDS
    ]
    if unknown:
        raise NotImplementedError(
            f"{type(module).__name__} passes {', '.join(sorted(unknown))} to its attention, which "
            'sharpmax does not support; use attn_implementation="eager" for this model'
        )
    window = options.get("sliding_window")
    if mask is None and window is not None and key.shape[2] > window and query.shape[2] > 1:
        raise NotImplementedError(
            f"{type(module).__name__} has a sliding window of {window} tokens, but its model made "
            f"no mask for {key.shape[2]}: sharpmax does not support it"
        )


def _mask_arguments(
    mask: Tensor | None, bias: Tensor | None, causal: bool, queries: int
) -> dict[str, Any]:
    """Return the arguments of attention for a mask that `make_mask` or the user has made."""
    if isinstance(mask, WindowMask):
        return {"attn_mask": bias, "is_causal": mask.causal, "window": mask.window}
    if mask is None:
        # Without a mask one query is a decoding step, which sees all keys. Several queries stand at
        # the beginning of the keys, and what follows them in a static cache is empty.
        return {"attn_mask": bias, "is_causal": causal and queries > 1}
    if bias is None:
        return {"attn_mask": mask}
    if mask.dtype == torch.bool:
        hidden = torch.finfo(bias.dtype).min
        return {"attn_mask": torch.where(mask, bias, hidden)}
    return {"attn_mask": mask + bias}


def _refuse_replica(module: nn.Module) -> None:
    """Refuse a copy of a patched layer, which the patch does not reach."""
    if getattr(module, "_is_replica", False):
        raise UserError(
            "torch.nn.DataParallel runs copies of a model, which sharpmax does not reach: use "
            "DistributedDataParallel, or one device"
        )


def _computed_again_without_scope(scope: Scope) -> bool:
    """Return whether a backward pass computes the layer again, after a forward pass without scope.

    Gradient checkpointing keeps no activations and computes a layer again in the backward pass,
    where other rules may hold. transformers' own checkpointing keeps its scope (`KeptScope`); a
    layer without one was not patched in the forward pass.

    Raises:
        UserError: The layer runs inside checkpointing that will not return to this scope.
    """
    if scope.checkpointed or torch.compiler.is_compiling():
        return False
    if torch._C._current_graph_task_id() != -1:  # a backward pass is running
        return True
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code is CHECKPOINT:
            raise UserError(
                "torch.utils.checkpoint was called inside a block that sharpens, and the backward "
                "pass would compute other attention: use model.gradient_checkpointing_enable(), "
                "before the block"
            )
        frame = frame.f_back  # type: ignore[assignment]
    return False


# Names.


def patched_name(original: str | None) -> str:
    """Return the implementation of a patched model that used `original`, and register it.

    The name tells the original, so that a copy of a patched model runs what the model did.
    """
    known = {value: name for name, value in PATCHED_NAMES.items()}
    # Spelled, to contain none of the words that transformers searches names for.
    name = known.get(str(original)) or "sharpmax_patched_" + "_".join(
        filter(str.isalnum, str(original))
    )
    if name not in ALL_ATTENTION_FUNCTIONS:
        register_functions(
            name,
            functools.partial(attend_patched, original),
            functools.partial(mask_patched, original),
        )
    return name


def original_name(name: str | None) -> str | None:
    """Return the implementation that a patched model used before; any other name is its own."""
    function = ALL_ATTENTION_FUNCTIONS.get(str(name))
    if isinstance(function, functools.partial) and function.func is attend_patched:
        original: str | None = function.args[0]
        return original
    return name


def register_functions(name: str, function: Callable[..., Any], mask: Callable[..., Any]) -> None:
    """Register an attention function together with its mask function."""
    AttentionInterface.register(name, function)
    AttentionMaskInterface.register(name, mask)
