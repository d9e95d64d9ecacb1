"""The unknown settings: every combination is evaluated, and the closest is the closest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sharpmax import report
from sharpmax.experiments.max_retrieval import hyperparameter_grid
from sharpmax.experiments.max_retrieval.paper import TABLE1
from sharpmax.experiments.max_retrieval.train import Training
from sharpmax.results import Result

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.usefixtures("default_jax")


def test_every_combination_has_its_seeds():
    trainings = hyperparameter_grid.Config(seeds=(4,), table_seeds=(5, 6)).trainings()
    settings = {
        (training.scaled, training.decoupled): seeds for training, seeds in trainings.items()
    }
    assert settings == {
        (True, True): (5, 6),
        (True, False): (4,),
        (False, True): (4,),
        (False, False): (4,),
    }
    assert {(each.steps, each.kept_at) for each in trainings} == {(100_000, (20_000, 50_000))}


def test_the_distance_is_in_points_and_only_of_printed_sizes():
    accuracy = {
        "baseline": np.asarray([[0.9, 0.5, 0.5], [1.0, 0.3, 0.5]]),
        "adaptive": np.asarray([[0.9, 0.6, 0.7], [1.0, 0.4, 0.7]]),
    }
    cell = hyperparameter_grid._cell(Training(), 100, (16, 17, 1_024), accuracy)
    apart = [
        abs(95 - TABLE1[16].baseline),
        abs(50 - TABLE1[1_024].baseline),
        abs(95 - TABLE1[16].adaptive),
        abs(70 - TABLE1[1_024].adaptive),
    ]
    assert cell["distance"]["mean"] == pytest.approx(np.mean(apart))
    assert cell["distance"]["worst"] == pytest.approx(max(apart))
    assert cell["distance"]["worst_baseline"] == pytest.approx(max(apart[:2]))
    assert cell["seeds"] == 2


@pytest.fixture(scope="module")
def grid(default_jax, inline_jobs, tmp_path_factory):
    config = hyperparameter_grid.Config(
        steps=(100, 200), seeds=(0,), table_seeds=(1,), sizes=(16, 1_024), sets=20
    )
    return hyperparameter_grid.run(config, tmp_path_factory.mktemp("training"))


@pytest.mark.slow
def test_every_combination_is_evaluated_at_every_step(grid, capsys):
    cells = grid.measurements["cells"]
    assert {(cell["scaled"], cell["decoupled"], cell["steps"]) for cell in cells} == {
        (scaled, decoupled, steps)
        for scaled in (True, False)
        for decoupled in (True, False)
        for steps in (100, 200)
    }
    assert len({str(cell["accuracy"]) for cell in cells}) > 4  # they are not one and the same
    distances = [cell["distance"]["mean"] for cell in cells]
    assert grid.measurements["closest"] == int(np.argmin(distances))
    report.show(grid)
    assert "the closest" in capsys.readouterr().out


def test_the_published_grid_is_of_full_size():
    grid = Result.load(ROOT / "results" / "unknowns.json")
    assert grid.config["steps"] == [20_000, 50_000, 100_000]
    assert len(grid.measurements["cells"]) == 12
    assert [cell["seeds"] for cell in grid.measurements["cells"]] == [10] * 3 + [2] * 9
    distances = [cell["distance"]["mean"] for cell in grid.measurements["cells"]]
    assert grid.measurements["closest"] == int(np.argmin(distances))
