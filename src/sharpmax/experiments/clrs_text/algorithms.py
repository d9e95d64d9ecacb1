"""The protocol of CLRS-Text (arXiv 2406.04229): algorithms, sizes, seeds and numbers of samples.

These are the tables of the authors' script, `clrs._src.clrs_text.generate_clrs_text`, and a test
compares them. They are copied here so that reading, training and testing do not need dm-clrs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from sharpmax._errors import UserError

_TRAIN_SIZES = (4, 5, 10, 11, 12, 15, 19, 23, 28, 31)

_PROTOCOL = {
    "activity_selector": (10, 40),
    "articulation_points": (7, 19),
    "bellman_ford": (10, 32),
    "bfs": (10, 41),
    "binary_search": (10, 64),
    "bridges": (2, 7),
    "bubble_sort": (3, 11),
    "dag_shortest_paths": (7, 19),
    "dfs": (8, 20),
    "dijkstra": (9, 25),
    "find_maximum_subarray_kadane": (10, 64),
    "floyd_warshall": (3, 11),
    "graham_scan": (10, 31),
    "heapsort": (3, 11),
    "insertion_sort": (10, 25),
    "jarvis_march": (5, 13),
    "kmp_matcher": (10, 64),
    "lcs_length": (3, 12),
    "matrix_chain_order": (3, 12),
    "minimum": (10, 64),
    "mst_kruskal": (3, 10),
    "mst_prim": (9, 26),
    "naive_string_matcher": (10, 64),
    "optimal_bst": (3, 10),
    "quickselect": (10, 64),
    "quicksort": (3, 12),
    "segments_intersect": (10, 64),
    "strongly_connected_components": (6, 16),
    "task_scheduling": (10, 41),
    "topological_sort": (8, 21),
}
"""By algorithm: how many of `_TRAIN_SIZES` it is trained at, and the largest test size. Both are
smaller for algorithms with long texts."""

SMALLEST, LARGEST = 4, 1024
"""Sizes that can be generated: the smallest of the tables, and a limit on the time it takes."""

TRAIN_SIZES = {name: _TRAIN_SIZES[:count] for name, (count, _) in _PROTOCOL.items()}
TEST_SIZES = {name: tuple(range(SMALLEST, end + 1)) for name, (_, end) in _PROTOCOL.items()}

ALGORITHMS = tuple(_PROTOCOL)

SIZES = {"train": TRAIN_SIZES, "test": TEST_SIZES}
SEEDS = {"train": (0,), "test": (3, 14, 35, 81, 94)}
"""The five test seeds are the resampling test: five test sets from the same distribution."""
SAMPLES = {"train": 10_000, "test": 125}
"""Samples per algorithm, size and seed."""
DECIMALS = 3
"""Random numbers are cut to so many decimals before the algorithm runs on them."""


def check_algorithms(names: Iterable[str]) -> None:
    """Raise a `UserError` for a name that is not one of the thirty algorithms."""
    for name in names:
        if name not in ALGORITHMS:
            raise UserError(f"unknown algorithm {name!r}: expected one of {', '.join(ALGORITHMS)}")


def check_sizes(name: str, sizes: Collection[int]) -> None:
    """Raise a `UserError` for a size of algorithm `name` that cannot be generated."""
    for size in sizes:
        if not SMALLEST <= size <= LARGEST:
            raise UserError(f"size {size} of {name} is out of range: {SMALLEST} to {LARGEST}")
    if not sizes:
        raise UserError(f"no size of {name} is left: its smallest is {SMALLEST}")
