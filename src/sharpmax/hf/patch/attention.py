"""The attention function and the masks that patched models use, and how transformers finds them.

transformers looks both up by the name of an attention implementation. They are registered together:
an attention function without a mask function gets no mask at all, for every model and without a
warning, so that padding, windows and causality are lost.

What sharpmax knows about a layer is in one place, `LAYER_STATES`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import (
    prepare_padding_mask,
    sdpa_mask,
    sliding_window_bidirectional_mask_function,
    sliding_window_causal_mask_function,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils.output_capturing import _active_collector

from sharpmax.policies import PAPER, Constant, Policy, Traits, inverse_temperatures, traits
from sharpmax.torch import scaled_dot_product_attention

if TYPE_CHECKING:
    from jaxtyping import Float

PLAIN = Constant(1.0)
"""The policy of plain attention."""

IMPLEMENTATION = "sharpmax"
"""The `attn_implementation` of `register`. It must contain none of "sdpa", "flash",
"flex_attention" and "/": transformers searches names for these words and then behaves differently.
"""

PATCHED_IMPLEMENTATION = "sharpmax_rules"
"""The implementation of a model while it is patched: each layer follows its own rules."""

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

MAX_WINDOW_MATRIX = 1 << 24
"""Entries of the largest `WindowMask` that is turned into a matrix for SDPA: 4,096 tokens. Beyond,
the two numbers take less memory and time."""

LENGTHS_AT_ONCE = 64
"""For how many numbers of keys a policy is asked at once while a model generates."""


@dataclass(frozen=True, eq=False)
class Rule:
    """Sharpen some heads of a layer by a policy.

    Attributes:
        policy: The policy.
        heads: The numbers of the heads, or None for all heads.
    """

    policy: Policy
    heads: frozenset[int] | None


@dataclass(eq=False)
class Patch:
    """One reason why a model is patched: a `with` block that is being run.

    It must not refer to the model or its layers: it is a value of `LAYER_STATES`, whose keys would
    then never be freed.

    Attributes:
        configs: The configs that were changed, each with the implementation it named before any
            patch.
        forward_passes: How often the model has run since.
        attention_calls: How often one of its layers has computed attention since.
    """

    configs: list[tuple[Any, str | None]]
    forward_passes: int = 0
    attention_calls: int = 0


Observer = Callable[[dict[str, Any]], Tensor]
"""Computes a layer's attention in order to measure it. Takes the arguments of
`sharpmax.torch.scaled_dot_product_attention` as a dictionary and returns the output."""


class LayerState:
    """Everything that sharpmax knows about one attention layer.

    Attributes:
        policy: One policy that does what the rules say.
        observer: Computes the layer's attention, if it is being measured.
        patches: The patches that hold it. Without any, the layer is not patched.
        sdpa: transformers' own attention function by SDPA, if the layer used it before it was
            patched. Where the policy is 1, the layer keeps using it.
        equals_eager: Whether a check has found that patching alone changes no answers.
    """

    policy: Policy

    def __init__(self) -> None:
        """Start with a layer that is not patched."""
        self.rules = ()
        self.observer: Observer | None = None
        self.patches: list[Patch] = []
        self.sdpa: Callable[..., tuple[Tensor, None]] | None = None
        self.equals_eager = False

    @property
    def rules(self) -> tuple[Rule, ...]:
        """What holds for the heads. Where two rules name one head, the last one counts."""
        return self._rules

    @rules.setter
    def rules(self, rules: tuple[Rule, ...]) -> None:
        self._rules = rules
        self.policy = combine_rules(rules)
        self._traits: Traits | None = None
        self._answers: tuple[Any, tuple[Tensor, ...]] = (None, ())

    @property
    def policy_traits(self) -> Traits:
        """The traits of the policy, read once."""
        if self._traits is None:
            self._traits = traits(self.policy)
        return self._traits

    def ask(
        self, query: Float[Tensor, "batch heads 1 dim"], kv_heads: int, keys: int
    ) -> Float[Tensor, "1 heads 1 1"]:
        """Return the policy's factor of each head, for a query that sees this many keys.

        A policy takes longer than attention to few keys, so it is asked once for many lengths: each
        generated token adds one key.

        Args:
            query: Any queries of the layer.
            kv_heads: The number of key heads.
            keys: How many keys the query sees.

        Returns:
            The factor. The policy must be a fixed function of the number of items.
        """
        block, place = divmod(keys, LENGTHS_AT_ONCE)
        heads, dtype, device = query.shape[1], query.dtype, query.device
        question = (block, heads, kv_heads, dtype, device)
        asked, answers = self._answers
        if asked != question:
            # A tensor that is made in inference mode cannot be used in training later.
            with torch.inference_mode(False), torch.no_grad():
                count = torch.arange(LENGTHS_AT_ONCE, dtype=torch.int32, device=device)
                count = (count + block * LENGTHS_AT_ONCE).expand(1, kv_heads, heads // kv_heads, -1)
                entropy = torch.zeros(count.shape, dtype=dtype, device=device)
                factors = inverse_temperatures(self.policy, entropy, count)
                answers = factors.flatten(1, 2)[:, :, None, None].unbind(-1)
            self._answers = question, answers
        return answers[place]


LAYER_STATES: WeakKeyDictionary[nn.Module, LayerState] = WeakKeyDictionary()
"""The state of each layer that is patched, or was checked."""


@dataclass(frozen=True)
class PolicyByHead:
    """A policy that applies each head's last rule, and 1 to heads without a rule."""

    rules: tuple[Rule, ...]
    by_head: ClassVar[bool] = True

    @property
    def needs_entropy(self) -> bool:
        return any(traits(rule.policy).needs_entropy for rule in self.rules)

    @property
    def learned(self) -> bool:
        return any(traits(rule.policy).learned for rule in self.rules)

    @property
    def plain_up_to(self) -> int:
        return min(traits(rule.policy).plain_up_to for rule in self.rules)

    def __call__(self, entropy: Any, count: Any, /) -> Float[Tensor, "batch kv_heads group query"]:
        factor = torch.ones_like(entropy)
        numbers = torch.arange(entropy.shape[1] * entropy.shape[2], device=entropy.device)
        head = numbers.view(entropy.shape[1], entropy.shape[2], 1)
        for rule in self.rules:
            answer = rule.policy(entropy, count)
            if rule.heads is None:
                factor = answer if isinstance(answer, Tensor) else torch.full_like(factor, answer)
            else:
                selected = torch.isin(head, torch.tensor(sorted(rule.heads), device=head.device))
                factor = torch.where(selected, answer, factor)
        return factor


