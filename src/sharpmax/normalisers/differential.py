"""The difference of two softmaxes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sharpmax import _array
from sharpmax._array import Array
from sharpmax.normalisers._base import Normaliser, check_number, finish, parameter
from sharpmax.normalisers._scaling import softmax_of
from sharpmax.ops._rows import prepare

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


@dataclass(frozen=True)
class Differential(Normaliser):
    """Cancel what two attention maps have in common, as a differential amplifier cancels noise.

        p = softmax(logits) - second_weight * softmax(second)

    Needs two sets of logits, from two halves of the queries and keys: `Differential()(logits,
    second)`; the plain call with one raises. Weights of either sign that sum to 1 - second_weight.
    In arXiv 2410.05258 the second weight (lambda) is exp(a.b) - exp(c.d) + a constant that rises
    with depth from 0.2 to 0.8: compute it and give it as an array. The norm of each head's output
    that the paper adds is no part of the weights.
    """

    second_weight: Float[Array, "*rows 1"] | float = 0.8
    sums_to_one: ClassVar[bool] = False
    parameters: ClassVar[tuple[str, ...]] = ("second_weight",)
    fused: ClassVar[str | None] = "two calls"
    needs: ClassVar[str | None] = "a second set of logits"

    def __post_init__(self) -> None:
        check_number("second_weight", self.second_weight, -math.inf, "a finite number")

    def __call__(
        self,
        logits: Float[Array, "*rows items"],
        second: Float[Array, "*rows items"] | None = None,
        *,
        where: Bool[Array, "*rows items"] | None = None,
        axis: int = -1,
    ) -> Float[Array, "*rows items"]:
        if second is None:
            raise TypeError(
                "differential attention subtracts a second softmax and got one set of logits: "
                "expected two, Differential()(logits, second)"
            )
        _array.namespace(logits=logits, second=second)
        if tuple(second.shape) != tuple(logits.shape):
            raise ValueError(
                f"second of shape {tuple(second.shape)} must have the shape of logits, "
                f"{tuple(logits.shape)}"
            )
        first, other = prepare(logits, where, axis), prepare(second, where, axis)
        weight = parameter("second_weight", self.second_weight, first)
        common = first.xp.astype(softmax_of(other), first.values.dtype, copy=False)
        return finish(softmax_of(first) - weight * common, first, logits)
