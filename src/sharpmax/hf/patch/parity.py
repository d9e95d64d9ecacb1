"""Check that patching alone does not change a model's answers."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from sharpmax._errors import UserError
from sharpmax.hf.patch import attention
from sharpmax.hf.patch.attention import NORMALISED
from sharpmax.hf.patch.context import observed_layers, patched_attention
from sharpmax.hf.patch.layers import (
    attention_implementation,
    attention_layers,
    evaluation_mode,
    find_configs,
)
from sharpmax.hf.patch.parallel import group_of
from sharpmax.hf.patch.scope import PLAIN, Scope, entered
from sharpmax.hf.patch.wrappers import input_device

TESTED_MODEL_TYPES = frozenset(
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
"""`config.model_type` of the families that the tests compare with eager attention, with padding on
both sides, caches and `generate`. Other models are compared when they are first used."""


_equal_eager: WeakSet[nn.Module] = WeakSet()
"""The layers of other models that were compared."""


def require_support(model: PreTrainedModel) -> None:
    """Refuse a model whose answers would change by patching alone, or whose heads are split oddly.

    Tested families pass. Any other model is compared with its own eager attention on a few random
    tokens, once.

    Raises:
        UserError: The answers differ, or the comparison is impossible. Names the architecture.
    """
    require_softmax(model)
    group_of(model)
    # With this option eager attention stays causal in Gemma and Gemma 2, and others do not.
    unusual = getattr(model.config, "use_bidirectional_attention", None)
    if model.config.model_type in TESTED_MODEL_TYPES and not unusual:
        return
    layers = attention_layers(model)
    if all(layer.module in _equal_eager for layer in layers):
        return
    reason = find_difference(model)
    if reason is not None:
        raise UserError(
            f"{type(model).__name__} ({model.config.model_type}) is not among the tested "
            f"architectures, and {reason}: not supported"
        )
    _equal_eager.update(layer.module for layer in layers)


def require_softmax(model: PreTrainedModel) -> None:
    """Refuse a model whose layers have another normaliser, which would be replaced by softmax.

    Raises:
        UserError: `with_normaliser` changed the model.
    """
    if any(config._attn_implementation_internal == NORMALISED for config in find_configs(model)):
        raise UserError(
            f"{type(model).__name__} has a normaliser of its own (with_normaliser), and this is "
            "defined for softmax: use a model with softmax"
        )


def find_difference(model: PreTrainedModel) -> str | None:
    """Return why patching would change this model's answers, or None if it does not.

    Compares plain attention with eager attention on a batch without padding, for which there may
    be no mask at all, and on one with padding.
    """
    try:
        vocabulary = getattr(model.config.get_text_config(), "vocab_size", None)
        if model.main_input_name != "input_ids" or vocabulary is None:
            return f"it reads {model.main_input_name}, which a check by tokens cannot make up"
        with evaluation_mode(model):
            return _compare(model, vocabulary, 0) or _compare(model, vocabulary, 3)
    except NotImplementedError as error:
        return f"its attention asks for something that is not supported ({error})"
    except Exception as error:
        return f"it fails on a few random tokens ({type(error).__name__}: {error})"


def _compare(model: PreTrainedModel, vocabulary: int, padding: int) -> str | None:
    """Compare on a batch of two sequences, the second with padding on the left."""
    layers = attention_layers(model)
    # In an empty scope, since the model may be inside `sharpen`.
    with entered(Scope((), ())), attention_implementation(model, "eager"):
        expected = _run_random_tokens(model, vocabulary, padding)
    # Our own attention computes it, and sharpens nothing.
    with patched_attention(model, layers), observed_layers(layers, lambda _: _compute_plain):
        answers = _run_random_tokens(model, vocabulary, padding)
    # The order of rounding differs. On a model of 30 layers it makes a difference of 13 units of
    # the largest answer in float32 and 6 in half precision; a lost mask makes one of 90.
    units = 16 if torch.finfo(expected.dtype).bits == 16 else 50
    tolerance = units * torch.finfo(expected.dtype).eps * float(expected.abs().max())
    difference = float((answers - expected).abs().max())
    if not difference <= tolerance:
        return f"its answers differ from those of eager attention by {difference:.2g}"
    return None


def _compute_plain(arguments: dict[str, Any]) -> Tensor:
    return attention.compute_attention({**arguments, "policy": PLAIN})


@torch.no_grad()
def _run_random_tokens(model: PreTrainedModel, vocabulary: int, padding: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(vocabulary, (2, 12), generator=generator).to(input_device(model))
    mask = torch.ones_like(tokens)
    mask[1, :padding] = 0
    inputs = {"input_ids": tokens, "attention_mask": mask}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = tokens[:, 3:]
    answers: Tensor = model(**inputs)[0]
    # One answer per token, of which those at padding mean nothing, or one per sequence.
    return answers[mask.bool()] if answers.shape[:2] == mask.shape else answers
