"""Where `load` puts the weights of a model: on one device, on several, or partly on disk."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers.distributed.configuration_utils import DistributedConfig

from sharpmax._errors import MissingExtraError, UserError

DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")
UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?i?B)", re.IGNORECASE)

WORTH_TELLING = 10**9
"""Bytes in the folder of offloaded weights from which on the user is told where it is."""


def tensor_parallel_options(
    device: str, device_map: str | Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the options of `from_pretrained` that split each layer among the running processes.

    Raises:
        UserError: There is one process only, or the options exclude each other.
    """
    if device != "auto" or device_map is not None:
        raise UserError(
            "tensor_parallel (--tensor-parallel) gives each process a device of its own: leave out "
            "device (--device) and device_map (--device-map)"
        )
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes == 1:
        raise UserError(
            "tensor_parallel (--tensor-parallel) splits a model among processes, and there is one: "
            "start the command by torchrun --nproc-per-node 2 -m sharpmax ..."
        )
    return {"distributed_config": DistributedConfig(tp_size=processes)}


def placement_options(
    device: str,
    device_map: str | Mapping[str, Any] | None,
    max_memory: Mapping[int | str, int | str] | None,
) -> dict[str, Any]:
    """Check how a model is to be spread, and return the options of `from_pretrained` for it.

    Empty if the model goes to one device.

    Raises:
        UserError: The options exclude each other, or name what does not exist.
    """
    if device_map is None:
        if max_memory is not None:
            raise UserError(
                "max_memory (--max-memory) limits what device_map (--device-map) spreads: give "
                "device_map='auto' (--device-map auto) with it"
            )
        return {}
    if device != "auto":
        raise UserError(
            f"device={device!r} and device_map={device_map!r} exclude each other (--device, "
            "--device-map): a model is on one device or spread over several; give one of them"
        )
    if isinstance(device_map, str) and device_map not in DEVICE_MAPS:
        raise UserError(
            f"device_map {device_map!r} is not one of {', '.join(DEVICE_MAPS)}: to use one device, "
            "give device (--device)"
        )
    if importlib.util.find_spec("accelerate") is None:
        raise MissingExtraError("accelerate", "hf", "device_map (--device-map)")
    device_map = device_map if isinstance(device_map, str) else dict(device_map)
    options: dict[str, Any] = {"device_map": device_map}
    if max_memory is not None:
        if not max_memory:
            raise UserError(
                "max_memory is empty: expected sizes such as {'cpu': '20GiB', 0: '8GiB'}"
            )
        options["max_memory"] = {
            _check_place(place): _bytes(place, size) for place, size in max_memory.items()
        }
    return options


def _check_place(place: int | str) -> int | str:
    if isinstance(place, str) and place.isascii() and place.isdigit():
        place = int(place)
    if place == "cpu" or (place == "mps" and torch.backends.mps.is_available()):
        return place
    cards = torch.cuda.device_count()
    if isinstance(place, bool) or not isinstance(place, int) or not 0 <= place < cards:
        raise UserError(
            f"max_memory (--max-memory) names {place!r}: expected cpu or the number of one of "
            f"{cards} CUDA devices; what they may not hold goes to disk"
        )
    return place


def _bytes(place: int | str, size: int | str) -> int:
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        return size
    match = SIZE.fullmatch(size.strip()) if isinstance(size, str) else None
    if match is None:
        raise UserError(
            f"max_memory (--max-memory) of {place} is {size!r}: expected a size such as 20GiB or "
            "800MB"
        )
    return int(float(match[1]) * UNITS[match[2].upper()])


class OffloadFolder:
    """A temporary folder for weights that fit no device, deleted together with the model.

    transformers reads offloaded weights from the safetensors of the model where it can. It writes
    the others here: pickled and GGUF weights, and tensors that it rearranges.
    """

    def __init__(self) -> None:
        """Make the folder."""
        try:
            self.path = Path(tempfile.mkdtemp(prefix="sharpmax-offload-"))
        except OSError as error:
            raise UserError(
                f"no temporary folder for offloaded weights can be made ({error}): set TMPDIR to a "
                "folder on a disk with free space"
            ) from error

    def remove(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.path, ignore_errors=True)

    def belong_to(self, model: object, report: Callable[[str], None] | None) -> None:
        """Delete the folder with the model or at exit; at once if it is empty."""
        size = sum(file.stat().st_size for file in self.path.iterdir())
        if not size:
            self.remove()
            return
        weakref.finalize(model, _remove_own, self.path, os.getpid())
        if size >= WORTH_TELLING and report is not None:
            report(
                f"{size / 10**9:.1f} GB of weights are in {self.path} until this ends (TMPDIR "
                "chooses the disk)"
            )


def _remove_own(folder: Path, process: int) -> None:
    """Delete a folder, unless this is a copy of the process that made it."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
