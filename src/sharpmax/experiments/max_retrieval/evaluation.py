"""Evaluate trained heads on sets of any size, with several methods of giving weights at once.

Every method answers the same sets, whose hidden vectors are computed once. A few sets are evaluated
at a time. For sets with more than 16,384 items the hidden vectors are computed twice instead of
kept, so that a million items cost time but not memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy import stats

from sharpmax.experiments.jobs import Progress, ReportShare, label_progress, run_jobs
from sharpmax.experiments.max_retrieval import data
from sharpmax.experiments.max_retrieval.heads import Heads
from sharpmax.experiments.max_retrieval.model import (
    PAPER_DESIGN,
    WIDTH,
    Design,
    Encoded,
    Normaliser,
    Weights,
    bind_normaliser,
    classify,
    encode,
)
from sharpmax.ops import entropy

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

ITEMS_AT_ONCE = 4_096
"""2 MB of hidden vectors, which fit into the processor's cache; larger sets are evaluated alone."""

CHUNK = 1_024
"""Items of a set that are encoded together."""

HELD_ITEMS = 16_384
"""Items whose hidden vectors are kept, 8 MB, while the normaliser turns logits into weights."""

TINY = float(np.finfo(np.float32).tiny)
"""Smallest divisor, for sets whose weights are all 0."""

EVALUATION_SEED = 1_000_000
"""Added to the seed of a head, so that it is evaluated on other sets than it was trained on."""


class EvaluationJob(NamedTuple):
    """One head, the sets that it answers, and the methods that are compared on them."""

    weights: Mapping[str, np.ndarray]
    scaled: bool
    """Whether logits are divided by the square root of the width: see `train.Training`."""
    task: str
    seed: int
    sizes: tuple[int, ...]
    sets: int
    """Sets per size."""
    methods: Mapping[str, Normaliser]
    """Normalisers by name. They are sent to other processes, so they must be picklable, and equal
    if they do the same, so that each is compiled once."""
    design: Design = PAPER_DESIGN
    """The design that the head was trained with; a normaliser with learned fields takes them from
    the weights."""


class Evaluation(NamedTuple):
    """Answers of one head, set by set; the axes of every array are size and set."""

    correct: dict[str, Bool[np.ndarray, "sizes sets"]]
    """Whether the answer with each method is right."""
    weight: dict[str, Float[np.ndarray, "sizes sets"]]
    """The weight that each method gives to the item of highest priority."""
    sharpness: dict[str, Float[np.ndarray, "sizes sets"]]
    """The largest absolute weight as a share of their sum."""
    entropy: Float[np.ndarray, "sizes sets"]
    """Entropy of plain softmax, in nats."""
    argmax_correct: Bool[np.ndarray, "sizes sets"]
    """Whether the item of largest logit has the right class."""
    argmax_is_maximum: Bool[np.ndarray, "sizes sets"]
    """Whether the item of largest logit is the item of highest priority."""


def evaluate_head(job: EvaluationJob, report_share: ReportShare = lambda share: None) -> Evaluation:
    """Evaluate one head on `job.sets` sets of every size."""
    weights = {name: jnp.asarray(array) for name, array in job.weights.items()}
    methods = tuple(job.methods.values())
    total = job.sets * sum(job.sizes)
    done, by_size = 0, []
    for size in job.sizes:
        key = jax.random.fold_in(jax.random.key(EVALUATION_SEED + job.seed), size)
        portions: list[Any] = []
        for index, count in enumerate(split_sets(job.sets, size)):
            sets = _draw(job.task, jax.random.fold_in(key, index), count, size)
            portion = _answer(weights, sets, methods, job.scaled, job.design)
            portions.append(jax.device_get(portion))
            done += count * size
            report_share(done / total)
        by_size.append(jax.tree.map(lambda *parts: np.concatenate(parts, axis=-1), *portions))
    arrays = jax.tree.map(lambda *sizes: np.stack(sizes), *by_size)
    by_method = {
        field: {name: arrays[field][:, index] for index, name in enumerate(job.methods)}
        for field in ("correct", "weight", "sharpness")
    }
    return Evaluation(**{**arrays, **by_method})


