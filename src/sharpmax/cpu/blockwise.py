"""One attention call on a CPU, in blocks of query rows shared out to threads.

A block of rows is multiplied by the keys once. Its logits stay in the cache while the entropy is
computed, the policy is called, and the sharpened weights are multiplied by the values. So it costs
nearly as much as ordinary attention, where two calls of a fused kernel cost twice as much.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sharpmax.cpu import kernels, threads
from sharpmax.ops._rows import VANISHES
from sharpmax.policies import Policy, inverse_temperatures, needs_entropy

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

BLOCK_ROWS = 256
"""Query rows of a block. Measured: 128 took 1.1 to 1.3 times as long, 64 up to 1.6 times."""
BLOCK_LOGITS = 1 << 21
"""Maximum number of logits of a block, 8 MB: long sequences have blocks of fewer rows."""
MIN_BLOCK_ROWS = 16
"""Minimum number of rows of a block, however long they are: smaller products are slow."""
TILE = 512
"""Keys that are multiplied at a time: with 256 rows half a megabyte, which fits the L2 cache."""
TASK_LOGITS = 1 << 20
"""Maximum number of logits of a task, unless one block has more: the cache holds this many for
every thread."""
MIN_TASK_LOGITS = 1 << 16
"""Minimum number of logits of a task, if every thread still gets one: with fewer, most of the time
would be spent in Python."""
TASKS_PER_THREAD = 4
"""Minimum number of tasks per thread, if there are enough blocks: a delayed thread does fewer."""
SINGLE_THREAD_LOGITS = 1 << 15
"""Number of logits below which one thread is as fast as several."""

LOG_2 = np.float32(kernels.LOG_2)
EMPTY_ROW = np.array([-np.inf, np.inf, 0.0, 0.0], np.float32)[:, None, None]
"""Maximum, minimum, sum and moment of a row before any key."""
NO_MASK = np.empty((0, 0, 0, 0, 0), bool)
NO_BIAS = np.empty((0, 0, 0, 0, 0), np.float32)


class Arrays(NamedTuple):
    """Validated arguments of one attention call.

    float32 in C order, except that query, mask and bias may have any strides.
    """

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


class Answer(NamedTuple):
    """Output and statistics of each row; the statistics are empty if not asked for."""

    output: Float[np.ndarray, "batch kv_heads group query value_dim"] | None
    numbers: Float[np.ndarray, "5 batch kv_heads group query"]
    """Entropy, log-sum-exp, inverse temperature, largest and smallest logit."""
    counts: Int[np.ndarray, "batch kv_heads group query"]
    """How many keys each row can see."""

    @property
    def stats(self) -> tuple[Any, ...]:
        """Entropy, log-sum-exp, count, inverse temperature, largest and smallest logit."""
        entropy, log_sum_exp, *rest = self.numbers
        return entropy, log_sum_exp, self.counts, *rest


class Task(NamedTuple):
    """The same rows of several heads; the policy is called once for all of them."""

    blocks: Int[np.ndarray, "blocks 3"]
    """Batch, key head, and the first query head of its group."""
    group: int
    """Query heads of a block."""
    query: slice
    first: Int[np.ndarray, " query"]
    """The first key that each query can see by its position."""
    stop: Int[np.ndarray, " query"]
    """One past the last such key."""


def attend(arrays: Arrays, policy: Policy, thread_count: int, *, stats: bool) -> Answer:
    """Return the output if there are values, and the statistics if asked."""
    rows = arrays.query.shape[:4]
    output = None if arrays.value is None else np.empty((*rows, arrays.value.shape[3]), np.float32)
    stored = rows if stats else (0, 0, 0, 0)
    answer = Answer(output, np.zeros((5, *stored), np.float32), np.zeros(stored, np.int32))
    entropy = stats or needs_entropy(policy)
    tasks = list(_split_tasks(arrays, thread_count))
    spoilt: list[Task] = []

    def run(task: Task) -> None:
        if not _TaskRun(arrays, policy, answer, task).run(entropy, stats):
            spoilt.append(task)

    threads.run_in_threads(tasks, run, max(1, min(thread_count, len(tasks))))
    if spoilt and output is not None:
        _leave_out_hidden_values(arrays, policy, thread_count, output)
    return answer


def _leave_out_hidden_values(
    arrays: Arrays,
    policy: Policy,
    thread_count: int,
    output: Float[np.ndarray, "batch kv_heads group query value_dim"],
) -> None:
    """Compute an output again where it is not finite because of values whose weight is 0."""
    assert arrays.value is not None
    finite = np.isfinite(arrays.value)
    if finite.all():
        return

    def attend_to(value: Any) -> Any:
        replaced = arrays._replace(value=value.astype(np.float32))
        return attend(replaced, policy, thread_count, stats=False).output

    clean = attend_to(np.where(finite, arrays.value, 0))
    np.copyto(output, clean, where=~(attend_to(~finite) > 0))


def visible_range(
    arrays: Arrays, rows: slice
) -> tuple[Int[np.ndarray, " query"], Int[np.ndarray, " query"]]:
    """Return the first key that each of these queries can see by its position, and one past the
    last.
    """
    keys = arrays.key.shape[2]
    position = np.arange(rows.start, rows.stop) - arrays.first_key
    first, stop = np.zeros_like(position), np.full_like(position, keys)
    if arrays.causal:
        stop = position + 1
    if arrays.window is not None:
        first = position - arrays.window + 1
        stop = np.minimum(stop, position + arrays.window)
    stop = np.minimum(np.maximum(stop, 0), keys)
    return np.minimum(np.maximum(first, 0), stop), stop


def _split_tasks(arrays: Arrays, thread_count: int) -> Iterator[Task]:
    """Yield tasks of the same rows of neighbouring heads, as many as the cache holds.

    The longest rows come first, so that threads finish together.
    """
    batch, heads, group, queries = arrays.query.shape[:4]
    rows = BLOCK_ROWS
    if arrays.value is not None:  # otherwise the logits are not kept
        rows = min(max(BLOCK_LOGITS // max(1, arrays.key.shape[2]), MIN_BLOCK_ROWS), BLOCK_ROWS)
    if 0 in (batch, heads, group, queries):
        return
    block_group = min(group, max(1, rows // queries))
    block_count = batch * heads * -(-group // block_group) * -(-queries // rows)
    fair = -(-block_count // (TASKS_PER_THREAD * thread_count))
    for start in reversed(range(0, queries, rows)):
        query = slice(start, min(start + rows, queries))
        first, stop = visible_range(arrays, query)
        size = (query.stop - start) * block_group * max(1, int(stop.max()))
        single = block_count * size < SINGLE_THREAD_LOGITS
        most = block_count if single else -(-block_count // thread_count)
        step = max(fair, min(MIN_TASK_LOGITS // size, most))
        step = max(1, min(step, TASK_LOGITS // size))
        for g in range(0, group, block_group):
            blocks = np.array([(b, h, g) for b in range(batch) for h in range(heads)])
            for begin in range(0, len(blocks), step):
                part = blocks[begin : begin + step]
                yield Task(part, min(block_group, group - g), query, first, stop)


_workspaces: list[Any] = []
"""Memory that no task uses now. The operating system would clear fresh memory each time."""


@contextmanager
def _workspace(size: int) -> Iterator[Float[np.ndarray, " size"]]:
    """Lend memory to one task. Not thread-local: OpenMP threads lose what Python stores in them."""
    try:
        memory = _workspaces.pop()
    except IndexError:
        memory = np.empty(0, np.float32)
    if len(memory) < size:
        memory = np.empty(size, np.float32)
    try:
        yield memory[:size]
    finally:
        _workspaces.append(memory)


class _TaskRun:
    """Computes one task of one call, in three steps: logits and sums, policy, weighted values."""

    def __init__(self, arrays: Arrays, policy: Policy, answer: Answer, task: Task) -> None:
        self.arrays, self.policy, self.answer, self.task = arrays, policy, answer, task
        self.keys = int(task.first.min()), int(task.stop.max())
        self.first = np.tile(task.first - self.keys[0], task.group)
        self.stop = np.tile(task.stop - self.keys[0], task.group)
        shape = len(task.blocks), len(self.first)
        self.sums = np.empty((4, *shape), np.float32)
        self.sums[...] = EMPTY_ROW
        self.count = np.zeros(shape, np.int32)
        self.place = task.blocks, task.group, (task.query.start, task.query.stop), self.keys

    def run(self, entropy: bool, stats: bool) -> bool:
        """Return whether the output is finite."""
        keep, keys = self.arrays.value is not None, self.keys[1] - self.keys[0]
        with _workspace(self.count.size * keys if keep else self.count.shape[1] * TILE) as memory:
            self._survey(memory, entropy, stats)
            factor = self._call_policy(stats)
            return self.arrays.value is None or self._weigh(memory, factor)

    def _survey(self, memory: Float[np.ndarray, " size"], entropy: bool, stats: bool) -> None:
        """Compute the logits, and maximum, minimum, sum and moment of each row."""
        arrays = self.arrays
        softcap = arrays.softcap
        scale = arrays.scale * kernels.BITS if softcap is None else arrays.scale / softcap
        kernels.survey(
            arrays.query,
            arrays.key,
            *self.place,
            memory,
            TILE,
            self.first,
            self.stop,
            np.float32(scale),
            np.float32((softcap or 0) * kernels.BITS),
            NO_BIAS if arrays.bias is None else arrays.bias,
            np.float32(arrays.lowest),
            NO_MASK if arrays.mask is None else arrays.mask,
            arrays.value is not None,
            entropy,
            stats,
            self.sums,
            self.count,
        )

    def _call_policy(self, stats: bool) -> Float[np.ndarray, "blocks rows"]:
        """Return the inverse temperature of every row; store the statistics if asked."""
        maximum, minimum, total, moment = self.sums
        total = np.maximum(total, np.float32(1))  # at least 1, except for 0 in a row without keys
        log_total = np.log(total)
        entropy = log_total - LOG_2 * moment / total
        # In four axes, as every implementation calls it.
        rows = (array.reshape(1, 1, 1, -1) for array in (entropy, self.count))
        answer = np.asarray(inverse_temperatures(self.policy, *rows), np.float32)
        factor = answer.reshape(entropy.shape)
        if stats:
            maximum, minimum = LOG_2 * maximum, LOG_2 * minimum
            self._store(np.stack([entropy, maximum + log_total, factor, maximum, minimum]))
        return factor

    def _store(self, numbers: Float[np.ndarray, "5 blocks rows"]) -> None:
        task, answer = self.task, self.answer
        batch, head, group = task.blocks.T[:, :, None]
        group = group + np.arange(task.group)
        answer.numbers[:, batch, head, group, task.query] = numbers.reshape(5, *group.shape, -1)
        answer.counts[batch, head, group, task.query] = self.count.reshape(*group.shape, -1)

    def _weigh(
        self, memory: Float[np.ndarray, " size"], factor: Float[np.ndarray, "blocks rows"]
    ) -> bool:
        """Turn logits into weights, multiply them by the values; return whether all is finite."""
        arrays, maximum, output = self.arrays, self.sums[0], self.answer.output
        assert arrays.value is not None
        assert output is not None
        finite: bool = kernels.weigh(
            arrays.value,
            *self.place,
            memory,
            TILE,
            self.first,
            self.stop,
            maximum,
            np.maximum(factor, np.float32(VANISHES)),  # so that the weight of a hidden key is 0
            np.zeros_like(maximum) if arrays.sinks is None else self._sink_weights(factor),
            output,
        )
        return finite

    def _sink_weights(
        self, factor: Float[np.ndarray, "blocks rows"]
    ) -> Float[np.ndarray, "blocks rows"]:
        """Return exp(sink - factor * maximum): the sink's weight relative to the top key's."""
        assert self.arrays.sinks is not None
        _, head, group = self.task.blocks.T[:, :, None]
        sinks = self.arrays.sinks[head, group + np.arange(self.task.group)]
        limit = np.finfo(np.float32).max / 2
        maximum = np.clip(LOG_2 * self.sums[0], -limit, limit)
        by_row = np.repeat(sinks, factor.shape[1] // self.task.group, axis=1)
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(by_row - factor * maximum), np.float32)