def combine_rules(rules: tuple[Rule, ...]) -> Policy:
    """Return one policy that does what the rules of a layer say."""
    for_all_heads = [number for number, rule in enumerate(rules) if rule.heads is None]
    rules = rules[for_all_heads[-1] :] if for_all_heads else rules
    if not rules:
        return PLAIN
    return rules[0].policy if len(rules) == 1 and rules[0].heads is None else PolicyByHead(rules)


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
    position_bias: Float[Tensor, "#batch heads query key"] | None = None,
    is_causal: bool | None = None,
    output_attentions: bool | None = None,
    **others: Any,
) -> tuple[Float[Tensor, "batch query heads value_dim"], None]:
    """Compute one layer's attention; transformers calls this in each layer.

    The rules of a patched layer say how much to sharpen, and `default` in a layer that is not
    patched. A query that sees nothing, such as padding, gives zeros. Where no row is sharpened, the
    layer runs what it ran before it was patched, if that was SDPA.
    """
    _refuse_options(module, output_attentions, others)
    _refuse_lost_window(module, query, key, attention_mask, others.get("sliding_window"))
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    state = LAYER_STATES.get(module)
    if state is not None and not state.patches:
        state = None
    if state is not None:
        for patch in state.patches:
            patch.attention_calls += 1
        if state.sdpa is not None and softcap is None and s_aux is None and position_bias is None:
            call = _prepare_sdpa(state, query, key, attention_mask, causal)
            if call is not None:
                scaled, mask = call
                options = {"dropout": dropout, "scaling": scaling, "is_causal": is_causal, **others}
                return state.sdpa(module, scaled, key, value, mask, **options)
    arguments = {
        "query": query,
        "key": key,
        "value": value,
        "dropout_p": dropout,
        "scale": scaling,
        "enable_gqa": True,
        "softcap": softcap,
        "sinks": s_aux,
        "policy": default if state is None else state.policy,
        **_mask_arguments(attention_mask, position_bias, causal, query.shape[2]),
    }
    output = (
        scaled_dot_product_attention(**arguments)
        if state is None or state.observer is None
        else state.observer(arguments)
    )
    return output.transpose(1, 2).contiguous(), None


def _prepare_sdpa(
    state: LayerState,
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    mask: Tensor | None,
    causal: bool,
) -> tuple[Tensor, Tensor | None] | None:
    """Return the query and the mask for which SDPA is the layer's attention, or None.

    SDPA gives zeros for a row without keys if the mask is boolean, and a mean over all keys if it
    is additive, so that additive masks are left to our own attention.
    """
    if state.observer is not None or not (mask is None or mask.dtype == torch.bool):
        return None
    fewest, most = _bound_visible(mask, causal, query.shape[2], key.shape[2])
    about = state.policy_traits
    if about.learned and torch.is_grad_enabled():
        return None  # even a gradient of zero needs its graph
    if most > about.plain_up_to:
        # One query per head whose factor is known beforehand, as in generating: scale the query.
        if query.shape[2] > 1 or fewest < most or about.needs_entropy or about.learned:
            return None
        if query.dtype not in (torch.float32, torch.float64) or torch.compiler.is_compiling():
            return None
        if torch.is_autocast_enabled(query.device.type):  # it would round the scaled query
            return None
        query = query * state.ask(query, key.shape[1], most)
    if isinstance(mask, WindowMask):
        return (query, mask.matrix()) if math.prod(mask.shape) <= MAX_WINDOW_MATRIX else None
    return query, mask


