"""A small Llama with random weights, and a tokenizer of characters."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from sharpmax.hf.patch import context, scope
from sharpmax.hf.scan import forward

VOCABULARY = 128


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per ASCII character."""
    characters = {chr(code): code for code in range(VOCABULARY)}
    backend = Tokenizer(models.WordLevel(characters, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="?")


def llama(
    layers: int = 3,
    context: int = 512,
    seed: int = 0,
    initializer_range: float = 0.3,
    **options: object,
) -> PreTrainedModel:
    """Return a model with 4 heads on 2 key heads, and weights so large that some rows are sharp."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCABULARY,
        max_position_embeddings=context,
        initializer_range=initializer_range,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        **options,
    )
    return LlamaForCausalLM(config).eval()


def random_tokens(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def assert_nothing_is_patched() -> None:
    assert not scope._open
    assert not scope.current_scope().patches
    assert not context._holders


@dataclass
class Passes:
    """How many forward passes scans have measured, and after how many the next one fails."""

    number: int = 0
    stop_after: int | None = None


def count_passes(
    monkeypatch: pytest.MonkeyPatch,
    stop_after: int | None = None,
    error: type[BaseException] = KeyboardInterrupt,
) -> Passes:
    """Count the forward passes of scans from now on, and let one fail after `stop_after`."""
    counted, run = Passes(stop_after=stop_after), forward.measure_forward_pass

    def counting(*arguments):
        if counted.number == counted.stop_after:
            raise error
        counted.number += 1
        return run(*arguments)

    monkeypatch.setattr(forward, "measure_forward_pass", counting)
    return counted
