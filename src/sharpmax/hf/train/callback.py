"""Callbacks for the Trainer of transformers: attention statistics and QK-clip."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from sharpmax._errors import UserError
from sharpmax._files import refuse_overwriting
from sharpmax.hf.model_info import describe_model
from sharpmax.hf.patch.layers import attention_layers, count_heads
from sharpmax.hf.train.alarms import MAX_LOGIT, MIN_ENTROPY, Alarm, AlarmBell
from sharpmax.hf.train.history import StatisticsLog
from sharpmax.hf.train.statistics import (
    ROWS,
    SEQUENCES,
    AttentionStatistics,
    attention_statistics,
    check_sampling,
)
from sharpmax.hf.train.watch import watchable_model

EVERY = 10
"""Steps between two samples by default."""
NAMED = 3
"""How many heads a warning names."""


class AttentionAlarmWarning(UserWarning):
    """The logits of a head have grown too large, or its entropy has collapsed."""


class StatisticsCallback(TrainerCallback):
    """Record attention statistics of every head while the Trainer trains.

    Every few steps, on a few rows: entropy, varentropy, largest logit, largest weight and the
    weight on the first token. The model keeps its own attention (sdpa, flash or eager), and the
    training is the same bit for bit. Each sample is a line of JSON in `path`. At the end a result
    is saved beside it (`statistics.json`), of which `sharpmax report` makes a page. A head whose
    logits grow too large or whose entropy collapses is reported by a warning.

    A resumed training continues the file. In a distributed training all processes are combined.
    With gradient accumulation the first part of a step is measured.

    Args:
        path: The file of JSON lines, which must not exist.
        every: Steps between two samples.
        rows: The number of rows of each sequence.
        sequences: The number of sequences of the batch, on each process.
        max_logit: Largest logit of a head that is no alarm.
        min_entropy: Smallest entropy of a head that is no alarm, in nats.
        log: Called with a dictionary of a few numbers per sample: give `trainer.log` to see them in
            the Trainer's loggers.
        overwrite: Replace files that exist.

    Raises:
        UserError: A number is out of range; at the beginning of the training, if a file exists or
            the model is compiled; after a step in which no attention was seen.

    Examples:
        >>> trainer = Trainer(model, ...)
        >>> trainer.add_callback(shf.StatisticsCallback("statistics.jsonl", log=trainer.log))
        >>> trainer.train()
    """

    def __init__(
        self,
        path: str | Path = "statistics.jsonl",
        *,
        every: int = EVERY,
        rows: int = ROWS,
        sequences: int = SEQUENCES,
        max_logit: float = MAX_LOGIT,
        min_entropy: float = MIN_ENTROPY,
        log: Callable[[dict[str, float]], Any] | None = None,
        overwrite: bool = False,
    ) -> None:
        """Check the arguments; files are opened when the training begins."""
        if type(every) is not int or every < 1:
            raise UserError(f"every={every!r}: give a whole number of at least 1")
        check_sampling(rows, sequences)
        AlarmBell(max_logit, min_entropy)  # refuses limits that make no sense
        self.path, self.every, self.rows, self.sequences = Path(path), every, rows, sequences
        self.limits = {"max_logit": max_logit, "min_entropy": min_entropy}
        self.log, self.overwrite = log, overwrite
        self.history: StatisticsLog | None = None
        self._statistics: AttentionStatistics | None = None
        self._watching = ExitStack()

    @property
    def result_path(self) -> Path:
        """The file of the result, beside that of the samples."""
        return self.path.with_suffix(".json")

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Open the file, or continue it.

        Args:
            args: The arguments of the Trainer.
            state: The state of the training.
            control: What the Trainer does next.
            kwargs: The model and other parts of the Trainer.
        """
        model = watchable_model(kwargs["model"], will_compile=args.torch_compile)
        self._stop()
        if not state.is_world_process_zero:
            return
        resumed = state.global_step > 0
        refuse_overwriting([self.result_path], self.overwrite or resumed)
        layers = attention_layers(model)
        self.history = StatisticsLog(
            self.path,
            describe_model(model, None, ())
            | {
                "layers": [layer.name for layer in layers],
                "heads": [count_heads(layer) for layer in layers],
                "every": self.every,
                "rows": self.rows,
                "sequences": self.sequences,
            },
            **self.limits,
            resume_step=state.global_step if resumed else None,
            overwrite=self.overwrite,
        )

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Watch the model if this step is sampled.

        Args:
            args: The arguments of the Trainer.
            state: The state of the training.
            control: What the Trainer does next.
            kwargs: The model and other parts of the Trainer.
        """
        if state.global_step % self.every == 0:
            self._statistics = self._watching.enter_context(
                attention_statistics(kwargs["model"], rows=self.rows, sequences=self.sequences)
            )

    def on_substep_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Stop watching after the first part of a step.

        Args:
            args: The arguments of the Trainer.
            state: The state of the training.
            control: What the Trainer does next.
            kwargs: The model and other parts of the Trainer.
        """
        self._watching.close()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Write what was recorded.

        Args:
            args: The arguments of the Trainer.
            state: The state of the training.
            control: What the Trainer does next.
            kwargs: The model and other parts of the Trainer.
        """
        self._watching.close()
        statistics, self._statistics = self._statistics, None
        if statistics is None:
            return
        statistics.combine_processes()
        if np.isnan(statistics.sums).all():
            raise UserError(
                f"no attention of the model was seen in step {state.global_step}: train without "
                "StatisticsCallback, or give the Trainer the model that it runs, and do not change "
                "its attn_implementation inside a step"
            )
        alarms: list[Alarm] = []
        if self.history is not None:
            alarms = self.history.add(state.global_step, statistics)
            _warn(alarms)
        if self.log is not None:
            # The Trainer forgets that it was to log its own numbers when somebody else logs.
            should_log = control.should_log
            self.log(summarise(statistics) | {"attention/new_alarms": float(len(alarms))})
            control.should_log = should_log

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Save the result.

        Args:
            args: The arguments of the Trainer.
            state: The state of the training.
            control: What the Trainer does next.
            kwargs: The model and other parts of the Trainer.
        """
        self._stop()
        if self.history is not None and self.history.steps:
            self.history.result().save(self.result_path, overwrite=True)

    def _stop(self) -> None:
        self._watching.close()
        self._statistics = None


