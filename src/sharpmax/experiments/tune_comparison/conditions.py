"""Train what a condition needs, and apply it to the model.

Everything that is trained sees the same prompts in the same order, the same guard text with the
same weight, and the same validation, which also chooses the best step.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from sharpmax._errors import MissingExtraError, UserError
from sharpmax._files import write_atomically
from sharpmax.experiments.tune_comparison.config import CONDITIONS, PLAIN, Config, Recipe
from sharpmax.experiments.tune_comparison.learnables import LawRates, attached_lora
from sharpmax.hf.evaluate.tasks import TUNING_TASKS
from sharpmax.hf.loading.loader import Loaded
from sharpmax.hf.patch.layers import evaluation_mode
from sharpmax.hf.sharpen import sharpen
from sharpmax.hf.tune.calibrate import NothingToGain
from sharpmax.hf.tune.calibration import Calibration
from sharpmax.hf.tune.head_profiles import frozen_weights
from sharpmax.hf.tune.learnable import HeadRates, Learnable
from sharpmax.hf.tune.learning import NonFiniteLossError, Tuning, TuningStep
from sharpmax.hf.tune.outcome import draft_calibration, limit_cost
from sharpmax.hf.tune.settings import (
    FROM_TOKENS,
    GUARD_WEIGHT,
    LAW,
    LEARNING_RATE,
    Settings,
    resolve_tasks,
)
from sharpmax.hf.tune.tune import prepare_tuning

ReportShare = Callable[[float], None]

DEFAULTS: dict[str, Any] = {
    "tasks": TUNING_TASKS,
    "from_tokens": FROM_TOKENS,
    "max_heads": None,
    "seed": 1,
}
"""Those of `tune`."""


@dataclass(frozen=True)
class Condition:
    """A condition that is ready to be measured.

    Attributes:
        name: Its name.
        facts: What results say about it: numbers learned, seconds, history.
        sha256: A hash of what it does to the model.
        apply: Returns a context in which the model is changed.
    """

    name: str
    facts: dict[str, Any]
    sha256: str
    apply: Callable[[], AbstractContextManager[Any]]


def prepare(
    name: str, config: Config, loaded: Loaded, folder: Path, report: ReportShare
) -> Condition:
    """Return a condition, after training what it needs and has not been trained yet.

    Args:
        name: The name in `CONDITIONS`.
        config: The settings.
        loaded: The model.
        folder: Where trainings keep their checkpoints and results.
        report: Called with the finished share of the training.

    Raises:
        UserError: A file is missing, or the folder has the training of other settings.
    """
    recipe, model = CONDITIONS[name], loaded.model
    if recipe.learns is not None:
        return _Training(name, recipe, config, loaded, folder).finish(report)
    policy = recipe.policy
    if policy is not None:
        return _fixed(name, repr(policy), lambda: sharpen(model, policy))
    if name == PLAIN:
        return _fixed(name, "", nullcontext)
    calibration = Calibration.load(config.calibration)
    return _fixed(
        name,
        calibration.text(),
        lambda: sharpen(model, calibration),
        {"numbers": 1, "changed_heads": len(calibration.heads)},
    )


def require_files(names: Sequence[str], config: Config) -> None:
    """Refuse conditions for which something is missing, before hours of work on the others.

    Raises:
        UserError: The file of `calibrate` or the package peft is missing.
    """
    if "calibrate" in names and not Path(config.calibration).is_file():
        raise UserError(
            f"no file {config.calibration}: write it with `sharpmax calibrate`, run this where it "
            "is, or leave calibrate out of --only"
        )
    if any(CONDITIONS[name].learns == "lora" for name in names) and find_spec("peft") is None:
        raise MissingExtraError("peft", "comparison", "LoRA")


def _fixed(
    name: str,
    description: str,
    apply: Callable[[], AbstractContextManager[Any]],
    facts: dict[str, Any] | None = None,
) -> Condition:
    digest = hashlib.sha256(description.encode()).hexdigest()
    return Condition(name, {"numbers": 0} | (facts or {}), digest, apply)


@dataclass(frozen=True)
class _Training:
    """The training of a condition, once per learning rate that is tried."""

    name: str
    recipe: Recipe
    config: Config
    loaded: Loaded
    folder: Path

    @property
    def learning_rates(self) -> tuple[float, ...]:
        lora = self.recipe.learns == "lora"
        return self.config.lora_learning_rates if lora else (LEARNING_RATE,)

    def finish(self, report: ReportShare) -> Condition:
        """Train at each learning rate, and return the condition of the best one."""
        rates = self.learning_rates
        outcomes = [
            self._outcome(rate, partial(_report_part, report, index, len(rates)))
            for index, rate in enumerate(rates)
        ]
        rate, outcome = min(
            zip(rates, outcomes, strict=True),
            key=lambda pair: (bool(pair[1]["failure"]), pair[1]["objective"] or 0.0),
        )
        tried = {
            f"{each:g}": {key: one[key] for key in ("objective", "failure")}
            for each, one in zip(rates, outcomes, strict=True)
        }
        facts = outcome | {"learning_rate": rate, "tried": tried}
        return Condition(self.name, facts, outcome["sha256"], lambda: self._applied(rate, outcome))

    def _path(self, rate: float, suffix: str) -> Path:
        tried = f"-{rate:g}" if len(self.learning_rates) > 1 else ""
        return self.folder / f"{self.name.replace(':', '-')}{tried}{suffix}"

    @contextmanager
    def _opened(
        self, rate: float, progress: Callable[[TuningStep], None] | None = None
    ) -> Iterator[Tuning]:
        """Return the training as its checkpoint has it."""
        options: dict[str, Any] = DEFAULTS | self.recipe.options
        settings = Settings(
            *resolve_tasks(options["tasks"], None),
            questions=8,
            steps=self.config.steps,
            learning_rate=rate,
            guard_weight=GUARD_WEIGHT,
            from_tokens=options["from_tokens"],
            max_heads=options["max_heads"],
            check_prompts=0,
            save_memory=False,
            seed=options["seed"],
        )
        model = self.loaded.model
        with ExitStack() as stack:
            learnable: Learnable
            if self.recipe.learns == "lora":
                learnable = stack.enter_context(
                    attached_lora(model, self.recipe.rank, options["seed"])
                )
            elif self.recipe.learns == "rates":
                learnable = HeadRates(model, settings.from_tokens, LAW)
            else:
                learnable = LawRates(model, settings.from_tokens, str(self.recipe.learns))
            yield prepare_tuning(
                model,
                self.loaded.tokenizer,
                settings,
                learnable,
                resume=self._path(rate, ".part.json"),
                progress=progress,
            )

    def _outcome(self, rate: float, report: ReportShare) -> dict[str, Any]:
        """Train at one learning rate, unless that is finished, and return what came out."""
        path, timer = self._path(rate, ".json"), _Timer(report)
        with self._opened(rate, timer) as run:
            config = run.checkpoint.config
            if path.exists():
                outcome: dict[str, Any] = json.loads(path.read_bytes())
                if outcome.pop("config") != config:
                    raise UserError(
                        f"{path} is a training with other settings: delete {self.folder} or "
                        "choose another --out"
                    )
                return outcome
            failure = ""
            try:
                with evaluation_mode(run.model), frozen_weights(run.model):
                    run.learn()
            except (NothingToGain, NonFiniteLossError) as error:
                failure = str(error)
            outcome = self._describe(run, failure) | {"seconds": timer.seconds(run.step)}
        content = json.dumps(outcome | {"config": config}, indent=1)
        write_atomically(path, content.encode())
        return outcome

    def _describe(self, run: Tuning, failure: str) -> dict[str, Any]:
        best = run.saved["best"]
        facts: dict[str, Any] = {
            "numbers": len(best),
            "failure": failure,
            "steps": run.step,
            # Nothing was gained: the best step is the first one, where the model is plain.
            "objective": run.use_best() if run.history else None,
            "history": run.history,
            "sha256": hashlib.sha256(best.tobytes()).hexdigest(),
        }
        if self.recipe.learns == "rates" and not failure:
            calibration = limit_cost(run, draft_calibration(run, self.loaded.name))
            facts |= {
                "changed_heads": len(calibration.heads),
                "sha256": hashlib.sha256(calibration.text().encode()).hexdigest(),
            }
            calibration.save(self._path(LEARNING_RATE, ".calibration.json"), overwrite=True)
        return facts

    @contextmanager
    def _applied(self, rate: float, outcome: dict[str, Any]) -> Iterator[None]:
        if outcome["failure"]:
            yield  # the model stays as it is
        elif self.recipe.learns == "rates":
            # What a user would apply: rounded, without the smallest rates.
            file = self._path(rate, ".calibration.json")
            with sharpen(self.loaded.model, Calibration.load(file)):
                yield
        else:
            with self._opened(rate) as run, torch.no_grad():
                run.use_best()
                with run.learnable.applied():
                    yield


def _report_part(report: ReportShare, index: int, parts: int, share: float) -> None:
    report((index + share) / parts)


class _Timer:
    """Measures the seconds per step, also of a training that was resumed."""

    def __init__(self, report: ReportShare) -> None:
        self.report = report
        self.first: tuple[int, float] | None = None
        self.last: tuple[int, float] | None = None

    def __call__(self, step: TuningStep) -> None:
        self.last = step.step, time.monotonic()
        self.first = self.first or self.last
        self.report(step.share)

    def seconds(self, steps: int) -> float | None:
        """Return what all steps take at this speed; None if fewer than two were seen."""
        if self.first is None or self.last is None or self.first[0] == self.last[0]:
            return None
        speed = (self.last[1] - self.first[1]) / (self.last[0] - self.first[0])
        return round(speed * steps, 1)
