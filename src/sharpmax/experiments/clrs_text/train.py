"""Fine-tune a decoder on CLRS-Text, to the same losses however often it is interrupted.

The loss is the cross-entropy of the answer tokens, with the same weight for every answer. Training
runs in one process on one device, or in several with `accelerate launch` or torchrun: each process
then computes its part of a step's samples, and the gradients are those of all samples.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from accelerate import Accelerator
from accelerate.utils import DistributedType
from filelock import FileLock, Timeout
from torch import Tensor
from torch.optim import Optimizer

from sharpmax._errors import UserError
from sharpmax.experiments.clrs_text.batches import (
    IGNORED,
    Batch,
    Schedule,
    collate,
    split_by_length,
)
from sharpmax.experiments.clrs_text.checkpoint import State, load_checkpoint, save_checkpoint
from sharpmax.experiments.clrs_text.conditions import training_context
from sharpmax.experiments.clrs_text.config import Training
from sharpmax.experiments.clrs_text.data import Sample, Source
from sharpmax.experiments.clrs_text.model import (
    Decoder,
    check_context_length,
    initial_decoder,
    save_decoder,
)
from sharpmax.experiments.clrs_text.optimisers import make_optimisers
from sharpmax.experiments.clrs_text.tokenization import Example
from sharpmax.results import Result, Stopwatch

if TYPE_CHECKING:
    from jaxtyping import Float

__all__ = ["Job", "run"]

CHECKPOINT_EVERY = 500
LOCK_SECONDS = 5.0

StepProgress = Callable[[int, float], None]
"""Called after each step with its number, from 1, and its loss."""

SUPPORTED = (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)
"""One device, or a copy of the model on each of several."""


@dataclass(frozen=True)
class Job:
    """One training: settings, seed, samples and the output folder."""

    training: Training
    """The settings."""
    seed: int
    """Seed of the initial weights and of the order of the samples."""
    source: Source
    """The samples, from `data.load_samples`."""
    out: Path
    """Folder in which the folder of this training is created."""

    @property
    def folder(self) -> Path:
        """The folder of the model, the checkpoint and the record."""
        return self.out / f"{self.training.attention}-seed{self.seed}"

    @property
    def record(self) -> Path:
        """The file of the result. It is written last: where it exists, the training is done."""
        return self.folder / "training.json"


def run(
    job: Job, *, progress: StepProgress | None = None, checkpoint_every: int = CHECKPOINT_EVERY
) -> Result:
    """Train to the last step, from the checkpoint if there is one.

    The trained model is saved in `job.folder / "model"`, the result beside it. A training that is
    done already is loaded.

    Args:
        job: The settings, the seed, the samples and the output folder.
        progress: Called after every step.
        checkpoint_every: Steps between two checkpoints.

    Returns:
        A result of kind `clrs-training` with the array `losses`, one per step.

    Raises:
        UserError: If settings are out of range, the folder holds another training, a sample does
            not fit into the model's context, or the training diverges.
    """
    job.training.check()
    if job.record.exists():
        return _load_result(job)
    job.folder.mkdir(parents=True, exist_ok=True)
    accelerator = _make_accelerator(job.training)
    lock: AbstractContextManager[Any] = nullcontext()
    if accelerator.is_main_process:
        lock = FileLock(job.folder / "training.lock", timeout=LOCK_SECONDS)
    try:
        with lock:
            return _train(job, accelerator, progress, checkpoint_every)
    except Timeout as error:
        raise UserError(
            f"{job.folder} is being trained by another process: wait for it, or choose another "
            "folder"
        ) from error


def _train(
    job: Job, accelerator: Accelerator, progress: StepProgress | None, checkpoint_every: int
) -> Result:
    watch, training = Stopwatch(), job.training
    decoder = initial_decoder(training, job.seed)
    samples = job.source.samples
    check_context_length(decoder.model, decoder.tokenizer.encode(_longest_texts(samples)))
    model: Any = decoder.model
    model.train()
    if training.saving_memory:
        model.gradient_checkpointing_enable()
    model.to(accelerator.device)
    optimisers = make_optimisers(model, training)
    about = _describe(job)
    path, state = job.folder / "checkpoint.safetensors", State()
    if path.exists():
        state = load_checkpoint(path, model, optimisers, about)
    wrapped = accelerator.prepare(model)
    schedule = Schedule([sample.size for sample in samples], training, job.seed)
    before, begin = state.seconds, time.monotonic()
    losses = list(state.losses)
    with training_context(model, training.attention):
        for step in range(state.step, training.steps):
            torch.manual_seed(hash((job.seed, step)) % 2**63)  # for models with dropout
            # Tokenised on demand: two million samples would not fit into memory twice.
            examples = decoder.tokenizer.encode([samples[i] for i in schedule.indices(step)])
            groups = split_by_length(examples, training.micro, accelerator.num_processes)
            for group in (group for each in optimisers for group in each.param_groups):
                group["lr"] = training.learning_rate_at(step)
            loss = train_step(
                accelerator, wrapped, optimisers, groups, decoder.tokenizer.pad_id, training.clip
            )
            if not np.isfinite(loss):
                raise UserError(
                    f"training diverged: the loss of step {step + 1} is {loss}; lower the "
                    "learning rate"
                )
            losses.append(loss)
            done = step + 1
            if accelerator.is_main_process:
                if done % checkpoint_every == 0 or done == training.steps:
                    state = State(done, tuple(losses), before + time.monotonic() - begin)
                    save_checkpoint(path, model, optimisers, state, about)
                if progress is not None:
                    progress(done, loss)
    if accelerator.is_main_process:
        save_decoder(model, decoder.tokenizer, job.folder / "model")
        _make_result(job, decoder, state, watch).save(job.record)
    accelerator.wait_for_everyone()
    return _load_result(job)


def _longest_texts(samples: Sequence[Sample]) -> list[Sample]:
    """Return the longest sample of each algorithm."""
    longest: dict[str, Sample] = {}
    for sample in samples:
        before = longest.setdefault(sample.algorithm, sample)
        if len(sample.question) + len(sample.answer) > len(before.question) + len(before.answer):
            longest[sample.algorithm] = sample
    return list(longest.values())


def train_step(
    accelerator: Accelerator,
    model: Any,
    optimisers: Sequence[Optimizer],
    groups: Sequence[Sequence[Example]],
    pad: int,
    clip: float,
) -> float:
    """Train one step on groups of samples, and return the mean loss of the samples."""
    rank, processes = accelerator.process_index, accelerator.num_processes
    total = sum(len(group) for group in groups)
    summed = torch.zeros((), device=accelerator.device)
    for index, group in enumerate(groups):
        batch = collate(group[rank::processes], pad)
        last = index == len(groups) - 1
        with nullcontext() if last else accelerator.no_sync(model):
            loss = answer_loss(model, batch, accelerator.device) / total
            accelerator.backward(loss * processes)  # gradients are averaged over processes
        summed += loss.detach()
    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    for optimiser in optimisers:
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
    return float(accelerator.reduce(summed, "sum"))


def answer_loss(model: Any, batch: Batch, device: torch.device) -> Float[Tensor, ""]:
    """Return the mean loss over each answer's tokens, summed over samples.

    An index thus weighs as much as a sorted list, which would otherwise drown it by its length.
    Logits are computed for the end of the batch only: with a large vocabulary they take more memory
    than all layers.
    """
    logits = model(
        input_ids=batch.tokens.to(device), logits_to_keep=batch.kept, use_cache=False
    ).logits
    labels = batch.labels.to(device)
    losses = F.cross_entropy(
        logits.transpose(1, 2).float(), labels, ignore_index=IGNORED, reduction="none"
    )
    return (losses.sum(1) / (labels != IGNORED).sum(1)).sum()


def _make_accelerator(training: Training) -> Accelerator:
    has_bfloat16 = torch.cuda.is_available() and torch.cuda.is_bf16_supported()
    if training.precision == "bfloat16" and not has_bfloat16 and torch.cuda.is_available():
        raise UserError("precision bfloat16: this GPU does not have it; use float32")
    half = training.precision == "bfloat16" or (training.precision == "auto" and has_bfloat16)
    # Without `cpu`, several processes without an accelerator would each assume to be the only one.
    accelerator = Accelerator(
        mixed_precision="bf16" if half else "no", cpu=not torch.accelerator.is_available()
    )
    if accelerator.distributed_type not in SUPPORTED:
        raise UserError(
            f"accelerate is set to {accelerator.distributed_type.value}, which splits a model: "
            "sharpmax trains on one device, or with a copy on each of several"
        )
    training.check_processes(accelerator.num_processes)
    return accelerator


def _describe(job: Job) -> dict[str, Any]:
    """Return what the numbers depend on: a checkpoint is resumed only if all of it is the same."""
    versions = {name: metadata.version(name) for name in ("torch", "transformers")}
    return {
        "training": job.training.to_dict(),
        "seed": job.seed,
        "data": job.source.about,
        "versions": versions,
    }


def _make_result(job: Job, decoder: Decoder, state: State, watch: Stopwatch) -> Result:
    losses = np.asarray(state.losses)
    sizes: dict[str, list[int]] = {}
    for algorithm, size in sorted({sample[:2] for sample in job.source.samples}):
        sizes.setdefault(str(algorithm), []).append(int(size))
    tail = max(1, len(losses) // 20)
    return Result(
        kind="clrs-training",
        config=_describe(job),
        seeds=(job.seed,),
        measurements={
            "model": decoder.name,
            "notes": list(decoder.notes),
            "data": job.source.location,
            "sizes": sizes,
            "last_loss": float(losses[-tail:].mean()),
            "seconds": round(state.seconds, 1),
        },
        provenance=watch.provenance(),
    ).with_arrays(losses=losses)


def _load_result(job: Job) -> Result:
    result = Result.load(job.record)
    if result.config != json.loads(json.dumps(_describe(job))):
        raise UserError(
            f"{job.folder} holds a training with other settings or data: choose another folder, or "
            "delete it"
        )
    return result
