"""Jobs on a Ray cluster of two nodes: as on one machine, even if a node is killed."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import workers
from waiting import wait_until

import sharpmax
from hf.small import llama, tokenizer
from sharpmax import Constant, MissingExtraError, UserError
from sharpmax.experiments import cluster, grid, jobs
from sharpmax.experiments.grid import run_cell
from sharpmax.experiments.leaderboard.trial import Budget, Trial, run_trial
from sharpmax.hf import Condition

# Ray forks to start a node; JAX, if it was used before, warns about forks.
pytestmark = pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")

NODE = {"num_cpus": 1, "object_store_memory": 80_000_000}
HEALTH_CHECKS = {  # notice a dead node at once; by default it takes half a minute
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "3",
}


@pytest.fixture(scope="module")
def ray():
    return cluster.import_ray()


@pytest.fixture(scope="module")
def nodes(ray, compiled_once):
    """A cluster with a head and another node, each with one CPU."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        before = os.environ.get("PYTHONPATH", "")
        patch.setenv("PYTHONPATH", f"{Path(__file__).parent}{os.pathsep}{before}")
        # Not pytest's own folder: the paths of Ray's sockets are limited to 107 characters.
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        for name, value in HEALTH_CHECKS.items():
            patch.setenv(name, value)
        made = Cluster(True, head_node_args=NODE | {"include_dashboard": False})
        try:
            made.add_node(**NODE)
            made.wait_for_nodes()
            yield made
        finally:
            made.shutdown()


@pytest.fixture
def address(ray, nodes, monkeypatch):
    """The address of a cluster that is known to answer, so it need not be probed."""
    monkeypatch.setattr(cluster, "_probe", lambda address: None)
    yield nodes.address
    assert not ray.is_initialized()


@pytest.mark.slow
def test_results_are_in_the_order_of_the_jobs_and_progress_ends_at_one(address):
    shares, results = {}, []
    before = signal.getsignal(signal.SIGTERM), dict(os.environ)
    answers = cluster.run_on_cluster(
        workers.square,
        [3, 1, 4, 1, 5],
        address=address,
        progress=lambda index, share: shares.setdefault(index, []).append(share),
        on_result=lambda *result: results.append(result),
    )
    assert answers == [9, 1, 16, 1, 25]
    assert sorted(results) == [(0, 9), (1, 1), (2, 16), (3, 1), (4, 25)]
    assert sorted(shares) == [0, 1, 2, 3, 4]
    for values in shares.values():
        assert values == sorted(values)
        assert values[-1] == 1.0
        assert 0.25 in values
    assert (signal.getsignal(signal.SIGTERM), dict(os.environ)) == before


@pytest.mark.slow
def test_killing_a_node_does_not_change_the_results(nodes, address, tmp_path, capfd):
    """The node is killed while it trains; its own progress tells when."""
    (doomed,) = nodes.worker_nodes
    budget = Budget(steps=1_000, rates=(3e-3,), sizes=(16,), sets=20)
    trials = [
        Trial("hard", "max", True, replace(budget, seeds=(seed,)), tmp_path / "cluster")
        for seed in range(2)
    ]
    trials[0].folder.mkdir()
    killed_at, results = dict[int, float](), []

    def attempts(seed):
        lines = (tmp_path / "cluster" / "attempts").read_text().splitlines()
        return [line.split()[1] for line in lines if line.startswith(f"{seed} ")]

    def kill(index, share):
        if not killed_at and 0 < share < 1 and attempts(index) == [doomed.node_id]:
            nodes.remove_node(doomed, allow_graceful=False)
            killed_at[index] = share

    try:
        outcomes = cluster.run_on_cluster(
            workers.run_trial_and_log,
            trials,
            address=address,
            progress=kill,
            on_result=lambda *result: results.append(result),
        )
    finally:
        nodes.add_node(**NODE)
    assert capfd.readouterr() == ("", "")
    ((lost, share),) = killed_at.items()
    assert 0 < share < 1
    first, *others = attempts(lost)
    assert first == doomed.node_id
    assert others == [nodes.head_node.node_id]
    assert sorted(index for index, _ in results) == [0, 1]
    for index, result in results:
        assert result is outcomes[index]
    elsewhere = [trial._replace(folder=tmp_path / "processes") for trial in trials]
    for here, there in zip(outcomes, jobs.run_jobs(run_trial, elsewhere), strict=True):
        assert here.pop("seconds") > 0
        assert there.pop("seconds") > 0
        assert here == there


