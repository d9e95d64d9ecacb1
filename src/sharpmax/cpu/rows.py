"""Attention on a CPU at nearly the price of ordinary attention, in NumPy arrays.

The two-call method multiplies queries by keys twice. Here a block of query rows is multiplied once;
its logits stay in the cache while their entropy is found, the policy is asked, and the sharpened
weights are multiplied by the values.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sharpmax.cpu import kernels, pool
from sharpmax.ops._rows import VANISHES
from sharpmax.policies import Policy, inverse_temperatures, needs_entropy

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

ROWS = 256
"""Query rows of a block, measured: 128 took 1.1 to 1.3 times as long, 64 up to 1.6 times."""
LOGITS = 1 << 21
"""Logits that a thread has at a time, 8 MB: more rows of a short sequence, fewer of a long one."""
TILE = 512
"""Keys that are multiplied at a time: with 256 rows half a megabyte, as the nearest cache has."""
EACH = 4
"""Tasks for each thread at least, if there are so many blocks: who was held up does fewer."""
FEWEST = 16
"""Rows of a block at least, however long they are: products of fewer are slow."""

LOG_2 = np.float32(kernels.LOG_2)
UNKNOWN = np.array([-np.inf, np.inf, 0.0, 0.0], np.float32)
"""Top, smallest, sum and moment of a row of which nothing was seen yet."""
NO_MASK = np.empty((0, 0, 0), bool)
NO_BIAS = np.empty((0, 0, 0), np.float32)


class Work(NamedTuple):
    """One attention call: float32 in C order, but for queries, mask and bias of any strides."""

    query: Float[np.ndarray, "batch kv_heads group query dim"]
    key: Float[np.ndarray, "batch kv_heads key dim"]
    value: Float[np.ndarray, "batch kv_heads key value_dim"] | None
    mask: Bool[np.ndarray, "batch kv_heads group query key"] | None = None
    bias: Float[np.ndarray, "batch kv_heads group query key"] | None = None
    lowest: float = -np.inf
    """A bias of this or less hides the key."""
    causal: bool = False
    window: int | None = None
    first_key: int = 0
    scale: float = 1.0
    softcap: float | None = None
    sinks: Float[np.ndarray, "kv_heads group"] | None = None


class Found(NamedTuple):
    """Of each row, [batch kv_heads group query]."""

    output: Float[np.ndarray, "batch kv_heads group query value_dim"] | None
    entropy: Float[np.ndarray, "batch kv_heads group query"]
    log_sum_exp: Float[np.ndarray, "batch kv_heads group query"]
    items: Int[np.ndarray, "batch kv_heads group query"]
    """How many keys each row can see."""
    inverse_temperature: Float[np.ndarray, "batch kv_heads group query"]
    maximum: Float[np.ndarray, "batch kv_heads group query"]
    minimum: Float[np.ndarray, "batch kv_heads group query"]


class Block(NamedTuple):
    """Some rows of one key head; several whole query heads, or a part of one."""

    batch: int
    head: int
    group: slice
    query: slice

    @property
    def place(self) -> tuple[int, int, slice, slice]:
        return self.batch, self.head, self.group, self.query


def run(work: Work, policy: Policy, threads: int, *, stats: bool) -> Found:
    """Output if there are values; with `stats` the statistics too, else only what is needed."""
    shape = work.query.shape[:4]
    output = None if work.value is None else np.empty((*shape, work.value.shape[3]), np.float32)
    zeros = [np.zeros(shape, np.float32) for _ in range(5)]
    found = Found(output, zeros[0], zeros[1], np.zeros(shape, np.int32), *zeros[2:])
    looks = stats or needs_entropy(policy)
    tasks = list(_tasks(work, threads))
    threads = max(1, min(threads, len(tasks)))
    pool.over(tasks, lambda task: _Attending(work, policy, looks, stats, found).run(task), threads)
    return found


def reach(work: Work, rows: slice) -> tuple[Int[np.ndarray, " query"], Int[np.ndarray, " query"]]:
    """The first key that each of these queries can see by its position, and the one after the
    last.
    """
    keys = work.key.shape[2]
    position = np.arange(rows.start, rows.stop) - work.first_key
    first, stop = np.zeros_like(position), np.full_like(position, keys)
    if work.causal:
        stop = position + 1
    if work.window is not None:
        first = position - work.window + 1
        stop = np.minimum(stop, position + work.window)
    stop = np.clip(stop, 0, keys)
    return np.minimum(np.maximum(first, 0), stop), stop


def _tasks(work: Work, threads: int) -> Iterator[list[Block]]:
    """Blocks of the same rows of neighbouring heads, as many as the cache holds: the policy is
    asked once for all of them. The longest come first, so that threads end together.
    """
    batch, heads, group, queries = work.query.shape[:4]
    rows = int(np.clip(LOGITS // max(1, work.key.shape[2]), FEWEST, ROWS))
    if 0 in (batch, heads, group, queries):
        return
    several = max(1, rows // queries)  # query heads of a block
    total = batch * heads * -(-group // several) * -(-queries // rows)
    fair = -(-total // (EACH * threads))
    for start in reversed(range(0, queries, rows)):
        query = slice(start, min(start + rows, queries))
        blocks = [
            Block(b, h, slice(g, min(g + several, group)), query)
            for b in range(batch)
            for h in range(heads)
            for g in range(0, group, several)
        ]
        _, stop = reach(work, query)
        size = (query.stop - start) * min(several, group) * max(1, int(stop.max()))
        step = max(1, min(LOGITS // size, fair))
        for place in range(0, len(blocks), step):
            yield blocks[place : place + step]


_scratch = threading.local()


def _space(count: int) -> Float[np.ndarray, " count"]:
    """Memory of this thread's, used again: fresh memory is cleared page by page, each time."""
    held = getattr(_scratch, "space", None)
    if held is None or len(held) < count:
        held = _scratch.space = np.empty(count, np.float32)
    return held[:count]


