"""The unknown settings, the maps of Figures 2 and 7, and other policies: small, and as published."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sharpmax import report
from sharpmax.experiments.max_retrieval import fit, maps, policies, unknowns
from sharpmax.results import Result

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    config = unknowns.Config(
        steps=(100, 200), seeds=(0,), table_seeds=(1,), sizes=(16, 1_024), sets=20
    )
    return unknowns.run(config, tmp_path_factory.mktemp("training"))


def test_every_combination_is_examined_at_every_step(grid):
    cells = grid.measurements["cells"]
    assert {(cell["scaled"], cell["decoupled"], cell["steps"]) for cell in cells} == {
        (scaled, decoupled, steps)
        for scaled in (True, False)
        for decoupled in (True, False)
        for steps in (100, 200)
    }
    assert len({str(cell["accuracy"]) for cell in cells}) > 4  # they are not one and the same


def test_the_closest_is_the_closest(grid):
    cells = grid.measurements["cells"]
    distances = [cell["distance"]["mean"] for cell in cells]
    assert grid.measurements["closest"] == int(np.argmin(distances))
    first = cells[0]
    apart = [
        abs(100 * first["mean"][name][place] - grid.measurements["paper"][size][name])
        for name in ("baseline", "adaptive")
        for place, size in enumerate(("16", "1024"))
    ]
    assert first["distance"]["mean"] == pytest.approx(np.mean(apart))
    assert first["distance"]["worst"] == pytest.approx(max(apart))


def test_the_grid_in_the_terminal(grid, capsys):
    report.show(grid)
    assert "the closest" in capsys.readouterr().out


@pytest.mark.parametrize("methods", [("baseline",), ("baseline", "adaptive")])
def test_maps_show_the_largest_items_with_the_maximum_last(methods):
    result = maps.run(maps.Config(methods=methods, sizes=(16, 512), sets=20))
    assert result.kind == ("figure2" if len(methods) == 1 else "figure7")
    for name in methods:
        weights = np.asarray(result.measurements["weights"][name])
        assert weights.shape == (2, 20, 16)
        np.testing.assert_allclose(weights[0].sum(1), 1, atol=1e-5)  # sixteen of sixteen
        assert (weights[1].sum(1) <= 1 + 1e-5).all()
        assert weights[0, :, -1].mean() > 0.9
        assert weights[:, :, :8].max() < weights[:, :, -1].mean()
    if len(methods) == 2:
        plain, sharp = result.measurements["weight_of_maximum"].values()
        assert sharp[1] > plain[1]


@pytest.fixture(scope="module")
def compared():
    config = policies.Config(
        sizes=(1_024,), sets=20, fit=fit.Config(sizes=(1_024,), sets=40, seeds=(2,)), seeds=(0, 1)
    )
    return policies.run(config)


def test_every_method_is_tried_on_both_tasks(compared, capsys):
    found = compared.measurements
    for task in policies.TASKS:
        assert list(found["tasks"][task]["mean"]) == list(found["keeps_guard"])
        assert np.shape(found["tasks"][task]["accuracy"]["plain"]) == (2, 1)
    assert found["keeps_guard"]["plain"]
    assert not found["keeps_guard"]["argmax"]
    report.show(compared)
    assert "Kept" in capsys.readouterr().out


def test_the_guard_is_lost_with_more_than_a_point_at_any_size():
    mean = {"plain": np.asarray([1.0, 0.9]), "good": [0.995, 0.95], "bad": [1.0, 0.88]}
    assert policies.keeps_guard(mean) == {"plain": True, "good": True, "bad": False}


def test_published_comparisons_are_of_full_size():
    grid = Result.load(ROOT / "results" / "unknowns.json")
    assert grid.config["steps"] == [20_000, 50_000, 100_000]
    assert len(grid.measurements["cells"]) == 12
    assert [cell["seeds"] for cell in grid.measurements["cells"]] == [10] * 3 + [2] * 9
    compared = Result.load(ROOT / "results" / "policies.json")
    assert compared.config["sets"] == 1_024
    for task, seeds in (("max", 10), ("most-frequent", 4)):
        assert len(compared.measurements["tasks"][task]["accuracy"]["plain"]) == seeds
    assert compared.measurements["sizes"][-1] == 16_384
