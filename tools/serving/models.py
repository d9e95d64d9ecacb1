"""The models of the comparison: SmolLM2 in the forms that engines read, and tiny random ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from engines import FOLDER

import sharpmax.hf as shf
from sharpmax.hf.loading.catalogue import find_gguf
from sharpmax.hf.loading.convert import model_folder
from sharpmax.hf.model_info import weights_fingerprint
from sharpmax.hf.quiet import quiet_transformers
from sharpmax.hf.tune.calibration import architecture_of
from sharpmax.results.calibration import Head, Law

MODELS = FOLDER / "models"
AT_LENGTH = 512
"""The length of the export, about that of a lookup prompt with 40 names."""


def shipped_calibration() -> Path:
    """Return a file of the calibration that comes with sharpmax."""
    return _save(shf.shipped_calibrations()["smollm2"], "smollm2")


def zero_calibration() -> Path:
    """Return the same calibration with all rates 0."""
    calibration = shf.shipped_calibrations()["smollm2"]
    heads = tuple(head.model_copy(update={"rate": 0.0}) for head in calibration.heads)
    return _save(calibration.model_copy(update={"heads": heads}), "zero")


def _save(calibration: shf.Calibration, name: str) -> Path:
    return calibration.save(MODELS.resolve() / f"{name}.json", overwrite=True)


def plain_folder() -> Path:
    return model_folder("smollm2", report=print)


def plain_gguf() -> Path:
    return find_gguf("smollm2")


def float32_gguf() -> Path:
    """Return a GGUF file with the dequantised weights, which llama.cpp computes with in float32."""
    target = MODELS / "smollm2-f32.gguf"
    if target.exists():
        return target
    from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
    from gguf.quants import dequantize

    reader = GGUFReader(str(plain_gguf()))
    part = target.with_suffix(".part")
    writer = GGUFWriter(str(part), reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        # The writer makes these itself.
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, inner)
    for tensor in reader.tensors:
        weights = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        writer.add_tensor(tensor.name, weights, raw_dtype=GGMLQuantizationType.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.rename(target)
    return target


def exported(source: str, name: str) -> Path:
    """Return what `sharpmax export` writes for a model: a folder, or a file if it ends in .gguf."""
    target = MODELS / name
    command = [sys.executable, "-m", "sharpmax", "export", source, "--overwrite"]
    command += ["--calibration", str(shipped_calibration()), "--at-length", str(AT_LENGTH)]
    subprocess.run([*command, "--out", str(target)], check=True)
    return target


def tiny(architecture: str) -> tuple[Any, Path, Path]:
    """Return a random model, its folder, and a random calibration for it.

    `llama` has heads to share between two processes, `mistral` a window in all layers, and
    `gemma3` a window in some layers and a norm between the projection and the attention.
    """
    torch.manual_seed(0)
    shape = {
        "hidden_size": 128,
        "intermediate_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": 128,
        "max_position_embeddings": 1024,
        "initializer_range": 0.2,
    }
    configs = {
        "llama": lambda: transformers.LlamaConfig(**shape),
        "mistral": lambda: transformers.MistralConfig(**shape, sliding_window=64),
        "gemma3": lambda: transformers.Gemma3TextConfig(
            **shape,
            sliding_window=64,
            query_pre_attn_scalar=32,
            layer_types=["sliding_attention", "full_attention"] * 2,
        ),
    }
    model = transformers.AutoModelForCausalLM.from_config(configs[architecture]()).eval()
    folder = MODELS / f"tiny-{architecture}"
    with quiet_transformers():
        model.save_pretrained(folder)
    rates = np.random.default_rng(0).uniform(-0.4, 0.8, size=(4, 4)).tolist()
    calibration = shf.Calibration(
        model=f"tiny {architecture}",
        weights=weights_fingerprint(model),
        architecture=architecture_of(model),
        method={"choose": "at random"},
        from_tokens=16,
        law=Law(low=0.3, high=3.0),
        heads=tuple(
            Head(layer=layer, head=head, rate=rate)
            for layer, row in enumerate(rates)
            for head, rate in enumerate(row)
        ),
    )
    return model, folder, _save(calibration, f"tiny-{architecture}")
