"""Find out why a model loses answers as inputs grow: dispersion or ranking.

A head that copies the answer can fail in two ways. It still ranks the answer first, but gives it
less and less weight: dispersion, which sharpening undoes. Or it ranks something else first: then
sharpening that head makes it surer of the wrong token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from transformers import PreTrainedModel

from sharpmax._errors import UserError
from sharpmax.hf.bos import prepare_tokenizer
from sharpmax.hf.checkpoint import SECONDS_BETWEEN_SAVES, Checkpoint
from sharpmax.hf.evaluate import stats
from sharpmax.hf.evaluate.conditions import Condition
from sharpmax.hf.evaluate.resolve import AnyTask, resolve_task
from sharpmax.hf.evaluate.scoring import require_language_model
from sharpmax.hf.evaluate.tasks import (
    Task,
    TaskPrompt,
    hash_prompts,
    make_prompts,
)
from sharpmax.hf.model_info import describe_model, weights_fingerprint
from sharpmax.hf.patch.layers import evaluation_mode
from sharpmax.hf.patch.parallel import group_of
from sharpmax.hf.patch.parity import require_support
from sharpmax.hf.patch.wrappers import unwrap_model
from sharpmax.hf.progress import Progress, ProgressCallback
from sharpmax.hf.tune.calibration import Calibration, architecture_of
from sharpmax.hf.tune.needle_rows import (
    HIDDEN,
    LAST_TOKENS,
    NEEDLE,
    WINNERS,
    measure_needle_rows,
)
from sharpmax.policies import Policy
from sharpmax.results import Result, Stopwatch
from sharpmax.theory import growth_power, name_law
from sharpmax.theory.growth import GAPS

if TYPE_CHECKING:
    from jaxtyping import Float, Int

MIN_SCORE = 0.1
"""A head with at least this retrieval score is a retrieval head.

The threshold of Wu et al. (arXiv 2404.15574), who introduced the score. By chance a head ranks one
given token of 100 first in 1 % of cases.
"""
MIN_LOSS = 0.1
"""Losing less than this share of the weight counts as nothing lost: 100 questions show no less."""
QUESTIONS = 96
"""Default number of questions of each length."""
RESAMPLES = 1000
"""Resamples of the prompts for the interval of a share."""


class Diagnosis(Result):
    """Attention on the answer per head over growing inputs, as `diagnose` measures it.

    `measurements["rows"]` has one row per length, which `row` looks up.
    `measurements["retrieval_heads"]` has the same numbers for each of these heads. The arrays
    `weight`, `answer_weight`, `rank` and `winner` hold every head and question, and `competitors`
    [length, layer, head, gap] the number of tokens near the answer's logit, summed over the
    questions whose answer is ranked first.
    """

    kind: Literal["diagnose"] = "diagnose"
    """The kind of result."""

    @property
    def lengths(self) -> list[int]:
        """The lengths of the prompts, in the unit of the task."""
        return list(self.config["lengths"])

    @property
    def cause(self) -> str:
        """Why weight is lost: "dispersion", "ranking", "window", "nothing lost" or "no heads"."""
        return str(self.measurements["cause"])

    @property
    def retrieval_heads(self) -> list[tuple[int, int]]:
        """Layer and head of each retrieval head, the highest score first."""
        return [(head["layer"], head["head"]) for head in self.measurements["retrieval_heads"]]

    @property
    def score(self) -> Float[np.ndarray, "layers heads"]:
        """The retrieval score of each head; NaN where a layer has fewer heads than others."""
        return self.arrays["score"]

    @property
    def weight(self) -> Float[np.ndarray, "lengths prompts questions layers heads"]:
        """The weight of the token to copy, in half precision."""
        return self.arrays["weight"]

    @property
    def answer_weight(self) -> Float[np.ndarray, "lengths prompts questions layers heads"]:
        """The weight of all tokens of the answer's number, in half precision."""
        return self.arrays["answer_weight"]

    @property
    def rank(self) -> Int[np.ndarray, "lengths prompts questions layers heads"]:
        """The rank of the token to copy among the visible tokens; 0 where a window hides it."""
        return self.arrays["rank"]

    @property
    def winner(self) -> Int[np.ndarray, "lengths prompts questions layers heads"]:
        """What has the largest logit, as an index of `measurements["winners"]`."""
        return self.arrays["winner"]

    def row(self, length: int) -> dict[str, Any]:
        """Return the answers and the means over the retrieval heads at a length.

        Args:
            length: One of `lengths`.

        Returns:
            `accuracy`, and `split`: `weight`, `ranked_first`, `loss` and its parts `dispersion`,
            `ranking` and `window`, and the share of questions in which each kind of token is ranked
            first, `winners`. `split` is None without retrieval heads.

        Raises:
            KeyError: There is no such length.
        """
        for row in self.measurements["rows"]:
            if row["length"] == length:
                return row
        raise KeyError(f"no length {length}: measured were {self.lengths}")