class _Attending:
    """One task of one call."""

    def __init__(self, work: Work, policy: Policy, looks: bool, stats: bool, found: Found) -> None:
        self.work, self.policy, self.found = work, policy, found
        self.looks, self.stats = looks, stats

    def run(self, blocks: list[Block]) -> None:
        first, stop = reach(self.work, blocks[0].query)
        keys = slice(int(first.min()), int(stop.max()))
        parts = [_Part(one, first - keys.start, stop - keys.start, keys) for one in blocks]
        space = _space(sum(part.rows for part in parts) * (keys.stop - keys.start))
        for part in parts:
            size = part.rows * (keys.stop - keys.start)
            part.space, space = space[:size], space[size:]
            self._survey(part)
        self._ask(parts)
        if self.work.value is not None:
            for part in parts:
                self._weigh(part)

    def _survey(self, part: _Part) -> None:
        work, place = self.work, part.block.place
        scale = work.scale * kernels.BITS if work.softcap is None else work.scale / work.softcap
        query = np.multiply(work.query[place], np.float32(scale), order="C")
        kernels.survey(
            query.reshape(part.rows, -1),
            work.key[part.block.batch, part.block.head, part.keys],
            part.space,
            TILE,
            part.first,
            part.stop,
            np.float32((work.softcap or 0) * kernels.BITS),
            NO_BIAS if work.bias is None else work.bias[place][..., part.keys],
            np.float32(work.lowest),
            NO_MASK if work.mask is None else work.mask[place][..., part.keys],
            self.looks,
            self.stats,
            part.known,
            part.count,
        )

    def _ask(self, parts: list[_Part]) -> None:
        """The inverse temperature of every row; what is known of it is put down."""
        top, smallest, total, moment = np.concatenate([part.known for part in parts], 1)
        total = np.maximum(total, np.float32(1))  # it is 1 or more, but 0 in a row without keys
        log_total = np.log(total)
        entropy = log_total - LOG_2 * moment / total
        count = np.concatenate([part.count for part in parts])
        # In four axes, as every implementation asks it.
        asked = (one.reshape(1, 1, 1, -1) for one in (entropy, count))
        factor = np.asarray(inverse_temperatures(self.policy, *asked), np.float32).ravel()
        rows = (entropy, LOG_2 * top + log_total, count, factor, LOG_2 * top, LOG_2 * smallest)
        at = 0
        for part in parts:
            here, at = slice(at, at + part.rows), at + part.rows
            part.factor = factor[here]
            for target, row in zip(self.found[1:], rows, strict=True):
                place = target[part.block.place]
                place[...] = row[here].reshape(place.shape)

    def _weigh(self, part: _Part) -> None:
        work, output = self.work, self.found.output
        assert work.value is not None
        assert output is not None
        total = np.zeros(part.rows, np.float32)
        mean = np.zeros((part.rows, work.value.shape[3]), np.float32)
        kernels.weigh(
            work.value[part.block.batch, part.block.head, part.keys],
            part.space,
            TILE,
            part.first,
            part.stop,
            part.known[0],
            np.maximum(part.factor, np.float32(VANISHES)),  # so that a hidden key is 0 by itself
            total,
            mean,
        )
        if work.sinks is not None:
            mean *= self._kept(part, total)[:, None]
        place = output[part.block.place]
        place[...] = mean.reshape(place.shape)

    def _kept(self, part: _Part, total: Any) -> Float[np.ndarray, " rows"]:
        """What a sink leaves to the keys: 1 / (1 + exp(sink - log_sum_exp)) of a sharpened row."""
        assert self.work.sinks is not None
        its = self.work.sinks[part.block.head, part.block.group]
        sinks = np.repeat(its, part.rows // len(its))
        limit = np.finfo(np.float32).max / 2
        top = np.clip(LOG_2 * part.known[0], -limit, limit)
        with np.errstate(over="ignore", divide="ignore"):
            kept = 1 / (1 + np.exp(sinks - part.factor * top - np.log(total)))
        return np.asarray(kept, np.float32)


class _Part:
    """A block while it is worked on: its keys, its logits, what is known of its rows."""

    def __init__(self, block: Block, first: Any, stop: Any, keys: slice) -> None:
        groups = block.group.stop - block.group.start
        self.block, self.keys = block, keys
        self.first, self.stop = np.tile(first, groups), np.tile(stop, groups)
        self.rows = len(self.first)
        self.known = np.tile(UNKNOWN[:, None], self.rows)
        self.count = np.zeros(self.rows, np.int32)
        self.factor = self.space = np.empty(0, np.float32)
