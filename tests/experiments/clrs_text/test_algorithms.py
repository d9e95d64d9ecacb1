"""The protocol's tables are those of the authors' script."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest

from sharpmax import UserError
from sharpmax.experiments.clrs_text import algorithms


def theirs() -> dict[str, object]:
    """Return the constants of the script without running it: it imports TensorFlow."""
    (folder,) = find_spec("clrs").submodule_search_locations
    source = (Path(folder) / "_src" / "clrs_text" / "generate_clrs_text.py").read_text()
    constants = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and node.targets[0].id.startswith("_DEFAULT"):
            constants[node.targets[0].id] = eval(compile(ast.Expression(node.value), "", "eval"))
    return constants


@pytest.mark.parametrize(("split", "name"), [("train", "TRAIN"), ("test", "VAL")])
def test_sizes_seeds_and_numbers_are_the_official_ones(split, name):
    official = theirs()
    sizes = {key: list(some) for key, some in algorithms.SIZES[split].items()}
    assert sizes == official[f"_DEFAULT_{name}_ALGOS_AND_LENGTHS"]
    assert list(algorithms.SEEDS[split]) == official[f"_DEFAULT_{name}_SEEDS"]
    assert algorithms.SAMPLES[split] == official[f"_DEFAULT_{name}_NUMBER_OF_SAMPLES"]
    assert len(sizes) == 30


def test_unknown_algorithms_and_sizes_are_refused():
    with pytest.raises(UserError, match=r"unknown algorithm 'max': expected one of activity_sel"):
        algorithms.check_algorithms(["minimum", "max"])
    with pytest.raises(UserError, match="size 3 of minimum is out of range: 4 to 1024"):
        algorithms.check_sizes("minimum", [4, 3])
    with pytest.raises(UserError, match="no size of minimum is left"):
        algorithms.check_sizes("minimum", [])
