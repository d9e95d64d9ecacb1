"""Figure 8: exact match of each arm on each algorithm, against the size of the problem.

Five test sets by their seeds (the resampling test) give the spread; the entropy of every head is
measured at the last token of some of the same questions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sharpmax._errors import UserError
from sharpmax._files import write_atomically
from sharpmax.experiments.clrs_text import decode
from sharpmax.experiments.clrs_text.arms import ARMS, Arm, Subject
from sharpmax.experiments.clrs_text.data import Sample, Source, read
from sharpmax.experiments.clrs_text.model import Ready, check_room, opened
from sharpmax.experiments.clrs_text.tokens import Example
from sharpmax.hf import passes
from sharpmax.results import Result, Stopwatch

Progress = Callable[[str, int, int, float], None]

PARTS = "evaluation"
"""The folder, in that of the trained models, of what is finished."""


@dataclass(frozen=True)
class Config:
    """What to test."""

    data: str
    """The test split: a folder, or the published dataset."""
    trained: str
    """The folder that `train` wrote into."""
    arms: tuple[str, ...] = tuple(ARMS)
    algorithms: tuple[str, ...] = ()
    """All of the data, or these."""
    sizes: tuple[int, ...] = ()
    samples: int | None = None
    """At most so many for each algorithm, size and test seed."""
    entropy_samples: int = 5
    """Questions of each algorithm and size on which the heads' entropy is measured; 0 for none."""
    batch: int = 64
    device: str = "auto"
    dtype: str = "float32"


@dataclass(frozen=True)
class Trained:
    """A model that `train` finished."""

    folder: Path
    record: Result

    @property
    def attention(self) -> str:
        return str(self.record.config["training"]["attention"])

    @property
    def seed(self) -> int:
        return self.record.seeds[0]


def run(
    config: Config, *, progress: Progress | None = None, arms: dict[str, Arm] | None = None
) -> Result:
    """Test every arm on every seed that was trained. A call that was stopped goes on after the last
    model and arm that it finished.
    """
    watch, arms = Stopwatch(), ARMS if arms is None else arms
    unknown = [name for name in config.arms if name not in arms]
    if unknown:
        raise UserError(f"unknown arm {unknown[0]!r}: expected one of {', '.join(arms)}")
    found = finished(Path(config.trained))
    units = list(_units(config, found, arms))
    source = read(
        config.data,
        "test",
        algorithms=config.algorithms,
        sizes=config.sizes,
        limit=config.samples,
    )
    marks: dict[str, list[dict[str, Any]]] = {}
    for place, (name, trained) in enumerate(units):

        def told(share: float, place: int = place) -> None:
            if progress is not None:
                progress("testing", len(units), place, share)

        path = _part(config, arms[name], name, trained, source)
        if not path.exists():
            examined = _examine(config, arms[name], trained, source, told)
            write_atomically(path, json.dumps(examined).encode())
        marks.setdefault(name, []).append(json.loads(path.read_text("utf-8")))
        told(1.0)
    return _result(config, arms, found, source, marks, watch)


def finished(folder: Path) -> list[Trained]:
    """The trained models of a folder."""
    records = sorted(folder.glob("*/training.json"))
    if not records:
        raise UserError(f"{folder} holds no finished training: run sharpmax clrs train first")
    return [Trained(path.parent, Result.load(path)) for path in records]


def _units(
    config: Config, found: list[Trained], arms: dict[str, Arm]
) -> Iterator[tuple[str, Trained]]:
    for name in config.arms:
        fitting = [one for one in found if one.attention == arms[name].attention]
        if not fitting:
            raise UserError(
                f"arm {name!r} needs a model trained with {arms[name].attention} attention, and "
                f"{config.trained} has none: train it, or choose other arms"
            )
        yield from ((name, one) for one in sorted(fitting, key=lambda one: one.seed))


def _part(config: Config, arm: Arm, name: str, trained: Trained, source: Source) -> Path:
    made_of = {
        "config": {**asdict(config), "arms": name, "batch": None, "data": None, "trained": None},
        "label": arm.label,
        "data": source.about,
        "training": trained.record.config,
    }
    digest = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()
    return Path(config.trained) / PARTS / f"{name}-seed{trained.seed}-{digest[:12]}.json"


