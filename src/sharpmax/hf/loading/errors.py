"""Turn the exceptions of `from_pretrained` into one line that says what to do."""

from __future__ import annotations

import re
import textwrap
from pickle import UnpicklingError
from typing import Any

import huggingface_hub
import transformers
from huggingface_hub import errors as hub
from safetensors import SafetensorError

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
    (SafetensorError, "has damaged weights: delete {folder}, then download or copy it again"),
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
        r"with `safetensors`|no file named model\.safetensors found",
        "has no model.safetensors in {source}: add it, or, if its weights are pickled "
        "(pytorch_model.bin), which can run code when they are opened, allow that if you trust its "
        "author (allow_pickle=True, --allow-pickle)",
    ),
    (
        r"no file named model\.safetensors, or pytorch_model\.bin",
        "has neither model.safetensors nor pytorch_model.bin: add its weights under that name",
    ),
    (r"No such file or directory: \S+\.safetensors", "lacks {missing}: download or copy it again"),
    (
        "`model_type` key|file named config.json",
        "has no config.json with a model_type in it: give a model in transformers' format",
    ),
    (
        r"(?i)no gpu\b|gpu is (needed|required)|supported on gpu|requires an? (gpu|cuda)",
        "is quantised in a way that this machine cannot run ({error}): load it where there is such "
        "a GPU, or give the model without quantisation",
    ),
    (
        "invalid python storage|not supported for tensor subclasses",
        "is quantised in a way that cannot be offloaded to disk: allow more memory (max_memory, "
        "--max-memory), or give the model without quantisation",
    ),
    (
        "is on the meta device, we need a `value`",
        "has tied weights that device_map puts in different places: put their modules in one "
        "place, or let it choose (device_map='auto')",
    ),
    ("recogni[sz]e|supported yet", "is of a kind unknown to transformers {version}: upgrade it"),
    (
        "sentencepiece or",
        "has no usable tokenizer: add its tokenizer.json, or pip install sentencepiece tiktoken",
    ),
    (ImportError, "needs a package that is missing or too old ({error}): install or upgrade it"),
)
"""What to say after the name, by the error's type or a pattern in its text; the first that fits
counts."""


def explain_error(name: str, folder: str | None, error: Exception) -> str:
    """Return one line about an error of `from_pretrained`.

    Args:
        name: What the user has typed.
        folder: The folder of a local model, or None for a model of the hub.
        error: What `from_pretrained` has raised.
    """
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(cause)
    text = " ".join(map(str, chain))
    constants = huggingface_hub.constants
    missing = re.search(r"No such file or directory: (\S+\.safetensors)", text)
    facts = {
        "name": name,
        "hub": constants.ENDPOINT,
        "source": folder or constants.ENDPOINT,
        "folder": folder or f"{constants.HF_HUB_CACHE}/models--{name.replace('/', '--')}",
        "version": transformers.__version__,
        "missing": missing and missing[1],
        "error": shorten_error(error),
    }
    for sign, answer in _ANSWERS:
        by_text = isinstance(sign, str)
        if re.search(sign, text) if by_text else any(isinstance(link, sign) for link in chain):
            return f"{name} {answer.format(**facts)}"
    return f"{name} cannot be loaded ({shorten_error(error)}): download or copy it again"


def shorten_error(error: BaseException) -> str:
    """Return an error as a few words on one line."""
    message = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
    return textwrap.shorten(message, 200, placeholder=" ...")