def _bound_visible(mask: Tensor | None, causal: bool, queries: int, keys: int) -> tuple[int, int]:
    """Return bounds of the number of keys that any query sees, from below and above."""
    if mask is None:
        return (1, min(queries, keys)) if causal and queries > 1 else (keys, keys)
    if torch.compiler.is_compiling():
        return 0, keys
    if isinstance(mask, WindowMask):
        return 1, min(keys, mask.window if mask.causal else 2 * mask.window - 1)
    bounds: tuple[int, int] = getattr(mask, "visible", (0, keys))
    return bounds


def _refuse_options(
    module: nn.Module, output_attentions: bool | None, others: dict[str, Any]
) -> None:
    """Refuse options that are not supported: they may change the logits."""
    # transformers may be collecting the weights of all layers, although not every model passes
    # `output_attentions` on, and a config may ask for it too. It would return an empty tuple.
    collected = _active_collector.get()
    if output_attentions or (collected and any(key.endswith("attentions") for key in collected)):
        raise NotImplementedError(
            f"{type(module).__name__}: sharpmax holds no matrix of weights to return for "
            'output_attentions=True; use attn_implementation="eager" for the matrix or '
            "sharpmax.hf.scan for its statistics"
        )
    unknown = [
        keyword
        for keyword, value in others.items()
        if value is not None and keyword not in HARMLESS_KEYWORDS
    ]
    if unknown:
        raise NotImplementedError(
            f"{type(module).__name__} passes {', '.join(sorted(unknown))} to its attention, which "
            'sharpmax does not support; use attn_implementation="eager" for this model'
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


def _refuse_lost_window(
    module: nn.Module, query: Tensor, key: Tensor, mask: Tensor | None, window: int | None
) -> None:
    """Refuse a layer with a sliding window whose model has made no mask for it."""
    if mask is not None or window is None:
        return
    keys = key.shape[2]
    if keys > window and query.shape[2] > 1:
        raise NotImplementedError(
            f"{type(module).__name__} has a sliding window of {window} tokens, but its model made "
            f"no mask for {keys}: sharpmax does not support it"
        )


_GETTERS: tuple[Any, ...] = (Tensor.shape, Tensor.dtype, Tensor.device, Tensor.ndim, Tensor.layout)
_METADATA = {Tensor.dim, Tensor.size} | {getter.__get__ for getter in _GETTERS}
"""What can be read from a mask without its content."""


class WindowMask(torch.Tensor):
    """The mask of a sliding window, [batch, 1, query, key], stored as two numbers.

    The attention function reads the numbers. Any other operation, such as a model that slices or
    inverts its mask, acts on the boolean matrix that this stands for.

    Attributes:
        window: Query i sees key j if |i - j| < window,
        causal: and j <= i, if this is true.
        dense: Makes the matrix.
    """

    window: int
    causal: bool
    dense: Callable[[], Tensor | None]
    _matrix: Tensor | None

    @staticmethod
    def create(
        shape: tuple[int, int, int, int],
        device: torch.device | str,
        window: int,
        causal: bool,
        dense: Callable[[], Tensor | None],
    ) -> WindowMask:
        """Return the mask of this shape without allocating it."""
        scalar = torch.zeros((), dtype=torch.bool, device=device)
        mask = torch.Tensor._make_subclass(WindowMask, scalar.expand(shape))
        mask.window, mask.causal, mask.dense, mask._matrix = window, causal, dense, None
        return mask

    def matrix(self) -> Tensor | None:
        """Return the matrix, which is made once for all layers. It must not be changed."""
        if self._matrix is None:
            self._matrix = self.dense()
        return self._matrix

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            if func not in _METADATA:
                args, kwargs = tree_map(_as_matrix, (args, kwargs))
            return func(*args, **kwargs)


def _as_matrix(value: Any) -> Any:
    return value.dense() if isinstance(value, WindowMask) else value


def make_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    *,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    device: torch.device | str = "cpu",
    **others: Any,
) -> Tensor | None:
    """Make the mask for one kind of layer; transformers calls this once per forward pass and kind.

    transformers' own `sdpa_mask` makes it, except for a sliding window over one whole sequence, for
    which that would allocate a matrix of tokens by tokens.

    Returns:
        None for attention that is causal or bidirectional without exception, as `module.is_causal`
        says; a `WindowMask`; or the boolean matrix, True where a key may be seen, whose attribute
        `visible` is the smallest and the largest number of keys that a query sees.
    """
    dense = functools.partial(
        sdpa_mask,
        batch_size,
        q_length,
        kv_length,
        q_offset,
        kv_offset,
        attention_mask=attention_mask,
        local_size=local_size,
        device=device,
        **others,
    )
    compiling = torch.compiler.is_compiling()
    # A window that covers everything is left to sdpa_mask, which then makes no mask.
    if (
        (allow_is_causal_skip or allow_is_bidirectional_skip)
        and local_size is not None
        and q_length == kv_length > 1
        and not compiling
        and kv_length >= local_size
        and int(q_offset) == int(kv_offset) == 0
        and _hides_nothing(prepare_padding_mask(attention_mask, kv_length, kv_offset))
    ):
        unskipped = functools.partial(
            dense, allow_is_causal_skip=False, allow_is_bidirectional_skip=False
        )
        shape = (batch_size, 1, q_length, kv_length)
        function = others.get("mask_function")
        # transformers counts the token itself in a causal window, but not in a bidirectional one.
        if _same_function(function, sliding_window_causal_mask_function(local_size)):
            return WindowMask.create(shape, device, local_size, True, unskipped)
        if _same_function(function, sliding_window_bidirectional_mask_function(local_size)):
            return WindowMask.create(shape, device, local_size + 1, False, unskipped)
    mask = dense(
        allow_is_causal_skip=allow_is_causal_skip,
        allow_is_bidirectional_skip=allow_is_bidirectional_skip,
    )
    if type(mask) is Tensor and not compiling and not mask.is_meta:
        # Counted here, once for all layers. The keys are no such bound: a static cache has room for
        # more than there is, and padding hides some. `generate` copies masks that are not
        # contiguous, and the copy would not have the attribute.
        mask = mask.contiguous() if q_length == 1 else mask
        fewest, most = mask.sum(-1).aminmax()
        mask.visible = int(fewest), int(most)  # type: ignore[attr-defined]
    return mask


