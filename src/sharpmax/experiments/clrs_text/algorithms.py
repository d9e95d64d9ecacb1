"""The protocol of CLRS-Text (arXiv 2406.04229): algorithms, sizes, seeds and numbers of samples.

These are the tables of the authors' script, `clrs._src.clrs_text.generate_clrs_text`, and a test
compares them. They are copied here so that reading, training and testing do not need dm-clrs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from sharpmax._errors import UserError

_SHORT = (4, 5, 10, 11, 12, 15, 19, 23, 28, 31)

TRAIN_SIZES: dict[str, tuple[int, ...]] = {
    "activity_selector": _SHORT,
    "articulation_points": _SHORT[:7],
    "bellman_ford": _SHORT,
    "bfs": _SHORT,
    "binary_search": _SHORT,
    "bridges": _SHORT[:2],
    "bubble_sort": _SHORT[:3],
    "dag_shortest_paths": _SHORT[:7],
    "dfs": _SHORT[:8],
    "dijkstra": _SHORT[:9],
    "find_maximum_subarray_kadane": _SHORT,
    "floyd_warshall": _SHORT[:3],
    "graham_scan": _SHORT,
    "heapsort": _SHORT[:3],
    "insertion_sort": _SHORT,
    "jarvis_march": _SHORT[:5],
    "kmp_matcher": _SHORT,
    "lcs_length": _SHORT[:3],
    "matrix_chain_order": _SHORT[:3],
    "minimum": _SHORT,
    "mst_kruskal": _SHORT[:3],
    "mst_prim": _SHORT[:9],
    "naive_string_matcher": _SHORT,
    "optimal_bst": _SHORT[:3],
    "quickselect": _SHORT,
    "quicksort": _SHORT[:3],
    "segments_intersect": _SHORT,
    "strongly_connected_components": _SHORT[:6],
    "task_scheduling": _SHORT,
    "topological_sort": _SHORT[:8],
}
"""Training sizes: fewer for algorithms with long texts."""

_LARGEST_TEST = {
    "activity_selector": 40,
    "articulation_points": 19,
    "bellman_ford": 32,
    "bfs": 41,
    "binary_search": 64,
    "bridges": 7,
    "bubble_sort": 11,
    "dag_shortest_paths": 19,
    "dfs": 20,
    "dijkstra": 25,
    "find_maximum_subarray_kadane": 64,
    "floyd_warshall": 11,
    "graham_scan": 31,
    "heapsort": 11,
    "insertion_sort": 25,
    "jarvis_march": 13,
    "kmp_matcher": 64,
    "lcs_length": 12,
    "matrix_chain_order": 12,
    "minimum": 64,
    "mst_kruskal": 10,
    "mst_prim": 26,
    "naive_string_matcher": 64,
    "optimal_bst": 10,
    "quickselect": 64,
    "quicksort": 12,
    "segments_intersect": 64,
    "strongly_connected_components": 16,
    "task_scheduling": 41,
    "topological_sort": 21,
}

SMALLEST, LARGEST = 4, 1024
"""Sizes that can be generated: the smallest of the tables, and a limit on the time it takes."""

TEST_SIZES: dict[str, tuple[int, ...]] = {
    name: tuple(range(SMALLEST, largest + 1)) for name, largest in _LARGEST_TEST.items()
}

ALGORITHMS = tuple(TRAIN_SIZES)

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
