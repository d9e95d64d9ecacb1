"""Several processes share the prompts of an evaluation, and may be lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import sharpmax.hf as shf
from hf.small import llama, tokenizer
from sharpmax.cli.processes import count_processes, is_first_process
from sharpmax.results import Result

OPTIONS = ["--lengths", "2,4", "--questions", "2", "--policy", "constant:1.2", "--seed", "3"]

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "tiny"
    llama(context=700).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def start(*arguments, launcher=()):
    command = [sys.executable, *launcher, "-m", "sharpmax", *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment, **pipes)


def finish(process):
    out, error = process.communicate(timeout=120)
    return process.returncode, out, error


def load(out):
    return shf.Evaluation.load(out / "evaluate_lookup.json")


def assert_same(one, other):
    assert one.arrays.keys() == other.arrays.keys()
    for name, values in one.arrays.items():
        np.testing.assert_array_equal(values, other.arrays[name])
    assert one.measurements == other.measurements
    assert one.config == other.config


def worker_ids(process):
    found = subprocess.run(
        ["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=False
    )
    return list(map(int, found.stdout.split()))


def is_running(number):
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    return True


def answered(checkpoint):
    """Return which prompts a checkpoint has the answers to."""
    return Result.load(checkpoint).arrays["right"][:, 0, :, 0] >= 0


@pytest.mark.slow
def test_two_processes_give_what_one_gives_also_after_one_was_killed(folder, tmp_path):
    options = ["evaluate", folder, *OPTIONS, "--prompts", "60"]
    alone, killed, together = (tmp_path / name for name in ("alone", "killed", "together"))
    process = start(*options, "--out", killed, "--processes", "2")
    while len(list(killed.glob("*.part*.json"))) < 2:
        assert process.poll() is None, finish(process)
        time.sleep(0.05)
    os.kill(worker_ids(process)[-1], signal.SIGKILL)
    code, _, error = finish(process)
    assert code == 2
    assert error.startswith(
        "sharpmax: process 1 was lost (SIGKILL, exit code -9): what is finished"
    )
    assert error.count("\n") == 1
    parts = {path.name for path in killed.glob("*.json")}
    assert parts == {"evaluate_lookup.part.json", "evaluate_lookup.part-1.json"}
    first, second = (answered(killed / name) for name in sorted(parts))
    assert first.any()
    assert second.any()
    assert not (first & second).any()
    resumed = finish(start(*options, "--out", killed))
    assert resumed[0] == 0, resumed
    assert {path.suffix for path in killed.iterdir()} == {".json", ".npz", ".png", ".svg"}
    assert len(list(killed.iterdir())) == 4  # no part is left
    # Two processes answer by the same command that torchrun would start.
    shared = start(*options, "--out", together, launcher=TORCHRUN)
    code, printed, error = finish(shared)
    assert code == 0, error
    code, expected, error = finish(start(*options, "--out", alone))
    assert code == 0, error
    assert printed.replace("together", "alone") == expected
    assert resumed[1].replace("killed", "alone") == expected
    assert_same(load(killed), load(alone))
    assert_same(load(together), load(alone))


def test_a_finished_prompt_is_not_asked_again(folder, tmp_path):
    """A checkpoint of two processes is as good as one: nothing is left to do."""
    options = {"lengths": [2], "prompts": 6, "questions": 1}
    model, path = llama(context=700), tmp_path / "job.part.json"
    whole = shf.evaluate(model, tokenizer(), resume=path, **options)
    saved = Result.load(path)
    arrays = dict(saved.arrays)
    for own, name in ((slice(0, 3), "job.part.json"), (slice(3, 6), "job.part-1.json")):
        right = np.full_like(arrays["right"], -1)
        right[:, :, own] = arrays["right"][:, :, own]
        log_probability = np.full_like(arrays["log_probability"], np.nan)
        log_probability[:, :, own] = arrays["log_probability"][:, :, own] - 1.0
        part = saved.with_arrays(right=right, log_probability=log_probability)
        part.save(tmp_path / name, overwrite=True)
    again = shf.evaluate(model, tokenizer(), resume=path, **options)
    np.testing.assert_array_equal(again.log_probability, whole.log_probability - 1.0)
    shf.forget(path)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_an_error_of_several_processes_is_one_line(folder, tmp_path):
    process = start(
        "evaluate", folder, "--lengths", "2", "--out", tmp_path / "out", "--processes", "2"
    )
    code, out, error = finish(process)
    assert (code, out) == (2, "")
    assert error == (
        "sharpmax: task 'lookup' asks for 8 different names of 2: give at most 2 questions\n"
    )


@pytest.mark.slow
def test_processes_stop_at_ctrl_c(folder, tmp_path):
    out = tmp_path / "out"
    process = start(
        "evaluate", folder, *OPTIONS, "--prompts", "60", "--out", out, "--processes", "2"
    )
    while not list(out.glob("*.part*.json")):
        assert process.poll() is None, finish(process)
        time.sleep(0.05)
    workers = worker_ids(process)
    process.send_signal(signal.SIGINT)
    code, printed, error = finish(process)
    assert (code, printed, error) == (130, "", "sharpmax: stopped\n")
    time.sleep(0.5)
    assert not any(map(is_running, workers))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "result"),
    [
        (["scan", "--lengths", "5,9", "--heads", "0,3"], "scan.json"),
        (["evaluate", *OPTIONS, "--prompts", "6"], "evaluate_lookup.json"),
        (["diagnose", "--lengths", "2,4", "--prompts", "2", "--questions", "2"], "diagnose.json"),
    ],
    ids=["scan", "evaluate", "diagnose"],
)
def test_a_model_split_among_processes_gives_what_it_gives_whole(folder, tmp_path, command, result):
    command = [command[0], folder, *command[1:], "--dtype", "float64"]
    together, alone = tmp_path / "together", tmp_path / "alone"
    words = [*command, "--out", together, "--tensor-parallel"]
    code, printed, error = finish(start(*words, launcher=TORCHRUN))
    assert code == 0, error
    code, expected, error = finish(start(*command, "--out", alone))
    assert code == 0, error
    assert printed.replace("together", "alone") == expected
    one, other = Result.load(alone / result), Result.load(together / result)
    for name, values in one.arrays.items():
        np.testing.assert_allclose(other.arrays[name], values, rtol=1e-5, atol=1e-5)


def test_one_process_cannot_split_a_model(folder, tmp_path, fail, monkeypatch):
    command = ["scan", folder, "--out", tmp_path / "out", "--tensor-parallel"]
    assert "start the command by torchrun --nproc-per-node 2" in fail(*command)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "gives each process a device of its own" in fail(*command, "--device", "cpu")
    assert "does not share its work among them" in fail(*command[:-1])


@pytest.mark.slow
def test_commands_that_would_all_do_the_same_are_refused(folder, tmp_path):
    process = start("certify", folder, "--out", tmp_path / "out", launcher=TORCHRUN)
    code, _, error = finish(process)
    assert code == 1  # torchrun's own
    assert "torchrun has started 2 processes, and sharpmax certify does not share" in error
    assert not (tmp_path / "out").exists()


def test_another_number_than_torchrun_started_is_refused(folder, tmp_path, monkeypatch, fail):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert count_processes() == 2
    assert "--processes 3: torchrun has started 2" in fail("evaluate", folder, "--processes", "3")
    monkeypatch.setenv("RANK", "1")
    assert not is_first_process()
