"""A training as one safetensors file: weights, the optimiser's moments, the losses so far."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from sharpmax._errors import UserError

MOMENTS = ("exp_avg", "exp_avg_sq")
"""What an optimiser keeps of a weight: Muon the first, AdamW both."""


class State(NamedTuple):
    """Where a training stands."""

    step: int = 0
    losses: tuple[float, ...] = ()
    """Of each step."""
    seconds: float = 0.0


def write(
    path: Path,
    model: nn.Module,
    optimisers: Sequence[torch.optim.Optimizer],
    state: State,
    about: dict[str, Any],
) -> None:
    """Straight to disk, not by way of a copy in memory: a large model has no room for that."""
    tensors = {"losses": torch.tensor(state.losses, dtype=torch.float64)}
    kept = {parameter: its for one in optimisers for parameter, its in one.state.items()}
    for name, parameter in model.named_parameters():
        tensors[f"weights.{name}"] = parameter.detach().contiguous()
        for moment in MOMENTS:
            if moment in kept[parameter]:
                tensors[f"{moment}.{name}"] = kept[parameter][moment].contiguous()
    found = {"step": state.step, "seconds": state.seconds, "about": about}
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        save_file(tensors, part, {"sharpmax": json.dumps(found)})
        with part.open("rb") as stream:
            os.fsync(stream.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


@torch.no_grad()
def read(
    path: Path,
    model: nn.Module,
    optimisers: Sequence[torch.optim.Optimizer],
    about: dict[str, Any],
) -> State:
    """Put a checkpoint back; one of other settings or other data is refused."""
    try:
        with safe_open(path, "pt") as stored:
            found = json.loads((stored.metadata() or {})["sharpmax"])
            if found["about"] != json.loads(json.dumps(about)):
                raise UserError(
                    f"{path} is of a training with other settings or data "
                    f"({_differing(found, about)}): choose another folder, or delete it"
                )
            names, known = dict(model.named_parameters()), set(stored.keys())
            for name, parameter in names.items():
                parameter.copy_(stored.get_tensor(f"weights.{name}"))
            for optimiser in optimisers:
                trained = {one for group in optimiser.param_groups for one in group["params"]}
                for name in (name for name, parameter in names.items() if parameter in trained):
                    optimiser.state[names[name]] = {
                        "step": torch.tensor(float(found["step"])),
                        **{
                            moment: stored.get_tensor(f"{moment}.{name}").to(names[name].device)
                            for moment in MOMENTS
                            if f"{moment}.{name}" in known
                        },
                    }
            losses = stored.get_tensor("losses").tolist()
    except (SafetensorError, KeyError, TypeError, RuntimeError) as error:
        raise UserError(
            f"{path} is damaged ({error}): delete it, and its training begins anew"
        ) from error
    return State(found["step"], tuple(losses), found["seconds"])


def _differing(found: dict[str, Any], about: dict[str, Any]) -> str:
    before, now = found["about"], json.loads(json.dumps(about))
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    inner = [
        f"{part}: {old!r} and not {new!r}"
        for name in names
        for part, old, new in _parts(name, before.get(name), now.get(name))
    ]
    return "; ".join(inner[:3])


def _parts(name: str, old: Any, new: Any) -> list[tuple[str, Any, Any]]:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return [(name, old, new)]
    keys = {**old, **new}
    return [(key, old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)]
