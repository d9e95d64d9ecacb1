"""Test one trained model under one condition: exact match, and the entropy of its heads."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sharpmax._errors import UserError
from sharpmax.experiments.clrs_text.conditions import Condition, Subject
from sharpmax.experiments.clrs_text.data import Sample
from sharpmax.experiments.clrs_text.model import Decoder, check_context_length, open_decoder
from sharpmax.experiments.clrs_text.tokenization import Example
from sharpmax.experiments.jobs import ReportShare
from sharpmax.hf.scan.forward import Selection, measure_forward_pass
from sharpmax.results import Result

EXTRA_TOKENS = 4
"""An answer that is longer than the expected one by more tokens is wrong, and cut off."""
WHOLE_NUMBER = r"(?<![\d.])\d+(?![\d.])"


@dataclass(frozen=True)
class TrainedModel:
    """A model that `train` finished."""

    folder: Path
    record: Result

    @property
    def attention(self) -> str:
        """The attention that it was trained with."""
        return str(self.record.config["training"]["attention"])

    @property
    def seed(self) -> int:
        """The seed of its training."""
        return self.record.seeds[0]

    def sizes(self, algorithm: str) -> list[int]:
        """Return the sizes of an algorithm that it was trained at."""
        sizes: dict[str, list[int]] = self.record.measurements["sizes"]
        return sizes.get(algorithm, [])


def find_trained_models(folder: Path) -> list[TrainedModel]:
    """Return the trained models of a folder."""
    records = sorted(folder.glob("*/training.json"))
    if not records:
        raise UserError(f"{folder} holds no finished training: run sharpmax clrs train first")
    return [TrainedModel(path.parent, Result.load(path)) for path in records]


@dataclass(frozen=True)
class EvaluationSettings:
    """The samples and how to test on them."""

    samples: Sequence[Sample]
    calibration: Sequence[Sample] = ()
    entropy_samples: int = 5
    """Questions per size on which the entropy of the heads is measured."""
    batch: int = 64
    device: str = "auto"
    dtype: str = "float32"


def evaluate_model(
    settings: EvaluationSettings,
    condition: Condition,
    trained: TrainedModel,
    report_share: ReportShare,
) -> dict[str, Any]:
    """Test a model on all algorithms, each in the context of the condition."""
    decoder = open_decoder(str(trained.folder / "model"), settings.device, settings.dtype)
    check_context_length(decoder.model, decoder.tokenizer.encode(settings.samples))
    outcome: dict[str, Any] = {"seed": trained.seed, "right": {}, "entropy": {}, "notes": {}}
    done = 0

    def count_answers(count: int) -> None:
        nonlocal done
        done += count
        report_share(0.999 * done / len(settings.samples))  # 1 is reported when all is on disk

    for algorithm in dict.fromkeys(sample.algorithm for sample in settings.samples):
        samples = [sample for sample in settings.samples if sample.algorithm == algorithm]
        subject = Subject(
            decoder.model,
            decoder.tokenizer,
            algorithm,
            max(trained.sizes(algorithm), default=0),
            tuple(sample for sample in settings.calibration if sample.algorithm == algorithm),
        )
        with condition.testing(subject):
            answers = generate_answers(
                decoder.model,
                decoder.tokenizer.encode(samples),
                decoder.tokenizer.end_id,
                batch=settings.batch,
                on_batch=count_answers,
            )
            outcome["right"][algorithm] = _count_correct(
                decoder, samples, answers, subject.trained_to
            )
            outcome["entropy"][algorithm] = _measure_entropy(
                decoder, samples, settings.entropy_samples
            )
        outcome["notes"][algorithm] = subject.notes
    return outcome


def is_familiar(sample: Sample, trained_to: int) -> bool:
    """Return whether all items in the answer also occur in problems of the sizes trained at.

    A model that was trained on up to 16 items was never asked to say `16`. Failing to say it is
    not a failure by dispersion.
    """
    return all(int(index) < trained_to for index in re.findall(WHOLE_NUMBER, sample.answer))


def _count_correct(
    decoder: Decoder, samples: list[Sample], answers: list[list[int]], trained_to: int
) -> dict[str, dict[str, list[int]]]:
    """Count by size and test seed: correct answers, questions, and both for familiar answers."""
    counts: dict[str, dict[str, list[int]]] = {}
    for sample, tokens in zip(samples, answers, strict=True):
        by_seed = counts.setdefault(str(sample.size), {})
        row = by_seed.setdefault(str(sample.seed), [0, 0, 0, 0])
        correct = decoder.tokenizer.is_correct(sample, tokens)
        familiar = is_familiar(sample, trained_to)
        for column, counted in enumerate((correct, True, correct and familiar, familiar)):
            row[column] += counted
    return counts


def _measure_entropy(decoder: Decoder, samples: list[Sample], most: int) -> dict[str, Any]:
    """Return, by size, the mean entropy [layer, head] at the last token of `most` questions."""
    selection = Selection.create(decoder.model)
    entropy: dict[str, Any] = {}
    for size in dict.fromkeys(sample.size for sample in samples):
        chosen = [sample for sample in samples if sample.size == size][:most]
        measured = []
        for example in decoder.tokenizer.encode(chosen):
            result = measure_forward_pass(decoder.model, selection, list(example.question))
            measured.append(result.arrays["last_entropy"])
        if measured:
            entropy[str(size)] = np.mean(measured, axis=0).tolist()
    return entropy


def batch_by_length(examples: Sequence[Example], batch: int) -> list[list[int]]:
    """Return batches of indices, sorted by length; all questions of a batch have one length.

    No batch needs padding, so an answer cannot depend on the other questions of its batch.
    """
    groups: dict[int, list[int]] = {}
    for index, example in enumerate(examples):
        groups.setdefault(len(example.question), []).append(index)
    return [
        indices[begin : begin + batch]
        for _, indices in sorted(groups.items())
        for begin in range(0, len(indices), batch)
    ]


@torch.inference_mode()
def generate_answers(
    model: Any,
    examples: Sequence[Example],
    end: int,
    *,
    batch: int = 64,
    on_batch: Callable[[int], None] | None = None,
) -> list[list[int]]:
    """Generate answers greedily, up to the token `end` or a few tokens over the expected length.

    `on_batch` is called with the number of answers after each batch.
    """
    answers: list[list[int]] = [[] for _ in examples]
    for indices in batch_by_length(examples, batch):
        questions = [examples[index].question for index in indices]
        longest = max(len(examples[index].answer) for index in indices) + EXTRA_TOKENS
        generated = _generate(model, torch.tensor(questions, device=model.device), end, longest)
        for index, answer in zip(indices, generated, strict=True):
            answers[index] = answer
        if on_batch is not None:
            on_batch(len(indices))
    return answers


def _generate(model: Any, tokens: torch.Tensor, end: int, longest: int) -> list[list[int]]:
    columns, cache = [], None
    ended = torch.zeros(len(tokens), dtype=torch.bool, device=model.device)
    for _ in range(longest):
        output = model(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
        tokens, cache = output.logits[:, -1].argmax(-1, keepdim=True), output.past_key_values
        columns.append(tokens)
        ended |= tokens[:, 0] == end
        if ended.all():
            break
    rows = torch.cat(columns, 1).tolist()
    return [row[: row.index(end) + 1] if end in row else row for row in rows]
