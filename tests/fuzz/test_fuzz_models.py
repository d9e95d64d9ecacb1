"""Damaged models in folders and GGUF files: every case is loaded or refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from damage import accept, damage, mutate

from hf.small import llama, tokenizer
from sharpmax.hf import load


@pytest.fixture(scope="module")
def small_folder(tmp_path_factory) -> Path:
    """A model of a few kilobytes; do not change it."""
    folder = tmp_path_factory.mktemp("small")
    model = llama(layers=2, context=64)
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def check_folder(source: Path, number: int, folder: Path) -> None:
    """Mutate one file of a model and load it."""
    rng = np.random.default_rng([number, 2])
    names = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    name = names[rng.choice(4, p=[0.5, 0.3, 0.1, 0.1])]
    target = folder / f"model{number}"
    shutil.copytree(source, target)
    content = (source / name).read_bytes()
    if name.endswith(".json") and rng.random() < 0.8:
        values = json.loads(content)
        mutate(values, rng)
        content = json.dumps(values).encode()
    elif name == "model.safetensors" and rng.random() < 0.5:
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        mutate(header, rng)
        text = json.dumps(header).encode()
        content = len(text).to_bytes(8, "little") + text + content[8 + length :]
    else:
        content = damage(content[:2000], rng) + content[2000:]
    (target / name).write_bytes(content)
    try:
        accept(lambda: load(str(target), device="cpu"))
    finally:
        shutil.rmtree(target)


def test_folders_some(small_folder, tmp_path):
    for number in range(10):
        check_folder(small_folder, number, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_folders_many(small_folder, tmp_path, part):
    for number in range(100):
        check_folder(small_folder, 1000 * (part + 1) + number, tmp_path)


@pytest.fixture(scope="module")
def gguf_content(tmp_path_factory) -> bytes:
    from gguf import GGUFWriter

    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(16)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(8)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["<unk>", "w", "1", "w1", "a", "b", "c", "d"])
    writer.add_token_types([1] * 8)
    writer.add_token_merges(["w 1"])
    shapes = {"token_embd": (8, 16), "output_norm": (16,), "output": (8, 16)}
    shapes |= {f"blk.0.{name}": (16, 16) for name in ("attn_q", "attn_output")}
    shapes |= {f"blk.0.{name}": (8, 16) for name in ("attn_k", "attn_v")}
    shapes |= {f"blk.0.{name}": (32, 16) for name in ("ffn_gate", "ffn_up")}
    shapes |= {"blk.0.ffn_down": (16, 32), "blk.0.attn_norm": (16,), "blk.0.ffn_norm": (16,)}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", np.ones(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def check_gguf(content: bytes, number: int, folder: Path) -> None:
    """Damage the header of a GGUF file and load it."""
    rng = np.random.default_rng([number, 3])
    path = folder / "damaged.gguf"
    path.write_bytes(damage(content[:1200], rng) + content[1200:])
    accept(lambda: load(str(path), device="cpu"))


def test_gguf_is_whole(gguf_content, tmp_path):
    path = tmp_path / "whole.gguf"
    path.write_bytes(gguf_content)
    assert load(str(path), device="cpu").model.config.num_hidden_layers == 1


def test_gguf_some(gguf_content, tmp_path):
    for number in range(10):
        check_gguf(gguf_content, number, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_gguf_many(gguf_content, tmp_path, part):
    for number in range(100):
        check_gguf(gguf_content, 1000 * (part + 1) + number, tmp_path)
