"""Alarms of a training: heads whose logits have grown too large or whose entropy has collapsed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sharpmax._errors import UserError

if TYPE_CHECKING:
    from jaxtyping import Float

MAX_LOGIT = 100.0
"""The default of MuonClip (arXiv 2507.20534), whose largest logits went beyond 1,000."""
MIN_ENTROPY = 0.1
"""In nats. A head with this entropy attends as if to 1.1 tokens."""
WAS_SPREAD = 2.0
"""A head has collapsed only if its entropy was this many times the limit before."""


@dataclass(frozen=True)
class Alarm:
    """The first sample in which a head crossed a limit.

    Attributes:
        kind: `logits` if its largest logit is above `max_logit`, `entropy` if its entropy has
            fallen below `min_entropy`.
        step: The step of the sample.
        layer: The number of the layer.
        head: The number of the head.
        value: The logit, or the entropy in nats.
    """

    kind: Literal["logits", "entropy"]
    step: int
    layer: int
    head: int
    value: float

    def describe(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


class AlarmBell:
    """Find alarms sample by sample; each head rings once per kind.

    A head that is sharp from the first sample on has not collapsed. Models have such heads, for
    instance those that attend to the token before.

    Args:
        max_logit: The largest logit that is fine.
        min_entropy: The smallest entropy that is fine, in nats.

    Raises:
        UserError: A limit is not a positive number.
    """

    def __init__(self, max_logit: float = MAX_LOGIT, min_entropy: float = MIN_ENTROPY) -> None:
        for value, name in ((max_logit, "max_logit"), (min_entropy, "min_entropy")):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
                raise UserError(f"{name}={value!r}: give a positive number")
        self.max_logit, self.min_entropy = float(max_logit), float(min_entropy)
        self.alarms: list[Alarm] = []
        self._was_spread: np.ndarray | None = None
        self._rung: set[tuple[str, int, int]] = set()

    def check(
        self,
        step: int,
        entropy: Float[np.ndarray, "layers heads"],
        max_logit: Float[np.ndarray, "layers heads"],
    ) -> list[Alarm]:
        """Return the new alarms of a sample."""
        if self._was_spread is None:
            self._was_spread = np.zeros(entropy.shape, bool)
        crossed = {
            "logits": (max_logit > self.max_logit, max_logit),
            "entropy": (self._was_spread & (entropy < self.min_entropy), entropy),
        }
        self._was_spread |= entropy >= WAS_SPREAD * self.min_entropy
        new = [
            Alarm(kind, step, layer, head, float(values[layer, head]))  # type: ignore[arg-type]
            for kind, (where, values) in crossed.items()
            for layer, head in np.argwhere(where).tolist()
            if (kind, layer, head) not in self._rung
        ]
        self._rung |= {(alarm.kind, alarm.layer, alarm.head) for alarm in new}
        self.alarms += new
        return new
