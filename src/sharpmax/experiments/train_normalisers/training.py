"""Train one model: a small Llama with a normaliser, resumable to the same numbers."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from sharpmax.experiments.train_normalisers.config import CONDITIONS, Condition, Config
from sharpmax.experiments.train_normalisers.data import (
    Texts,
    first_value,
    make_texts,
    vocabulary,
)
from sharpmax.hf.checkpoint import Checkpoint
from sharpmax.hf.train.normaliser import with_normaliser
from sharpmax.hf.train.rows import STATISTICS
from sharpmax.hf.train.statistics import attention_statistics

WARM_UP = 50
SAVE_EVERY = 60.0
"""Seconds between two checkpoints."""
TRAINING_FIELDS = (
    "layers",
    "hidden",
    "heads",
    "keys",
    "values",
    "context",
    "largest",
    "steps",
    "batch",
    "learning_rate",
    "sample_every",
    "questions",
)
"""What a training depends on; the other settings are those of the tests."""
MAX_NORM = 1.0
"""Gradients are clipped to this norm."""


def make_model(config: Config, condition: Condition, seed: int) -> PreTrainedModel:
    """Return an untrained model. The weights do not depend on the normaliser."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary(config),
            hidden_size=config.hidden,
            intermediate_size=config.hidden * 5 // 2,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.heads,
            max_position_embeddings=config.context,
            rope_parameters={"rope_type": "default", "rope_theta": 1e6},
            initializer_range=0.05,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=None,
        )
    )
    if condition.normaliser == "softmax":
        return model
    return with_normaliser(model, condition.normaliser, learn=condition.learn)


def value_logits(model: PreTrainedModel, config: Config, texts: Texts) -> torch.Tensor:
    """Return the logits of all values after each key that is asked for."""
    # With a mask, since transformers takes gaps between positions for the ends of packed texts.
    hidden = model.model(
        input_ids=texts.tokens,
        position_ids=texts.positions,
        attention_mask=torch.ones_like(texts.tokens),
        use_cache=False,
    ).last_hidden_state
    first = first_value(config)
    weight = model.lm_head.weight[first : first + config.values]
    return hidden[:, texts.asked] @ weight.T


def train(
    config: Config, name: str, seed: int, file: Path, report: Callable[[float], None]
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Train the model of a condition.

    Args:
        config: Sizes and steps.
        name: The name of the condition.
        seed: Fixes the weights and the data.
        file: The checkpoint; a training that was interrupted resumes.
        report: Called with the finished share.

    Returns:
        The model, and its losses, statistics and time.
    """
    model = make_model(config, CONDITIONS[name], seed).train()
    settings: dict[str, Any] = {field: getattr(config, field) for field in TRAINING_FIELDS}
    # Sums are split among threads: with another number of them, bits differ.
    settings |= {"normaliser": name, "seed": seed, "threads": torch.get_num_threads()}
    checkpoint = Checkpoint(file, "train-normalisers", settings)
    state = _State(model, config, checkpoint)
    begin = time.process_time()
    for step in range(state.step, config.steps):
        state.take_step(step, _training_texts(config, seed, step))
        checkpoint.values["seconds"] += time.process_time() - begin
        begin = time.process_time()
        report((step + 1) / config.steps)
        if (step + 1) % 10 == 0:
            state.save(every=SAVE_EVERY)
    state.save()
    arrays = {key: checkpoint.arrays[key].copy() for key in ("losses", "statistics")}
    return model.eval(), {"seconds": checkpoint.values["seconds"], **arrays}


def _training_texts(config: Config, seed: int, step: int) -> Texts:
    """Return the batch of a step; sizes are uniform in their logarithm, from 2 to the largest."""
    generator = np.random.default_rng([seed, step])
    items = round(2 * (config.largest / 2) ** generator.random())
    questions = min(items, config.questions)
    return make_texts(config, generator, config.batch, items, questions, spread=True)


class _State:
    """A model in training, its optimiser, and where they are saved.

    Args:
        model: The model.
        config: Sizes and steps.
        checkpoint: Restored if the training was interrupted.
    """

    def __init__(self, model: PreTrainedModel, config: Config, checkpoint: Checkpoint) -> None:
        self.model, self.config, self.checkpoint = model, config, checkpoint
        samples = -(-config.steps // config.sample_every)
        shape = (samples, config.layers, config.heads, len(STATISTICS))
        self.losses = checkpoint.array("losses", (config.steps,), np.nan)
        self.statistics = checkpoint.array("statistics", shape, np.nan)
        checkpoint.values.setdefault("seconds", 0.0)
        self.step = int(checkpoint.values.setdefault("step", 0))
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=config.learning_rate, betas=(0.9, 0.98), weight_decay=0.01
        )
        if self.step:
            self._restore()

    def take_step(self, step: int, texts: Texts) -> None:
        """Take one step of AdamW, and record statistics if it is their turn."""
        falling = 2 * (1 - step / self.config.steps)
        rate = min(1.0, (step + 1) / WARM_UP, max(0.05, falling))
        for group in self.optimizer.param_groups:
            group["lr"] = rate * self.config.learning_rate
        sample, rest = divmod(step, self.config.sample_every)
        if rest:
            loss = self._loss(texts)
        else:
            # The keys that are asked for: there it matters what the model attends to.
            rows = texts.asked.tolist()
            with attention_statistics(self.model, rows=rows, sequences=8) as found:
                loss = self._loss(texts)
            self.statistics[sample] = np.stack([found.array(name) for name in STATISTICS], -1)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses[step] = loss.item()
        self.step = step + 1

    def _loss(self, texts: Texts) -> torch.Tensor:
        logits = value_logits(self.model, self.config, texts)
        return functional.cross_entropy(logits.flatten(0, 1), texts.values.flatten())

    def save(self, every: float = 0.0) -> None:
        """Write the checkpoint."""
        arrays = self.checkpoint.arrays
        for number, parameter in enumerate(self.model.parameters()):
            moments = self.optimizer.state[parameter]
            arrays[f"weight{number}"] = parameter.detach().numpy()
            arrays[f"mean{number}"] = moments["exp_avg"].numpy()
            arrays[f"square{number}"] = moments["exp_avg_sq"].numpy()
        self.checkpoint.values["step"] = self.step
        self.checkpoint.save(every)

    @torch.no_grad()
    def _restore(self) -> None:
        arrays = self.checkpoint.arrays
        for number, parameter in enumerate(self.model.parameters()):
            parameter.copy_(torch.from_numpy(arrays[f"weight{number}"]))
            self.optimizer.state[parameter] = {
                "step": torch.tensor(float(self.step)),
                "exp_avg": torch.from_numpy(arrays[f"mean{number}"]).clone(),
                "exp_avg_sq": torch.from_numpy(arrays[f"square{number}"]).clone(),
            }
