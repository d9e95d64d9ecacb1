"""Patch a model, for as long as a block lasts or until a handle is removed.

Patching sets the name of an attention implementation on the configs of the model, which all threads
share, and opens a patch in the scope of this thread or task. Outside the scope the model runs what
it did before.
"""

from __future__ import annotations

import functools
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from sharpmax._errors import UserError
from sharpmax.hf.patch.attention import (
    IMPLEMENTATION,
    PATCHED_NAMES,
    original_name,
    patched_name,
)
from sharpmax.hf.patch.layers import Layer, find_configs
from sharpmax.hf.patch.registered import layer_policy, registered_policy
from sharpmax.hf.patch.scope import (
    Observer,
    Patch,
    Rule,
    Scope,
    close_patch,
    current_scope,
    entered,
    open_elsewhere,
    open_patch,
)


class PlainThreadWarning(UserWarning):
    """A thread that was started inside a `with` block runs the model without its rules."""


def patch_model(
    model: PreTrainedModel,
    layers: list[Layer],
    rules: Mapping[nn.Module, tuple[Rule, ...]] | None = None,
    *,
    everywhere: bool = False,
) -> ExitStack:
    """Apply rules to the attention of a model, until the returned object is closed.

    Patches may be nested, may end in any order, and may hold models that share configs or layers (a
    model and its own `.model`, two models made from one config). The configs are put back when the
    last patch that holds them ends.

    Args:
        model: The model.
        layers: All its attention layers.
        rules: What to sharpen in these layers. Default: nothing.
        everywhere: Whether the rules apply in all threads and tasks, not only in this one.

    Returns:
        What ends the patch. It does not keep the model alive.
    """
    configs = find_configs(model)
    # A model that its `attn_implementation` sharpens stays sharpened where no rule says otherwise.
    names = {original_name(config._attn_implementation_internal) for config in configs}
    first = {}
    if IMPLEMENTATION in names:
        policy = registered_policy()
        first = {layer.module: Rule(layer_policy(policy, layer.module), None) for layer in layers}
    patch = Patch(
        WeakKeyDictionary({layer.module: (rules or {}).get(layer.module, ()) for layer in layers}),
        configs=tuple(configs),
        first_rules=WeakKeyDictionary(first),
        model=weakref.ref(model),
    )
    with ExitStack() as stack:
        for config in configs:
            _hold_name(config)
            stack.callback(_release_name, config)
        stack.callback(model.register_forward_pre_hook(note_pass).remove)
        stack.callback(model.register_forward_hook(check_pass).remove)
        stack.callback(_forget_scopes, _keep_scopes(model))
        open_patch(patch, everywhere=everywhere)
        stack.callback(close_patch, patch)
        return stack.pop_all()


@contextmanager
def patched_attention(
    model: PreTrainedModel,
    layers: list[Layer],
    rules: Mapping[nn.Module, tuple[Rule, ...]] | None = None,
) -> Iterator[None]:
    """Apply rules to the attention of a model inside the block, in this thread or task.

    Args:
        model: The model.
        layers: All its attention layers.
        rules: What to sharpen in these layers. Default: nothing.
    """
    with patch_model(model, layers, rules):
        yield


@contextmanager
def observed_layers(
    layers: list[Layer], make_observer: Callable[[Layer], Observer]
) -> Iterator[None]:
    """Let observers compute the attention of patched layers inside the block.

    Args:
        layers: Layers of a model that is inside `patched_attention`.
        make_observer: Makes the observer of a layer.
    """
    patch = Patch(
        WeakKeyDictionary({layer.module: () for layer in layers}),
        observers={layer.module: make_observer(layer) for layer in layers},
    )
    open_patch(patch)
    try:
        yield
    finally:
        close_patch(patch)


# The name of the implementation, on the configs.

_lock = threading.Lock()
_holders: dict[int, int] = {}
"""How many blocks hold a config, by its id."""


def _hold_name(config: Any) -> None:
    """Name the patched implementation in a config, until nobody holds it any more."""
    with _lock:
        if not _holders.get(id(config)):
            # As `set_attn_implementation` sets it, but on every config that a module holds, and
            # without its fall-back to a logged warning.
            original = original_name(config._attn_implementation_internal)
            config._attn_implementation_internal = patched_name(original)
        _holders[id(config)] = _holders.get(id(config), 0) + 1


