"""The calibration file: which heads of a model to sharpen, and how much.

    inverse temperature of a head = 1 + rate * log(n / from_tokens)   for n > from_tokens, at most 2
                                  = 1                                 otherwise

n is the number of tokens that a row sees. Inputs of up to `from_tokens` tokens are therefore
answered bit for bit as before. `sharpmax.hf.calibrate` makes the file, `sharpmax.hf.sharpen`
applies it.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from sharpmax._errors import UserError
from sharpmax._files import refuse_overwriting, write_atomically
from sharpmax.results.result import read_json

FORMAT: Final = "sharpmax-calibration"


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
    layers: int = Field(ge=1)
    heads: tuple[int, ...]


class Head(_Part):
    """A head that is sharpened, how much, and why.

    Attributes:
        layer: The number of its attention layer.
        head: Its number in that layer.
        rate: By how much its inverse temperature grows with each nat of log(n).
        short_entropy: Its entropy on short inputs, in nats, where the answer is read.
        long_entropy: The same on long inputs.
        benefit: The derivative of log p(answer) by log(inverse temperature) on short inputs, at 1;
            None if the heads were chosen without answers.
        benefit_error: The standard error of the benefit.
    """

    layer: int = Field(ge=0)
    head: int = Field(ge=0)
    rate: float = Field(gt=0, allow_inf_nan=False)
    short_entropy: float = Field(ge=0, allow_inf_nan=False)
    long_entropy: float = Field(ge=0, allow_inf_nan=False)
    benefit: float | None = Field(default=None, allow_inf_nan=False)
    benefit_error: float | None = Field(default=None, allow_inf_nan=False)


class Calibration(_Part):
    """Hold which heads of a model to sharpen and how much, and load and save it.

    Attributes:
        format: Marks the file as a calibration.
        version: The version of the file format.
        model: The name of the model that was calibrated.
        weights: A fingerprint of its weights.
        architecture: The shape of the models that the calibration fits.
        method: How heads and rates were found.
        from_tokens: The number of tokens up to which nothing changes.
        heads: The heads that are sharpened.
    """

    kind: ClassVar[str] = "calibration"

    format: Literal["sharpmax-calibration"] = FORMAT
    version: Literal[1] = 1
    model: str
    weights: str
    architecture: Architecture
    method: dict[str, Any]
    from_tokens: int = Field(ge=1)
    heads: tuple[Head, ...]

    def rates(self) -> dict[int, tuple[float, ...]]:
        """Return the rates of all heads, 0 if unchanged, for each layer with a sharpened head."""
        rates = {head.layer: [0.0] * self.architecture.heads[head.layer] for head in self.heads}
        for head in self.heads:
            rates[head.layer][head.head] = head.rate
        return {layer: tuple(by_head) for layer, by_head in rates.items()}

    def scaled(self, factor: float) -> Self:
        """Return the same calibration with every rate multiplied by `factor`.

        Args:
            factor: A positive number; above 1 sharpens more, below 1 less.

        Raises:
            ValueError: `factor` is not a positive, finite number.
        """
        if not 0 < factor < math.inf:
            raise ValueError(f"factor must be a positive number, got {factor!r}")
        heads = tuple(head.model_copy(update={"rate": head.rate * factor}) for head in self.heads)
        return self.model_copy(update={"heads": heads})

    def text(self) -> str:
        """Return the file's text: JSON with one line per head."""
        content = self.model_dump(mode="json", exclude={"heads"})
        lines = [f' "{name}": {json.dumps(value)},' for name, value in content.items()]
        heads = [json.dumps(head.model_dump(exclude_none=True)) for head in self.heads]
        return "\n".join(["{", *lines, ' "heads": [', "  " + ",\n  ".join(heads), " ]", "}", ""])

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
        calibration = read_json(Path(path), cls, FORMAT, "version", 1, "a calibration")
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
        return bool(json.loads(Path(path).read_text("utf-8"))["format"] == FORMAT)
    except (OSError, ValueError, TypeError, KeyError):
        return False
