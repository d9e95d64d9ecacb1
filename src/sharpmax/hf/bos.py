"""Put the beginning-of-sequence token before prompts where a model needs it.

Some tokenizers leave the token out although the model was never trained without it, above all
those that transformers builds from GGUF files. Such a model still answers, but it is a broken one:
Gemma 3 270M predicts ordinary text at 6.5 instead of 3.2 nats per token, and no head rests on the
first token. `prepare_tokenizer` is the one place that decides; everything that makes prompts calls
it before.
"""

from __future__ import annotations

import copy
from typing import Any
from weakref import WeakKeyDictionary

import torch
from tokenizers.processors import Sequence, TemplateProcessing
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from sharpmax._errors import UserError
from sharpmax.hf.evaluate.scoring import require_language_model
from sharpmax.hf.patch.layers import evaluation_mode
from sharpmax.hf.patch.wrappers import input_device, unwrap_model

ALWAYS = "gemma"
"""Families with this in their type begin all text with the token, and do not work without it."""

MARGIN = 0.5
"""Nats per token that a model must lose without the token to need it. SmolLM2 and Qwen 2.5, which
were trained without one, change by less than 0.15; Gemma 3 loses 3."""

TEXT = (
    "The library opens at nine every morning except Sunday. Visitors may borrow up to six books at "
    "a time, and keep them for three weeks. If nobody else is waiting for a book, it can be "
    "renewed by telephone."
)
"""What is read with and without the token where nothing else tells whether it is needed."""

_prepared: WeakKeyDictionary[
    PreTrainedModel,
    WeakKeyDictionary[PreTrainedTokenizerBase, tuple[PreTrainedTokenizerBase | None, str | None]],
] = WeakKeyDictionary()
"""By model and tokenizer: the tokenizer to use instead, if any, and the note about it."""


def prepare_tokenizer(model: PreTrainedModel, tokenizer: Any) -> tuple[Any, tuple[str, ...]]:
    """Return a tokenizer that begins texts as the model needs it, and notes for results.

    The answer is found once per model and tokenizer. The user's tokenizer is not changed: where the
    token must be added, a copy adds it.

    Args:
        model: The model that will read the tokens.
        tokenizer: Its tokenizer. One that is not of transformers is returned as it is.

    Raises:
        UserError: The model needs the token, and this kind of tokenizer cannot be made to add it.
    """
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        return tokenizer, ()
    model = unwrap_model(model)
    known = _prepared.setdefault(model, WeakKeyDictionary())
    if tokenizer not in known:
        note, instead = missing_bos(model, tokenizer), None
        if note is not None:
            instead = copy.deepcopy(tokenizer)
            add_bos(instead, find_bos(model, tokenizer))
            known[instead] = (None, note)
        known[tokenizer] = (instead, note)
    instead, note = known[tokenizer]
    return tokenizer if instead is None else instead, () if note is None else (note,)


def complete_tokenizer(model: PreTrainedModel, tokenizer: Any) -> tuple[str, ...]:
    """Do as `prepare_tokenizer`, but change this tokenizer, which must be the caller's own.

    Returns:
        The notes for results.
    """
    note = missing_bos(model, tokenizer)
    if note is None:
        return ()
    add_bos(tokenizer, find_bos(model, tokenizer))
    _prepared.setdefault(model, WeakKeyDictionary())[tokenizer] = (None, note)
    return (note,)


