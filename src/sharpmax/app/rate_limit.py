"""Limit how many events each user of a shared page may start."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

MAX_CLIENTS = 10_000
"""Clients to remember; the one that was not heard of for longest is forgotten first."""


class RateLimit:
    """A token bucket per client: a burst of events, then a steady rate."""

    def __init__(
        self, burst: int, per_second: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.burst, self.per_second, self._clock = burst, per_second, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allow(self, client: str) -> bool:
        """Count one event of a client, and return whether it is within the limit."""
        now = self._clock()
        tokens, last = self._buckets.pop(client, (float(self.burst), now))
        tokens = min(float(self.burst), tokens + (now - last) * self.per_second)
        allowed = tokens >= 1
        self._buckets[client] = tokens - allowed, now
        if len(self._buckets) > MAX_CLIENTS:
            self._buckets.popitem(last=False)
        return allowed