@pytest.mark.slow
def test_a_grid_of_evaluations_survives_the_loss_of_a_node(nodes, address, tmp_path, monkeypatch):
    (doomed,) = nodes.worker_nodes
    folder = tmp_path / "tiny"
    llama(context=700).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    options = {
        "policies": {"hard": Condition(Constant(1.5))},
        "lengths": [2],
        "prompts": 8,
        "questions": 1,
    }
    cells = [grid.Cell(str(folder), "lookup", seed, options) for seed in range(2)]
    killed = []

    def attempts(seed):
        lines = (folder / "attempts").read_text().splitlines()
        return [line.split()[1] for line in lines if line.startswith(f"{seed} ")]

    def kill(stage, jobs, job, share):
        if not killed and 0 < share < 1 and attempts(job) == [doomed.node_id]:
            nodes.remove_node(doomed, allow_graceful=False)
            killed.append(job)

    monkeypatch.setattr(grid, "run_cell", workers.run_cell_and_log)
    try:
        found = grid.run(cells, tmp_path / "out", ray=address, progress=kill)
    finally:
        nodes.add_node(**NODE)
    (lost,) = killed
    assert attempts(lost) == [doomed.node_id, nodes.head_node.node_id]
    for cell, result in zip(cells, found, strict=True):
        alone = run_cell(cell, lambda share: None)
        for name, values in alone.arrays.items():
            np.testing.assert_array_equal(result.arrays[name], values)
        assert (tmp_path / "out" / cell.file).exists()