def evaluate_heads(
    jobs: Sequence[EvaluationJob],
    processes: int | None = None,
    progress: Progress | None = None,
    phase: str = "evaluating",
) -> list[Evaluation]:
    """Evaluate several heads in parallel."""
    report = label_progress(phase, len(jobs), progress)
    return run_jobs(evaluate_head, jobs, processes=processes, progress=report)


def jobs_for_heads(
    heads: Heads,
    sizes: tuple[int, ...],
    sets: int,
    methods: Mapping[str, Normaliser],
    seed_offset: int = 0,
) -> list[EvaluationJob]:
    """Return one evaluation per seed, on the task that the heads were trained on."""
    training = heads.training
    return [
        EvaluationJob(
            heads.of(seed),
            training.scaled,
            training.task,
            seed_offset + seed,
            sizes,
            sets,
            methods,
        )
        for seed in heads.seeds
    ]


def split_sets(sets: int, size: int) -> Sequence[int]:
    """Split sets of one size into portions that are evaluated together; the last may be smaller."""
    portion = max(1, min(sets, ITEMS_AT_ONCE // size))
    whole, rest = divmod(sets, portion)
    return [portion] * whole + [rest] * (rest > 0)


@partial(jax.jit, static_argnums=(0, 2, 3))
def _draw(task: str, key: Array, sets: int, size: int) -> data.Sets:
    return data.draw(task, key, sets, size, size)


@partial(jax.jit, static_argnames=("methods", "scaled", "design"))
def _answer(
    weights: Weights,
    sets: data.Sets,
    methods: tuple[Normaliser, ...],
    scaled: bool,
    design: Design,
) -> dict[str, Array]:
    """Return the fields of `Evaluation` for these sets; methods are the first axis of some."""
    sets, chunks = _split_items(sets)
    encode_chunks = partial(encode, weights, design=design, scaled=scaled)
    look = _hold if chunks.priority.size <= HELD_ITEMS else _stream
    by_row, pool = look(encode_chunks, chunks)
    rows = [logits.reshape(sets.priority.shape) for logits in by_row]
    bound = [bind_normaliser(weights, replace(design, normaliser=method)) for method in methods]
    attention = jnp.stack([method(*rows, where=sets.present) for method in bound])
    by_chunk = attention.reshape(len(methods), *chunks.priority.shape)
    pooled = pool(by_chunk)
    pooled = jnp.sum(pooled.reshape(len(methods), len(sets.query), -1, WIDTH), axis=2)
    logits, size = rows[0], jnp.abs(attention)
    classes = classify(weights, pooled, jnp.sum(attention, axis=-1), design)
    answers = jnp.argmax(classes, axis=-1)
    best, top = (data.argmax_present(values, sets.present) for values in (sets.priority, logits))
    top_label = jnp.take_along_axis(sets.label, top[:, None], axis=1)[:, 0]
    return {
        "correct": answers.astype(sets.answer.dtype) == sets.answer,
        "weight": jnp.take_along_axis(attention, best[None, :, None], axis=2)[..., 0],
        "sharpness": jnp.max(size, axis=2) / jnp.maximum(jnp.sum(size, axis=2), TINY),
        "entropy": entropy(logits, where=sets.present),
        "argmax_correct": top_label == sets.answer,
        "argmax_is_maximum": top == best,
    }


Pool = Callable[[Array], Array]
"""From weights [methods chunks items] to weighted sums of hidden vectors [methods chunks width]."""


def _hold(
    encode_chunks: Callable[[data.Sets], Encoded], chunks: data.Sets
) -> tuple[tuple[Array, ...], Pool]:
    """Return the logits of all chunks, and what sums their hidden vectors, which are kept."""
    encoded = encode_chunks(chunks)
    return encoded.logits, lambda weights: jnp.einsum("mpi,pih->mph", weights, encoded.hidden)


def _stream(
    encode_chunks: Callable[[data.Sets], Encoded], chunks: data.Sets
) -> tuple[tuple[Array, ...], Pool]:
    """Return the same as `_hold`, but encode each chunk again for the sums."""

    def encode_one(chunk: data.Sets) -> Encoded:
        return encode_chunks(jax.tree.map(lambda array: array[None], chunk))

    def pool(weights: Array) -> Array:
        def sum_one(pair: tuple[data.Sets, Array]) -> Array:
            chunk, its_weights = pair
            return its_weights @ encode_one(chunk).hidden[0]

        sums = jax.lax.map(sum_one, (chunks, jnp.moveaxis(weights, 1, 0)))
        return jnp.moveaxis(sums, 0, 1)

    return jax.lax.map(lambda chunk: encode_one(chunk).logits, chunks), pool


def _split_items(sets: data.Sets) -> tuple[data.Sets, data.Sets]:
    """Return the sets, padded to whole chunks, and every chunk as a set of its own.

    The head encodes each item by itself, so chunks give the same result. Products over few items
    stay in the processor's cache and are five times faster at 16,384 items.
    """
    items = sets.priority.shape[1]
    chunks = -(-items // CHUNK)
    chunk = min(items, CHUNK)
    missing = ((0, 0), (0, chunks * chunk - items))
    whole = sets._replace(
        priority=jnp.pad(sets.priority, missing),
        label=jnp.pad(sets.label, missing),
        present=jnp.pad(sets.present, missing),
    )
    parts = data.Sets(
        whole.priority.reshape(-1, chunk),
        whole.label.reshape(-1, chunk),
        whole.present.reshape(-1, chunk),
        jnp.repeat(sets.query, chunks),
        jnp.repeat(sets.answer, chunks),
    )
    return whole, parts


def accuracies(evaluations: Sequence[Evaluation], method: str) -> Float[np.ndarray, "seeds sizes"]:
    """Return the share of right answers per seed and size."""
    return np.stack([evaluation.correct[method].mean(1) for evaluation in evaluations])


def attribute_errors(
    evaluations: Sequence[Evaluation], method: str
) -> dict[str, Float[np.ndarray, " sizes"]]:
    """Return the share of sets lost to each cause, by size, averaged over seeds.

    *ranking*: the largest logit belongs to an item of another class; *dispersion*: it belongs to
    the right class and the answer is wrong all the same. `right_by_luck` is the share of sets that
    are right although the ranking is wrong.
    """
    correct = np.stack([evaluation.correct[method] for evaluation in evaluations])
    ranked = np.stack([evaluation.argmax_correct for evaluation in evaluations])
    return {
        "dispersion": (~correct & ranked).mean((0, 2)),
        "ranking": (~correct & ~ranked).mean((0, 2)),
        "right_by_luck": (correct & ~ranked).mean((0, 2)),
    }


def spread(values: Float[np.ndarray, "seeds sizes"]) -> Float[np.ndarray, " sizes"] | None:
    """Return the standard deviation over seeds; None for one seed."""
    return values.std(0, ddof=1) if len(values) > 1 else None


def paired_p(
    first: Float[np.ndarray, "seeds sizes"], second: Float[np.ndarray, "seeds sizes"]
) -> list[float | None]:
    """Return p of a two-sided paired t-test over seeds, per size.

    None where there is nothing to test: fewer than two seeds, or the same difference in all of them
    (as when both methods are right everywhere).
    """
    differences = second - first
    return [
        # Equal differences of shares may differ by rounding.
        float(stats.ttest_1samp(column, 0.0).pvalue) if np.ptp(column) > 1e-9 else None
        for column in differences.T
    ]


def sampling_error(accuracy: Float[np.ndarray, " sizes"], sets: int) -> Float[np.ndarray, " sizes"]:
    """Return the standard error of an accuracy measured on so many independent sets."""
    return np.sqrt(accuracy * (1 - accuracy) / sets)
