"""The calibration file: which heads of a model to sharpen or soften, and how much.

    inverse temperature = clamp(1 + rate * log(n / from_tokens), low, high)   for n > from_tokens
                        = 1                                                   otherwise

n is the number of tokens that a row sees. Inputs of up to `from_tokens` tokens are therefore
answered bit for bit as before. `sharpmax.hf.tune` and `sharpmax.hf.calibrate` make the file,
`sharpmax.hf.sharpen` applies it.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sharpmax._errors import UserError
from sharpmax._files import refuse_overwriting, write_atomically
from sharpmax.results._reading import parse_json
from sharpmax.results.result import read_json

FORMAT: Final = "sharpmax-calibration"
EXPORT_MARK: Final = "sharpmax_export"
"""The entry in config.json by which a model is known that has a calibration in its weights."""

VERSION: Final = 2
"""The version of the file format. Version 1 has no law (the bounds are 0 and 2) and no gains."""


LARGEST: Final = 1e18
"""Largest rate and inverse temperature, as for the answers of policies: beyond, logits overflow."""

MOST_TOKENS: Final = 10**12
MOST_LAYERS: Final = 2_000
MOST_HEADS: Final = 1_000
"""Per layer. Reports have a cell for each head, whether it changes or not."""

Tokens = Annotated[int, Field(strict=True, ge=1, le=MOST_TOKENS)]
Index = Annotated[int, Field(strict=True, ge=0)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Architecture(_Part):
    """The shape of the models that a calibration fits.

    Attributes:
        model_type: The `model_type` of the model's config, such as `llama`.
        layers: The number of attention layers.
        heads: The number of heads of each attention layer.
    """

    model_type: str
    layers: int = Field(strict=True, ge=1, le=MOST_LAYERS)
    heads: tuple[Annotated[int, Field(strict=True, ge=1, le=MOST_HEADS)], ...]

    @model_validator(mode="after")
    def _count(self) -> Self:
        if len(self.heads) != self.layers:
            raise ValueError(f"heads of {len(self.heads)} layers, {self.layers} expected")
        return self

    def require(self, given: Architecture, calibrated: str, model: str) -> None:
        """Refuse a model of another architecture, with the reason.

        Args:
            given: The architecture of the model to sharpen.
            calibrated: The name of the model that was calibrated, for the message.
            model: The name of the model to sharpen, for the message.

        Raises:
            UserError: The model has another type, or another number of layers or heads.
        """
        for what, wanted, found in (
            ("model type", self.model_type, given.model_type),
            ("attention layers", self.layers, given.layers),
            ("heads", self.heads, given.heads),
        ):
            if wanted != found:
                raise UserError(
                    f"this calibration is for {calibrated}, {what} {_short(wanted)}, and {model} "
                    f"has {_short(found)}: calibrate this model itself"
                )


class Law(_Part):
    """How the inverse temperature of a head follows from its rate and the number of tokens.

    Attributes:
        name: `log-length`: clamp(1 + rate * log(n / from_tokens), low, high).
        low: The smallest inverse temperature.
        high: The largest inverse temperature. The logarithm keeps growing far beyond the lengths
            that a calibration has seen.
    """

    name: Literal["log-length"] = "log-length"
    low: float = Field(default=0.0, ge=0, le=1)
    high: float = Field(default=2.0, ge=1, le=LARGEST, allow_inf_nan=False)


class Head(_Part):
    """A head that is sharpened or softened, how much, and why.

    Attributes:
        layer: The number of its attention layer.
        head: Its number in that layer.
        rate: By how much its inverse temperature grows with each nat of log(n). A negative rate
            softens the head.
        short_entropy: Its entropy on short inputs, in nats, where the answer is read; None if it
            was not measured.
        long_entropy: The same on long inputs.
        benefit: The derivative of log p(answer) by log(inverse temperature) on short inputs, at 1;
            None if it was not measured.
        benefit_error: The standard error of the benefit.
    """

    layer: Index
    head: Index
    rate: float = Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)
    short_entropy: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    long_entropy: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    benefit: float | None = Field(default=None, allow_inf_nan=False)
    benefit_error: float | None = Field(default=None, allow_inf_nan=False)


class TaskGain(_Part):
    """How a model answers a task, plain and with the calibration, on prompts that were not used.

    Attributes:
        task: The name of the task.
        unit: What the length counts.
        length: The length of the prompts.
        tokens: The number of tokens of the longest prompt.
        tuned_on: Whether the task was tuned on; if not, it shows how the gain transfers.
        questions: The number of questions.
        right_before: The share of right answers of the plain model.
        right_after: The share of right answers with the calibration.
        nats_before: The mean log-probability of the right answer, in nats, of the plain model.
        nats_after: The same with the calibration.
    """

    task: str
    unit: str
    length: Tokens
    tokens: Tokens
    tuned_on: bool
    questions: Tokens
    right_before: float = Field(ge=0, le=1)
    right_after: float = Field(ge=0, le=1)
    nats_before: float
    nats_after: float


class TextCost(_Part):
    """What a calibration costs on ordinary text that was not used.

    Attributes:
        tokens: The number of tokens that were predicted, all after more than `from_tokens` others.
        nats_before: The mean negative log-probability per token, in nats, of the plain model.
        nats_after: The same with the calibration.
    """

    tokens: Tokens
    nats_before: float = Field(gt=0, allow_inf_nan=False)
    nats_after: float = Field(gt=0, allow_inf_nan=False)

    @property
    def relative(self) -> float:
        """The relative growth of the nats per token; 0.005 is 0.5 %."""
        return self.nats_after / self.nats_before - 1


class Calibration(_Part):
    """Hold how much to sharpen or soften the heads of a model, and load and save it.

    Attributes:
        format: Marks the file as a calibration.
        version: The version of the file format.
        model: The name of the model that was calibrated.
        weights: A fingerprint of its weights.
        architecture: The shape of the models that the calibration fits.
        method: How heads and rates were found: the tasks, the guard text and the settings.
        from_tokens: The number of tokens up to which nothing changes.
        law: How rates become inverse temperatures.
        gains: Answers before and after, on prompts that were not used; empty if not measured.
        text_cost: The cost on ordinary text; None if it was not measured.
        heads: The heads that are sharpened or softened.
    """

    kind: ClassVar[str] = "calibration"

    format: Literal["sharpmax-calibration"] = FORMAT
    version: Literal[2] = VERSION
    model: str
    weights: str
    architecture: Architecture
    method: dict[str, Any]
    from_tokens: Tokens
    law: Law = Law()
    gains: tuple[TaskGain, ...] = ()
    text_cost: TextCost | None = None
    heads: tuple[Head, ...]

    @model_validator(mode="before")
    @classmethod
    def _upgrade(cls, content: Any) -> Any:
        """Read version 1, which is version 2 with the default law."""
        if isinstance(content, dict) and content.get("version") == 1:
            return content | {"version": VERSION}
        return content

    def rates(self) -> dict[int, tuple[float, ...]]:
        """Return the rates of all heads, 0 if unchanged, for each layer with a changed head."""
        rates = {head.layer: [0.0] * self.architecture.heads[head.layer] for head in self.heads}
        for head in self.heads:
            rates[head.layer][head.head] = head.rate
        return {layer: tuple(by_head) for layer, by_head in rates.items()}

    def scaled(self, factor: float) -> Self:
        """Return the same calibration with every rate multiplied by `factor`.

        Args:
            factor: A positive number; above 1 sharpens more, below 1 less.

        Raises:
            ValueError: `factor` is not a positive, finite number, or a rate becomes too large.
        """
        if not 0 < factor < math.inf:
            raise ValueError(f"factor must be a positive number, got {factor!r}")
        largest = max((abs(head.rate) for head in self.heads), default=0.0) * factor
        if largest > LARGEST:
            raise ValueError(
                f"factor {factor!r} gives a rate of {largest:g}, at most {LARGEST:g} are allowed"
            )
        heads = tuple(head.model_copy(update={"rate": head.rate * factor}) for head in self.heads)
        return self.model_copy(update={"heads": heads})

    def text(self) -> str:
        """Return the file's text: JSON with one line per task and head."""
        content = self.model_dump(mode="json", exclude={"gains", "heads"})
        lines = [f' "{name}": {json.dumps(value)}' for name, value in content.items()]
        for name in ("gains", "heads"):
            parts = [json.dumps(part.model_dump(exclude_none=True)) for part in getattr(self, name)]
            lines.append(f' "{name}": [' + "".join(f"\n  {part}," for part in parts)[:-1] + "\n ]")
        return "{\n" + ",\n".join(lines) + "\n}\n"

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the calibration to a file.

        Args:
            path: The file to write.
            overwrite: Whether to replace a file that exists.

        Returns:
            The path of the file.

        Raises:
            UserError: The file exists and `overwrite` is False.
        """
        path = Path(path)
        refuse_overwriting([path], overwrite)
        write_atomically(path, self.text().encode())
        return path

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a calibration from a file.

        Args:
            path: The file.

        Returns:
            The calibration, as it was saved.

        Raises:
            UserError: The file is missing, damaged, not a calibration, or of a later version.
        """
        calibration = read_json(Path(path), cls, FORMAT, "version", VERSION, "a calibration")
        sizes = calibration.architecture.heads
        for head in calibration.heads:
            if head.layer >= len(sizes) or head.head >= sizes[head.layer]:
                raise UserError(
                    f"{path} is damaged: layer {head.layer}, head {head.head} is not in its "
                    "architecture"
                )
        return calibration


def is_calibration(path: str | Path) -> bool:
    """Return whether a file says that it is a calibration; False if it cannot be read."""
    try:
        return bool(parse_json(Path(path), "")[1]["format"] == FORMAT)
    except (OSError, ValueError, TypeError, KeyError):
        return False


def _short(value: Any) -> str:
    """Write a tuple of equal numbers as one of them."""
    if isinstance(value, tuple):
        return f"{value[0]} a layer" if len(set(value)) == 1 else str(list(value))
    return repr(value)
