"""Attention on a CPU at nearly the price of ordinary attention, in NumPy arrays.

The two-call method multiplies queries by keys twice. Here a block of query rows is multiplied once;
its logits stay in the cache while their entropy is found, the policy is asked, and the sharpened
weights are multiplied by the values.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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
"""Logits of a block at most, 8 MB: fewer rows of a long sequence."""
TASK = 1 << 20
"""Logits of a task at most, unless a block has more: so many the cache holds for every thread."""
TILE = 512
"""Keys that are multiplied at a time: with 256 rows half a megabyte, as the nearest cache has."""
EACH = 4
"""Tasks for each thread at least, if there are so many blocks: who was held up does fewer."""
SMALLEST = 1 << 16
"""Logits of a task at least, if every thread still gets one: of less, Python would be most."""
ALONE = 1 << 15
"""Logits below which one thread is as fast as several."""
FEWEST = 16
"""Rows of a block at least, however long they are: products of fewer are slow."""

LOG_2 = np.float32(kernels.LOG_2)
UNKNOWN = np.array([-np.inf, np.inf, 0.0, 0.0], np.float32)[:, None, None]
"""Top, smallest, sum and moment of a row of which nothing was seen yet."""
NO_MASK = np.empty((0, 0, 0, 0, 0), bool)
NO_BIAS = np.empty((0, 0, 0, 0, 0), np.float32)


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
    """Of each row, [batch kv_heads group query]; empty statistics if they were not asked for."""

    output: Float[np.ndarray, "batch kv_heads group query value_dim"] | None
    numbers: Float[np.ndarray, "five batch kv_heads group query"]
    """Entropy, log-sum-exp, inverse temperature, largest and smallest logit."""
    items: Int[np.ndarray, "batch kv_heads group query"]
    """How many keys each row can see."""

    @property
    def stats(self) -> tuple[Any, ...]:
        """Entropy, log-sum-exp, items, inverse temperature, largest and smallest logit."""
        entropy, total, *rest = self.numbers
        return entropy, total, self.items, *rest


class Task(NamedTuple):
    """Some rows of several heads, as many of each: the policy is asked once for all of them."""

    blocks: Int[np.ndarray, "blocks three"]
    """Batch, key head, and the first of its query heads."""
    groups: int
    """Query heads of a block."""
    query: slice
    first: Int[np.ndarray, " query"]
    """The first key that each query can see by its position."""
    stop: Int[np.ndarray, " query"]
    """And the one after the last."""


def run(work: Work, policy: Policy, threads: int, *, stats: bool) -> Found:
    """Output if there are values; with `stats` the statistics too, else only what is needed."""
    shape = work.query.shape[:4]
    output = None if work.value is None else np.empty((*shape, work.value.shape[3]), np.float32)
    # What nobody asked for is not put down.
    asked = shape if stats else (0, 0, 0, 0)
    numbers, items = np.zeros((5, *asked), np.float32), np.zeros(asked, np.int32)
    found = Found(output, numbers, items)
    looks = stats or needs_entropy(policy)
    tasks = list(_tasks(work, threads))
    threads = max(1, min(threads, len(tasks)))
    pool.over(tasks, lambda task: _Attending(work, policy, found, task).run(looks, stats), threads)
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
    stop = np.minimum(np.maximum(stop, 0), keys)
    return np.minimum(np.maximum(first, 0), stop), stop


def _tasks(work: Work, threads: int) -> Iterator[Task]:
    """Blocks of the same rows of neighbouring heads, as many as the cache holds. The longest come
    first, so that threads end together.
    """
    batch, heads, group, queries = work.query.shape[:4]
    rows = ROWS
    if work.value is not None:  # else they are not kept
        rows = min(max(LOGITS // max(1, work.key.shape[2]), FEWEST), ROWS)
    if 0 in (batch, heads, group, queries):
        return
    several = min(group, max(1, rows // queries))  # query heads of a block
    total = batch * heads * -(-group // several) * -(-queries // rows)
    fair = -(-total // (EACH * threads))
    for start in reversed(range(0, queries, rows)):
        query = slice(start, min(start + rows, queries))
        first, stop = reach(work, query)
        size = (query.stop - start) * several * max(1, int(stop.max()))
        few = total if total * size < ALONE else -(-total // threads)
        step = max(fair, min(SMALLEST // size, few))
        step = max(1, min(step, TASK // size))
        for g in range(0, group, several):
            blocks = np.array([(b, h, g) for b in range(batch) for h in range(heads)])
            for place in range(0, len(blocks), step):
                some = blocks[place : place + step]
                yield Task(some, min(several, group - g), query, first, stop)


_spaces: list[Any] = []
"""Memory that no task is using now: fresh memory is cleared page by page, each time."""


@contextmanager
def _space(count: int) -> Iterator[Float[np.ndarray, " count"]]:
    """Memory for one task. Not a thread's own: torch's threads forget what Python kept in them."""
    try:
        held = _spaces.pop()
    except IndexError:
        held = np.empty(0, np.float32)
    if len(held) < count:
        held = np.empty(count, np.float32)
    try:
        yield held[:count]
    finally:
        _spaces.append(held)


class _Attending:
    """One task of one call."""

    def __init__(self, work: Work, policy: Policy, found: Found, task: Task) -> None:
        self.work, self.policy, self.found, self.task = work, policy, found, task
        self.keys = int(task.first.min()), int(task.stop.max())
        self.first = np.tile(task.first - self.keys[0], task.groups)
        self.stop = np.tile(task.stop - self.keys[0], task.groups)
        shape = len(task.blocks), len(self.first)
        self.known = np.empty((4, *shape), np.float32)
        self.known[...] = UNKNOWN
        self.count = np.zeros(shape, np.int32)
        self.place = task.blocks, task.groups, (task.query.start, task.query.stop), self.keys

    def run(self, looks: bool, stats: bool) -> None:
        keep, keys = self.work.value is not None, self.keys[1] - self.keys[0]
        with _space(self.count.size * keys if keep else self.count.shape[1] * TILE) as space:
            self._survey(space, looks, stats)
            factor = self._ask(stats)
            if self.work.value is not None:
                self._weigh(space, factor)

    def _survey(self, space: Float[np.ndarray, " count"], looks: bool, stats: bool) -> None:
        work = self.work
        scale = work.scale * kernels.BITS if work.softcap is None else work.scale / work.softcap
        kernels.survey(
            work.query,
            work.key,
            *self.place,
            space,
            TILE,
            self.first,
            self.stop,
            np.float32(scale),
            np.float32((work.softcap or 0) * kernels.BITS),
            NO_BIAS if work.bias is None else work.bias,
            np.float32(work.lowest),
            NO_MASK if work.mask is None else work.mask,
            work.value is not None,
            looks,
            stats,
            self.known,
            self.count,
        )

    def _ask(self, stats: bool) -> Float[np.ndarray, "blocks rows"]:
        """The inverse temperature of every row; what is known of it is put down, if asked for."""
        top, smallest, total, moment = self.known
        total = np.maximum(total, np.float32(1))  # it is 1 or more, but 0 in a row without keys
        log_total = np.log(total)
        entropy = log_total - LOG_2 * moment / total
        # In four axes, as every implementation asks it.
        asked = (one.reshape(1, 1, 1, -1) for one in (entropy, self.count))
        answer = np.asarray(inverse_temperatures(self.policy, *asked), np.float32)
        factor = answer.reshape(entropy.shape)
        if stats:
            top, smallest = LOG_2 * top, LOG_2 * smallest
            self._put(np.stack([entropy, top + log_total, factor, top, smallest]))
        return factor

    def _put(self, numbers: Float[np.ndarray, "five blocks rows"]) -> None:
        task = self.task
        batch, head, group = task.blocks.T[:, :, None]
        group = group + np.arange(task.groups)
        self.found.numbers[:, batch, head, group, task.query] = numbers.reshape(5, *group.shape, -1)
        self.found.items[batch, head, group, task.query] = self.count.reshape(*group.shape, -1)

    def _weigh(
        self, space: Float[np.ndarray, " count"], factor: Float[np.ndarray, "blocks rows"]
    ) -> None:
        work, top, output = self.work, self.known[0], self.found.output
        assert work.value is not None
        assert output is not None
        beside = np.zeros_like(top) if work.sinks is None else self._sunk(factor)
        kernels.weigh(
            work.value,
            *self.place,
            space,
            TILE,
            self.first,
            self.stop,
            top,
            np.maximum(factor, np.float32(VANISHES)),  # so that a hidden key is 0 by itself
            beside,
            output,
        )

    def _sunk(self, factor: Float[np.ndarray, "blocks rows"]) -> Float[np.ndarray, "blocks rows"]:
        """What a sink weighs beside the keys of a sharpened row: exp(sink - factor * top)."""
        assert self.work.sinks is not None
        _, head, group = self.task.blocks.T[:, :, None]
        sinks = self.work.sinks[head, group + np.arange(self.task.groups)]
        limit = np.finfo(np.float32).max / 2
        top = np.clip(LOG_2 * self.known[0], -limit, limit)
        by_row = np.repeat(sinks, factor.shape[1] // self.task.groups, axis=1)
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(by_row - factor * top), np.float32)
