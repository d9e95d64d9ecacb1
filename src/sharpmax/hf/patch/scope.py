"""Which rules hold for the heads of a model, in this thread or asyncio task.

A `with` block of `sharpen`, `scan` and others opens a `Patch`: rules and observers for the layers
of one model. It holds in the thread or task that opened it, and in no other. `apply` opens one that
holds everywhere. A `Scope` is what all patches together say of each layer here and now.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import ReferenceType, WeakKeyDictionary

import torch
from torch import Tensor, nn

from sharpmax._errors import UserError
from sharpmax.policies import Constant, Policy, Traits, ask, needs_rows, traits
from sharpmax.policies.traits import Solve

if TYPE_CHECKING:
    from jaxtyping import Float

PLAIN = Constant(1.0)
"""The policy of plain attention."""

PLAIN_TRAITS = traits(PLAIN)
"""Read once: most layers have no rule."""


@dataclass(frozen=True, eq=False)
class Rule:
    """Sharpen some heads of a layer by a policy.

    Attributes:
        policy: The policy.
        heads: The numbers of the heads, or None for all heads.
    """

    policy: Policy
    heads: frozenset[int] | None


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

    @property
    def needs_varentropy(self) -> bool:
        return any(traits(rule.policy).needs_varentropy for rule in self.rules)

    @property
    def needs_rows(self) -> bool:
        return any(needs_rows(rule.policy) for rule in self.rules)

    def __call__(
        self, entropy: Any, count: Any, varentropy: Any = None, solve: Solve | None = None, /
    ) -> Float[Tensor, "batch kv_heads group query"]:
        factor = torch.ones_like(entropy)
        numbers = torch.arange(entropy.shape[1] * entropy.shape[2], device=entropy.device)
        head = numbers.view(entropy.shape[1], entropy.shape[2], 1)
        for rule in self.rules:
            answer = ask(rule.policy, entropy, count, varentropy, solve)
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


Observer = Callable[[dict[str, Any]], Tensor]
"""Computes a layer's attention in order to measure it. Takes the arguments of
`sharpmax.torch.scaled_dot_product_attention` as a dictionary and returns the output."""


@dataclass(eq=False)
class Patch:
    """The rules and observers that one block or handle gives to the layers of a model.

    Attributes:
        layers: The rules of each attention layer of the model; () for a layer without any.
        observers: What computes the attention of a layer instead, to measure it.
        configs: All configs of the model.
        first_rules: Per layer a rule that comes before those of any patch: what the model's own
            `attn_implementation="sharpmax"` does.
        model: The model.
        threads: The threads that were running when the patch was opened.
    """

    layers: WeakKeyDictionary[nn.Module, tuple[Rule, ...]]
    observers: Mapping[nn.Module, Observer] = field(default_factory=dict)
    configs: tuple[Any, ...] = ()
    first_rules: Mapping[nn.Module, Rule] = field(default_factory=dict)
    model: ReferenceType[nn.Module] | None = None
    threads: frozenset[int | None] = frozenset()


@dataclass(eq=False)
class LayerState:
    """The rules and the observer of one attention layer in a scope.

    Attributes:
        rules: Where two rules name one head, the last one counts.
        observer: Computes the layer's attention, if it is being measured.
        answers: The policy's last answers to a decoding step, see `attention.decoding_factor`.
        own_heads: Whether the policy is that of the heads which this process computes.
        policy: One policy that does what the rules say.
        policy_traits: The traits of the policy, read once.
    """

    rules: tuple[Rule, ...]
    observer: Observer | None
    answers: tuple[Any, tuple[Tensor, ...]] = (None, ())
    own_heads: bool = False
    policy: Policy = field(init=False)
    policy_traits: Traits = field(init=False)

    def __post_init__(self) -> None:
        self.policy = combine_rules(self.rules)
        self.policy_traits = PLAIN_TRAITS if self.policy is PLAIN else traits(self.policy)


@dataclass
class Calls:
    """How often a scope's layers computed attention: now, and before the present pass."""

    now: int = 0
    before_pass: int = 0


