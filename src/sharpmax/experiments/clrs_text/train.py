"""Fine-tune a decoder on CLRS-Text, to the same losses however often it is killed.

The loss is the cross-entropy of the answer's tokens, every answer weighing the same. One process on
one device, or several by `accelerate launch` or torchrun: each takes its part of a step's samples,
and the gradients are those of all.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from accelerate import Accelerator
from accelerate.utils import DistributedType
from filelock import FileLock, Timeout
from torch import Tensor

from sharpmax._errors import UserError
from sharpmax.experiments.clrs_text import checkpoint, optimisers
from sharpmax.experiments.clrs_text.arms import trained_with
from sharpmax.experiments.clrs_text.batches import (
    IGNORED,
    Batch,
    Schedule,
    collate,
    cut,
)
from sharpmax.experiments.clrs_text.checkpoint import State
from sharpmax.experiments.clrs_text.data import Sample, Source
from sharpmax.experiments.clrs_text.model import begun, check_room, save
from sharpmax.experiments.clrs_text.settings import Training, check, check_shares
from sharpmax.experiments.clrs_text.tokens import Example
from sharpmax.results import Result, Stopwatch

CHECKPOINT_EVERY = 500
WAIT_FOR_LOCK = 5.0

Progress = Callable[[int, float], None]
"""Called after each step with its number, from 1, and its loss."""

ALONE_OR_COPIES = (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)


@dataclass(frozen=True)
class Job:
    """One training: settings, seed, samples, and the folder of what comes of it."""

    training: Training
    seed: int
    source: Source
    out: Path

    @property
    def folder(self) -> Path:
        return self.out / f"{self.training.attention}-seed{self.seed}"

    @property
    def record(self) -> Path:
        """Written last: where it is, the training is done."""
        return self.folder / "training.json"


def run(
    job: Job, *, progress: Progress | None = None, checkpoint_every: int = CHECKPOINT_EVERY
) -> Result:
    """Train to the end, from the checkpoint if there is one; the trained model is in
    `folder/model`, and the losses are in the result, which is saved beside it.
    """
    check(job.training)
    if job.record.exists():
        return _finished(job)
    job.folder.mkdir(parents=True, exist_ok=True)
    accelerator = _accelerator(job.training)
    lock: AbstractContextManager[Any] = nullcontext()
    if accelerator.is_main_process:
        lock = FileLock(job.folder / "training.lock", timeout=WAIT_FOR_LOCK)
    try:
        with lock:
            return _train(job, accelerator, progress, checkpoint_every)
    except Timeout as error:
        raise UserError(
            f"{job.folder} is being trained by another process: wait for it, or choose another "
            "folder"
        ) from error


def _train(
    job: Job, accelerator: Accelerator, progress: Progress | None, checkpoint_every: int
) -> Result:
    watch, training = Stopwatch(), job.training
    ready = begun(training, job.seed)
    samples = job.source.samples
    check_room(ready.model, ready.tokens.examples(_longest(samples)))
    model: Any = ready.model
    model.train()
    if training.saving_memory:
        model.gradient_checkpointing_enable()
    model.to(accelerator.device)
    steppers = optimisers.made(model, training)
    about = _about(job)
    path, state = job.folder / "checkpoint.safetensors", State()
    if path.exists():
        state = checkpoint.read(path, model, steppers, about)
    wrapped = accelerator.prepare(model)
    schedule = Schedule([sample.size for sample in samples], training, job.seed)
    before, begin = state.seconds, time.monotonic()
    losses = list(state.losses)
    with trained_with(model, training.attention):
        for step in range(state.step, training.steps):
            torch.manual_seed(hash((job.seed, step)) % 2**63)  # of dropout, where a model has it
            # Tokenised when they are needed: two million samples would not fit into memory twice.
            examples = ready.tokens.examples([samples[place] for place in schedule.at(step)])
            groups = cut(examples, training.micro, accelerator.num_processes)
            for group in (group for one in steppers for group in one.param_groups):
                group["lr"] = training.rate(step)
            loss = advance(accelerator, wrapped, steppers, groups, ready.tokens.pad, training.clip)
            if not np.isfinite(loss):
                raise UserError(
                    f"training diverged: the loss of step {step + 1} is {loss}; lower the "
                    "learning rate"
                )
            losses.append(loss)
            done = step + 1
            if (done % checkpoint_every == 0 or done == training.steps) and (
                accelerator.is_main_process
            ):
                state = State(done, tuple(losses), before + time.monotonic() - begin)
                checkpoint.write(path, model, steppers, state, about)
            if progress is not None and accelerator.is_main_process:
                progress(done, loss)
    if accelerator.is_main_process:
        save(model, ready.tokens, job.folder / "model")
        result = _result(job, ready.name, ready.notes, state, watch)
        result.save(job.record)
    accelerator.wait_for_everyone()
    return _finished(job)


def _longest(samples: Sequence[Sample]) -> list[Sample]:
    """The longest text of each algorithm."""
    found: dict[str, Sample] = {}
    for sample in samples:
        before = found.setdefault(sample.algorithm, sample)
        if len(sample.question) + len(sample.answer) > len(before.question) + len(before.answer):
            found[sample.algorithm] = sample
    return list(found.values())


def advance(
    accelerator: Accelerator,
    model: Any,
    steppers: Sequence[torch.optim.Optimizer],
    groups: Sequence[Sequence[Example]],
    pad: int,
    clip: float,
) -> float:
    """One step; the mean loss of its samples."""
    rank, processes = accelerator.process_index, accelerator.num_processes
    total = sum(len(group) for group in groups)
    summed = torch.zeros((), device=accelerator.device)
    for place, group in enumerate(groups):
        batch = collate(group[rank::processes], pad)
        last = place == len(groups) - 1
        with nullcontext() if last else accelerator.no_sync(model):
            loss = answer_loss(model, batch, accelerator.device) / total
            accelerator.backward(loss * processes)  # which it then divides by
        summed += loss.detach()
    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    for stepper in steppers:
        stepper.step()
        stepper.zero_grad(set_to_none=True)
    return float(accelerator.reduce(summed, "sum"))


def answer_loss(model: Any, batch: Batch, device: torch.device) -> Tensor:
    """The mean over an answer's tokens, summed over samples: an index weighs as much as a sorted
    list, which would drown it by its length.

    Logits are made for the end of the batch only, since a large vocabulary takes more memory than
    all layers.
    """
    logits = model(
        input_ids=batch.tokens.to(device), logits_to_keep=batch.kept, use_cache=False
    ).logits
    labels = batch.labels.to(device)
    losses = F.cross_entropy(
        logits.transpose(1, 2).float(), labels, ignore_index=IGNORED, reduction="none"
    )
    return (losses.sum(1) / (labels != IGNORED).sum(1)).sum()


def _accelerator(training: Training) -> Accelerator:
    half = torch.cuda.is_available() and torch.cuda.is_bf16_supported()
    if training.precision == "bfloat16" and not half and torch.cuda.is_available():
        raise UserError("precision bfloat16: this GPU does not have it; use float32")
    wanted = training.precision == "bfloat16" or (training.precision == "auto" and half)
    # Without `cpu` several processes without an accelerator would each take themselves for the only
    # one.
    accelerator = Accelerator(
        mixed_precision="bf16" if wanted else "no", cpu=not torch.accelerator.is_available()
    )
    if accelerator.distributed_type not in ALONE_OR_COPIES:
        raise UserError(
            f"accelerate is set to {accelerator.distributed_type.value}, which splits a model: "
            "sharpmax trains on one device, or a copy on each of several"
        )
    check_shares(training, accelerator.num_processes)
    return accelerator


def _about(job: Job) -> dict[str, Any]:
    """What a training's numbers depend on: a checkpoint goes on only under the same."""
    versions = {name: metadata.version(name) for name in ("torch", "transformers")}
    return {
        "training": job.training.stated,
        "seed": job.seed,
        "data": job.source.about,
        "versions": versions,
    }


def _result(job: Job, name: str, notes: tuple[str, ...], state: State, watch: Stopwatch) -> Result:
    losses = np.asarray(state.losses)
    sizes: dict[str, list[int]] = {}
    for algorithm, size in sorted({sample[:2] for sample in job.source.samples}):
        sizes.setdefault(str(algorithm), []).append(int(size))
    tail = max(1, len(losses) // 20)
    return Result(
        kind="clrs-training",
        config=_about(job),
        seeds=(job.seed,),
        measurements={
            "model": name,
            "notes": list(notes),
            "data": job.source.place,
            "sizes": sizes,
            "last_loss": float(losses[-tail:].mean()),
            "seconds": round(state.seconds, 1),
        },
        provenance=watch.provenance(),
    ).with_arrays(losses=losses)


def _finished(job: Job) -> Result:
    result = Result.load(job.record)
    if result.config != json.loads(json.dumps(_about(job))):
        raise UserError(
            f"{job.folder} holds a training with other settings or data: choose another folder, or "
            "delete it"
        )
    return result
