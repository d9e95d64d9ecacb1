"""Jobs on a Ray cluster of two nodes: as in processes of one machine, though a node is killed."""

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

import pytest
import ray
import workers
from ray.cluster_utils import Cluster
from waiting import eventually

import sharpmax
from sharpmax import MissingExtraError, UserError
from sharpmax.experiments import cluster, jobs
from sharpmax.experiments.leaderboard.unit import Budget, Unit, perform

# Ray forks to start a node and does nothing but start it; JAX, if it was used before, warns.
pytestmark = pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")

NODE = {"num_cpus": 1, "object_store_memory": 80_000_000}
NOTICED_SOON = {  # that a node has died: by default after half a minute
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 3,
}


@pytest.fixture(scope="module")
def nodes(compiled_once):
    """The cluster, with a head and another node, each of one CPU."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        before = os.environ.get("PYTHONPATH", "")
        patch.setenv("PYTHONPATH", f"{Path(__file__).parent}{os.pathsep}{before}")
        # Not pytest's own folder: the paths of Ray's sockets may have 107 characters.
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        head = NODE | {"include_dashboard": False, "_system_config": NOTICED_SOON}
        made = Cluster(True, head_node_args=head)
        try:
            made.add_node(**NODE)
            made.wait_for_nodes()
            yield made
        finally:
            made.shutdown()


@pytest.fixture
def address(nodes, monkeypatch):
    """Of a cluster that is known to answer: trying it takes a process with Ray in it."""
    monkeypatch.setattr(cluster, "_probe", lambda address: None)
    yield nodes.address
    assert not ray.is_initialized()


def test_answers_come_in_the_order_of_the_jobs_and_progress_ends_at_one(address):
    seen, kept = {}, []
    told = lambda place, share: seen.setdefault(place, []).append(share)  # noqa: E731
    before = signal.getsignal(signal.SIGTERM), dict(os.environ)
    answers = cluster.run(
        workers.square,
        [3, 1, 4, 1, 5],
        address=address,
        progress=told,
        keep=lambda *found: kept.append(found),
    )
    assert answers == [9, 1, 16, 1, 25]
    assert sorted(kept) == [(0, 9), (1, 1), (2, 16), (3, 1), (4, 25)]
    assert sorted(seen) == [0, 1, 2, 3, 4]
    for shares in seen.values():
        assert shares == sorted(shares)
        assert shares[-1] == 1.0
        assert 0.25 in shares
    assert (signal.getsignal(signal.SIGTERM), dict(os.environ)) == before


def test_the_killing_of_a_node_changes_nothing_in_what_a_sweep_finds(nodes, address, tmp_path):
    """The node is killed while it trains; progress tells when, for it is told by the jobs."""
    (doomed,) = nodes.worker_nodes
    budget = Budget(steps=1_000, rates=(3e-3,), sizes=(16,), sets=20)
    wanted = [
        Unit("hard", "max", True, replace(budget, seeds=(seed,)), tmp_path / "cluster")
        for seed in range(2)
    ]
    wanted[0].folder.mkdir()
    killed_at, kept = dict[int, float](), []

    def attempts(seed):
        lines = (tmp_path / "cluster" / "attempts").read_text().splitlines()
        return [line.split()[1] for line in lines if line.startswith(f"{seed} ")]

    def kill(place, share):
        if not killed_at and 0 < share < 1 and attempts(place) == [doomed.node_id]:
            nodes.remove_node(doomed, allow_graceful=False)
            killed_at[place] = share

    try:
        found = cluster.run(
            workers.perform_and_mark,
            wanted,
            address=address,
            progress=kill,
            keep=lambda *result: kept.append(result),
        )
    finally:
        nodes.add_node(**NODE)
    ((lost, share),) = killed_at.items()
    assert 0 < share < 1
    first, *others = attempts(lost)
    assert first == doomed.node_id
    assert others == [nodes.head_node.node_id]
    assert sorted(place for place, _ in kept) == [0, 1]
    for place, result in kept:
        assert result is found[place]
    elsewhere = [unit._replace(folder=tmp_path / "processes") for unit in wanted]
    for one, other in zip(found, jobs.run(perform, elsewhere), strict=True):
        assert one.pop("seconds") > 0
        assert other.pop("seconds") > 0
        assert one == other


def test_an_error_is_the_one_that_is_seen_and_others_end_by_telling(
    address, tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr(cluster, "GRACE", 30.0)  # a job that is killed could not note its end
    mark = str(tmp_path / "mark")
    with pytest.raises(UserError) as caught:
        cluster.run(workers.note_the_end, [(mark, False), (mark, True)], address=address)
    assert type(caught.value) is UserError
    assert str(caught.value) == "this job is bad"
    assert Path(mark).read_text() == "StoppedError"
    assert capfd.readouterr() == ("", "")


def test_a_job_whose_worker_is_killed_is_begun_again(address, tmp_path):
    job = str(tmp_path / "attempts")
    assert cluster.run(workers.die_once, [job], address=address) == [2]


def test_a_job_that_kills_every_worker_is_given_up(address, monkeypatch, capfd):
    monkeypatch.setattr(cluster, "RETRIES", 1)
    with pytest.raises(UserError, match=r"lost .* after 1 retries.*; repeat the command"):
        cluster.run(workers.die, [0], address=address)
    assert capfd.readouterr() == ("", "")


def test_a_job_has_one_thread_whatever_the_node_has(address):
    assert cluster.run(workers.environment, ["NPROC"], address=address) == [("1", "cpu")]


def test_an_interrupt_ends_all(address, tmp_path):
    mark, errors = tmp_path / "pid", tmp_path / "errors"
    script = (
        "import workers\nfrom sharpmax.experiments import cluster\n"
        f"cluster.run(workers.tell_for_long, [{str(mark)!r}] * 3, address={address!r})\n"
    )
    with errors.open("w") as written:
        command = [sys.executable, "-c", script]
        parent = subprocess.Popen(command, stderr=written, start_new_session=True)
    worker = int(eventually(lambda: mark.exists() and mark.read_text(), "a job begins"))
    os.killpg(parent.pid, signal.SIGINT)
    assert parent.wait(timeout=30) != 0
    assert eventually(lambda: not Path(f"/proc/{worker}").exists(), "the job ends")
    assert errors.read_text().rstrip().endswith("KeyboardInterrupt")
    assert errors.read_text().count("Traceback") == 1


def test_a_connection_that_was_there_is_used_and_left(nodes):
    ray.init(nodes.address, log_to_driver=False, logging_level="critical")
    try:
        with pytest.raises(UserError, match=rf"at {nodes.address} and cannot use that at 'a:1'"):
            cluster.run(workers.square, [2], address="a:1")
        assert cluster.run(workers.square, [2], address="auto") == [4]
        assert ray.is_initialized()
    finally:
        ray.shutdown()


def test_another_version_on_the_nodes_is_refused(address, monkeypatch):
    there = sharpmax.__version__
    monkeypatch.setattr(sharpmax, "__version__", "0.0.7")
    message = rf"has sharpmax {re.escape(there)}, this process sharpmax 0\.0\.7: install the same"
    with pytest.raises(UserError, match=message):
        cluster.run(workers.square, [2], address=address)


def test_another_ray_than_that_of_the_cluster_is_refused(nodes, monkeypatch, capfd):
    """So is another Python, by the same lines of Ray."""
    monkeypatch.setattr(cluster, "CONNECTING", 120.0)  # the machine may be busy with other tests
    fake = "import ray; ray.__version__ = '1.2.3'"
    monkeypatch.setattr(cluster, "PROBE", f"{fake}\n{cluster.PROBE}")
    refusal = rf"at '{nodes.address}' \(.*Ray: 1\.2\.3.*Python: "
    with pytest.raises(UserError, match=refusal) as caught:
        cluster.run(workers.square, [2], address=nodes.address)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("at", "why"),
    [
        ("nowhere", "not an address"),
        ("ray://127.0.0.1:{port}", "not an address"),
        ("127.0.0.1:{port}", "no answer in 3 seconds"),
    ],
)
def test_no_cluster_is_said_in_one_line_and_soon(at, why, monkeypatch, capfd):
    monkeypatch.setattr(cluster, "CONNECTING", 3.0)
    at = at.format(port=_free_port())
    with pytest.raises(UserError) as caught:
        cluster.run(workers.square, [2], address=at)
    assert str(caught.value).startswith(f"cannot use a Ray cluster at {at!r} ({why}): expected ")
    assert str(caught.value).endswith("start it with ray start --head")
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_nothing_to_do():
    assert cluster.run(workers.square, [], address="nowhere") == []


def test_missing_ray_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        MissingExtraError, match=r"running a sweep .* pip install 'sharpmax\[ray\]'"
    ):
        cluster.run(workers.square, [2], address="auto")


def _free_port():
    with socket.socket() as unused:
        unused.bind(("", 0))
        return unused.getsockname()[1]
