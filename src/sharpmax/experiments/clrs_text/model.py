"""The decoder that is trained: a small Gemma made here, or any causal model of Hugging Face."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import GemmaConfig, GemmaForCausalLM, PreTrainedModel

from sharpmax._errors import UserError
from sharpmax.experiments.clrs_text import tokens
from sharpmax.experiments.clrs_text.settings import SMALL, Training
from sharpmax.experiments.clrs_text.tokens import Example, Tokens
from sharpmax.hf.loading.loader import load
from sharpmax.hf.quiet import quiet_transformers


class Ready(NamedTuple):
    """A model with its tokens."""

    model: PreTrainedModel
    tokens: Tokens
    name: str
    notes: tuple[str, ...] = ()


def begun(training: Training, seed: int) -> Ready:
    """The model before its first step: random weights that follow from the seed, or those of a
    folder or the hub.
    """
    if training.model != SMALL:
        return opened(training.model)
    made, shape = tokens.made(training.vocabulary), training.shape
    config = GemmaConfig(
        vocab_size=made.vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        head_dim=shape.head_size,
        max_position_embeddings=shape.context,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        pad_token_id=made.pad,
        bos_token_id=made.tokenizer.bos_token_id,
        eos_token_id=made.end,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = GemmaForCausalLM(config)
    return Ready(model, made, _described(model))


def opened(place: str, device: str = "cpu", dtype: str = "float32") -> Ready:
    """The model of a folder or the hub, with its own tokenizer."""
    loaded = load(place, device=device, dtype=dtype)
    if not loaded.model.can_generate():
        raise UserError(f"{place} is {type(loaded.model).__name__}, which does not generate text")
    if loaded.tokenizer.eos_token_id is None:
        raise UserError(f"{place} has a tokenizer without an end of text: answers could not end")
    name = _described(loaded.model) if Path(place).is_dir() else loaded.name
    return Ready(loaded.model, Tokens(loaded.tokenizer, loaded.name), name, loaded.notes)


def _described(model: PreTrainedModel) -> str:
    """For models that have no name that others would know."""
    return f"{model.config.model_type.capitalize()} of {model.num_parameters():,} parameters"


def check_room(model: PreTrainedModel, examples: Sequence[Example]) -> None:
    """Refuse samples that are longer than the model's context."""
    room = getattr(model.config, "max_position_embeddings", None)
    longest = max(examples, key=lambda example: example.length)
    if room is not None and longest.length > room:
        raise UserError(
            f"a sample of size {longest.size} has {longest.length:,} tokens, and the model's "
            f"context has room for {room:,}: choose smaller sizes or another model"
        )


def save(model: Any, made: Tokens, folder: Path) -> None:
    """As a folder that `from_pretrained` and `sharpmax scan` open, whole or not at all."""
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    with quiet_transformers():
        model.save_pretrained(part)
        made.tokenizer.save_pretrained(part)
    shutil.rmtree(folder, ignore_errors=True)
    part.replace(folder)
