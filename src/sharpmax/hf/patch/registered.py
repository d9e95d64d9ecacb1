"""`attn_implementation="sharpmax"`: models that are sharpened from loading on, without a block."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from sharpmax._errors import UserError
from sharpmax.hf.patch.attention import IMPLEMENTATION, compute_layer, register_functions
from sharpmax.hf.patch.layers import bind_policy
from sharpmax.hf.patch.masks import make_mask
from sharpmax.hf.patch.scope import PLAIN, LayerState, Rule
from sharpmax.hf.tune.calibration import Calibration
from sharpmax.policies import Policy

if TYPE_CHECKING:
    from jaxtyping import Float

BESIDE = "beside"
"""Asks for the calibration in the folder of each model."""

CALIBRATION_FILE = "calibration.json"
"""Its name there."""


def register(policy: Policy | Calibration | str | Path = BESIDE) -> None:
    """Register `attn_implementation="sharpmax"` with transformers.

    Afterwards `from_pretrained`, `set_attn_implementation` and every tool that passes the name on
    accept it. The heads of such a model are sharpened by `policy`, in training too. Registering
    again changes the policy of all such models.

    Args:
        policy: A function of (entropy, count) that returns the inverse temperature, for all heads
            (`sharpmax.Constant(1.0)` is plain attention); a calibration or the path of its file; or
            `"beside"`, the default, for the file `calibration.json` in the folder of each model.

    Raises:
        TypeError: `policy` is none of these.
        UserError: The calibration cannot be read. One that does not fit a model is refused when
            the model runs.

    Examples:
        >>> shf.register("beside")
        >>> model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sharpmax")
    """
    chosen: Policy | ByFile
    if isinstance(policy, (str, Path)):
        chosen = ByFile(None) if policy == BESIDE else ByFile(Calibration.load(policy))
    elif isinstance(policy, Calibration):
        chosen = ByFile(policy)
    elif callable(policy):
        chosen = policy
    else:
        raise TypeError(
            f"policy must be a function of (entropy, count), a calibration or its path, got "
            f"{policy!r}; sharpmax.Constant(1.0) is plain attention"
        )
    register_functions(IMPLEMENTATION, functools.partial(attend, chosen), make_mask)


def attend(
    policy: Policy | ByFile,
    module: nn.Module,
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    value: Float[Tensor, "batch kv_heads key value_dim"],
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Float[Tensor, "batch query heads value_dim"], Any]:
    """Compute one layer's attention; transformers calls this in each layer."""
    state = _state_of(policy, module)
    return compute_layer("sdpa", state, module, query, key, value, attention_mask, options)


_states: WeakKeyDictionary[nn.Module, tuple[Any, LayerState]] = WeakKeyDictionary()
"""What holds for each layer that has run, with the policy that it follows from."""


def _state_of(policy: Policy | ByFile, module: nn.Module) -> LayerState:
    kept = _states.get(module)
    if kept is not None and kept[0] is policy:
        return kept[1]
    state = LayerState((Rule(layer_policy(policy, module), None),), None)
    if not torch.compiler.is_compiling():
        _states[module] = policy, state
    return state


@dataclass(frozen=True, eq=False)
class ByFile:
    """A calibration for every registered model, or, if it is None, the one beside each model."""

    calibration: Calibration | None

    def layer_policy(self, module: nn.Module) -> Policy:
        """Return the policy of a layer.

        Raises:
            UserError: There is no calibration, or it does not fit.
        """
        config: Any = getattr(module, "config", None)
        calibration = self.calibration
        if calibration is None:
            file = Path(str(getattr(config, "_name_or_path", ""))) / CALIBRATION_FILE
            if not file.is_file():
                raise UserError(
                    f"{file}: no such file; attn_implementation='sharpmax' was registered to use "
                    "the calibration beside the model"
                )
            calibration = Calibration.load(file)
        index = getattr(module, "layer_idx", None)
        expected = calibration.architecture
        heads = getattr(config, "num_attention_heads", None)
        if config.model_type != expected.model_type or not isinstance(index, int):
            raise UserError(
                f"this calibration is for {calibration.model} ({expected.model_type}), and "
                f"{type(module).__name__} belongs to a {config.model_type}: calibrate this model "
                "itself"
            )
        if (config.num_hidden_layers, heads) != (expected.layers, expected.heads[index]):
            raise UserError(
                f"this calibration is for {calibration.model} with {expected.layers} layers, and "
                f"{expected.heads[0]} heads a layer; this model has {config.num_hidden_layers} "
                f"and {heads}: calibrate this model itself"
            )
        rates = calibration.rates()
        return calibration.policy(index) if index in rates else PLAIN


def layer_policy(policy: Policy | ByFile, module: nn.Module) -> Policy:
    """Return what a registered policy means for a layer."""
    if isinstance(policy, ByFile):
        return policy.layer_policy(module)
    return bind_policy(policy, module)


def registered_policy() -> Policy | ByFile:
    """Return what was given to `register`."""
    policy: Policy | ByFile = ALL_ATTENTION_FUNCTIONS[IMPLEMENTATION].args[0]
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

    policy = registered_policy()
    register_functions(IMPLEMENTATION, functools.partial(attend_and_note, policy), make_mask)
    return lambda: used
