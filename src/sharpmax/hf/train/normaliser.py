"""Put a normaliser into a model, for training, and load a model that was saved with one."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from pathlib import Path
from typing import Any

import transformers
from torch import nn
from transformers import AutoConfig, PreTrainedModel

from sharpmax._array import is_number
from sharpmax._errors import UserError
from sharpmax.hf.patch.attention import NORMALISED, register_functions
from sharpmax.hf.patch.layers import attention_layers, count_heads, find_configs
from sharpmax.hf.patch.masks import make_mask
from sharpmax.hf.patch.parity import require_support
from sharpmax.hf.train.head_normaliser import (
    LOWER_BOUNDS,
    SUBMODULE,
    HeadNormaliser,
    attend_normalised,
)
from sharpmax.normalisers import NORMALISERS, Normaliser

RECORD = "sharpmax_normaliser"
"""Where config.json has the normaliser."""


def with_normaliser(
    model: PreTrainedModel,
    normaliser: str | Normaliser,
    *,
    learn: Collection[str] | None = None,
) -> PreTrainedModel:
    """Let every attention layer of a model turn logits into weights by a normaliser.

    For training from scratch, or for fine-tuning. The model is changed in place. Learned
    parameters, one value per head, become parameters of the attention layers: optimisers find them,
    and `save_pretrained` stores them. Load such a model with `load_with_normaliser`; transformers
    alone refuses it.

    Calling it again replaces the normaliser. A normaliser that is a factor on the query (softmax,
    both kinds of scalable softmax) runs SDPA. Adaptive temperature runs sharpmax's own attention.
    All others hold the matrix of weights.

    Args:
        model: A transformers model.
        normaliser: A name in `sharpmax.normalisers.NORMALISERS`, or an instance of one of these
            classes, whose fields are the initial values.
        learn: The names of the fields to learn. Default: all `parameters` of the normaliser except
            alpha, power and temperature, which must stay above a number and are fixed unless named.

    Returns:
        The model.

    Raises:
        UserError: The normaliser is unknown or needs more than the logits of a row, a field cannot
            be learned, or the architecture is not supported or has attention sinks.

    Examples:
        >>> model = AutoModelForCausalLM.from_config(config)
        >>> shf.with_normaliser(model, "scalable-softmax")
        >>> Trainer(model, ...).train()
        >>> model.save_pretrained(folder)
        >>> model = shf.load_with_normaliser(folder)
    """
    name, instance = _find_normaliser(normaliser)
    fields = _changed_fields(name, instance)
    learned = _choose_learned(name, instance, learn)
    if not isinstance(model, PreTrainedModel):
        raise UserError(f"expected a transformers model, got {type(model).__name__}")
    if getattr(model.config, RECORD, None) is None:
        require_support(model)
    for layer in attention_layers(model):
        if getattr(layer.module, "sinks", None) is not None:
            raise UserError(
                f"{type(model).__name__} has attention sinks, which are part of softmax: they "
                "cannot be combined with another normaliser"
            )
    _install(model, {"name": name, "fields": fields, "learned": list(learned)})
    return model


def load_with_normaliser(folder: str | Path, **options: Any) -> PreTrainedModel:
    """Load a model that was saved after `with_normaliser`, with its learned parameters.

    Args:
        folder: The folder or hub name, as for `from_pretrained`.
        options: What else `from_pretrained` takes, such as `dtype` and `device_map`.

    Returns:
        The model, of the class that was saved.

    Raises:
        UserError: The model was saved without a normaliser, or a tensor is missing.

    Examples:
        >>> model = shf.load_with_normaliser("trained", dtype="bfloat16")
    """
    config = options.pop("config", None) or AutoConfig.from_pretrained(folder)
    if getattr(config, RECORD, None) is None:
        raise UserError(
            f"{folder} was saved without a normaliser of sharpmax: load it with from_pretrained"
        )
    options["output_loading_info"] = True
    model, loading = normalised_class(config).from_pretrained(folder, config=config, **options)
    missing = sorted(name for name in loading["missing_keys"] if f".{SUBMODULE}." in name)
    if missing:
        raise UserError(
            f"{folder} lacks {missing[0]}, a learned parameter of its normaliser: save the model "
            "with save_pretrained again"
        )
    return model


def normalised_class(config: Any) -> Any:
    """Return a class whose `from_pretrained` makes a model with the normaliser of its config.

    The layers need their parameters before transformers reads the weights. The model that
    `from_pretrained` returns has the class that its architecture names.
    """
    names = config.architectures or []
    base: Any = getattr(transformers, names[0], None) if len(names) == 1 else None
    if base is None:
        raise UserError(
            f"config.json names the architectures {names}: expected one class of transformers"
        )
    record = _read_record(config)
    register_functions(NORMALISED, attend_normalised, make_mask)

    def initialise(self: Any, config: Any, *arguments: Any, **options: Any) -> None:
        base.__init__(self, config, *arguments, **options)
        _install(self, record)

    def from_pretrained(kind: Any, *arguments: Any, **options: Any) -> Any:
        answer = super(subclass, kind).from_pretrained(*arguments, **options)
        model = answer[0] if isinstance(answer, tuple) else answer
        model.__class__ = base
        return answer

    members = {"__init__": initialise, "from_pretrained": classmethod(from_pretrained)}
    subclass: Any = type(base.__name__, (base,), {**members, "__module__": base.__module__})
    return subclass


def normaliser_of(model: PreTrainedModel) -> str | None:
    """Return the name of the normaliser in a model; None for a model without."""
    record = getattr(model.config, RECORD, None)
    return None if record is None else str(record["name"])


def _find_normaliser(normaliser: str | Normaliser) -> tuple[str, Normaliser]:
    """Return the name and an instance of a normaliser that can be put into a model."""
    if isinstance(normaliser, str):
        if normaliser not in NORMALISERS:
            raise UserError(
                f"unknown normaliser {normaliser!r}: expected one of {', '.join(NORMALISERS)}"
            )
        name, instance = normaliser, NORMALISERS[normaliser]
    else:
        names = {type(known): name for name, known in NORMALISERS.items()}
        if type(normaliser) not in names:
            raise UserError(
                f"normaliser must be a name or an instance of a class in "
                f"sharpmax.normalisers.NORMALISERS, got {normaliser!r}: add your own class there"
            )
        name, instance = names[type(normaliser)], normaliser
    if instance.needs is not None:
        raise UserError(
            f"{name} needs {instance.needs}, which an attention layer does not give it: choose "
            "another normaliser"
        )
    return name, instance


def _changed_fields(name: str, normaliser: Normaliser) -> dict[str, Any]:
    """Return the fields that differ from those of the normaliser of that name, for config.json."""
    changed = {}
    for field in dataclasses.fields(normaliser):  # type: ignore[arg-type]
        value = getattr(normaliser, field.name)
        if value is getattr(NORMALISERS[name], field.name):
            continue
        if not is_number(value):
            raise UserError(
                f"{field.name}={value!r} of {name} cannot be stored in config.json: give a number"
            )
        changed[field.name] = value
    return changed


def _choose_learned(
    name: str, normaliser: Normaliser, learn: Collection[str] | None
) -> tuple[str, ...]:
    """Return the names of the fields to learn, in their order."""
    known = normaliser.parameters
    if learn is None:
        return tuple(field for field in known if field not in LOWER_BOUNDS)
    if isinstance(learn, str) or not set(learn) <= set(known):
        raise UserError(
            f"learn={learn!r}: {name} has {', '.join(known) or 'nothing'} to learn; give several "
            "names such as ['scale'], or [] for none"
        )
    for field in learn:
        low = LOWER_BOUNDS.get(field)
        if low is not None and not getattr(normaliser, field) > low:
            raise UserError(
                f"{field}={getattr(normaliser, field)!r}: a learned one must begin above {low:g}"
            )
    return tuple(field for field in known if field in learn)


def _read_record(config: Any) -> dict[str, Any]:
    """Return what config.json says of the normaliser.

    Raises:
        UserError: It is damaged, or names a normaliser that is not known here.
    """
    record = getattr(config, RECORD)
    try:
        name = record["name"]
        instance = dataclasses.replace(NORMALISERS[name], **record["fields"])  # type: ignore[type-var]
        _choose_learned(name, instance, record["learned"])
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"config.json holds {RECORD}={record!r}, which this version of sharpmax cannot read "
            f"({error}): use the version that wrote it"
        ) from error
    return dict(record)


def _install(model: PreTrainedModel, record: dict[str, Any]) -> None:
    """Give each layer its normaliser, and let the configs name it."""
    register_functions(NORMALISED, attend_normalised, make_mask)
    normaliser = dataclasses.replace(NORMALISERS[record["name"]], **record["fields"])  # type: ignore[type-var]
    learned = tuple(record["learned"])
    for layer in attention_layers(model):
        head = HeadNormaliser(normaliser, learned, count_heads(layer), _float_weight(layer.module))
        setattr(layer.module, SUBMODULE, head)
    for config in find_configs(model):
        config._attn_implementation_internal = NORMALISED
    # What `save_pretrained` writes: transformers refuses a name that is not registered.
    model.config.attn_implementation = NORMALISED
    setattr(model.config, RECORD, record)


def _float_weight(module: nn.Module) -> Any:
    """Return a weight of a layer that has a floating type."""
    return next(weight for weight in module.parameters() if weight.is_floating_point())
