"""Which heads of a model to sharpen, and how much: a file that a person can read.

    inverse temperature of a head = 1 + rate * log(n / from_tokens)   for n > from_tokens, at most 2
                                  = 1                                 else

n is the number of tokens that a row sees: inputs no longer than `from_tokens` are answered bit for
bit as before. `sharpmax.hf.calibrate` makes it, `sharpmax.hf.sharpen` takes it.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from transformers import PreTrainedModel

from sharpmax._errors import UserError
from sharpmax._files import refuse_overwriting, write_atomically
from sharpmax.hf.patch.layers import attention_layers, count_heads
from sharpmax.results import read_marked

if TYPE_CHECKING:
    from jaxtyping import Float

MARK: Final = "sharpmax-calibration"
LIMIT = 2.0
"""No row is sharpened more: far beyond the lengths that a calibration saw, a logarithm goes on."""


@dataclass(frozen=True)
class ByRate:
    """The policy of a layer: each head by its own rate."""

    rates: tuple[float, ...]
    from_tokens: int
    needs_entropy: ClassVar[bool] = False
    by_head: ClassVar[bool] = True

    def __call__(self, entropy: Any, count: Any, /) -> Float[Tensor, "batch kv_heads group query"]:
        _, kv_heads, group, _ = entropy.shape
        rates = torch.tensor(self.rates, dtype=entropy.dtype, device=entropy.device)
        excess = torch.log(count.to(entropy.dtype).clamp(min=1) / self.from_tokens).clamp(min=0)
        return (1 + rates.view(kv_heads, group, 1) * excess).clamp(max=LIMIT)


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Architecture(_Part):
    """What a calibration fits."""

    model_type: str
    layers: int = Field(ge=1)
    """Attention layers, in the order in which the model holds them."""
    heads: tuple[int, ...]
    """In each of them."""

    @staticmethod
    def of(model: PreTrainedModel) -> Architecture:
        layers = attention_layers(model)
        heads = tuple(count_heads(layer) for layer in layers)
        return Architecture(model_type=model.config.model_type, layers=len(layers), heads=heads)


class Head(_Part):
    """A head that is sharpened, how much, and why."""

    layer: int = Field(ge=0)
    head: int = Field(ge=0)
    rate: float = Field(gt=0, allow_inf_nan=False)
    short_entropy: float = Field(ge=0, allow_inf_nan=False)
    """In nats, where answers are read off short inputs,"""
    long_entropy: float = Field(ge=0, allow_inf_nan=False)
    """and long ones."""
    benefit: float | None = Field(default=None, allow_inf_nan=False)
    """By how much log p(answer) of short inputs grows with log(inverse temperature): its
    derivative at 1; and its standard error. None if heads were chosen without answers."""
    benefit_error: float | None = Field(default=None, allow_inf_nan=False)


class Calibration(_Part):
    """Which heads of a model to sharpen, and how much."""

    format: Literal["sharpmax-calibration"] = MARK
    version: Literal[1] = 1
    model: str
    weights: str
    """A fingerprint."""
    architecture: Architecture
    method: dict[str, Any]
    """How heads and rates were found."""
    from_tokens: int = Field(ge=1)
    heads: tuple[Head, ...]

    def rates(self) -> dict[int, tuple[float, ...]]:
        """By layer that has a sharpened head: the rate of each of its heads, 0 for the others."""
        found = {one.layer: [0.0] * self.architecture.heads[one.layer] for one in self.heads}
        for one in self.heads:
            found[one.layer][one.head] = one.rate
        return {layer: tuple(rates) for layer, rates in found.items()}

    def policy(self, layer: int) -> ByRate:
        return ByRate(self.rates()[layer], self.from_tokens)

    def scaled(self, factor: float) -> Calibration:
        """With every rate times `factor`: more or less of the same."""
        if not 0 < factor < math.inf:
            raise ValueError(f"factor must be a positive number, got {factor!r}")
        heads = tuple(one.model_copy(update={"rate": one.rate * factor}) for one in self.heads)
        return self.model_copy(update={"heads": heads})

    def require_fit(self, model: PreTrainedModel) -> None:
        """Refuse a model of another architecture, with the reason."""
        here, ours = Architecture.of(model), self.architecture
        for what, expected, found in (
            ("model type", ours.model_type, here.model_type),
            ("attention layers", ours.layers, here.layers),
            ("heads", ours.heads, here.heads),
        ):
            if expected != found:
                raise UserError(
                    f"this calibration is for {self.model}, {what} {_short(expected)}, and "
                    f"{type(model).__name__} has {_short(found)}: calibrate this model itself"
                )

    def text(self) -> str:
        """As JSON, a head a line."""
        content = self.model_dump(mode="json", exclude={"heads"})
        lines = [f' "{name}": {json.dumps(value)},' for name, value in content.items()]
        heads = [json.dumps(head.model_dump(exclude_none=True)) for head in self.heads]
        return "\n".join(["{", *lines, ' "heads": [', "  " + ",\n  ".join(heads), " ]", "}", ""])

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        path = Path(path)
        refuse_overwriting([path], overwrite)
        write_atomically(path, self.text().encode())
        return path

    @staticmethod
    def load(path: str | Path) -> Calibration:
        """Read one back; a file that is damaged, foreign or too new is refused with the reason."""
        found = read_marked(Path(path), Calibration, MARK, "version", 1, "a calibration")
        for one in found.heads:
            sizes = found.architecture.heads
            if one.layer >= len(sizes) or one.head >= sizes[one.layer]:
                raise UserError(
                    f"{path} is damaged: layer {one.layer}, head {one.head} is not in its "
                    "architecture"
                )
        return found


def _short(value: Any) -> str:
    """A tuple of equal numbers by one of them."""
    if isinstance(value, tuple):
        return f"{value[0]} a layer" if len(set(value)) == 1 else str(list(value))
    return repr(value)
