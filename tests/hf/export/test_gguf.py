"""Rows of a GGUF file are scaled in place: what the package gguf makes of them is scaled."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, quants

import sharpmax as sx
import sharpmax.hf as shf
from hf.small import llama
from sharpmax import UserError
from sharpmax.hf.export.gguf import BLOCKS, FLOATS

HEADS, DIM, WIDTH = 4, 8, 256  # rows of one block of the largest kind


def random_weights(kind, rows, rng):
    """Random rows in a type; blocks of random bits with finite scales where it cannot quantise."""
    values = rng.normal(size=(rows, WIDTH)).astype(np.float32)
    if kind in ("F32", "F16"):
        return values.astype({"F32": np.float32, "F16": np.float16}[kind])
    if kind not in BLOCKS or not kind.endswith("K"):
        return quants.quantize(values, GGMLQuantizationType[kind])
    size, scales = BLOCKS[kind]
    blocks = rng.integers(0, 256, (rows, 1, size), dtype=np.uint8)
    for place in scales:
        scale = rng.uniform(0.01, 0.1, (rows, 1, 1)).astype(np.float16)
        blocks[:, :, place : place + 2] = scale.view(np.uint8)
    return blocks.reshape(rows, -1)


def write(path, kind, name="attn_q", rows=HEADS * DIM, extra=()):
    rng = np.random.default_rng(0)
    writer = GGUFWriter(path, "llama")
    for field, value in extra:
        writer.add_float32(field, value)
    for block in range(3):
        raw = None if kind in ("F32", "F16") else GGMLQuantizationType[kind]
        writer.add_tensor(
            f"blk.{block}.{name}.weight", random_weights(kind, rows, rng), raw_dtype=raw
        )
        writer.add_tensor(f"blk.{block}.{name}.bias", rng.normal(size=rows).astype(np.float32))
        writer.add_tensor(f"blk.{block}.attn_k.weight", rng.normal(size=(8, 8)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def read(path):
    return {
        tensor.name: quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
        for tensor in GGUFReader(path).tensors
    }


@pytest.mark.parametrize("kind", [*BLOCKS, *FLOATS])
def test_rows_are_multiplied_and_nothing_else_changes(kind, tmp_path):
    source = write(tmp_path / "source.gguf", kind)
    before = source.read_bytes()
    target = shf.export_gguf(
        source, tmp_path / "out.gguf", llama(), sx.Constant(1.7), layers=[0, 2], heads=[1, 3]
    )
    assert source.read_bytes() == before
    old, new = read(source), read(target)
    by_row = np.repeat([1.0, 1.7, 1.0, 1.7], DIM)
    # One rounding of a scale to float16 or of a weight to its type. A weight is a difference of two
    # scaled numbers where there is a minimum.
    relative = {"F32": 2**-24, "BF16": 2**-8}.get(kind, 2**-11)
    for name, values in old.items():
        if name.startswith("blk.1.") or "attn_k" in name:
            assert np.array_equal(new[name], values)
        elif name.endswith("bias"):
            np.testing.assert_allclose(new[name], values * by_row, rtol=2**-23)
        else:
            rows = np.abs(values).max(1, keepdims=True) * (
                4 if BLOCKS.get(kind, (0, ()))[1:] else 1
            )
            assert (np.abs(new[name] - values * by_row[:, None]) <= 2 * relative * rows * 1.7).all()
            assert np.array_equal(new[name][by_row == 1], values[by_row == 1])
    same = np.frombuffer(before, np.uint8) == np.frombuffer(target.read_bytes(), np.uint8)
    assert same.mean() > 0.5
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["out.gguf", "source.gguf"]


def test_in_a_fused_projection_only_queries_change(tmp_path):
    source = write(tmp_path / "source.gguf", "F32", "attn_qkv", rows=WIDTH + 64)
    target = shf.export_gguf(source, tmp_path / "out.gguf", llama(), sx.Constant(2.0), heads=[0])
    old, new = read(source), read(target)
    factor = new["blk.0.attn_qkv.weight"] / old["blk.0.attn_qkv.weight"]
    expected = np.ones(WIDTH + 64)
    expected[: WIDTH // 4] = 2.0
    assert np.array_equal(factor, np.repeat(expected[:, None], WIDTH, 1))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: write(path, "TQ1_0"), r"blk\.0\.attn_q\.weight is stored as TQ1_0; known are"),
        (lambda path: write(path, "F32", "other"), r"has no blk\.0\.attn_q\.weight"),
        (lambda path: write(path, "F32", extra=[("gemma2.attn_logit_softcapping", 50.0)]), "caps its logits"),
        (lambda path: path.write_bytes(b"GGUF" + bytes(64)), "cannot be read"),
    ],
)  # fmt: skip
def test_what_cannot_be_scaled_is_refused(make, message, tmp_path):
    source = tmp_path / "source.gguf"
    make(source)
    with pytest.raises(UserError, match=message):
        shf.export_gguf(source, tmp_path / "out.gguf", llama(), sx.Constant(2.0))
    assert [path.name for path in tmp_path.iterdir()] == ["source.gguf"]


def test_a_norm_of_the_queries_is_refused(tmp_path):
    writer = GGUFWriter(tmp_path / "source.gguf", "qwen3")
    writer.add_tensor("blk.0.attn_q_norm.weight", np.ones(8, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UserError, match="normalises its queries"):
        shf.export_gguf(tmp_path / "source.gguf", tmp_path / "out.gguf", llama(), sx.Constant(2.0))


def test_the_source_is_never_the_target(tmp_path):
    source = write(tmp_path / "source.gguf", "F32")
    with pytest.raises(UserError, match="is the source"):
        shf.export_gguf(source, source, llama(), sx.Constant(2.0), overwrite=True)
