"""The decoder that is trained: a small Gemma with random weights, or any causal model."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import GemmaConfig, GemmaForCausalLM, PreTrainedModel

from sharpmax._errors import UserError
from sharpmax.experiments.clrs_text.config import SMALL, Training
from sharpmax.experiments.clrs_text.tokenization import Example, QATokenizer, build_tokenizer
from sharpmax.hf.loading.loader import load
from sharpmax.hf.quiet import quiet_transformers


class Decoder(NamedTuple):
    """A causal language model with its tokenizer."""

    model: PreTrainedModel
    tokenizer: QATokenizer
    name: str
    notes: tuple[str, ...] = ()


def initial_decoder(training: Training, seed: int) -> Decoder:
    """Return the model before its first step: with random weights, or as `training.model` names."""
    if training.model != SMALL:
        return open_decoder(training.model)
    tokenizer, shape = build_tokenizer(training.vocabulary), training.shape
    config = GemmaConfig(
        vocab_size=tokenizer.vocabulary_size,
        hidden_size=shape.width,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        head_dim=shape.head_size,
        max_position_embeddings=shape.context,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        pad_token_id=tokenizer.pad_id,
        bos_token_id=tokenizer.tokenizer.bos_token_id,
        eos_token_id=tokenizer.end_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = GemmaForCausalLM(config)
    return Decoder(model, tokenizer, _describe(model))


def open_decoder(source: str, device: str = "cpu", dtype: str = "float32") -> Decoder:
    """Load a model from a folder or the hub, with its own tokenizer."""
    loaded = load(source, device=device, dtype=dtype)
    if not loaded.model.can_generate():
        raise UserError(f"{source} is {type(loaded.model).__name__}, which does not generate text")
    if loaded.tokenizer.eos_token_id is None:
        raise UserError(
            f"{source} has a tokenizer without an end-of-text token, so answers could not end"
        )
    name = _describe(loaded.model) if Path(source).is_dir() else loaded.name
    return Decoder(loaded.model, QATokenizer(loaded.tokenizer, loaded.name), name, loaded.notes)


def _describe(model: PreTrainedModel) -> str:
    """Name a model that has no public name."""
    return f"{model.config.model_type.capitalize()} of {model.num_parameters():,} parameters"


def check_context_length(model: PreTrainedModel, examples: Sequence[Example]) -> None:
    """Raise a `UserError` if an example is longer than the model's context."""
    context = getattr(model.config, "max_position_embeddings", None)
    longest = max(examples, key=lambda example: example.length)
    if context is not None and longest.length > context:
        raise UserError(
            f"a sample of size {longest.size} has {longest.length:,} tokens, and the model's "
            f"context has room for {context:,}: choose smaller sizes or another model"
        )


def save_decoder(model: Any, tokenizer: QATokenizer, folder: Path) -> None:
    """Save a folder for `from_pretrained` and `sharpmax scan`, complete or not at all."""
    temporary = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(temporary, ignore_errors=True)
    with quiet_transformers():
        model.save_pretrained(temporary)
        tokenizer.tokenizer.save_pretrained(temporary)
    shutil.rmtree(folder, ignore_errors=True)
    temporary.replace(folder)