class Scope:
    """The rules and observers of all patched models in this thread or task.

    Args:
        own: The patches of this thread or task, the outermost first.
        applied: The patches that hold everywhere; they come before `own`.
        checkpointed: Whether this is the scope of a block of layers under gradient checkpointing,
            whose second computation needs the scope of the first one.
    """

    def __init__(
        self, own: tuple[Patch, ...], applied: tuple[Patch, ...], checkpointed: bool = False
    ) -> None:
        self.own, self.applied, self.checkpointed = own, applied, checkpointed
        self.patches = (*applied, *own)
        self.calls = Calls()
        self._configs = {id(config) for patch in self.patches for config in patch.configs}
        self._states: WeakKeyDictionary[nn.Module, LayerState] = WeakKeyDictionary()
        for module in {module for patch in self.patches for module in patch.layers}:
            self._states[module] = self._join(module)

    def _join(self, module: nn.Module) -> LayerState:
        patches = [patch for patch in self.patches if module in patch.layers]
        rules = tuple(rule for patch in patches for rule in patch.layers[module])
        first = patches[0].first_rules.get(module)
        rules = rules if first is None else (first, *rules)
        observers = [patch.observers[module] for patch in patches if module in patch.observers]
        return LayerState(rules, observers[-1] if observers else None)

    def keep(self) -> Scope:
        """Return this scope for gradient checkpointing, which `apply` no longer changes."""
        kept = Scope(self.patches, (), checkpointed=True)
        kept.calls = self.calls
        return kept

    def state(self, module: nn.Module) -> LayerState | None:
        """Return what holds for a layer; None if it is not patched here."""
        return self._states.get(module)

    def holds(self, config: Any) -> bool:
        """Return whether this is the config of a model that is patched here."""
        return id(config) in self._configs


class _Compiled:
    """What compiled models see: torch's compiler cannot read the variables of a context."""

    scope = Scope((), ())
    conflict = False
    """Whether several threads or tasks have patches of their own."""


_lock = threading.RLock()
_open: list[Patch] = []
"""The open patches of all threads and tasks."""
_everywhere = Scope((), ())
"""The scope of threads and tasks without patches of their own."""
_context: ContextVar[Scope | None] = ContextVar("sharpmax_scope", default=None)


def current_scope() -> Scope:
    """Return the scope of this thread or task."""
    if torch.compiler.is_compiling():
        if _Compiled.conflict:
            raise UserError(
                "a compiled model cannot be sharpened in several threads or tasks at once: use the "
                "model that is not compiled, or shf.apply"
            )
        return _Compiled.scope
    scope = _context.get()
    if scope is None:
        return _everywhere
    if scope.applied is not _everywhere.applied and not scope.checkpointed:
        scope = Scope(scope.own, _everywhere.applied)
        _context.set(scope)
    return scope


def open_patch(patch: Patch, *, everywhere: bool = False) -> None:
    """Let a patch hold in this thread or task, or everywhere."""
    global _everywhere
    patch.threads = frozenset(thread.ident for thread in threading.enumerate())
    with _lock:
        _open.append(patch)
        if everywhere:
            _everywhere = Scope((), (*_everywhere.applied, patch))
        else:
            scope = current_scope()
            _context.set(Scope((*scope.own, patch), scope.applied, scope.checkpointed))
        _update_compiled()


def close_patch(patch: Patch) -> None:
    """End a patch. Patches may end in any order."""
    global _everywhere
    with _lock:
        _open.remove(patch)
        if patch in _everywhere.applied:
            _everywhere = Scope((), _without(patch, _everywhere.applied))
        scope = _context.get()
        if scope is not None and patch in scope.own:
            own = _without(patch, scope.own)
            _context.set(Scope(own, scope.applied, scope.checkpointed) if own else None)
        _update_compiled()


def _without(patch: Patch, patches: Iterable[Patch]) -> tuple[Patch, ...]:
    return tuple(other for other in patches if other is not patch)


def _update_compiled() -> None:
    scope = _context.get() or _everywhere
    here = {*_everywhere.applied, *scope.own}
    _Compiled.conflict = not here.issuperset(_open)
    own = tuple(patch for patch in _open if patch not in _everywhere.applied)
    _Compiled.scope = Scope(own, _everywhere.applied)


def open_elsewhere(model: nn.Module) -> list[Patch]:
    """Return the patches of a model that hold in other threads or tasks only."""
    here = current_scope().patches
    return [
        patch
        for patch in list(_open)
        if patch.model is not None and patch.model() is model and patch not in here
    ]


@contextmanager
def entered(scope: Scope) -> Iterator[None]:
    """Return to a scope inside the block, in whichever thread that is."""
    token = _context.set(scope)
    try:
        yield
    finally:
        _context.reset(token)
