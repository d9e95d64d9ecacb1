"""See the calls of a model's attention without changing them.

transformers looks the attention function up by name at every call. While a model is watched, the
function under its name also shows each call of a watched layer to a recorder, and then runs as it
would have: same arguments, same kernel, same mask.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn
from torch._dynamo.eval_frame import OptimizedModule
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from sharpmax._errors import UserError
from sharpmax.hf.patch.layers import Layer
from sharpmax.hf.patch.wrappers import unwrap_model
from sharpmax.hf.train.rows import Call

Recorder = Callable[[Layer, Call], None]

UNREADABLE = ("flex_attention", "paged")
"""Implementations whose masks or keys cannot be read, by a part of their names."""

_lock = threading.Lock()
_watched: WeakKeyDictionary[nn.Module, list[tuple[Layer, Recorder]]] = WeakKeyDictionary()
_users: dict[str, int] = {}
"""How many blocks watch models that use an implementation."""


def watchable_model(model: Any, *, will_compile: bool = False) -> PreTrainedModel:
    """Return the transformers model inside a wrapper, if it can be watched.

    Args:
        model: A transformers model or a wrapper of one.
        will_compile: Whether it will be compiled before it runs.

    Raises:
        UserError: The model or a part of it is compiled, or the wrapper is not supported.
    """
    inner = unwrap_model(model, runs=False)
    if will_compile or any(
        isinstance(part, OptimizedModule) or part._compiled_call_impl is not None
        for part in model.modules()
    ):
        raise UserError(
            f"{type(inner).__name__} is compiled, and watching its attention would change its "
            "graph: train without torch.compile, or without statistics and QK-clip"
        )
    return inner


@contextmanager
def watched_layers(
    model: PreTrainedModel, layers: list[Layer], recorder: Recorder
) -> Iterator[None]:
    """Show each call of these layers' attention to a recorder inside the block.

    Raises:
        UserError: The implementation cannot be watched.
    """
    names = {str(layer.module.config._attn_implementation) for layer in layers}  # type: ignore[union-attr]
    for name in names:
        if any(part in name for part in UNREADABLE):
            raise UserError(
                f"attn_implementation={name!r} of {type(model).__name__} cannot be watched: use "
                "sdpa, eager or flash attention"
            )
    with _lock:
        for layer in layers:
            _watched[layer.module] = [*_watched.get(layer.module, []), (layer, recorder)]
        for name in names:
            _install(name)
    try:
        yield
    finally:
        with _lock:
            for layer in layers:
                _watched[layer.module] = [
                    entry for entry in _watched[layer.module] if entry[1] is not recorder
                ]
            for name in names:
                _remove(name)


def _install(name: str) -> None:
    """Put our function in front of the one that transformers would find."""
    if name not in _users:
        # What another package has put into the instance comes before what is registered.
        local = ALL_ATTENTION_FUNCTIONS._local_mapping
        mapping = local if name in local else ALL_ATTENTION_FUNCTIONS._global_mapping
        mapping[name] = functools.partial(_attend_watched, name, mapping.get(name))
    _users[name] = _users.get(name, 0) + 1


def _remove(name: str) -> None:
    _users[name] -= 1
    if _users[name]:
        return
    del _users[name]
    for mapping in (
        ALL_ATTENTION_FUNCTIONS._local_mapping,
        ALL_ATTENTION_FUNCTIONS._global_mapping,
    ):
        function = mapping.get(name)
        # Any other function was registered inside the block.
        if isinstance(function, functools.partial) and function.func is _attend_watched:
            original = function.args[1]
            if original is None:
                del mapping[name]
            else:
                mapping[name] = original


def _attend_watched(
    name: str,
    original: Any,
    module: nn.Module,
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    **options: Any,
) -> Any:
    """Show a call to the recorder of its layer, and run it."""
    recorders = _watched.get(module)
    if recorders:
        call = Call(name, module, query, key, mask, options)
        for layer, recorder in recorders:
            recorder(layer, call)
    run = _find_eager(module) if original is None else original
    return run(module, query, key, value, mask, **options)


def _find_eager(module: nn.Module) -> Callable[..., Any]:
    """Return the eager attention of a layer's model, which transformers does not register."""
    for parent in type(module).__mro__:
        function = getattr(sys.modules.get(parent.__module__), "eager_attention_forward", None)
        if function is not None:
            return function
    raise UserError(
        f"the eager attention of {type(module).__name__} was not found: use "
        'attn_implementation="sdpa" while statistics are recorded'
    )
