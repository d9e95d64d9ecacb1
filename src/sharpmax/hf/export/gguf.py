"""Fold factors into a GGUF file without quantising its weights again.

Quantised weights are stored in blocks, each with a scale (and some with a minimum) in float16. A
factor on a row is a factor on the scales of its blocks, so the integers stay as they are.
Everything else in the file stays too, byte for byte.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from transformers import PreTrainedModel

from sharpmax._errors import UserError
from sharpmax._files import open_atomically
from sharpmax.hf.export.checkpoint import factors_at
from sharpmax.hf.export.factors import Sharpening
from sharpmax.hf.export.fold import ALTERNATIVE
from sharpmax.hf.loading.convert import require_gguf
from sharpmax.hf.loading.errors import shorten_error
from sharpmax.hf.tune.calibration import Calibration
from sharpmax.policies import Policy

if TYPE_CHECKING:
    from jaxtyping import Float


class Blocks(NamedTuple):
    """How a type stores its weights: bytes per block, and where the block's float16 scales are."""

    size: int
    scales: tuple[int, ...]


BLOCKS = {
    "Q4_0": Blocks(18, (0,)),
    "Q4_1": Blocks(20, (0, 2)),
    "Q5_0": Blocks(22, (0,)),
    "Q5_1": Blocks(24, (0, 2)),
    "Q8_0": Blocks(34, (0,)),
    "Q2_K": Blocks(84, (80, 82)),
    "Q3_K": Blocks(110, (108,)),
    "Q4_K": Blocks(144, (0, 2)),
    "Q5_K": Blocks(176, (0, 2)),
    "Q6_K": Blocks(210, (208,)),
}
"""By the name of the type in the package gguf, whose own conversion the tests compare with."""
FLOATS = ("F32", "F16", "BF16")

QUERIES = ("attn_q", "attn_qkv")
"""The projection of a block; the second makes all queries first, then keys and values."""


def export_gguf(
    source: str | Path,
    target: str | Path,
    model: PreTrainedModel,
    policy: Policy | Calibration | str | Path,
    at_length: int | None = None,
    *,
    layers: Collection[int] | None = None,
    heads: Collection[int] | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a copy of a GGUF file in which heads are sharpened as for inputs of one length.

    See `export` for what that means at other lengths.

    Args:
        source: The GGUF file.
        target: The file to write.
        model: The model that transformers made of the GGUF file.
        policy: A calibration, its path or name, or a policy that depends on the length alone.
        at_length: The number of tokens; see `export`.
        layers: The numbers of the layers to sharpen by a policy; None means all.
        heads: The numbers of the heads in each of these layers; None means all.
        overwrite: Whether to replace a file that exists.

    Returns:
        The file.

    Raises:
        UserError: As for `export`; or the file stores queries in a type that is not known.

    Examples:
        >>> shf.export_gguf("model.gguf", "sharp.gguf", model, "tuned.json", at_length=4096)
    """
    require_gguf("exporting a GGUF file")
    source, target = Path(source), Path(target)
    if target.exists() and not overwrite:
        raise UserError(f"{target} exists already: choose another file or ask to overwrite it")
    if target.exists() and target.samefile(source):
        raise UserError(f"{target} is the source: choose another file")
    factors = factors_at(Sharpening.create(model, policy, layers, heads), at_length)
    tensors = _read_tensors(source)
    edits = [
        (tensor, rows)
        for index, by_head in factors.items()
        for tensor, rows in _find_queries(source, tensors, index, by_head)
    ]
    try:
        with open_atomically(target) as stream, source.open("rb") as original:
            shutil.copyfileobj(original, stream)
            for tensor, rows in edits:
                stream.seek(int(tensor.data_offset))
                stream.write(_scaled(tensor, rows))
            stream.seek(0, 2)
    except OSError as error:
        raise UserError(f"cannot write {target} ({shorten_error(error)})") from error
    return target


def _read_tensors(source: Path) -> dict[str, Any]:
    """Return the tensors of a file by their names."""
    from gguf import GGUFReader

    try:
        reader = GGUFReader(str(source))
    except Exception as error:  # a damaged file raises nearly any type
        raise UserError(f"{source} cannot be read ({shorten_error(error)})") from error
    for name in reader.fields:
        if name.endswith("attn_logit_softcapping"):
            raise UserError(
                f"{source} caps its logits ({name}), and the factor belongs behind the cap: "
                f"{ALTERNATIVE}"
            )
    return {tensor.name: tensor for tensor in reader.tensors}


def _find_queries(
    source: Path, tensors: dict[str, Any], index: int, by_head: Float[np.ndarray, " heads"]
) -> list[tuple[Any, Float[np.ndarray, " rows"]]]:
    """Return the tensors of a block that make its queries, each with the factor of every row."""
    prefix = f"blk.{index}."
    if f"{prefix}attn_q_norm.weight" in tensors:
        raise UserError(
            f"{source} normalises its queries ({prefix}attn_q_norm), so that factors per head "
            f"cannot be folded into its projection: {ALTERNATIVE}"
        )
    name = next((name for name in QUERIES if f"{prefix}{name}.weight" in tensors), None)
    if name is None:
        raise UserError(f"{source} has no {prefix}attn_q.weight: {ALTERNATIVE}")
    weight = tensors[f"{prefix}{name}.weight"]
    found = []
    for part in (weight, tensors.get(f"{prefix}{name}.bias")):
        if part is None:
            continue
        kind = part.tensor_type.name
        if kind not in (*BLOCKS, *FLOATS):
            known = ", ".join((*BLOCKS, *FLOATS))
            raise UserError(f"{source}: {part.name} is stored as {kind}; known are {known}")
        rows = int(part.shape[-1])
        queries = rows if name == "attn_q" else int(weight.shape[0])
        factors = np.ones(rows)
        factors[:queries] = by_head.repeat(queries // len(by_head))
        found.append((part, factors))
    return found


def _scaled(tensor: Any, rows: Float[np.ndarray, " rows"]) -> bytes:
    """Return the bytes of a tensor whose rows are multiplied by these factors."""
    kind = tensor.tensor_type.name
    data = np.array(tensor.data)  # the reader's own is the file, read-only
    if kind == "F32" or kind == "F16":
        by_row = rows if data.ndim == 1 else rows[:, None]
        return (data.astype(np.float64) * by_row).astype(data.dtype).tobytes()
    raw = data.view(np.uint8).reshape(len(rows), -1)
    if kind == "BF16":
        return _scale_bfloat16(raw.view(np.uint16), rows).tobytes()
    size, scales = BLOCKS[kind]
    blocks = raw.reshape(len(rows), -1, size)
    changed = rows != 1
    for place in scales:
        scale = np.ascontiguousarray(blocks[changed, :, place : place + 2]).view(np.float16)
        scale = (scale.astype(np.float64) * rows[changed, None, None]).astype(np.float16)
        blocks[changed, :, place : place + 2] = scale.view(np.uint8)
    return blocks.tobytes()


def _scale_bfloat16(values: np.ndarray, rows: Float[np.ndarray, " rows"]) -> np.ndarray:
    """Multiply rows of bfloat16, stored as integers, and round to the nearest."""
    exact = (values.astype(np.uint32) << 16).view(np.float32)
    scaled = (exact.astype(np.float64) * rows[:, None]).astype(np.float32).view(np.uint32)
    rounded = (scaled + 0x7FFF + ((scaled >> 16) & 1)) >> 16
    return rounded.astype(np.uint16)
