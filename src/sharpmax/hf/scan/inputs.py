"""The tokens that a scan lets a model read, made and measured before any of them is read."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import numpy as np
from transformers import PreTrainedModel

from sharpmax._errors import UserError
from sharpmax.hf.scan.prompts import Prompt


def inputs_of(
    model: PreTrainedModel, kind: Prompt, lengths: Sequence[int] | None
) -> dict[int, list[int]]:
    """The tokens of each length, all made before the first of them is read: what does not fit is
    refused before any work.
    """
    _refuse_other_inputs(model)
    context = context_of(model)
    if lengths is None:
        usual = [length for length in kind.lengths if kind.most is None or length <= kind.most]
        made = {length: kind.tokens(length) for length in usual}
        fits = {n: tokens for n, tokens in made.items() if len(tokens) <= (context or len(tokens))}
        if not fits:
            raise UserError(f"none of the usual lengths of prompt {kind.name!r} fits: give lengths")
        return fits
    check_lengths(lengths)
    _refuse_too_long(lengths, kind)
    made = {length: kind.tokens(length) for length in sorted(set(lengths))}
    for length, tokens in made.items():
        if context is not None and len(tokens) > context:
            fit = [n for n, some in made.items() if len(some) <= context]
            raise UserError(
                f"{length:,} {kind.unit} are {len(tokens):,} tokens, and the context of this model "
                f"is {context:,}: give lengths up to "
                + (f"{max(fit):,}, of those asked for" if fit else "fewer than that")
            )
    return made


def check_lengths(lengths: Sequence[int]) -> None:
    if not lengths:
        raise UserError("lengths is empty: give at least one, or None for the usual ones")
    for length in lengths:
        if isinstance(length, bool) or not isinstance(length, (int, np.integer)) or length < 1:
            raise UserError(f"lengths must be whole numbers from 1 up, got {length!r}")


def _refuse_too_long(lengths: Sequence[int], kind: Prompt) -> None:
    for length in lengths:
        if kind.most is not None and length > kind.most:
            raise UserError(
                f"length {length:,}: {kind.name} has {kind.most:,} tokens only; give a longer text "
                "or smaller lengths"
            )


def _refuse_other_inputs(model: PreTrainedModel) -> None:
    if reads_two_texts(model):
        raise UserError(f"{type(model).__name__} is an encoder-decoder: scan model.get_encoder()")
    if model.main_input_name != "input_ids":
        raise UserError(
            f"{type(model).__name__} reads {model.main_input_name} and not tokens: it cannot be "
            "scanned with a text"
        )


def reads_two_texts(model: PreTrainedModel) -> bool:
    """Whether it is an encoder with its decoder; each alone has the same config."""
    return "decoder_input_ids" in inspect.signature(model.forward).parameters


def context_of(model: PreTrainedModel) -> int | None:
    """How many tokens the model can read, as its config says."""
    config = model.config.get_text_config()
    for name in ("max_position_embeddings", "n_positions"):
        found = getattr(config, name, None)
        if isinstance(found, int):
            return found
    return None