def _examine(
    config: Config, arm: Arm, trained: Trained, source: Source, told: Callable[[float], None]
) -> dict[str, Any]:
    """One model in one arm."""
    ready = opened(str(trained.folder / "model"), config.device, config.dtype)
    examples = ready.tokens.examples(source.samples)
    check_room(ready.model, examples)
    done, total = 0, len(examples)

    def answered(count: int) -> None:
        nonlocal done
        done += count
        told(0.999 * done / total)  # 1 is said when it is on disk

    with arm.testing(_subject(ready, trained)):
        said = decode.answers(
            ready.model, examples, ready.tokens.end, batch=config.batch, answered=answered
        )
        entropy = _entropy(config, ready, source.samples, examples)
    right: dict[str, dict[str, dict[str, list[int]]]] = {}
    for sample, tokens in zip(source.samples, said, strict=True):
        by_seed = right.setdefault(sample.algorithm, {}).setdefault(str(sample.size), {})
        counts = by_seed.setdefault(str(sample.seed), [0, 0])
        counts[0] += ready.tokens.is_right(sample, tokens)
        counts[1] += 1
    return {"seed": trained.seed, "right": right, "entropy": entropy}


def _subject(ready: Ready, trained: Trained) -> Subject:
    place = trained.record.measurements["data"]

    def examples(count: int) -> list[Example]:
        samples = read(place, "train").samples
        chosen = np.random.default_rng(0).choice(len(samples), min(count, len(samples)), False)
        return ready.tokens.examples([samples[place] for place in chosen])

    return Subject(ready.model, ready.tokens.tokenizer, examples)


def _entropy(
    config: Config, ready: Ready, samples: list[Sample], examples: list[Example]
) -> dict[str, dict[str, Any]]:
    """By algorithm and size, [layer, head]: the mean over some questions, at their last token."""
    chosen: dict[tuple[str, int], list[Example]] = {}
    for sample, example in zip(samples, examples, strict=True):
        some = chosen.setdefault((sample.algorithm, sample.size), [])
        if len(some) < config.entropy_samples:
            some.append(example)
    found: dict[str, dict[str, Any]] = {}
    plan = passes.Plan.of(ready.model, None, None)
    for (algorithm, size), some in chosen.items():
        if some:
            seen = [
                passes.run(ready.model, plan, list(one.question), None, lambda: None).arrays
                for one in some
            ]
            mean = np.mean([one["last_entropy"] for one in seen], axis=0)
            found.setdefault(algorithm, {})[str(size)] = mean.tolist()
    return found


def _result(
    config: Config,
    arms: dict[str, Arm],
    found: list[Trained],
    source: Source,
    marks: dict[str, list[dict[str, Any]]],
    watch: Stopwatch,
) -> Result:
    seeds = sorted({sample.seed for sample in source.samples})
    algorithms: dict[str, Any] = {}
    for algorithm in dict.fromkeys(sample.algorithm for sample in source.samples):
        sizes = sorted({one.size for one in source.samples if one.algorithm == algorithm})
        algorithms[algorithm] = {
            "sizes": sizes,
            "train_sizes": found[0].record.measurements["sizes"].get(algorithm, []),
            "arms": {name: _curve(marks[name], algorithm, sizes, seeds) for name in config.arms},
        }
    return Result(
        kind="figure8",
        config={**asdict(config), "test_data": source.about},
        seeds=tuple(dict.fromkeys(one.seed for one in found)),
        measurements={
            "model": found[0].record.measurements["model"],
            "notes": found[0].record.measurements["notes"],
            "test_seeds": seeds,
            "labels": {name: arms[name].label for name in config.arms},
            "algorithms": algorithms,
            "trainings": [
                {
                    "attention": one.attention,
                    "seed": one.seed,
                    "config": one.record.config,
                    "last_loss": one.record.measurements["last_loss"],
                    "seconds": one.record.measurements["seconds"],
                }
                for one in found
            ],
        },
        provenance=watch.provenance(),
    )


def _curve(
    marks: list[dict[str, Any]], algorithm: str, sizes: list[int], seeds: list[int]
) -> dict[str, Any]:
    """Accuracy [training, test seed, size], its mean, and its spread over test sets and over
    trainings; the heads' entropy, mean over all, [size].
    """
    accuracy = np.array(
        [
            [[_share(one, algorithm, size, seed) for size in sizes] for seed in seeds]
            for one in marks
        ]
    )
    entropy = [
        [one["entropy"].get(algorithm, {}).get(str(size)) for size in sizes] for one in marks
    ]
    return {
        "accuracy": accuracy,
        "mean": accuracy.mean((0, 1)),
        "std_tests": accuracy.mean(0).std(0, ddof=1) if len(seeds) > 1 else None,
        "std_trainings": accuracy.mean(1).std(0, ddof=1) if len(marks) > 1 else None,
        "entropy": entropy,
        "mean_entropy": [
            None if entropy[0][place] is None else float(np.mean([one[place] for one in entropy]))
            for place in range(len(sizes))
        ],
    }


def _share(one: dict[str, Any], algorithm: str, size: int, seed: int) -> float:
    right, asked = one["right"][algorithm][str(size)][str(seed)]
    return float(right / asked)
