"""A small Llama that the Trainer trains in a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, Trainer, TrainingArguments

from hf.small import llama, random_tokens


class Texts(torch.utils.data.Dataset):
    """Random texts, the same every time."""

    def __init__(self, count: int = 24, length: int = 16) -> None:
        self.tokens = random_tokens(count, length)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[number], "labels": self.tokens[number]}


def make_trainer(
    folder: Path, model: PreTrainedModel | None = None, callbacks: Any = (), **options: Any
) -> Trainer:
    """Return a Trainer of 6 steps."""
    settings = {
        "max_steps": 6,
        "per_device_train_batch_size": 2,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
        "logging_steps": 3,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "seed": 1,
    }
    return Trainer(
        llama(layers=2) if model is None else model,
        TrainingArguments(folder, **{**settings, **options}),
        train_dataset=Texts(),
        callbacks=list(callbacks),
    )


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    """Return a copy of the trained weights."""
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}