def diagnose(
    model: PreTrainedModel,
    tokenizer: Any,
    task: AnyTask = "lookup",
    *,
    lengths: Sequence[int] | None = None,
    prompts: int | None = None,
    questions: int | None = None,
    policy: Condition | Policy | Calibration | str | Path | None = None,
    seed: int = 0,
    name: str | None = None,
    notes: Sequence[str] = (),
    resume: str | Path | None = None,
    progress: ProgressCallback | None = None,
) -> Diagnosis:
    """Find out why a model loses answers as inputs grow: dispersion or ranking.

    Use it before you sharpen anything. At the position that predicts the first token of the
    answer's number, each head is asked two questions: how much weight does it give the token to
    copy, and which token does it rank first? The *retrieval score* of a head is the share of
    questions at the shortest length in which it ranks the token to copy first, that is, gives it
    the largest logit of all visible tokens. Heads with a score of at least `MIN_SCORE` are
    *retrieval heads*. What they lose is split by what they rank first:

        a         = mean weight at the shortest length, over the questions that rank it first
        miss_k(n) = mean over questions of [kind k is ranked first] * (a - weight)
        loss_k(n) = miss_k(n) - miss_k(shortest)
        sum over k of loss_k(n) = mean weight at the shortest length - mean weight at length n

    *Dispersion* is the part where the token to copy is still ranked first, *ranking* the part where
    something else is. In a layer with a sliding window, questions whose answer is outside the
    window are a part of their own. A learned sink, as in gpt-oss, takes weight but is not a token:
    it has no rank.

    Args:
        model: A causal language model of transformers. It is unchanged afterwards.
        tokenizer: Its tokenizer, which must say which characters a token holds (a fast one).
        task: A task, as in `evaluate`, whose text has the answer. Functions and lists of questions
            must have it exactly once.
        lengths: At least two lengths of prompts. Heads are chosen at the shortest, so give one that
            the model answers well. Default: those of the task.
        prompts: Number of prompts of each length. Default: enough for about 100 questions.
        questions: Number of questions per prompt. Default: that of the task.
        policy: Diagnose the model while this sharpens it: a policy, a calibration, the path of a
            calibration file, or a `Condition`. The weights are then the sharpened ones.
        seed: Seed of the random prompts.
        name: The model's name in the result.
        notes: Notes to keep in the result.
        resume: A checkpoint file. An interrupted diagnosis resumes if you repeat the call; call
            `forget` once the result is saved.
        progress: Called with the finished share, from 0 to 1.

    Returns:
        Weight, rank and winner per head and question, the retrieval heads, and the split.

    Raises:
        UserError: The model, task and lengths do not fit together, the task does not say where its
            answers are, or `resume` is the checkpoint of another job. Raised before the model reads
            anything.

    Examples:
        >>> diagnosis = shf.diagnose(model, tokenizer, "lookup", lengths=[8, 32])
        >>> diagnosis.cause, diagnosis.row(32)["split"]["ranked_first"]
    """
    model = unwrap_model(model)
    watch = Stopwatch()
    task = resolve_task(task)
    questions = task.questions if questions is None else questions
    prompts = math.ceil(QUESTIONS / max(questions, 1)) if prompts is None else prompts
    require_language_model(model)
    require_support(model)
    tokenizer, bos_notes = prepare_tokenizer(model, tokenizer)
    if lengths is None:
        lengths = sorted({*task.short[-1:], *task.lengths})
    by_length = make_prompts(model, task, tokenizer, lengths, prompts, questions, seed)
    fewest = min(map(len, by_length.values()))  # a list of questions may have fewer of some length
    by_length = {length: made[:fewest] for length, made in by_length.items()}
    if len(by_length) < 2:
        raise UserError(f"lengths={list(by_length)}: give at least two, to see what is lost")
    _require_needles(task, by_length)
    condition = _make_condition(model, policy)
    config = {
        **describe_model(model, name, (*notes, *bos_notes)),
        "task": task.name,
        "unit": task.unit,
        "lengths": list(by_length),
        "prompts": fewest,
        "questions": questions,
        "seed": seed,
        "inputs_sha256": hash_prompts(by_length.values()),
        "policy": None if condition.policy is None else condition.describe(),
    }
    checkpoint = Checkpoint(
        resume,
        "diagnose",
        config | {"weights_sha256": weights_fingerprint(model)},
        group=group_of(model),
    )
    _measure(model, tokenizer, by_length, condition, checkpoint, progress)
    heads = list(architecture_of(model).heads)
    return _make_result(config, checkpoint.arrays, heads, by_length, watch)


