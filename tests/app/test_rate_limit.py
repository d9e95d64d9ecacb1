"""A burst, then a steady rate, for each client alone, in bounded memory."""

from __future__ import annotations

from sharpmax.app import rate_limit
from sharpmax.app.rate_limit import RateLimit


def test_a_burst_and_then_the_rate():
    now = 0.0
    limit = RateLimit(burst=3, per_second=2.0, clock=lambda: now)
    assert [limit.allow("a") for _ in range(5)] == [True, True, True, False, False]
    assert limit.allow("b")
    now = 1.0
    assert [limit.allow("a") for _ in range(3)] == [True, True, False]
    now = 1000.0
    assert [limit.allow("a") for _ in range(4)] == [True, True, True, False]


def test_only_so_many_clients_are_remembered(monkeypatch):
    monkeypatch.setattr(rate_limit, "MAX_CLIENTS", 3)
    limit = RateLimit(burst=1, per_second=0.0)
    for client in "abcd":
        assert limit.allow(client)
    assert len(limit._buckets) == 3
    assert not limit.allow("d")
    assert limit.allow("a")  # forgotten, as the one that was not heard of for longest