def summarise(statistics: AttentionStatistics) -> dict[str, float]:
    """Return the few numbers of a sample that loggers show, over all heads.

    Args:
        statistics: The sample.

    Returns:
        Means of the statistics, and the extreme of the largest logit and of the entropy.
    """
    numbers = {
        f"attention/{name}": float(np.nanmean(statistics.array(name)))
        for name in ("entropy", "varentropy", "max_weight", "first_share")
    }
    numbers["attention/lowest_entropy"] = float(np.nanmin(statistics.array("entropy")))
    numbers["attention/max_logit"] = float(np.nanmax(statistics.array("max_logit")))
    return numbers


def _warn(alarms: list[Alarm]) -> None:
    """Warn of alarms, all of one kind in one line."""
    for kind, what in (("logits", "logits above"), ("entropy", "an entropy below")):
        some = [alarm for alarm in alarms if alarm.kind == kind]
        if some:
            named = ", ".join(
                f"layer {alarm.layer} head {alarm.head} ({alarm.value:.3g})"
                for alarm in some[:NAMED]
            )
            more = f" and {len(some) - NAMED} more" if len(some) > NAMED else ""
            has = "1 head has" if len(some) == 1 else f"{len(some)} heads have"
            warnings.warn(
                f"step {some[0].step}: {has} {what} the limit: {named}{more}",
                AttentionAlarmWarning,
                stacklevel=2,
            )
