"""Measure what the statistics callback and QK-clip cost in a training step of SmolLM2.

    python benchmarks/training_cost.py results/bench_training.json

Three kinds of steps take turns: plain ones, ones that are sampled as `StatisticsCallback` does by
default and written to its file, and ones that record the largest logits for QK-clip. Gradients must
be the same bit for bit, and entropies those of eager attention's matrices.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import ratios

import sharpmax.hf as shf
from sharpmax.hf.loading.loader import load
from sharpmax.hf.scan.prompts import choose_prompt
from sharpmax.hf.train.callback import EVERY
from sharpmax.hf.train.statistics import ROWS, SEQUENCES, AttentionStatistics
from sharpmax.results import Result, Stopwatch

BATCH, TOKENS = 4, 256
ROUNDS = 15
LARGEST_DIFFERENCE = 1e-4
"""Between entropies in float32, in nats."""


class Training:
    """A model, its optimiser and a batch of texts.

    Args:
        model: The model.
        tokens: The texts, one per row.
        folder: Where samples are written.
    """

    def __init__(self, model: Any, tokens: torch.Tensor, folder: Path) -> None:
        self.model, self.tokens = model.train(), tokens
        # A learning rate of 0 takes the same time, and all steps compute the same.
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.0)
        self.log, self.steps = shf.StatisticsLog(folder / "statistics.jsonl"), 0

    def compute(self) -> None:
        """Compute the gradients."""
        self.model(input_ids=self.tokens, labels=self.tokens).loss.backward()

    def finish(self) -> None:
        """Take the optimiser's step."""
        self.optimizer.step()
        self.optimizer.zero_grad()

    def plain(self) -> None:
        """Take a step."""
        self.compute()
        self.finish()

    def sampled(self) -> AttentionStatistics:
        """Take a step, and record and write statistics."""
        with shf.attention_statistics(self.model) as statistics:
            self.compute()
        self.finish()
        self.steps += 1
        self.log.add(self.steps, statistics)
        return statistics

    def clipped(self) -> None:
        """Take a step, and clip by the largest logits."""
        with shf.max_logits(self.model) as largest:
            self.compute()
        self.finish()
        shf.qk_clip(self.model, 1e9, largest)


def check_gradients(training: Training) -> None:
    """Stop unless gradients are the same bit for bit while statistics are recorded."""

    def gradients(block: Callable[[], Any]) -> list[torch.Tensor]:
        training.optimizer.zero_grad()
        with block():
            training.compute()
        return [parameter.grad.clone() for parameter in training.model.parameters()]

    plain = gradients(torch.enable_grad)
    for block in (shf.attention_statistics, shf.max_logits):
        if not all(map(torch.equal, gradients(partial(block, training.model)), plain)):
            sys.exit(f"{block.__name__} changes gradients; no result was written")
    training.optimizer.zero_grad()


def check_entropies(model: Any, tokens: torch.Tensor) -> float:
    """Return the largest difference of an entropy from that of eager attention's matrices."""
    model.eval()
    before = model.config._attn_implementation
    with torch.no_grad(), shf.attention_statistics(model, rows=TOKENS, sequences=1) as found:
        model(tokens[:1])
    model.set_attn_implementation("eager")
    with torch.no_grad():
        matrices = model(tokens[:1], output_attentions=True).attentions
    model.set_attn_implementation(before)
    entropy = [torch.special.entr(matrix[0].double()).sum(-1).mean(-1) for matrix in matrices]
    difference = float(np.abs(found.entropy - torch.stack(entropy).numpy()).max())
    if difference > LARGEST_DIFFERENCE:
        sys.exit(f"entropies are off by {difference}; no result was written")
    return difference


def main() -> None:
    path = Path(sys.argv[1])
    watch, loaded = Stopwatch(), load()
    ids = choose_prompt("passkey", loaded.tokenizer).tokens(BATCH * TOKENS)
    tokens = torch.tensor(ids).view(BATCH, TOKENS)
    difference = check_entropies(loaded.model, tokens)
    with tempfile.TemporaryDirectory() as folder:
        training = Training(loaded.model, tokens, Path(folder))
        check_gradients(training)
        steps = {
            "plain": training.plain,
            "sampled": training.sampled,
            "clipped": training.clipped,
        }
        times = ratios(steps, ROUNDS)
    shares = {key: (times["sampled"][key] - 1) / EVERY for key in ("ratio", "low", "high")}
    print(times, shares)
    Result(
        kind="bench-training",
        config={
            "model": loaded.name,
            "batch": BATCH,
            "tokens": TOKENS,
            "every": EVERY,
            "rows": ROWS,
            "sequences": SEQUENCES,
            "rounds": ROUNDS,
            "threads": torch.get_num_threads(),
        },
        seeds=(0,),
        measurements={"times": times, "callback": shares, "largest_difference": difference},
        provenance=watch.provenance(),
    ).save(path, overwrite=True)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