@pytest.mark.slow
def test_the_error_of_a_job_is_raised_and_other_jobs_stop_at_their_next_report(
    address, tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr(cluster, "STOP_SECONDS", 30.0)  # a killed job could not log its end
    mark = str(tmp_path / "mark")
    with pytest.raises(UserError) as caught:
        cluster.run_on_cluster(workers.log_the_end, [(mark, False), (mark, True)], address=address)
    assert type(caught.value) is UserError
    assert str(caught.value) == "this job is bad"
    assert Path(mark).read_text() == "StoppedError"
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_a_job_whose_worker_is_killed_starts_again(address, tmp_path, capfd):
    job = str(tmp_path / "attempts")
    assert cluster.run_on_cluster(workers.die_once, [job], address=address) == [2]
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_a_job_that_kills_every_worker_is_given_up(address, monkeypatch, capfd):
    monkeypatch.setattr(cluster, "RETRIES", 1)
    with pytest.raises(UserError, match=r"lost .* after 1 retries.*; repeat the command"):
        cluster.run_on_cluster(workers.die, [0], address=address)
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_a_job_has_one_thread_on_any_node(address):
    assert cluster.run_on_cluster(workers.environment, ["NPROC"], address=address) == [("1", "cpu")]


@pytest.mark.slow
def test_an_interrupt_ends_all_jobs(address, tmp_path):
    mark, errors = tmp_path / "pid", tmp_path / "errors"
    script = (
        "import workers\nfrom sharpmax.experiments import cluster\n"
        f"cluster.run_on_cluster(workers.report_for_long, [{str(mark)!r}] * 3, "
        f"address={address!r})\n"
    )
    with errors.open("w") as written:
        command = [sys.executable, "-c", script]
        parent = subprocess.Popen(command, stderr=written, start_new_session=True)
    worker = int(wait_until(lambda: mark.exists() and mark.read_text(), "a job begins"))
    os.killpg(parent.pid, signal.SIGINT)
    assert parent.wait(timeout=30) != 0
    assert wait_until(lambda: not Path(f"/proc/{worker}").exists(), "the job ends")
    assert errors.read_text().rstrip().endswith("KeyboardInterrupt")
    assert errors.read_text().count("Traceback") == 1


@pytest.mark.slow
def test_an_existing_connection_is_used_and_kept(ray, nodes):
    ray.init(nodes.address, log_to_driver=False, logging_level="critical")
    try:
        with pytest.raises(UserError, match=rf"at {nodes.address} and cannot connect to 'a:1'"):
            cluster.run_on_cluster(workers.square, [2], address="a:1")
        assert cluster.run_on_cluster(workers.square, [2], address="auto") == [4]
        assert ray.is_initialized()
    finally:
        ray.shutdown()


@pytest.mark.slow
def test_another_version_of_sharpmax_on_the_nodes_is_refused(address, monkeypatch):
    there = sharpmax.__version__
    monkeypatch.setattr(sharpmax, "__version__", "0.0.7")
    message = rf"has sharpmax {re.escape(there)}, this process sharpmax 0\.0\.7: install the same"
    with pytest.raises(UserError, match=message):
        cluster.run_on_cluster(workers.square, [2], address=address)


@pytest.mark.slow
def test_another_version_of_ray_is_refused(nodes, monkeypatch, capfd):
    """Another Python is refused by the same lines of Ray."""
    monkeypatch.setattr(cluster, "CONNECT_SECONDS", 120.0)  # the machine may be busy
    fake = "import ray; ray.__version__ = '1.2.3'"
    monkeypatch.setattr(cluster, "PROBE", f"{fake}\n{cluster.PROBE}")
    refusal = rf"at '{nodes.address}' \(.*Ray: 1\.2\.3.*Python: "
    with pytest.raises(UserError, match=refusal) as caught:
        cluster.run_on_cluster(workers.square, [2], address=nodes.address)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("at", "reason"),
    [
        ("nowhere", "not an address"),
        ("ray://127.0.0.1:{port}", "not an address"),
        pytest.param("127.0.0.1:{port}", "no answer in 3 seconds", marks=pytest.mark.slow),
    ],
)
def test_a_missing_cluster_is_reported_in_one_line_and_soon(at, reason, monkeypatch, capfd):
    monkeypatch.setattr(cluster, "CONNECT_SECONDS", 3.0)
    at = at.format(port=_free_port())
    with pytest.raises(UserError) as caught:
        cluster.run_on_cluster(workers.square, [2], address=at)
    assert str(caught.value).startswith(f"cannot use a Ray cluster at {at!r} ({reason}): expected ")
    assert str(caught.value).endswith("start one with ray start --head")
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_no_jobs_give_no_results():
    assert cluster.run_on_cluster(workers.square, [], address="nowhere") == []


def test_missing_ray_is_named_and_the_environment_restored(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    before = dict(os.environ)
    with pytest.raises(
        MissingExtraError, match=r"running a sweep .* pip install 'sharpmax\[ray\]'"
    ):
        cluster.run_on_cluster(workers.square, [2], address="auto")
    assert dict(os.environ) == before


def test_the_mailbox_hands_out_each_message_once_and_stops_jobs():
    mailbox = cluster._Mailbox()
    assert mailbox.put(0, 0.5)
    assert mailbox.put(1, 0.25)
    assert mailbox.take() == [(0, 0.5), (1, 0.25)]
    assert mailbox.take() == []
    mailbox.stop()
    assert not mailbox.put(0, 0.75)


def test_only_public_names_of_ray_are_used():
    source = Path(cluster.__file__).read_text("utf-8")
    assert not re.findall(r"\bray(?:\.\w+)*\._\w+", source)


def _free_port():
    with socket.socket() as unused:
        unused.bind(("", 0))
        return unused.getsockname()[1]
