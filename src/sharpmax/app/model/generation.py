"""Generate text with plain and with sharpened attention, and see what the heads look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import torch
from markupsafe import Markup
from transformers import StoppingCriteria, StoppingCriteriaList

from sharpmax._errors import UserError
from sharpmax.app import views
from sharpmax.app.background_jobs import Report
from sharpmax.hf import Calibration, scan, sharpen
from sharpmax.hf.loading.loader import Loaded
from sharpmax.hf.model_info import context_length, describe_length_temperature
from sharpmax.hf.tune.calibration import find_calibration
from sharpmax.policies import Policy
from sharpmax.report.blocks import TokenView
from sharpmax.report.kinds.scan_view import Head, ScanView
from sharpmax.report.kinds.token_view import token_view
from sharpmax.report.renderers import html

EMPTY_TEXT = " (The model wrote nothing.)"
SHOWN_PROMPT = 160
"""Characters of the prompt's end that stand before each text."""


@dataclass(frozen=True)
class GenerationRequest:
    """What to generate from, and how to sharpen."""

    prompt: str
    policy: Policy | Calibration | str
    layers: Sequence[int] | None
    heads: Sequence[int] | None
    max_tokens: int
    chat: bool
    """Whether to use the model's chat template, if it has one."""


@dataclass(frozen=True)
class TextPair:
    """The plain and the sharpened continuation of one prompt."""

    prompt: str
    plain: str
    sharpened: str
    first_difference: int | None
    """Index of the first token that differs; None if the texts are the same."""
    notes: tuple[str, ...]
    tokens: TokenView | None = None
    """What the heads look at when the model begins to write, plain and sharpened."""
    answer: str | None = None
    """The right answer, if it is known."""


class _ProgressReporter(StoppingCriteria):
    """Reports progress after each token, which also stops the job if it is no longer wanted."""

    def __init__(self, report: Report, done: int, total: int) -> None:
        self.report, self.done, self.total = report, done, total

    def __call__(self, input_ids: Any, scores: Any, **others: Any) -> Any:
        self.done += 1
        self.report(min(1.0, self.done / self.total))
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def generate_pair(loaded: Loaded, request: GenerationRequest, report: Report) -> TextPair:
    """Generate plain, then sharpened text; the model is the same as before afterwards.

    Raises:
        UserError: The prompt is empty or too long, or the model cannot generate text.
    """
    model, tokenizer = loaded.model, loaded.tokenizer
    tokens, count = _encode_prompt(loaded, request), request.max_tokens
    policy = (
        find_calibration(model, request.policy)
        if isinstance(request.policy, str)
        else (request.policy)
    )
    plain = _generate(loaded, tokens, count, _ProgressReporter(report, 0, 2 * count))
    with sharpen(model, policy, layers=request.layers, heads=request.heads):
        sharpened = _generate(loaded, tokens, count, _ProgressReporter(report, count, 2 * count))
    notes = []
    if own := describe_length_temperature(model):
        notes.append(f"The model has a length temperature of its own: {own}.")
    if isinstance(policy, Calibration) and len(tokens) <= policy.from_tokens:
        notes.append(
            f"The calibration is off here: the prompt has {len(tokens):,} tokens, and it changes "
            f"nothing up to {policy.from_tokens:,}."
        )
    view = None
    try:
        view = compare_tokens(loaded, tokens, replace(request, policy=policy))
    except NotImplementedError as error:
        notes.append(f"No view of tokens: {error}.")
    return TextPair(
        request.prompt,
        str(tokenizer.decode(plain, skip_special_tokens=True)),
        str(tokenizer.decode(sharpened, skip_special_tokens=True)),
        None if plain == sharpened else _common_prefix(plain, sharpened),
        tuple(notes),
        view,
    )


def compare_tokens(loaded: Loaded, tokens: list[int], request: GenerationRequest) -> TokenView:
    """Return what the heads look at when the model begins to write, plain and sharpened.

    The head that is chosen first is the one whose weight of a token after the first changes most.
    """
    model: Any = loaded.model

    def measure() -> ScanView:
        return ScanView.of(scan(model, loaded.tokenizer, [1], lambda _: tokens))

    views = [measure()]
    with sharpen(model, request.policy, layers=request.layers, heads=request.heads):
        views.append(measure())
    named = list(zip(("plain", "sharpened"), views, strict=True))
    view = token_view(named, _most_changed(*views))
    assert view is not None  # scans of this version keep tokens
    return view