def _release_name(config: Any) -> None:
    with _lock:
        _holders[id(config)] -= 1
        if not _holders[id(config)]:
            del _holders[id(config)]
            name = config._attn_implementation_internal
            config._attn_implementation_internal = original_name(name)


# What is checked around each forward pass. The hooks are functions of the module, so that a patched
# model can be copied and pickled.


def note_pass(model: nn.Module, _: Any) -> None:
    """Note how often attention was computed before a forward pass."""
    if torch.compiler.is_compiling():
        return
    scope = current_scope()
    scope.calls.before_pass = scope.calls.now
    name = getattr(getattr(model, "config", None), "_attn_implementation_internal", None)
    if name not in ALL_ATTENTION_FUNCTIONS and name in PATCHED_NAMES:
        patched_name(PATCHED_NAMES[name])  # the model was pickled inside a block


def check_pass(model: nn.Module, _: Any, __: Any) -> None:
    """Refuse a forward pass of a patched model in which none of its layers was reached.

    Raises:
        UserError: The layers do not call the attention function, or another implementation was set.
    """
    if torch.compiler.is_compiling():
        return
    scope = current_scope()
    config = getattr(model, "config", None)
    if not scope.holds(config):
        _warn_of_plain_thread(model)
    elif scope.calls.now == scope.calls.before_pass:
        name = config._attn_implementation_internal  # type: ignore[union-attr]
        if original_name(name) == name:
            raise UserError(
                f"{type(model).__name__} was set to attn_implementation={name!r} inside a block "
                "that sharpens it, so nothing was sharpened: set it before the block"
            )
        raise UserError(
            f"{type(model).__name__} ran, and none of its attention layers called transformers' "
            "AttentionInterface: they cannot be measured or sharpened"
        )


def _warn_of_plain_thread(model: nn.Module) -> None:
    thread = threading.current_thread().ident
    for patch in open_elsewhere(model):
        if thread not in patch.threads:
            patch.threads |= {thread}
            warnings.warn(
                f"{type(model).__name__} runs plain in a thread that was started inside a block "
                "that sharpens it: start the thread with contextvars.copy_context().run, or use "
                "shf.apply",
                PlainThreadWarning,
                stacklevel=2,
            )


# Gradient checkpointing computes a block of layers again in the backward pass: after the `with`
# block, or in another thread.


class KeptScope:
    """A function for gradient checkpointing that keeps the scope of the first computation.

    Args:
        checkpoint: The function, `checkpoint(function, *arguments)`.
    """

    def __init__(self, checkpoint: Callable[..., Any]) -> None:
        self.checkpoint = checkpoint
        self.users = 0

    def __call__(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        run = functools.partial(_run_in_scope, current_scope().keep(), function)
        return self.checkpoint(run, *arguments, **options)


def _run_in_scope(scope: Scope, function: Callable[..., Any], *arguments: Any) -> Any:
    with ExitStack() as stack:
        for patch in scope.patches:
            for config in patch.configs:
                _hold_name(config)
                stack.callback(_release_name, config)
        stack.enter_context(entered(scope))
        return function(*arguments)


CHECKPOINTING = "_gradient_checkpointing_func"
"""Where transformers keeps the function in modules whose layers it checkpoints."""


def _keep_scopes(model: nn.Module) -> list[ReferenceType[nn.Module]]:
    """Let the gradient checkpointing of transformers keep its scope; return the modules."""
    modules = [module for module in model.modules() if CHECKPOINTING in vars(module)]
    with _lock:
        for module in modules:
            if not isinstance(vars(module)[CHECKPOINTING], KeptScope):
                vars(module)[CHECKPOINTING] = KeptScope(vars(module)[CHECKPOINTING])
            vars(module)[CHECKPOINTING].users += 1
    return list(map(weakref.ref, modules))


def _forget_scopes(modules: list[ReferenceType[nn.Module]]) -> None:
    with _lock:
        for module in filter(None, (reference() for reference in modules)):
            function = vars(module).get(CHECKPOINTING)
            if isinstance(function, KeptScope):
                function.users -= 1
                if not function.users:
                    vars(module)[CHECKPOINTING] = function.checkpoint
