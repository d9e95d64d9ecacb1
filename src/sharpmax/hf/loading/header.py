"""Compare a config with the headers of the weights before a model is built from it.

transformers builds the whole model first and fills whatever the files lack with random numbers. By
a wrong number in config.json it would do so for minutes, or until the memory is full.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sharpmax._errors import UserError

MOST_HEADER_BYTES = 100_000_000
"""As in safetensors itself."""

SUSPICIOUS = {
    "num_hidden_layers": 1_000,
    "hidden_size": 1 << 15,
    "intermediate_size": 1 << 18,
    "vocab_size": 1 << 20,
}
"""Limits up to which the config of a GGUF file is not checked: reading its header takes seconds."""

WIDTHS = ("hidden_size", "intermediate_size", "vocab_size")


def require_plausible_config(name: str, folder: Path, gguf: Path | None, config: Any) -> None:
    """Refuse a config with more layers than stored tensors, or wider ones than any of them.

    Args:
        name: What the user has typed.
        folder: The folder of the model.
        gguf: The GGUF file with its weights, if they are in one.
        config: What transformers has read.

    Raises:
        UserError: The config does not fit the weights, or a safetensors file is damaged.
    """
    text = config.get_text_config()
    given = {key: getattr(text, key, None) for key in SUSPICIOUS}
    sizes = {key: size if isinstance(size, int) else 0 for key, size in given.items()}
    if gguf is not None and all(sizes[key] <= most for key, most in SUSPICIOUS.items()):
        return
    shapes = _gguf_shapes(gguf) if gguf is not None else _safetensors_shapes(name, folder)
    if not shapes:
        return
    # Layers may share their weights, but no published model has a thousand of one tensor.
    limits = {"num_hidden_layers": max(len(shapes), SUSPICIOUS["num_hidden_layers"])}
    limits |= dict.fromkeys(WIDTHS, max(max(shape, default=1) for shape in shapes))
    for key, most in limits.items():
        if sizes[key] > most:
            raise UserError(
                f"the config of {name} has {key} {sizes[key]:,}, and its weights are "
                f"{len(shapes):,} tensors of at most {limits['hidden_size']:,} rows or columns: "
                "download or copy it again"
            )


def _safetensors_shapes(name: str, folder: Path) -> list[list[int]]:
    """Return the shapes of all stored tensors; none if there are no safetensors."""
    shapes: list[list[int]] = []
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header = stream.read(length) if length <= MOST_HEADER_BYTES else b""
        try:
            entries = json.loads(header)
            shapes += [
                [int(size) for size in entry["shape"]]
                for key, entry in entries.items()
                if key != "__metadata__"
            ]
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise UserError(
                f"{name} has damaged weights: {file.name} has no header that can be read; download "
                "or copy it again"
            ) from error
    return shapes


def _gguf_shapes(file: Path) -> list[list[int]]:
    from gguf import GGUFReader

    return [[int(size) for size in tensor.shape] for tensor in GGUFReader(file).tensors]
