"""One attention call on a CPU, in blocks of query rows shared out to threads.

A block of rows is multiplied by the keys once. Its logits stay in the cache while the entropy is
computed, the policy is called, and the sharpened weights are multiplied by the values. So it costs
nearly as much as ordinary attention, where two calls of a fused kernel cost twice as much.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sharpmax.cpu import threads
from sharpmax.cpu.arithmetic import BITS
from sharpmax.cpu.kernels import (
    ALL_STAGES,
    ENTROPY,
    FACTOR,
    KNOWN,
    SURVEY,
    UNLIMITED,
    VARENTROPY,
    WEIGH,
    attend_tasks,
)
from sharpmax.cpu.policy_table import NO_TABLE, tabulate
from sharpmax.cpu.tiles import FEW_ROWS
from sharpmax.policies import Policy, differs_by_head, inverse_temperatures, needs_entropy

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

NO_MASK = np.empty((0, 0, 0, 0, 0), bool)
NO_BIAS = np.empty((0, 0, 0, 0, 0), np.float32)
NO_VALUE = np.empty((0, 0, 0, 0), np.float32)
NO_SINKS = np.empty((0, 0), np.float32)


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
    numbers: Float[np.ndarray, "7 batch kv_heads group query"]
    """Entropy, log-sum-exp, inverse temperature, largest and smallest logit, mass (the sum of the
    sharpened weights relative to the top key's) and varentropy."""
    counts: Int[np.ndarray, "batch kv_heads group query"]
    """How many keys each row can see."""

    @property
    def stats(self) -> tuple[Any, ...]:
        """The fields of `api.Stats`, in their order."""
        entropy, log_sum_exp, factor, maximum, minimum, _, varentropy = self.numbers
        return entropy, log_sum_exp, self.counts, factor, maximum, minimum, varentropy


def attend(arrays: Arrays, policy: Policy, thread_count: int, *, stats: bool) -> Answer:
    """Return the output if there are values, and the statistics if asked."""
    rows = arrays.query.shape[:4]
    output = None if arrays.value is None else np.empty((*rows, arrays.value.shape[3]), np.float32)
    stored = rows if stats else (0, 0, 0, 0)
    answer = Answer(output, np.zeros((7, *stored), np.float32), np.zeros(stored, np.int32))
    call = _Call(arrays, policy, answer, thread_count, stats)
    if call.tasks and not call.run() and output is not None:
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


Task = tuple[int, int, int, int, int, int]
"""The same rows of several blocks: the columns of `attend_tasks`'s tasks."""


def split_tasks(arrays: Arrays, thread_count: int, *, whole_heads: bool = False) -> list[Task]:
    """Return tasks of the same rows of neighbouring heads, as many as the cache holds.

    The longest rows come first, so that threads finish together. With `whole_heads` every task has
    all heads.
    """
    batch, heads, group, queries = arrays.query.shape[:4]
    keys = arrays.key.shape[2]
    if 0 in (batch, heads, group, queries):
        return []
    blocks, rows = batch * heads, BLOCK_ROWS
    if arrays.value is not None:  # otherwise the logits are not kept
        rows = min(max(BLOCK_LOGITS // max(1, keys), MIN_BLOCK_ROWS), BLOCK_ROWS)
    if whole_heads:
        rows = min(rows, max(1, TASK_LOGITS // max(1, blocks * group * keys)))
        starts = range(0, queries, rows)
        return [(0, blocks, 0, group, at, min(at + rows, queries)) for at in reversed(starts)]
    block_group = min(group, max(1, rows // queries))
    parts = -(-group // block_group)
    block_count = blocks * parts * -(-queries // rows)
    fair = -(-block_count // (TASKS_PER_THREAD * thread_count))
    tasks = []
    for start in reversed(range(0, queries, rows)):
        stop = min(start + rows, queries)
        size = (stop - start) * block_group * max(1, reach(arrays, start, stop))
        single = block_count * size < SINGLE_THREAD_LOGITS
        most = block_count if single else -(-block_count // thread_count)
        step = max(fair, min(MIN_TASK_LOGITS // size, most))
        step = max(1, min(step, TASK_LOGITS // size))
        for first_group in range(0, group, block_group):
            size_of_group = min(block_group, group - first_group)
            for begin in range(0, blocks, step):
                count = min(step, blocks - begin)
                tasks.append((begin, count, first_group, size_of_group, start, stop))
    return tasks


def reach(arrays: Arrays, start: int, stop: int) -> int:
    """Return how many keys these queries can see by their position, at most."""
    ahead, back, first_key = positions(arrays)
    last = min(max(stop - first_key + ahead, 0), arrays.key.shape[2])
    return last - min(max(start - first_key - back, 0), last)


def positions(arrays: Arrays) -> tuple[int, int, int]:
    """Return how far a query sees ahead and back, and the position of the first key."""
    window = UNLIMITED if arrays.window is None else arrays.window - 1
    return (0 if arrays.causal else window), window, arrays.first_key


_workspaces: list[Any] = []
"""Memory that no task uses now. The operating system would clear fresh memory each time."""


@contextmanager
def workspace(size: int) -> Iterator[Float[np.ndarray, " size"]]:
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


class _Call:
    """Runs the tasks of one call of attention.

    A policy that the kernel knows is run with all else in one compiled call, otherwise each task
    has three steps: logits and sums, the policy, weighted values.
    """

    def __init__(
        self, arrays: Arrays, policy: Policy, answer: Answer, thread_count: int, stats: bool
    ) -> None:
        self.arrays, self.policy, self.answer, self.stats = arrays, policy, answer, stats
        self.table = tabulate(getattr(policy, "stands_for", policy))
        self.by_head = self.table is None and differs_by_head(policy)
        self.tasks = split_tasks(arrays, thread_count, whole_heads=self.by_head)
        self.threads = max(1, min(thread_count, len(self.tasks)))
        softcap = arrays.softcap or 0.0
        scale = arrays.scale / softcap if softcap else arrays.scale * BITS
        self.inputs: tuple[Any, ...] = (
            arrays.query,
            arrays.key,
            NO_VALUE if arrays.value is None else arrays.value,
            NO_BIAS if arrays.bias is None else arrays.bias,
            NO_MASK if arrays.mask is None else arrays.mask,
            NO_SINKS if arrays.sinks is None else arrays.sinks,
            np.array(self.tasks, np.int64),
        )
        self.settings: tuple[Any, ...] = (
            TILE,
            positions(arrays),
            (scale, softcap * BITS, arrays.lowest),
            (arrays.value is not None, stats or needs_entropy(policy), stats),
            *(self.table or NO_TABLE),
        )
        output = NO_BIAS if answer.output is None else answer.output
        self.outputs = output, answer.numbers, answer.counts

    def run(self) -> bool:
        """Return whether the output is finite."""
        if self.table is not None and self.threads == 1:
            few = all(task[3] * (task[5] - task[4]) <= FEW_ROWS for task in self.tasks)
            with nullcontext() if few else threads.one_blas_thread():
                return self._run_compiled(0, len(self.tasks))
        spoilt: list[int] = []
        run_task = self._run_compiled if self.table is not None else self._run_with_policy

        def run(number: int) -> None:
            if not run_task(number, number + 1):
                spoilt.append(number)

        threads.run_in_threads(range(len(self.tasks)), run, self.threads)
        return not spoilt

    def _run_compiled(self, begin: int, end: int) -> bool:
        """Run all stages of some tasks; return whether their output is finite."""
        sizes = [self._size(task) for task in self.tasks[begin:end]]
        logits = max(rows * keys for _, rows, keys in sizes)
        rows = max(blocks * rows for blocks, rows, _ in sizes)
        known, count = np.empty(KNOWN * rows, np.float32), np.empty(rows, np.int32)
        with workspace(logits) as memory:
            return self._run_stage((begin, end), ALL_STAGES, memory, known, count)

    def _run_with_policy(self, begin: int, end: int) -> bool:
        """Run one task, whose policy is Python's; return whether its output is finite."""
        blocks, rows, keys = self._size(self.tasks[begin])
        known = np.empty((blocks, KNOWN, rows), np.float32)
        count = np.empty((blocks, rows), np.int32)
        with workspace(blocks * rows * keys) as memory:
            state = (memory, known.reshape(-1), count.reshape(-1))
            self._run_stage((begin, end), SURVEY, *state)
            self._call_policy(known, count)
            return self._run_stage((begin, end), WEIGH, *state)

    def _run_stage(self, which: tuple[int, int], stage: int, *memory: Any) -> bool:
        """Call the compiled function; return whether the output is finite."""
        arguments = [*self.inputs, which, stage, *self.settings, *memory, *self.outputs]
        return bool(attend_tasks(*arguments))

    def _call_policy(
        self,
        known: Float[np.ndarray, "blocks 9 rows"],
        count: Int[np.ndarray, "blocks rows"],
    ) -> None:
        """Write the inverse temperature of every row."""
        # In four axes, as every implementation calls it.
        shape = (*self.arrays.query.shape[:3], -1) if self.by_head else (1, 1, 1, -1)
        entropy = np.ascontiguousarray(known[:, ENTROPY])
        varentropy = np.ascontiguousarray(known[:, VARENTROPY]).reshape(shape)
        asked = entropy.reshape(shape), count.reshape(shape), varentropy
        answer = inverse_temperatures(self.policy, *asked)
        known[:, FACTOR] = np.asarray(answer, np.float32).reshape(entropy.shape)

    def _size(self, task: Task) -> tuple[int, int, int]:
        """Return the blocks of a task, the rows of each, and how many of their keys are kept."""
        _, blocks, _, group, start, stop = task
        keys = TILE if self.arrays.value is None else reach(self.arrays, start, stop)
        return blocks, group * (stop - start), keys
