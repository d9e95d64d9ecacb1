"""grid: several models, tasks and seeds, each result as if it were the only one."""

from __future__ import annotations

import json

import numpy as np
import pytest

import sharpmax.hf as shf
from hf.small import llama, tokenizer
from sharpmax import Constant, UserError
from sharpmax.experiments import grid
from sharpmax.experiments.grid import Cell, run_cell

OPTIONS = {
    "policies": {"hard": shf.Condition(Constant(1.5))},
    "lengths": [2],
    "prompts": 6,
    "questions": 1,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two models in folders."""
    made = []
    for seed in range(2):
        folder = tmp_path_factory.mktemp("models") / f"tiny{seed}"
        llama(context=700, seed=seed).save_pretrained(folder)
        tokenizer().save_pretrained(folder)
        made.append(str(folder))
    return made


def cells(folders, seeds=(0, 3), **changes):
    return [Cell(folder, "lookup", seed, OPTIONS | changes) for folder in folders for seed in seeds]


def assert_same(one, other):
    for name, values in one.arrays.items():
        np.testing.assert_array_equal(values, other.arrays[name])
    assert one.config == other.config


def run_here(function, jobs, *, on_result, progress, **_):
    """Run jobs one after another in this process."""
    for index, job in enumerate(jobs):
        on_result(index, function(job, lambda share: None))


@pytest.mark.slow
def test_results_are_those_of_single_evaluations(folders, tmp_path):
    jobs = cells(folders)
    found = grid.run(jobs, tmp_path, processes=2)
    for cell, result in zip(jobs, found, strict=True):
        assert_same(result, run_cell(cell, lambda share: None))
        assert_same(shf.Evaluation.load(tmp_path / cell.file), result)
    names = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.json")}
    models = ("tiny0", "tiny1")
    expected = {f"{model}/evaluate_lookup-seed{seed}.json" for model in models for seed in (0, 3)}
    assert names == expected | {"grid.json"}


def test_finished_jobs_are_not_repeated_and_others_are_added(folders, tmp_path, monkeypatch):
    monkeypatch.setattr(grid, "run_jobs", run_here)
    ran = []
    monkeypatch.setattr(
        grid, "run_cell", lambda cell, share: ran.append(cell) or run_cell(cell, share)
    )
    grid.run(cells(folders[:1]), tmp_path)
    first = [cell.seed for cell in ran]
    found = grid.run(cells(folders), tmp_path)
    assert (first, [cell.model for cell in ran[2:]]) == ([0, 3], [folders[1]] * 2)
    assert len(found) == 4
    grid.run(cells(folders[:1]), tmp_path, overwrite=True)
    assert len(ran) == 6


def test_an_interrupted_job_resumes(folders, tmp_path, monkeypatch):
    module = __import__("sharpmax.hf.evaluate.evaluate", fromlist=["evaluate"])
    monkeypatch.setattr(module, "SECONDS_BETWEEN_SAVES", 0.0)

    def stop(function, jobs, **_):
        def report_share(share):
            if share > 0.4:
                raise KeyboardInterrupt

        function(jobs[0], report_share)

    jobs = cells(folders[:1], seeds=[0])
    monkeypatch.setattr(grid, "run_jobs", stop)
    with pytest.raises(KeyboardInterrupt):
        grid.run(jobs, tmp_path)
    (part,) = tmp_path.rglob("*.part.json")
    monkeypatch.setattr(grid, "run_jobs", run_here)
    (found,) = grid.run(jobs, tmp_path)
    assert not part.exists()
    assert_same(found, run_cell(jobs[0], lambda share: None))


def test_the_folder_of_another_grid_is_refused(folders, tmp_path, monkeypatch):
    monkeypatch.setattr(grid, "run_jobs", run_here)
    grid.run(cells(folders[:1], seeds=[0]), tmp_path)
    with pytest.raises(UserError, match=r"holds the results of another grid \(lengths differ\)"):
        grid.run(cells(folders, lengths=[3]), tmp_path)
    (tmp_path / "grid.json").write_text("{")
    with pytest.raises(UserError, match=r"grid\.json is damaged"):
        grid.run(cells(folders[:1]), tmp_path)


def test_jobs_that_would_write_one_file_are_refused(tmp_path):
    jobs = [Cell("a/model", "lookup", 0), Cell("b/model", "lookup", 0)]
    with pytest.raises(
        UserError, match=r"a/model and b/model would both write model/evaluate_look"
    ):
        grid.run(jobs, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_tuning_that_gains_nothing_is_a_sentence(folders, tmp_path, monkeypatch):
    monkeypatch.setattr(grid, "run_jobs", run_here)
    monkeypatch.setattr(
        shf, "tune", lambda *_, **__: (_ for _ in ()).throw(shf.NothingToGain("no"))
    )
    assert grid.run([Cell(folders[0], None, 1)], tmp_path) == ["no"]
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {"grid.json"}


def test_files_are_named_by_the_model(tmp_path):
    assert str(Cell("org/Model 1.5B", "max", 2).file) == "Model-1.5B/evaluate_max-seed2.json"
    assert str(Cell("/", None, 1).file) == "model/tune-seed1.json"
    described = json.loads(json.dumps(grid._describe(Cell("m", "max", 0, OPTIONS))))
    assert described["policies"]["hard"]["layers"] is None
