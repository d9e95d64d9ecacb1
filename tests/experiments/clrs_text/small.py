"""A small training, and a model folder with the real Gemma 2B's config, shrunk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import GemmaConfig, GemmaForCausalLM, PreTrainedTokenizerFast

from hf.small import tokenizer as characters
from sharpmax.experiments.clrs_text.config import Shape, Training
from sharpmax.experiments.clrs_text.data import Source, load_samples
from sharpmax.experiments.clrs_text.train import Job

SAMPLE = Path(__file__).parent / "sample"
SOME = ("minimum", "bfs")
TINY = Training(
    shape=Shape(width=32, layers=2, heads=2, key_heads=1, head_size=16, inner=48, context=512),
    steps=6,
    batch=4,
    micro=2,
    learning_rate=1e-2,
    warm_up=2,
    growing=0.5,
)

GEMMA_2B: dict[str, Any] = {
    # The config of google/gemma-2b without the sizes, which `SHRUNK` has.
    "attention_bias": False,
    "attention_dropout": 0.0,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
SHRUNK = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "head_dim": 8,
    "vocab_size": 128,
}


def train_data(*algorithms: str) -> Source:
    return load_samples(SAMPLE / "train", "train", algorithms=algorithms or SOME)


def job(out: Path, seed: int = 0, **changes: Any) -> Job:
    return Job(replace(TINY, **changes), seed, train_data(), out)


def gemma_folder(folder: Path, **changes: Any) -> Path:
    """Save a small Gemma as users have it on disk, with a tokenizer of characters."""
    torch.manual_seed(0)
    GemmaForCausalLM(GemmaConfig(**GEMMA_2B, **SHRUNK, **changes)).save_pretrained(folder)
    made = PreTrainedTokenizerFast(
        tokenizer_object=characters()._tokenizer,
        unk_token="?",
        pad_token=chr(0),
        eos_token=chr(1),
        bos_token=chr(2),
    )
    made.save_pretrained(folder)
    return folder
