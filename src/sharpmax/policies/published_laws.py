"""Length laws that published models and papers use, by the names under which they are known.

Each multiplies the logits of a row by a function of the number of items that the row sees. Qwen's
LogN is `LogLength`. Rows up to the length in training stay plain, except with `CriticalScale`; the
docstrings say where a source differs, and how each formula was confirmed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from sharpmax import _array
from sharpmax._array import Array
from sharpmax._errors import UserError
from sharpmax.policies.length import LengthLaw, check_reference


@dataclass(frozen=True)
class InfoScale(LengthLaw):
    """Keep the entropy of attention between random directions where it was in training.

        inverse temperature = sqrt((1 - n^(-2/d)) / (1 - L^(-2/d)))   for n > L, else 1

    d is the size of a head and L the length in training. The factor is bounded, by
    1 / sqrt(1 - L^(-2/d)). InfoScale of arXiv 2501.08570, confirmed in its authors' code, which
    divides shorter inputs by their factor too; here rows up to L stay plain, since a causal model
    has such rows in every long input.

    On a Hugging Face model `sharpen` fills in the head size of each layer. Elsewhere give it.

    Args:
        reference: L, the number of items in training, more than 1.
        head_size: d, the number of components of a query.

    Raises:
        ValueError: if `reference` is not a finite number above 1, or `head_size` not a whole number
            of 1 or more.

    Examples:
        >>> InfoScale(512, head_size=64)(0.0, 4096)
        1.1367...
    """

    reference: float
    head_size: int | None = None

    def __post_init__(self) -> None:
        check_reference(self.reference)
        _array.optional_count("head_size", self.head_size)

    def with_head_size(self, head_size: int) -> InfoScale:
        """Return the law for heads of this size, unless it has a size already.

        Args:
            head_size: the number of components of a query.

        Returns:
            A law that can be called.
        """
        return self if self.head_size is not None else replace(self, head_size=head_size)

    def factor(self, items: Array, xp: Any) -> Array:
        if self.head_size is None:
            raise UserError(
                f"InfoScale({self.reference:g}) needs the size of a head: write "
                f"InfoScale({self.reference:g}, head_size=64)"
            )
        power = -2 / self.head_size
        # 1 - n^power by expm1, which keeps its digits where n^power is almost 1.
        squared = xp.expm1(power * xp.log(items)) / math.expm1(power * math.log(self.reference))
        return xp.where((items > self.reference) & (squared > 1), xp.sqrt(squared), 1.0)

    @property
    def plain_up_to(self) -> int:
        """Rows up to the length in training are plain."""
        return math.floor(self.reference)


@dataclass(frozen=True)
class YarnScale(LengthLaw):
    """Sharpen as YaRN does when it extends a context to the length of the row.

        inverse temperature = (1 + slope * log(max(1, n / L)))^2

    YaRN (arXiv 2309.00071, section 3.4) multiplies queries and keys by 0.1 * log(s) + 1, where s is
    the extension, so the logits get its square; confirmed in several implementations. There s is
    one number of the model. Here it follows the length of each row, which is our reading.

    A model whose rotary embedding is of type "yarn" does this already.

    Args:
        reference: L, the number of items in training, more than 1.
        slope: the factor on the logarithm.

    Raises:
        ValueError: if `reference` is not a finite number above 1, or `slope` not positive.

    Examples:
        >>> YarnScale(512)(0.0, 4096)  # (1 + 0.1 * log 8) ** 2
        1.4591...
    """

    reference: float
    slope: float = 0.1

    def __post_init__(self) -> None:
        check_reference(self.reference)
        _array.positive_number("slope", self.slope)

    def factor(self, items: Array, xp: Any) -> Array:
        excess = _array.clamp(xp.log(items / self.reference), 0.0, math.inf, xp)
        scale = 1 + self.slope * xp.where(items > self.reference, excess, 0.0)
        return scale * scale

    @property
    def plain_up_to(self) -> int:
        """Rows up to the length in training are plain."""
        return math.floor(self.reference)


@dataclass(frozen=True)
class Llama4Scale(LengthLaw):
    """Sharpen in steps, as the layers without rotary embedding of Llama 4 do.

        inverse temperature = 1 + slope * log(1 + floor(n / step))

    The source counts positions p from 0, and n = p + 1 in a causal row. Confirmed in the
    implementation of transformers, where it applies to the layers without rotary embedding alone.

    Args:
        step: the length of a step, `floor_scale` in the config of the model.
        slope: the factor on the logarithm, `attn_scale` in the config of the model.

    Raises:
        ValueError: if `step` is not a whole number of 1 or more, or `slope` not positive.

    Examples:
        >>> Llama4Scale()(0.0, 8191), Llama4Scale()(0.0, 32768)  # 1 + 0.1 * log 5
        (1.0, 1.1609...)
    """

    step: int = 8192
    slope: float = 0.1

    def __post_init__(self) -> None:
        if not _array.is_number(self.step) or self.step < 1 or self.step % 1 != 0:
            raise ValueError(f"step must be a whole number, 1 or more, got {self.step!r}")
        object.__setattr__(self, "step", int(self.step))  # a command gives 8192.0
        _array.positive_number("slope", self.slope)

    def factor(self, items: Array, xp: Any) -> Array:
        # Not floor(items / step): JAX multiplies by a rounded 1 / step, and may miss a step by one.
        factor = 1 + self.slope * xp.log(1 + items // self.step)
        return xp.where(items >= self.step, factor, 1.0)

    @property
    def plain_up_to(self) -> int:
        """Rows below the first step are plain."""
        return self.step - 1


@dataclass(frozen=True)
class GrokScale(LengthLaw):
    """Sharpen by the position of the query, as Grok does.

        inverse temperature = log(p) / log(L)   where p > L, else 1,   p = n - 1

    `LogLength` with positions that are counted from 0. xAI published no paper about it; confirmed
    in SGLang's kernels (`attn_temperature_len`), which serve the released model with L = 1024.

    Args:
        reference: L, the position up to which rows are plain, more than 1.

    Raises:
        ValueError: if `reference` is not a finite number above 1.

    Examples:
        >>> GrokScale(16)(0.0, 257)  # log 256 / log 16
        2.0
    """

    reference: float = 1024

    def __post_init__(self) -> None:
        check_reference(self.reference)

    def factor(self, items: Array, xp: Any) -> Array:
        position = items - 1
        ratio = xp.log(xp.where(position > 1, position, 1.0)) / math.log(self.reference)
        return xp.where((position > self.reference) & (ratio > 1), ratio, 1.0)

    @property
    def plain_up_to(self) -> int:
        """Rows up to the position L are plain."""
        return math.floor(self.reference) + 1


@dataclass(frozen=True)
class CriticalScale(LengthLaw):
    """Scale by gamma * log n at every length, short ones too.

        inverse temperature = gamma * log n

    arXiv 2510.05554 shows for a simplified model, in which tokens are unit vectors with a common
    inner product rho, that attention averages if gamma is below 1 / (1 - rho), and copies if it is
    above. We confirmed the form in its abstract and a summary of it, not in the text or in code.
    The critical gamma belongs to unit vectors. The logits of a trained head have a scale of their
    own, so choose gamma by measuring. A row shorter than exp(1 / gamma) becomes softer.
    `LogLength(L)` is gamma = 1 / log L with nothing below L. In a row of one item, where the factor
    has no effect, it is that of two.

    Args:
        gamma: the factor on log n, positive.

    Raises:
        ValueError: if `gamma` is not a positive finite number.

    Examples:
        >>> CriticalScale(0.25)(0.0, 1096)
        1.7498...
    """

    gamma: float

    def __post_init__(self) -> None:
        _array.positive_number("gamma", self.gamma)

    def factor(self, items: Array, xp: Any) -> Array:
        return self.gamma * xp.log(xp.where(items > 2, items, 2.0))
