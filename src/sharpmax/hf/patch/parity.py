"""Architectures are supported by test or refused by name.

`TESTED` is what the test-suite compares with eager attention: padding on both sides, caches,
`generate`. Any other model is compared on the spot, on a few random tokens without and with
padding, and refused if the answers differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakSet

import torch
from torch import Tensor
from transformers import PreTrainedModel

from sharpmax._errors import UserError
from sharpmax.hf.patch import attention
from sharpmax.hf.patch.context import evaluating, implemented, ruled
from sharpmax.hf.patch.layers import Layer, attention_layers

TESTED = frozenset(
    (
        "bert",
        "gemma",
        "gemma2",
        "gemma3_text",
        "gpt2",
        "gpt_neox",
        "gpt_oss",
        "llama",
        "mistral",
        "modernbert",
        "olmo2",
        "phi3",
        "qwen2",
        "qwen3",
        "t5",
        "vit",
        "whisper",
    )
)
"""`config.model_type` of the families in tests/hf/test_families.py."""

TOKENS = 12
PADDED = 3

_passed: WeakSet[PreTrainedModel] = WeakSet()


def require_support(model: PreTrainedModel) -> None:
    """Raise, naming the architecture, unless its family is tested or this model passes `check`."""
    # With this option eager attention stays causal in Gemma and Gemma 2, and others do not.
    unusual = getattr(model.config, "use_bidirectional_attention", None)
    if (model.config.model_type in TESTED and not unusual) or model in _passed:
        return
    reason = check(model)
    if reason is not None:
        raise UserError(
            f"{type(model).__name__} ({model.config.model_type}) is not among the tested "
            f"architectures, and {reason}: not supported"
        )
    _passed.add(model)


def check(model: PreTrainedModel) -> str | None:
    """What is wrong with this model's attention under sharpmax; None if, unsharpened, its answers
    equal those of eager attention on a batch without padding, for which there may be no mask at
    all, and on one with padding.
    """
    layers = attention_layers(model)
    try:
        vocabulary = getattr(model.config.get_text_config(), "vocab_size", None)
        if model.main_input_name != "input_ids" or vocabulary is None:
            return f"it reads {model.main_input_name}, which a check by tokens cannot make up"
        with evaluating(model):
            return _compare(model, layers, vocabulary, 0) or _compare(
                model, layers, vocabulary, PADDED
            )
    except NotImplementedError as error:
        return f"its attention asks for something that is not served ({error})"
    except Exception as error:
        return f"it fails on a few random tokens ({type(error).__name__}: {error})"


def _compare(
    model: PreTrainedModel, layers: list[Layer], vocabulary: int, padded: int
) -> str | None:
    with implemented(model, "eager"):
        expected = _answer(model, vocabulary, padded)
    with ruled(model, layers), _plain(layers):
        found = _answer(model, vocabulary, padded)
    # Another order of rounding: measured on a model of 30 layers it is 13 units of the largest
    # answer in float32 and 6 in half precision, where a lost mask is 90.
    units = 16 if torch.finfo(expected.dtype).bits == 16 else 50
    tolerance = units * torch.finfo(expected.dtype).eps * float(expected.abs().max())
    difference = float((found - expected).abs().max())
    if not difference <= tolerance:
        return f"its answers differ from those of eager attention by {difference:.2g}"
    return None


@contextmanager
def _plain(layers: list[Layer]) -> Iterator[None]:
    """Nothing sharpened, also in a model whose `attn_implementation` is "sharpmax"."""
    before = {layer.module: attention.RULES[layer.module] for layer in layers}
    try:
        attention.RULES.update(dict.fromkeys(before, ()))
        yield
    finally:
        attention.RULES.update(before)


@torch.no_grad()
def _answer(model: PreTrainedModel, vocabulary: int, padded: int) -> Tensor:
    """The model's answer for a batch of two, one of them padded on the left."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(vocabulary, (2, TOKENS), generator=generator).to(model.device)
    mask = torch.ones_like(tokens)
    mask[1, :padded] = 0
    inputs = {"input_ids": tokens, "attention_mask": mask}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = tokens[:, PADDED:]
    answer: Tensor = model(**inputs)[0]
    # One answer a token, of which those at padding mean nothing, or one a sequence.
    return answer[mask.bool()] if answer.shape[:2] == mask.shape else answer