def _hides_nothing(padding: Tensor | None) -> bool:
    return padding is None or bool(padding.all())


def _same_function(first: Any, second: Any) -> bool:
    """Return whether two mask functions have the same code and close over the same numbers.

    Chunked attention has a local size too, but other code than a window.
    """
    if isinstance(first, tuple) and isinstance(second, tuple):
        return len(first) == len(second) and all(map(_same_function, first, second))
    if not isinstance(first, FunctionType) or not isinstance(second, FunctionType):
        return type(first) is type(second) is int and first == second
    closures = [
        tuple(cell.cell_contents for cell in function.__closure__ or ())
        for function in (first, second)
    ]
    return first.__code__ is second.__code__ and _same_function(*closures)


def register(policy: Policy = PAPER) -> None:
    """Register `attn_implementation="sharpmax"` with transformers.

    Afterwards `from_pretrained`, `set_attn_implementation` and every tool that passes the name on
    accept it. All heads of such a model are sharpened by `policy`, in training too. Registering
    again changes the policy of all such models.

    Args:
        policy: A function of (entropy, count) that returns the inverse temperature.
            `sharpmax.Constant(1.0)` is plain attention.

    Raises:
        TypeError: `policy` is not callable.

    Examples:
        >>> shf.register(sharpmax.LogLength(2048))
        >>> model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sharpmax")
    """
    if not callable(policy):
        raise TypeError(
            f"policy must be a function of (entropy, count), got {policy!r}; "
            "sharpmax.Constant(1.0) is plain attention"
        )
    _register(IMPLEMENTATION, functools.partial(attend, policy))


def register_patched() -> None:
    """Register the implementation that patched models name."""
    _register(PATCHED_IMPLEMENTATION, functools.partial(attend, PLAIN))


def _register(name: str, function: Callable[..., Any]) -> None:
    AttentionInterface.register(name, function)
    AttentionMaskInterface.register(name, make_mask)


def registered_policy() -> Policy:
    """Return the policy that was given to `register`."""
    policy: Policy = ALL_ATTENTION_FUNCTIONS[IMPLEMENTATION].args[0]
    return policy


def detect_use() -> Callable[[], bool]:
    """Return a function that tells whether any layer has used the registered attention since.

    The layers of some models call another kernel, whatever the implementation is called, and
    nothing else would reveal it.
    """
    used = False

    def attend_and_note(*arguments: Any, **options: Any) -> Any:
        nonlocal used
        used = True
        return attend(*arguments, **options)

    _register(IMPLEMENTATION, functools.partial(attend_and_note, registered_policy()))
    return lambda: used
