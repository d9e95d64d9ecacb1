"""Test a trained model on more and more items, as it is or with something applied to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from sharpmax.experiments.train_normalisers.config import Config
from sharpmax.experiments.train_normalisers.data import first_value, make_texts
from sharpmax.experiments.train_normalisers.training import value_logits
from sharpmax.hf.evaluate.tasks import Task, TaskPrompt
from sharpmax.hf.train.statistics import attention_statistics
from sharpmax.hf.tune.calibration import Calibration
from sharpmax.hf.tune.tune import tune

TEST = 1_000_000
"""Added to the seeds of tests, which share no text with training."""


@torch.no_grad()
def test_model(
    model: PreTrainedModel, config: Config, seed: int, report: Callable[[float], None]
) -> dict[str, list[float]]:
    """Return accuracy, loss and sharpness of a model at each number of items.

    Returns:
        For each size the share of right answers, the mean negative log-probability of the right
        value in nats, and `largest_weight`: the largest weight in the rows of the keys that are
        asked for, of the head in which it is largest on average.
    """
    results: dict[str, list[float]] = {"accuracy": [], "nats": [], "largest_weight": []}
    for number, size in enumerate(config.sizes):
        generator = np.random.default_rng([TEST + seed, size])
        questions = min(size, config.questions)
        texts = make_texts(config, generator, config.texts, size, questions, spread=False)
        right, nats, weights = [], [], []
        for row in range(len(texts.tokens)):
            one = texts.row(row)
            with attention_statistics(model, rows=one.asked.tolist()) as statistics:
                chances = value_logits(model, config, one)[0].double().log_softmax(-1)
            right.append((chances.argmax(-1) == one.values[0]).double().mean())
            nats.append(-chances.gather(-1, one.values[0][:, None]).mean())
            weights.append(statistics.array("max_weight"))
        results["accuracy"].append(float(torch.stack(right).mean()))
        results["nats"].append(float(torch.stack(nats).mean()))
        results["largest_weight"].append(float(np.mean(weights, axis=0).max()))
        report((number + 1) / len(config.sizes))
    return results


class _Numbers:
    """A tokenizer for texts that are written as numbers of tokens, with spaces between them."""

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [int(word) for word in text.split()]}

    def decode(self, tokens: list[int]) -> str:
        """Return no digit: an answer is one token, and what follows it does not matter."""
        return "".join(" " for _ in tokens)


def tune_model(
    model: PreTrainedModel, config: Config, sizes: tuple[int, ...], seed: int, resume: Path
) -> Calibration:
    """Learn one rate per head with `sharpmax tune`, on texts of these numbers of items.

    There is no ordinary text that such a model should predict as before, so nothing guards it.
    """

    def make_prompt(
        tokenizer: Any, length: int, questions: int, generator: np.random.Generator
    ) -> TaskPrompt:
        texts = make_texts(config, generator, 1, length, questions, spread=False)
        tokens = texts.tokens[0].tolist()
        first = int(texts.asked[0])
        asked = [tokens[int(place)] for place in texts.asked]
        return TaskPrompt(
            tuple(tokens[:first]),
            tuple((key,) for key in asked),
            tuple((first_value(config) + int(value),) for value in texts.values[0]),
        )

    task = Task("items", "items", config.sizes, (), (), sizes, 1, config.questions, make_prompt)
    # Never used with a weight of 0, but `tune` asks for some.
    unused = [" ".join(["0"] * 768)] * 5
    return tune(
        model,
        _Numbers(),
        [task],
        guard=unused,
        guard_weight=0.0,
        max_text_cost=None,
        from_tokens=config.tune_from_tokens,
        steps=config.tune_steps,
        check_prompts=0,
        seed=seed + 1,
        resume=resume,
    )