def _require_needles(task: Task, by_length: dict[int, list[TaskPrompt]]) -> None:
    """Refuse a task that does not say where in the text its answers are."""
    for prompts in by_length.values():
        for prompt in prompts:
            if len(prompt.needles) != len(prompt.questions):
                raise UserError(
                    f"task {task.name!r} does not say where in the text its answers are: give a "
                    "task whose text has the answer exactly once, such as lookup or "
                    "niah_multikey_2, and a fast tokenizer"
                )


def _make_condition(
    model: PreTrainedModel, policy: Condition | Policy | Calibration | str | Path | None
) -> Condition:
    """Return what to apply to the model; what does not fit raises before any work."""
    if isinstance(policy, (str, Path)):
        policy = Calibration.load(policy)
    condition = policy if isinstance(policy, Condition) else Condition(policy)
    with condition.apply(model):
        return condition


def _measure(
    model: PreTrainedModel,
    tokenizer: Any,
    by_length: dict[int, list[TaskPrompt]],
    condition: Condition,
    checkpoint: Checkpoint,
    progress: ProgressCallback | None,
) -> None:
    """Measure all heads on all prompts, except for what the checkpoint has already."""
    architecture = architecture_of(model)
    first, *_ = by_length.values()
    asked = (len(by_length), len(first), len(first[0].questions))
    shape = (*asked, architecture.layers, max(architecture.heads))
    scored = (*asked[:2], first[0].parts)
    right = checkpoint.array("right", scored, -1, np.int8)  # -1: not asked yet
    for key, fill, dtype in (
        ("weight", np.nan, np.float32),
        ("answer_weight", np.nan, np.float32),
        ("rank", 0, np.int32),
        ("winner", -1, np.int8),
    ):
        checkpoint.array(key, shape, fill, dtype)
    # Sums over the questions of a prompt: one number per question and distance would be too many.
    checkpoint.array("competitors", (*shape[:2], *shape[3:], len(GAPS)), 0, np.int32)
    weights = [prompt.tokens for prompts in by_length.values() for prompt in prompts]
    shares = Progress(progress, weights)
    with evaluation_mode(model), condition.apply(model):
        for row, prompts in enumerate(by_length.values()):
            for number, prompt in enumerate(prompts):
                if right[row, number, 0] < 0:
                    rows = measure_needle_rows(model, tokenizer, prompt)
                    for key in ("weight", "answer_weight", "rank", "winner"):
                        checkpoint.arrays[key][row, number] = getattr(rows, key)
                    checkpoint.arrays["competitors"][row, number] = rows.competitors.sum(0)
                    right[row, number] = rows.scores.right
                    checkpoint.save(every=SECONDS_BETWEEN_SAVES)
                shares.finish_step()
    checkpoint.save()


def _make_result(
    config: dict[str, Any],
    arrays: dict[str, np.ndarray],
    heads: list[int],
    by_length: dict[int, list[TaskPrompt]],
    watch: Stopwatch,
) -> Diagnosis:
    winner, right = arrays["winner"], arrays["right"] == 1
    score = (winner[0] == NEEDLE).mean((0, 1))
    score[(winner[0] < 0).all((0, 1))] = np.nan
    found = sorted(np.argwhere(score >= MIN_SCORE).tolist(), key=lambda at: -score[*at])
    layers, numbers = np.array(found, int).reshape(-1, 2).T
    measured = [arrays[key][..., layers, numbers] for key in ("weight", "answer_weight", "winner")]
    splits = _summarise(*measured) if found else [None] * len(by_length)
    lengths = [max(prompt.tokens for prompt in prompts) for prompts in by_length.values()]
    rows = [
        {
            "length": length,
            "tokens": lengths[index],
            "accuracy": stats.accuracy(right[index]),
            "split": splits[index],
        }
        for index, length in enumerate(by_length)
    ]
    powers = _growth_powers(arrays, found, lengths)
    retrieval_heads = [
        {
            "layer": layer,
            "head": head,
            "score": float(score[layer, head]),
            "power": None if math.isnan(powers[index]) else powers[index],
            "law": name_law(powers[index]),
            "splits": _summarise(*(array[..., [index]] for array in measured)),
        }
        for index, (layer, head) in enumerate(found)
    ]
    result = Diagnosis(
        config=config,
        seeds=(config["seed"],),
        measurements={
            "heads": heads,
            "winners": WINNERS,
            "last_tokens": LAST_TOKENS,
            "min_score": MIN_SCORE,
            "cause": _find_cause(splits),
            "rows": rows,
            "retrieval_heads": retrieval_heads,
        },
        provenance=watch.provenance(),
    )
    # Half precision, which is finer than any question can tell, halves the file.
    halves = {key: arrays[key].astype(np.float16) for key in ("weight", "answer_weight")}
    counts = {"competitors": arrays["competitors"].sum(1)}
    return result.with_arrays(**(arrays | halves | counts), score=score)


