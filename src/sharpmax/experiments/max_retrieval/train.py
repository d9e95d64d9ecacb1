"""Training one head on one task from one seed, to the same numbers however often it is killed.

Everything random follows from the seed and the number of the step, so a checkpoint is the weights,
the optimiser's moments and the number of steps done.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
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
from sharpmax.experiments.jobs import Tell
from sharpmax.experiments.max_retrieval import data
from sharpmax.experiments.max_retrieval.designs import DESIGNS
from sharpmax.experiments.max_retrieval.model import Weights, forward, initial
from sharpmax.experiments.max_retrieval.settings import LOSS_EVERY, Training, check

if TYPE_CHECKING:
    from jaxtyping import Float, Int

CHECKPOINT_EVERY = 5_000
WAIT_FOR_LOCK = 5.0


class Job(NamedTuple):
    """One training: settings, a seed, and the folder of checkpoints."""

    training: Training
    seed: int
    folder: Path

    @property
    def path(self) -> Path:
        """Its checkpoint. The folder's name tells settings and versions apart, so that trainings
        that could not continue each other never meet.
        """
        made_of = {**self.training.stated, "jax": jax.__version__, "optax": optax.__version__}
        digest = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()
        return self.folder / f"{self.training.task}-{digest[:8]}" / f"seed{self.seed}.safetensors"


class Trained(NamedTuple):
    """What a training has reached."""

    seed: int
    step: int
    losses: Float[np.ndarray, " records"]
    weights: dict[int, dict[str, np.ndarray]]
    """By step: those kept on the way, and the last."""
    seconds: float

    @property
    def diverged(self) -> bool:
        """A loss is not finite: nothing after it means anything."""
        return not np.isfinite(self.losses).all()


class State(NamedTuple):
    weights: Weights
    optimiser: Any


def optimiser(training: Training) -> optax.GradientTransformation:
    """Adam, its decay decoupled or as an L2 term: decay / 2 times the squared norm in the loss.

    What it gives is still to be multiplied by minus the learning rate.
    """
    adam, decay = optax.scale_by_adam(), optax.add_decayed_weights(training.decay)
    return optax.chain(adam, decay) if training.decoupled else optax.chain(decay, adam)


def streams(seed: int) -> tuple[Array, Array]:
    """The random keys of the initial weights and of the training data."""
    initialising, drawing = jax.random.split(jax.random.key(seed))
    return initialising, drawing


def loss_of(
    weights: Weights, sets: data.Sets, training: Training, function: Callable[..., Array]
) -> Float[Array, ""]:
    classes = function(weights, sets, DESIGNS[training.design], scaled=training.scaled)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(classes, sets.answer))


@partial(jax.jit, static_argnames="training")
def begin(key: Array, training: Training) -> State:
    """The state before the first step."""
    weights = initial(key, DESIGNS[training.design])
    return State(weights, optimiser(training).init(weights))


@partial(jax.jit, static_argnames=("training", "function"), donate_argnums=0)
def advance(
    state: State,
    key: Array,
    steps: Int[Array, " steps"],
    rates: Float[Array, " steps"],
    training: Training,
    function: Callable[..., Array] = forward,
) -> tuple[State, Float[Array, ""]]:
    """These steps at these learning rates, and the mean of their losses.

    `training` is a `Training.kind`; `function` is the model, in either way of writing it.
    """
    method = optimiser(training)

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
        loss, gradient = jax.value_and_grad(loss_of)(state.weights, sets, training, function)
        changes, moments = method.update(gradient, state.optimiser, state.weights)
        changes = jax.tree.map(lambda change: -rate * change, changes)
        return State(optax.apply_updates(state.weights, changes), moments), loss

    state, losses = jax.lax.scan(step, state, (steps, rates))
    return state, jnp.mean(losses)


def train(job: Job, tell: Tell = lambda share: None) -> Trained:
    """Train to the end, from the checkpoint if there is one."""
    check(job.training)
    job.path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(job.path.with_suffix(".lock"), timeout=WAIT_FOR_LOCK):
            return _train(job, tell)
    except Timeout as error:
        raise UserError(
            f"{job.path} is being trained by another process: wait for it, or choose another folder"
        ) from error


def _train(job: Job, tell: Tell) -> Trained:
    training, begun = job.training, time.monotonic()
    initialising, key = streams(job.seed)
    step, losses, kept, before = 0, list[float](), dict[int, Any](), 0.0
    state = begin(initialising, training.kind)
    if job.path.exists():
        state, step, losses, kept, before = _read(job.path, state)
    while step < training.steps:
        steps = np.arange(step, step + LOSS_EVERY, dtype=np.int32)
        state, loss = advance(state, key, steps, training.rates(steps), training.kind)
        step += LOSS_EVERY
        losses.append(float(loss))
        if step in training.kept_at or step == training.steps:
            kept[step] = {name: np.asarray(array) for name, array in state.weights.items()}
        if step % CHECKPOINT_EVERY == 0 or step == training.steps:
            seconds = before + time.monotonic() - begun
            _write(job, state, step, losses, kept, seconds)
        tell(step / training.steps)
    return read(job.path)


def read(path: Path) -> Trained:
    """What a checkpoint holds, without the state of the optimiser."""
    tensors, about = _open(path)
    return Trained(
        about["seed"],
        about["step"],
        tensors["losses"],
        {int(step): _group(tensors, f"at{step}.") for step in about["kept"]},
        about["seconds"],
    )


def versions() -> dict[str, str]:
    """What a training's numbers depend on besides its settings."""
    return {name: metadata.version(name) for name in ("sharpmax", "jax", "optax")}


def _write(
    job: Job, state: State, step: int, losses: list[float], kept: dict[int, Any], seconds: float
) -> None:
    tensors = {f"weights.{name}": np.asarray(array) for name, array in state.weights.items()}
    for place, leaf in enumerate(jax.tree.leaves(state.optimiser)):
        tensors[f"optimiser.{place}"] = np.asarray(leaf)
    for at, weights in kept.items():
        tensors |= {f"at{at}.{name}": array for name, array in weights.items()}
    tensors["losses"] = np.asarray(losses, np.float64)
    about = {
        "training": job.training.stated,
        "seed": job.seed,
        "step": step,
        "kept": list(kept),
        "seconds": seconds,
        "versions": versions(),
    }
    write_atomically(job.path, save(tensors, {"sharpmax": json.dumps(about)}))


def _read(path: Path, fresh: State) -> tuple[State, int, list[float], dict[int, Any], float]:
    tensors, _ = _open(path)
    weights = {name: jnp.asarray(tensors[f"weights.{name}"]) for name in fresh.weights}
    leaves, shape = jax.tree.flatten(fresh.optimiser)
    moments = [jnp.asarray(tensors[f"optimiser.{place}"]) for place in range(len(leaves))]
    state = State(weights, jax.tree.unflatten(shape, moments))
    found = read(path)
    return state, found.step, found.losses.tolist(), dict(found.weights), found.seconds


def _open(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    try:
        with safe_open(path, "numpy") as stored:
            about = json.loads((stored.metadata() or {})["sharpmax"])
            return {name: stored.get_tensor(name) for name in stored.keys()}, about  # noqa: SIM118
    except (SafetensorError, KeyError, ValueError) as error:
        raise UserError(
            f"{path} is damaged ({error}): delete it, and its training begins anew"
        ) from error


def _group(tensors: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {
        name.removeprefix(prefix): array
        for name, array in tensors.items()
        if name.startswith(prefix)
    }
