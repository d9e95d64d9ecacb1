"""Train one head on one task from one seed, to the same numbers however often it is interrupted.

All randomness follows from the seed and the number of the step, so a checkpoint holds the weights,
the moments of the optimiser and the number of steps done.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from filelock import FileLock, Timeout
from jax import Array
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from sharpmax._errors import UserError
from sharpmax._files import write_atomically
from sharpmax.experiments.jobs import Progress, ReportShare, label_progress, run_jobs
from sharpmax.experiments.max_retrieval import data
from sharpmax.experiments.max_retrieval.model import DESIGNS, Weights, forward, initial_weights

if TYPE_CHECKING:
    from jaxtyping import Float, Int

LOSS_EVERY = 100
"""Steps per recorded loss, which is their mean; also the steps that are compiled into one call."""
CHECKPOINT_EVERY = 5_000
LOCK_SECONDS = 5.0

WARM_UP = 0.05
"""Share of the steps in which the learning rate rises from 0, if it is not constant."""


@dataclass(frozen=True)
class Training:
    """How a head is trained: the paper's settings where they are known (docs/max_retrieval.md)."""

    task: str = "max"
    """A name of `data.TASKS`."""
    steps: int = 100_000
    """Number of training steps, a multiple of 100."""
    batch: int = 128
    """Sets per step."""
    smallest: int = 5
    """Smallest number of items in a set."""
    largest: int = 16
    """Largest number of items in a set."""
    learning_rate: float = 1e-3
    """Learning rate of Adam; the maximum if it is not constant."""
    decay: float = 1e-3
    """Strength of the weight decay."""
    decoupled: bool = True
    """Whether the decay shrinks the weights directly (AdamW) or is a term of the loss (L2)."""
    scaled: bool = True
    """Whether logits are divided by the square root of the width."""
    kept_at: tuple[int, ...] = (20_000, 50_000)
    """Steps whose weights are kept, in addition to the last."""
    design: str = "softmax"
    """A name of `model.DESIGNS`."""
    narrowest: float = 1.0
    """The smallest width of the range of a set's priorities: see `data.draw`."""
    falling: bool = False
    """Whether the learning rate warms up and then falls to 0 like a cosine, or is constant."""

    def learning_rates(self, steps: Int[np.ndarray, " steps"]) -> Float[np.ndarray, " steps"]:
        """Return the learning rate of each of these steps."""
        if not self.falling:
            return np.full(len(steps), self.learning_rate, np.float32)
        done = steps / self.steps
        rising = np.minimum((done + 1 / self.steps) / WARM_UP, 1.0)
        falling = (1 + np.cos(np.pi * done)) / 2
        return np.asarray(self.learning_rate * rising * falling, np.float32)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings by name, for files.

        Settings that were added later are left out where they have their default, so that older
        checkpoints are still found and older heads keep their hash.
        """
        defaults = {name: getattr(Training, name) for name in ("design", "narrowest", "falling")}
        return {
            name: value
            for name, value in asdict(self).items()
            if name not in defaults or value != defaults[name]
        }

    @property
    def compile_key(self) -> Training:
        """The settings that a compiled step depends on; the others have a fixed value."""
        return replace(self, steps=LOSS_EVERY, learning_rate=0.0, kept_at=(), falling=False)

    def check(self) -> None:
        """Raise a `UserError` for settings that are unknown or out of range."""
        for what, name, known in (
            ("task", self.task, data.TASKS),
            ("design", self.design, DESIGNS),
        ):
            if name not in known:
                raise UserError(f"unknown {what} {name!r}: expected one of {', '.join(known)}")
        if not 0 < self.narrowest <= 1:
            raise UserError(
                f"narrowest must be above 0 and at most 1, got {self.narrowest}: it is the "
                "smallest width of the range of a set's priorities"
            )
        uneven = [step for step in (self.steps, *self.kept_at) if step % LOSS_EVERY]
        if self.steps < 1 or uneven:
            raise UserError(
                f"steps must be a positive multiple of {LOSS_EVERY} steps, got "
                f"{uneven[0] if uneven else self.steps}"
            )


class TrainingJob(NamedTuple):
    """One training: settings, a seed, and the folder of checkpoints."""

    training: Training
    seed: int
    folder: Path

    @property
    def path(self) -> Path:
        """The checkpoint. Its folder is named after the settings and versions, so that trainings
        that cannot continue each other never share a file.
        """
        settings = {
            **self.training.to_dict(),
            "jax": jax.__version__,
            "optax": optax.__version__,
        }
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
        return self.folder / f"{self.training.task}-{digest[:8]}" / f"seed{self.seed}.safetensors"


class TrainedHead(NamedTuple):
    """What a training has reached."""

    seed: int
    step: int
    losses: Float[np.ndarray, " records"]
    """Mean losses of `LOSS_EVERY` steps each."""
    weights: dict[int, dict[str, np.ndarray]]
    """Weights by step: those of `Training.kept_at` and the last."""
    seconds: float

    @property
    def diverged(self) -> bool:
        """Whether a loss is not finite."""
        return not np.isfinite(self.losses).all()


class State(NamedTuple):
    """Weights and the state of the optimiser."""

    weights: Weights
    optimiser: Any


def make_optimiser(training: Training) -> optax.GradientTransformation:
    """Return Adam with decoupled decay, or with an L2 term of decay / 2 times the squared norm.

    Its updates still have to be multiplied by minus the learning rate.
    """
    adam, decay = optax.scale_by_adam(), optax.add_decayed_weights(training.decay)
    return optax.chain(adam, decay) if training.decoupled else optax.chain(decay, adam)


def random_keys(seed: int) -> tuple[Array, Array]:
    """Return the random keys of the initial weights and of the training data."""
    weights_key, data_key = jax.random.split(jax.random.key(seed))
    return weights_key, data_key


def mean_loss(
    weights: Weights, sets: data.Sets, training: Training, function: Callable[..., Array]
) -> Float[Array, ""]:
    """Return the cross-entropy of the right answers."""
    classes = function(weights, sets, DESIGNS[training.design], scaled=training.scaled)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(classes, sets.answer))


@partial(jax.jit, static_argnames="training")
def initial_state(key: Array, training: Training) -> State:
    """Return the state before the first step."""
    weights = initial_weights(key, DESIGNS[training.design])
    return State(weights, make_optimiser(training).init(weights))


@partial(jax.jit, static_argnames=("training", "function"), donate_argnums=0)
def train_steps(
    state: State,
    key: Array,
    steps: Int[Array, " steps"],
    rates: Float[Array, " steps"],
    training: Training,
    function: Callable[..., Array] = forward,
) -> tuple[State, Float[Array, ""]]:
    """Train for these steps at these learning rates, and return the mean of their losses.

    `training` is a `Training.compile_key`; `function` is `model.forward` or `model.reference`.
    """
    method = make_optimiser(training)

    def step(state: State, number_and_rate: tuple[Array, Array]) -> tuple[State, Array]:
        number, rate = number_and_rate
        sets = data.draw(
            training.task,
            jax.random.fold_in(key, number),
            training.batch,
            training.smallest,
            training.largest,
            training.narrowest,
        )
        loss, gradient = jax.value_and_grad(mean_loss)(state.weights, sets, training, function)
        changes, moments = method.update(gradient, state.optimiser, state.weights)
        changes = jax.tree.map(lambda change: -rate * change, changes)
        return State(optax.apply_updates(state.weights, changes), moments), loss

    state, losses = jax.lax.scan(step, state, (steps, rates))
    return state, jnp.mean(losses)


def train(job: TrainingJob, report_share: ReportShare = lambda share: None) -> TrainedHead:
    """Train to the last step, from the checkpoint if there is one."""
    job.training.check()
    job.path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(job.path.with_suffix(".lock"), timeout=LOCK_SECONDS):
            return _train(job, report_share)
    except Timeout as error:
        raise UserError(
            f"{job.path} is being trained by another process: wait for it, or choose another folder"
        ) from error


def train_all(
    trainings: Sequence[tuple[Training, int]],
    folder: Path,
    processes: int | None = None,
    progress: Progress | None = None,
) -> list[TrainedHead]:
    """Train a head for every pair of settings and seed; checkpoints are kept in the folder."""
    jobs = [TrainingJob(training, seed, folder) for training, seed in trainings]
    report = label_progress("training", len(jobs), progress)
    trained = run_jobs(train, jobs, processes=processes, progress=report)
    for head, (training, seed) in zip(trained, trainings, strict=True):
        if head.diverged:
            raise UserError(f"training diverged (seed {seed}): a loss of {training} is not finite")
    return trained


def _train(job: TrainingJob, report_share: ReportShare) -> TrainedHead:
    training, begin = job.training, time.monotonic()
    weights_key, key = random_keys(job.seed)
    step, losses, kept, before = 0, list[float](), dict[int, Any](), 0.0
    state = initial_state(weights_key, training.compile_key)
    if job.path.exists():
        state, step, losses, kept, before = _resume(job.path, state)
    while step < training.steps:
        steps = np.arange(step, step + LOSS_EVERY, dtype=np.int32)
        rates = training.learning_rates(steps)
        state, loss = train_steps(state, key, steps, rates, training.compile_key)
        step += LOSS_EVERY
        losses.append(float(loss))
        if step in training.kept_at or step == training.steps:
            kept[step] = {name: np.asarray(array) for name, array in state.weights.items()}
        if step % CHECKPOINT_EVERY == 0 or step == training.steps:
            seconds = before + time.monotonic() - begin
            _save_checkpoint(job, state, step, losses, kept, seconds)
        report_share(step / training.steps)
    return load_checkpoint(job.path)


def load_checkpoint(path: Path) -> TrainedHead:
    """Read a checkpoint without the state of the optimiser."""
    tensors, about = _read_tensors(path)
    return TrainedHead(
        about["seed"],
        about["step"],
        tensors["losses"],
        {int(step): _select(tensors, f"at{step}.") for step in about["kept"]},
        about["seconds"],
    )


def package_versions() -> dict[str, str]:
    """Return the versions of the packages that a training's numbers depend on."""
    return {name: metadata.version(name) for name in ("sharpmax", "jax", "optax")}


