"""The gradients of one attention call on a CPU, in blocks of query rows shared out to threads.

Memory is linear: the logits of a block are computed again from the row statistics of the forward
pass, once, and never leave the cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sharpmax.cpu import threads
from sharpmax.cpu.arithmetic import BITS, LOG_2
from sharpmax.cpu.blockwise import (
    NO_BIAS,
    NO_MASK,
    TILE,
    Arrays,
    positions,
    reach,
    workspace,
)
from sharpmax.cpu.gradient_kernels import differentiate_tasks

if TYPE_CHECKING:
    from jaxtyping import Float

BLOCK_ROWS = 256
BLOCK_LOGITS = 1 << 20
"""Maximum number of logits of a block: two numbers are kept of each, 8 MB."""
MIN_BLOCK_ROWS = 16


class Gradients(NamedTuple):
    """The derivatives of a loss; `factor` is that of each row's inverse temperature."""

    query: Float[np.ndarray, "batch kv_heads group query dim"]
    key: Float[np.ndarray, "batch kv_heads key dim"]
    value: Float[np.ndarray, "batch kv_heads key value_dim"]
    factor: Float[np.ndarray, "batch kv_heads group query"]


def differentiate(
    arrays: Arrays,
    statistics: Float[np.ndarray, "7 batch kv_heads group query"],
    slope: Float[np.ndarray, "batch kv_heads group query"],
    output: Float[np.ndarray, "batch kv_heads group query value_dim"],
    gradient: Float[np.ndarray, "batch kv_heads group query value_dim"],
    thread_count: int,
) -> Gradients:
    """Return the gradients of an attention call without sinks, all of whose numbers are finite.

    Args:
        arrays: The call.
        statistics: `Answer.numbers` of the forward pass.
        slope: The derivative of each row's inverse temperature by its entropy.
        output: The output of the forward pass.
        gradient: The derivative of the loss by the output.
        thread_count: The number of threads. It decides in which order numbers are added.
    """
    assert arrays.value is not None
    batch, kv_heads, keys, dim = arrays.key.shape
    blocks = batch * kv_heads
    # Threads must not add to the same gradients at once: each has heads, or parts, of its own.
    parts = 1 if blocks % thread_count == 0 or blocks >= 4 * thread_count else thread_count
    shares, tasks = _split_tasks(arrays, parts)
    d_query = np.zeros(arrays.query.shape, np.float32)
    d_key = np.zeros((parts, blocks, keys, dim), np.float32)
    d_value = np.zeros((parts, blocks, keys, arrays.value.shape[3]), np.float32)
    d_factor = np.zeros(arrays.query.shape[:4], np.float32)
    softcap = arrays.softcap or 0.0
    scale = arrays.scale / softcap if softcap else arrays.scale * BITS
    settings: tuple[Any, ...] = (
        *(TILE, positions(arrays), (scale, softcap * BITS, arrays.lowest)),
    )
    inputs: tuple[Any, ...] = (
        *(arrays.query, arrays.key, arrays.value),
        NO_BIAS if arrays.bias is None else arrays.bias,
        NO_MASK if arrays.mask is None else arrays.mask,
        *(gradient, _known_of_rows(statistics, slope, output, gradient), tasks),
    )

    def run(which: tuple[int, int]) -> None:
        size = max(2 * _logits(arrays, task) for task in tasks[slice(*which)])
        with workspace(size) as memory:
            arguments = [*inputs, which, *settings, memory, d_query, d_key, d_value, d_factor]
            differentiate_tasks(*arguments)

    threads.run_in_threads(shares, run, max(1, min(thread_count, len(shares))))
    return Gradients(
        d_query * np.float32(arrays.scale),
        # The kernel multiplies by the scaled query.
        _add_parts(d_key, arrays.key.shape) * np.float32(arrays.softcap or LOG_2),
        _add_parts(d_value, arrays.value.shape),
        d_factor,
    )


def _split_tasks(arrays: Arrays, parts: int) -> tuple[list[tuple[int, int]], Any]:
    """Return tasks, as `differentiate_tasks` reads them, and the ranges of them to share out.

    A task is a block of rows of one key head. The tasks of a range add to the same gradients; the
    rows of a key head are dealt out to its parts in turn, since later rows see more keys.
    """
    batch, kv_heads, group, queries = arrays.query.shape[:4]
    keys = arrays.key.shape[2]
    rows = min(max(BLOCK_LOGITS // max(1, keys), MIN_BLOCK_ROWS), BLOCK_ROWS)
    heads = min(group, max(1, rows // max(1, queries)))
    pieces = [
        (first, min(heads, group - first), start, min(start + rows, queries))
        for start in reversed(range(0, queries, rows))
        for first in range(0, group, heads)
    ]
    tasks: list[tuple[int, int, int, int, int, int]] = []
    shares = []
    for part in range(parts):
        for block in range(batch * kv_heads):
            begin = len(tasks)
            tasks += [(block, part, *piece) for piece in pieces[part::parts]]
            if len(tasks) > begin:
                shares.append((begin, len(tasks)))
    return shares, np.array(tasks, np.int64).reshape(-1, 6)


def _logits(arrays: Arrays, task: Any) -> int:
    """Return how many logits of a task are kept."""
    _, _, _, group, start, stop = map(int, task)
    return group * (stop - start) * reach(arrays, start, stop)


def _known_of_rows(
    statistics: Float[np.ndarray, "7 batch kv_heads group query"],
    slope: Float[np.ndarray, "batch kv_heads group query"],
    output: Float[np.ndarray, "batch kv_heads group query value_dim"],
    gradient: Float[np.ndarray, "batch kv_heads group query value_dim"],
) -> Float[np.ndarray, "7 batch kv_heads group query"]:
    """Return what the kernel needs to know of each row, in the order of its `KNOWN`."""
    entropy, log_sum_exp, factor, largest, _, mass, _ = statistics
    known = np.empty((7, *slope.shape), np.float32)
    seen = mass > 0
    known[0] = np.where(seen, largest * np.float32(BITS), 0)
    known[1] = np.exp(np.subtract(log_sum_exp, largest, where=seen, out=np.zeros_like(largest)))
    known[2], known[3], known[4], known[5] = entropy, factor, mass, slope
    known[6] = np.einsum("...d,...d->...", output, gradient)
    return known


def _add_parts(
    found: Float[np.ndarray, "parts blocks keys dim"], shape: tuple[int, ...]
) -> Float[np.ndarray, "batch kv_heads keys dim"]:
    """Return the sum over the parts, in the shape of the keys or values."""
    total: np.ndarray = found[0] if len(found) == 1 else found.sum(0)
    return total.reshape(shape)