def missing_bos(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Return why a beginning-of-sequence token must be added, as a note for results, or None.

    Tokenizer, chat template and config are asked first. Where they leave it open, the model reads a
    short text with and without the token.
    """
    token = find_bos(model, tokenizer)
    if token is None or _adds_a_first_token(tokenizer):
        return None
    template = tokenizer.chat_template
    if tokenizer.bos_token_id is not None and getattr(tokenizer, "add_bos_token", False):
        reason = "the tokenizer is said to add it"
    elif tokenizer.bos_token_id is not None and ALWAYS in model.config.model_type:
        reason = "models of this family are always trained with it"
    elif isinstance(template, str) and "bos_token" in template:
        reason = "its chat template begins with it"
    else:
        costs = _costs_without_and_with(model, tokenizer, token)
        if costs is None or costs[0] - costs[1] < MARGIN:
            return None
        reason = f"without it ordinary text costs {costs[0]:.1f} instead of {costs[1]:.1f} nats"
        reason += " per token"
    name = tokenizer.convert_ids_to_tokens(token)
    return (
        f"the tokenizer leaves out the beginning-of-sequence token {name}, which the model needs "
        f"({reason}): it was put before every prompt"
    )


def find_bos(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return the beginning-of-sequence token of the tokenizer, or else of the model's config."""
    if tokenizer.bos_token_id is not None:
        return int(tokenizer.bos_token_id)
    token = getattr(model.config.get_text_config(), "bos_token_id", None)
    return token if isinstance(token, int) and token < len(tokenizer) else None


def add_bos(tokenizer: Any, token: int | None) -> None:
    """Make a tokenizer begin every text with a token. Changes the tokenizer.

    Raises:
        UserError: The tokenizer has no Rust backend, so it has no template to change.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise UserError(
            f"{type(tokenizer).__name__} leaves out the beginning-of-sequence token that the model "
            "needs: give a tokenizer that adds it, such as one with a tokenizer.json"
        )
    name, earlier = tokenizer.convert_ids_to_tokens(token), backend.post_processor
    after = _last_tokens(tokenizer)
    if tokenizer.bos_token is None:
        tokenizer.bos_token = name
    # Saved with the tokenizer; transformers would otherwise write its own template on loading.
    tokenizer.add_bos_token = True
    end = "".join(f" {end_name}" for end_name in after)
    template = TemplateProcessing(
        single=f"{name} $A{end}",
        pair=f"{name} $A{end} {name}:1 $B:1{end}",
        special_tokens=[(name, token), *after.items()],
    )
    # One that adds nothing, as that of byte-level tokenizers, stays: it sets the offsets.
    keeps = earlier is not None and not isinstance(earlier, TemplateProcessing) and not after
    backend.post_processor = Sequence([earlier, template]) if keeps else template


def _last_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Return the tokens that are put after every text, such as an end of sequence."""
    plain, complete = (
        tokenizer("a", add_special_tokens=special, verbose=False)["input_ids"]
        for special in (False, True)
    )
    after = complete[len(plain) :]
    return dict(zip(tokenizer.convert_ids_to_tokens(after), after, strict=True))


def _adds_a_first_token(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether texts get a token before them: this one, or another such as [CLS]."""
    plain, complete = (
        tokenizer("a", add_special_tokens=special, verbose=False)["input_ids"]
        for special in (False, True)
    )
    return plain[:1] != complete[:1]


def _costs_without_and_with(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, token: int
) -> tuple[float, float] | None:
    """Return the nats per token of a short text without and with the token before it.

    None if the model cannot be asked: it does not predict the next token, or not these tokens.
    """
    try:
        require_language_model(model)
    except UserError:
        return None
    tokens = tokenizer(TEXT, add_special_tokens=False, verbose=False)["input_ids"]
    if max(tokens, default=0) >= model.config.get_text_config().vocab_size or len(tokens) < 8:
        return None
    with evaluation_mode(model):
        without = _nats_per_token(model, tokens, 1)
        return without, _nats_per_token(model, [token, *tokens], 2)


@torch.no_grad()
def _nats_per_token(model: PreTrainedModel, tokens: list[int], first: int) -> float:
    """Return the mean negative log-probability of the tokens from `first` on."""
    sequence = torch.tensor([tokens], device=input_device(model))
    logits = model(input_ids=sequence, use_cache=False).logits[0, first - 1 : -1]
    chosen = logits.float().log_softmax(-1).gather(1, sequence[0, first:, None].to(logits.device))
    return float(-chosen.mean())