def _save_checkpoint(
    job: TrainingJob,
    state: State,
    step: int,
    losses: list[float],
    kept: dict[int, Any],
    seconds: float,
) -> None:
    tensors = {f"weights.{name}": np.asarray(array) for name, array in state.weights.items()}
    for index, leaf in enumerate(jax.tree.leaves(state.optimiser)):
        tensors[f"optimiser.{index}"] = np.asarray(leaf)
    for kept_step, weights in kept.items():
        tensors |= {f"at{kept_step}.{name}": array for name, array in weights.items()}
    tensors["losses"] = np.asarray(losses, np.float64)
    about = {
        "training": job.training.to_dict(),
        "seed": job.seed,
        "step": step,
        "kept": list(kept),
        "seconds": seconds,
        "versions": package_versions(),
    }
    write_atomically(job.path, save(tensors, {"sharpmax": json.dumps(about)}))


def _resume(path: Path, fresh: State) -> tuple[State, int, list[float], dict[int, Any], float]:
    """Return the state, step, losses, kept weights and seconds of a checkpoint."""
    tensors, _ = _read_tensors(path)
    weights = {name: jnp.asarray(tensors[f"weights.{name}"]) for name in fresh.weights}
    leaves, structure = jax.tree.flatten(fresh.optimiser)
    moments = [jnp.asarray(tensors[f"optimiser.{index}"]) for index in range(len(leaves))]
    state = State(weights, jax.tree.unflatten(structure, moments))
    head = load_checkpoint(path)
    return state, head.step, head.losses.tolist(), dict(head.weights), head.seconds


def _read_tensors(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    try:
        with safe_open(path, "numpy") as stored:
            about = json.loads((stored.metadata() or {})["sharpmax"])
            return {name: stored.get_tensor(name) for name in stored.keys()}, about  # noqa: SIM118
    except (SafetensorError, KeyError, ValueError) as error:
        raise UserError(
            f"{path} is damaged ({error}): delete it, and the training starts again"
        ) from error


def _select(tensors: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {
        name.removeprefix(prefix): array
        for name, array in tensors.items()
        if name.startswith(prefix)
    }