def _most_changed(before: ScanView, after: ScanView) -> tuple[int, int]:
    """Return the row and column of the head whose weight of a later token grows most."""

    def weights(view: ScanView, head: Head) -> dict[int, float]:
        arrays = view.result.arrays
        at = (0, head.row, head.column)
        pairs = zip(arrays["strongest"][at], arrays["strongest_weight"][at], strict=True)
        return {int(token): float(weight) for token, weight in pairs if token > 0}

    def growth(head: Head) -> float:
        old, new = weights(before, head), weights(after, head)
        return max((weight - old.get(token, 0.0) for token, weight in new.items()), default=0.0)

    head = max(before.heads, key=growth)
    return head.row, head.column


def _common_prefix(first: Sequence[Any], second: Sequence[Any]) -> int:
    """Return the length of the common prefix of two sequences."""
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _encode_prompt(loaded: Loaded, request: GenerationRequest) -> list[int]:
    """Return the tokens of the prompt, after checking that model and context allow the request."""
    if not request.prompt.strip():
        raise UserError("type a prompt for the model to continue")
    if not loaded.model.can_generate():
        raise UserError(f"{loaded.name} cannot generate text: it is not a causal language model")
    tokenizer: Any = loaded.tokenizer
    if request.chat and getattr(tokenizer, "chat_template", None):
        messages = [{"role": "user", "content": request.prompt}]
        encoded = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=True
        )
    else:
        encoded = tokenizer(request.prompt, verbose=False)
    tokens = list(encoded["input_ids"])
    context = context_length(loaded.model)
    if context is not None and len(tokens) + request.max_tokens > context:
        raise UserError(
            f"the prompt has {len(tokens):,} tokens, and with {request.max_tokens:,} more it is "
            f"longer than the context of this model, {context:,}: shorten it"
        )
    return tokens


def _generate(
    loaded: Loaded, tokens: list[int], max_tokens: int, reporter: _ProgressReporter
) -> list[int]:
    """Return the greedy continuation: the most likely token at each step."""
    model: Any = loaded.model
    input_ids = torch.tensor([tokens], device=model.device)
    end = model.generation_config.eos_token_id
    with torch.no_grad():
        output = model.generate(
            input_ids,
            attention_mask=torch.ones_like(input_ids),
            max_new_tokens=max_tokens,
            do_sample=False,
            temperature=None,
            top_p=None,
            top_k=None,
            pad_token_id=end[0] if isinstance(end, list) else end,
            stopping_criteria=StoppingCriteriaList([reporter]),
        )
    return [int(token) for token in output[0, len(tokens) :]]


def render_pair(pair: TextPair, policy: str) -> Markup:
    """Return both texts after the end of the prompt, and what the heads look at."""
    if pair.first_difference is None:
        summary = "Both are the same."
    else:
        summary = f"They differ from token {pair.first_difference + 1:,} on."
    same = _common_prefix(pair.plain, pair.sharpened)
    prompt = pair.prompt
    if len(prompt) > SHOWN_PROMPT:
        prompt = f"… {prompt[-SHOWN_PROMPT:].partition(' ')[2]}"
    section = Markup(
        '<section><h3>{} {}</h3><p class="written"><span class="prompt">{}</span>{}'
        '<span class="difference">{}</span></p></section>'
    )
    titles = (("Plain attention", pair.plain), (f"With {policy}", pair.sharpened))
    sections = [
        section.format(title, _verdict(text, pair.answer), prompt, text[:same], text[same:])
        if text
        else section.format(title, "", prompt, "", EMPTY_TEXT)
        for title, text in titles
    ]
    messages = [views.message(summary), *map(views.message, pair.notes)]
    view = html.fragment([], [pair.tokens]) if pair.tokens else Markup("")
    return Markup('{}<div class="columns">{}</div>{}').format(
        Markup("").join(messages), Markup("").join(sections), view
    )


def _verdict(text: str, answer: str | None) -> Markup:
    """Return a mark for a right or a wrong answer; nothing if the answer is not known."""
    if answer is None:
        return Markup("")
    right = text.strip().startswith(answer.strip())
    word = "right" if right else "wrong"
    return Markup('<span class="answer" data-right="{}">{}</span>').format(word, word)