def _growth_powers(
    arrays: dict[str, np.ndarray], heads: Sequence[Sequence[int]], tokens: Sequence[int]
) -> list[float]:
    """Return the power of log n by which sharpening would hold the answer's weight in some heads.

    From the questions whose answer is ranked first. NaN where nothing competes with it, or where
    there are such questions at one length only.
    """
    powers: list[float] = []
    for layer, head in heads:
        found = (arrays["winner"][..., layer, head] == NEEDLE).sum((1, 2))
        lengths = [index for index, number in enumerate(found) if number]
        sums = arrays["competitors"][:, :, layer, head].sum(1)
        power = math.nan
        if len(lengths) > 1:
            means = sums[lengths] / found[lengths][:, None]
            power = float(growth_power([tokens[index] for index in lengths], means))
        powers.append(power)
    return powers


def _find_cause(splits: Sequence[dict[str, Any] | None]) -> str:
    """Name the largest part of the loss at the longest length."""
    first, last = splits[0], splits[-1]
    if first is None or last is None:
        return "no heads"
    if last["loss"] < MIN_LOSS * first["weight"]:
        return "nothing lost"
    return max(("dispersion", "ranking", "window"), key=lambda part: last[part])


def _summarise(
    weight: Float[np.ndarray, "lengths prompts questions heads"],
    answer_weight: Float[np.ndarray, "lengths prompts questions heads"],
    winner: Int[np.ndarray, "lengths prompts questions heads"],
) -> list[dict[str, Any]]:
    """Return the means over heads at each length, and the split of the loss."""
    losses = split_loss(weight, winner)
    low, high = _dispersion_interval(weight, winner)
    rows = []
    for index, parts in enumerate(losses):
        total = float(parts.sum())
        shares = [(winner[index] == kind).mean() for kind in range(len(WINNERS))]
        rows.append(
            {
                "weight": float(weight[index].mean(dtype=np.float64)),
                "answer_weight": float(answer_weight[index].mean(dtype=np.float64)),
                "ranked_first": float(shares[NEEDLE]),
                "winners": dict(zip(WINNERS, map(float, shares), strict=True)),
                "loss": total,
                "dispersion": float(parts[NEEDLE]),
                "window": float(parts[HIDDEN]),
                "ranking": total - float(parts[NEEDLE]) - float(parts[HIDDEN]),
                "lost_to": dict(zip(WINNERS, map(float, parts), strict=True)),
                "dispersion_share": float(parts[NEEDLE]) / total if index and total > 0 else None,
                "dispersion_share_low": low[index],
                "dispersion_share_high": high[index],
            }
        )
    return rows


def split_loss(
    weight: Float[np.ndarray, "lengths prompts questions heads"],
    winner: Int[np.ndarray, "lengths prompts questions heads"],
) -> Float[np.ndarray, "lengths winners"]:
    """Split the weight lost since the shortest length by what was ranked first.

    The docstring of `diagnose` has the equations. The parts are means over the heads, and sum to
    the loss of mean weight. Each head must rank the needle first somewhere at the shortest length.
    """
    weight = weight.astype(np.float64)
    found = winner[0] == NEEDLE
    reference = np.where(found, weight[0], 0.0).sum((0, 1)) / found.sum((0, 1))
    missing = reference - weight
    misses = np.stack(
        [np.where(winner == kind, missing, 0.0).mean((1, 2, 3)) for kind in range(len(WINNERS))],
        axis=-1,
    )
    return misses - misses[0]


def _dispersion_interval(
    weight: Float[np.ndarray, "lengths prompts questions heads"],
    winner: Int[np.ndarray, "lengths prompts questions heads"],
) -> tuple[list[float | None], list[float | None]]:
    """Return the 95 % interval of dispersion's share of the loss, by resampling prompts.

    None at the shortest length, and where a loss is not certain, so that a share means nothing.
    """
    lengths, prompts = weight.shape[:2]
    generator = np.random.default_rng(0)
    shares = np.full((RESAMPLES, lengths), np.nan)
    for sample in shares:
        index = np.arange(lengths)[:, None], generator.integers(0, prompts, (lengths, prompts))
        resampled = winner[index]
        if (resampled[0] == NEEDLE).any((0, 1)).all():
            losses = split_loss(weight[index], resampled)
            total = losses.sum(-1)
            certain = total > 0
            sample[certain] = losses[certain, NEEDLE] / total[certain]
    known = np.isfinite(shares).mean(0) > 0.95
    known[0] = False
    ends = [
        np.nanpercentile(shares[:, at], [2.5, 97.5]).tolist() if known[at] else [None, None]
        for at in range(lengths)
    ]
    return [end[0] for end in ends], [end[1] for end in ends]
