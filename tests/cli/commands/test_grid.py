"""`sharpmax grid`: jobs for all models, tasks and seeds, and a report of what they found."""

from __future__ import annotations

import pytest

from sharpmax.experiments import grid
from sharpmax.hf import Evaluation

SMALL = ["--lengths", "2", "--prompts", "6", "--questions", "1", "--policy", "constant:1.5"]


def run_here(function, jobs, *, on_result, progress, **_):
    for index, job in enumerate(jobs):
        on_result(index, function(job, lambda share: None))


def test_an_evaluation_for_each_seed_and_a_report(saved_model, tmp_path, succeed, monkeypatch):
    monkeypatch.setattr(grid, "run_jobs", run_here)
    out = tmp_path / "out"
    words = ["grid", "evaluate", saved_model, *SMALL, "--out", out]
    succeed(*words, "--seed", "4")
    printed = succeed(*words, "--seed", "4", "--seed", "5").out
    (model,) = (path for path in out.iterdir() if path.is_dir())
    results = sorted(model.glob("*.json"))
    assert [path.name for path in results] == [
        f"evaluate_lookup-seed{seed}.json" for seed in (4, 5)
    ]
    assert [Evaluation.load(path).config["seed"] for path in results] == [4, 5]
    page = (out / "grid.html").read_text()
    assert "seed 4" in page
    assert "seed 5" in page
    for path in results:
        assert str(path.relative_to(out)) in printed


def test_a_tuning_for_each_seed(saved_model, tmp_path, succeed, monkeypatch):
    """The jobs are right; tuning itself is tested elsewhere."""
    ran = []

    def note(function, jobs, *, on_result, progress, **_):
        ran.extend(jobs)
        for index, _ in enumerate(jobs):
            on_result(index, "nothing to gain")

    monkeypatch.setattr(grid, "run_jobs", note)
    words = ["--steps", "3", "--seed", "1", "--seed", "2", "--out", tmp_path / "out"]
    printed = succeed("grid", "tune", saved_model, *words).out
    assert printed.count("nothing to gain") == 2
    assert [(job.verb, job.task, job.seed) for job in ran] == [("tune", None, 1), ("tune", None, 2)]
    assert ran[0].options == {"check_prompts": 3, "steps": 3}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluate", "smollm2", "--task", "nothing"], "nothing"),
        (["tune", "smollm2", "--task", "nothing"], "nothing"),
        (["evaluate", "a/model", "b/model"], "would both write model/evaluate_lookup-seed0.json"),
        (["evaluate", "m", "--processes", "2", "--ray", "auto"], "give only one of them"),
    ],
)
def test_mistakes_are_one_line(words, message, tmp_path, fail):
    assert message in fail("grid", *words, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()
