"""A training as one safetensors file: weights, moments of the optimisers and losses so far."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from sharpmax._errors import UserError

MOMENTS = ("exp_avg", "exp_avg_sq")
"""What an optimiser stores per weight: Muon the first, AdamW both."""


class State(NamedTuple):
    """The progress of a training."""

    step: int = 0
    losses: tuple[float, ...] = ()
    """The loss of each step."""
    seconds: float = 0.0


def save_checkpoint(
    path: Path,
    model: nn.Module,
    optimisers: Sequence[torch.optim.Optimizer],
    state: State,
    about: dict[str, Any],
) -> None:
    """Write a checkpoint atomically, directly to disk: a large model has no room for a copy."""
    tensors = {"losses": torch.tensor(state.losses, dtype=torch.float64)}
    moments = {
        parameter: values
        for optimiser in optimisers
        for parameter, values in optimiser.state.items()
    }
    for name, parameter in model.named_parameters():
        tensors[f"weights.{name}"] = parameter.detach().contiguous()
        for moment in MOMENTS:
            if moment in moments[parameter]:
                tensors[f"{moment}.{name}"] = moments[parameter][moment].contiguous()
    header = {"step": state.step, "seconds": state.seconds, "about": about}
    _delete_leftovers(path)
    part = _temporary_folder(path)
    part.mkdir(parents=True)
    try:
        save_file(tensors, part / path.name, {"sharpmax": json.dumps(header)})
        with (part / path.name).open("r+b") as stream:  # Windows syncs only what is open to write
            os.fsync(stream.fileno())
        (part / path.name).replace(path)
    finally:
        _delete_leftovers(path)


def _temporary_folder(path: Path) -> Path:
    """Return where a checkpoint is written before it is renamed.

    A folder, because safetensors writes a temporary file of its own, with a random name, beside the
    one it is asked for.
    """
    return path.with_name(f".{path.stem}.part")


def _delete_leftovers(path: Path) -> None:
    """Delete what a killed process has left of a checkpoint."""
    shutil.rmtree(_temporary_folder(path), ignore_errors=True)


@torch.no_grad()
def load_checkpoint(
    path: Path,
    model: nn.Module,
    optimisers: Sequence[torch.optim.Optimizer],
    about: dict[str, Any],
) -> State:
    """Restore the model and the optimisers; refuse a checkpoint of other settings or data."""
    _delete_leftovers(path)  # a finished training saves no further one, which would delete them
    try:
        with safe_open(path, "pt") as stored:
            header = json.loads((stored.metadata() or {})["sharpmax"])
            expected = json.loads(json.dumps(about))
            if header["about"] != expected:
                raise UserError(
                    f"{path} is of a training with other settings or data "
                    f"({_differences(header['about'], expected)}): choose another folder, or "
                    "delete it"
                )
            parameters, known = dict(model.named_parameters()), set(stored.keys())
            for name, parameter in parameters.items():
                parameter.copy_(stored.get_tensor(f"weights.{name}"))
            for optimiser in optimisers:
                trained = {p for group in optimiser.param_groups for p in group["params"]}
                for name, parameter in parameters.items():
                    if parameter in trained:
                        optimiser.state[parameter] = {
                            "step": torch.tensor(float(header["step"])),
                            **{
                                moment: stored.get_tensor(f"{moment}.{name}").to(parameter.device)
                                for moment in MOMENTS
                                if f"{moment}.{name}" in known
                            },
                        }
            losses = stored.get_tensor("losses").tolist()
    except (SafetensorError, KeyError, TypeError, RuntimeError) as error:
        raise UserError(
            f"{path} is damaged ({error}): delete it, and the training starts again"
        ) from error
    return State(header["step"], tuple(losses), header["seconds"])


def _differences(before: dict[str, Any], now: dict[str, Any], most: int = 3) -> str:
    """Name the first settings in which two descriptions differ, one level deep."""
    differences = []
    for name in {**before, **now}:
        old, new = before.get(name), now.get(name)
        if not isinstance(old, dict) or not isinstance(new, dict):
            old, new = {name: old}, {name: new}
        differences += [
            f"{key}: {old.get(key)!r} and not {new.get(key)!r}"
            for key in {**old, **new}
            if old.get(key) != new.get(key)
        ]
    return "; ".join(differences[:most])
