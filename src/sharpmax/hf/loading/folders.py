"""Whether a folder holds a whole model that is safe to open: said before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open

from sharpmax._errors import UserError
from sharpmax.hf.loading.catalogue import require_gguf, short

PICKLES = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt")
TOKENIZERS = ("tokenizer*", "vocab*", "*.model", "merges.txt", "*.tiktoken", "tekken.json")


def check_folder(folder: Path, allow_pickle: bool) -> str | None:
    """Refuse a folder that cannot be loaded whole; the GGUF file's name if that is the model."""
    weights = [file.name for file in sorted(folder.glob("*.safetensors*"))]
    packed = sorted(folder.glob("*.gguf"))
    if packed and not weights:
        if len(packed) > 1:
            names = ", ".join(file.name for file in packed)
            raise UserError(f"{folder} holds several GGUF files ({names}): give the path of one")
        return check_gguf(packed[0])
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} holds no config.json: give a folder saved by transformers")
    pickles = sorted(file.name for pattern in PICKLES for file in folder.glob(pattern))
    if weights:
        check_safetensors(folder, weights)
    elif not pickles:
        raise UserError(f"{folder} holds no weights: copy its *.safetensors or *.gguf there")
    elif not allow_pickle:
        raise UserError(
            f"{folder} holds its weights as pickle only ({pickles[0]}), which can run code when it "
            "is opened: convert it to safetensors, or allow it (allow_pickle=True, --allow-pickle) "
            "if you trust its origin"
        )
    elif not any(folder.glob("pytorch_model.bin*")):
        raise UserError(f"{folder} holds {pickles[0]}: only pytorch_model.bin can be loaded")
    if not any(file for pattern in TOKENIZERS for file in folder.glob(pattern)):
        raise UserError(f"{folder} holds no tokenizer: copy the model's tokenizer.json there")
    return None


def check_gguf(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            mark = stream.read(4)
    except OSError as error:
        raise UserError(f"{file} cannot be opened ({short(error)}): check the path") from error
    if mark != b"GGUF":
        raise UserError(f"{file} is not a GGUF file or is damaged: download or copy it again")
    require_gguf(f"reading {file}")
    return file.name


def check_safetensors(folder: Path, weights: list[str]) -> None:
    """Every file that is needed is there and as long as its header says."""
    index = folder / "model.safetensors.index.json"
    if "model.safetensors" in weights:
        needed = ["model.safetensors"]
    elif index.name in weights:
        try:
            needed = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise UserError(f"{index} is damaged: download or copy it again") from error
    else:
        raise UserError(f"{folder} holds {weights[0]}: rename it to model.safetensors")
    missing = [name for name in needed if not (folder / name).is_file()]
    if missing:
        raise UserError(f"{folder} lacks {some(missing)}: download or copy what is missing")
    for name in needed:
        try:
            with safe_open(folder / name, framework="pt"):
                pass
        except (OSError, SafetensorError) as error:
            raise UserError(
                f"{folder / name} is damaged ({short(error)}): download or copy it again"
            ) from error


def some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
