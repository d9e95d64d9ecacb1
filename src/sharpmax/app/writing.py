"""What a model writes plain and sharpened, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch
from markupsafe import Markup
from transformers import StoppingCriteria, StoppingCriteriaList

from sharpmax._errors import UserError
from sharpmax.app.runs import Tell
from sharpmax.hf import sharpen
from sharpmax.hf.loading.loader import Loaded
from sharpmax.hf.model_info import context_length, describe_length_temperature
from sharpmax.policies import Policy

NOTHING = " (The model ended at once.)"


@dataclass(frozen=True)
class Asked:
    """What to write on, and how to sharpen."""

    prompt: str
    policy: Policy
    layers: Sequence[int] | None
    heads: Sequence[int] | None
    tokens: int
    """That are written at most."""
    chat: bool
    """Whether to ask as the model's own format of a conversation has it, if it has one."""


@dataclass(frozen=True)
class Written:
    """Two texts on one prompt."""

    prompt: str
    plain: str
    sharpened: str
    first_other: int | None
    """The first token that differs, from 0; None if none does."""
    notes: tuple[str, ...]


class _Watch(StoppingCriteria):
    """Says how far it is after each token, and so learns whether it is still wanted."""

    def __init__(self, tell: Tell, before: int, all_tokens: int) -> None:
        self.tell, self.done, self.all = tell, before, all_tokens

    def __call__(self, input_ids: Any, scores: Any, **others: Any) -> Any:
        self.done += 1
        self.tell(min(1.0, self.done / self.all))
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def write(loaded: Loaded, asked: Asked, tell: Tell) -> Written:
    """Write plain, then sharpened; afterwards the model is what it was before."""
    tokens = _tokens(loaded, asked)
    plain = _continued(loaded, tokens, asked.tokens, _Watch(tell, 0, 2 * asked.tokens))
    with sharpen(loaded.model, asked.policy, layers=asked.layers, heads=asked.heads):
        watch = _Watch(tell, asked.tokens, 2 * asked.tokens)
        other = _continued(loaded, tokens, asked.tokens, watch)
    pairs = zip(plain, other, strict=False)
    first = next((place for place, (one, two) in enumerate(pairs) if one != two), None)
    if first is None and len(plain) != len(other):
        first = min(len(plain), len(other))
    own = describe_length_temperature(loaded.model)
    notes = () if own is None else (f"The model has a length temperature of its own: {own}.",)
    texts = [loaded.tokenizer.decode(one, skip_special_tokens=True) for one in (plain, other)]
    return Written(asked.prompt, str(texts[0]), str(texts[1]), first, notes)


def _tokens(loaded: Loaded, asked: Asked) -> list[int]:
    if not asked.prompt.strip():
        raise UserError("type a prompt for the model to go on from")
    if not loaded.model.can_generate():
        raise UserError(f"{loaded.name} cannot write text: it is no causal language model")
    tokenizer: Any = loaded.tokenizer
    if asked.chat and getattr(tokenizer, "chat_template", None):
        talk = [{"role": "user", "content": asked.prompt}]
        made = tokenizer.apply_chat_template(talk, add_generation_prompt=True, return_dict=True)
    else:
        made = tokenizer(asked.prompt, verbose=False)
    tokens = list(made["input_ids"])
    context = context_length(loaded.model)
    if context is not None and len(tokens) + asked.tokens > context:
        raise UserError(
            f"the prompt has {len(tokens):,} tokens, and with {asked.tokens:,} more it is longer "
            f"than the context of this model, {context:,}: shorten it"
        )
    return tokens


def _continued(loaded: Loaded, tokens: list[int], most: int, watch: _Watch) -> list[int]:
    """The most likely token after each other."""
    model: Any = loaded.model
    ids = torch.tensor([tokens], device=model.device)
    end = model.generation_config.eos_token_id
    with torch.no_grad():
        made = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=most,
            do_sample=False,
            temperature=None,
            top_p=None,
            top_k=None,
            pad_token_id=end[0] if isinstance(end, list) else end,
            stopping_criteria=StoppingCriteriaList([watch]),
        )
    return [int(token) for token in made[0, len(tokens) :]]


def html(written: Written, name: str) -> Markup:
    """Both texts after the prompt; from where they differ, in another colour."""
    if written.first_other is None:
        sentence = "Both are the same."
    else:
        sentence = f"They differ from token {written.first_other + 1:,} on."
    pairs = zip(written.plain, written.sharpened, strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    side = Markup(
        '<section><h3>{}</h3><p class="written"><span class="asked">{}</span>{}'
        '<span class="other">{}</span></p></section>'
    )
    sides = [
        side.format(title, written.prompt, text[:same], text[same:] if text else NOTHING)
        for title, text in (("Plain", written.plain), (f"Sharpened: {name}", written.sharpened))
    ]
    notes = Markup("").join(Markup('<p class="said">{}</p>').format(note) for note in written.notes)
    return Markup('<p class="said">{}</p>{}<div class="sides">{}</div>').format(
        sentence, notes, Markup("").join(sides)
    )
