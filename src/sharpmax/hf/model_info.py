"""Tell weights apart."""

from __future__ import annotations

import hashlib

import torch
from transformers import PreTrainedModel


def fingerprint(model: PreTrainedModel) -> str:
    """Of the beginning of every tensor: enough to tell models apart, and quick."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        start = parameter.detach().flatten()[:256].to("cpu", torch.float64).numpy()
        digest.update(name.encode() + start.tobytes())
    return digest.hexdigest()
