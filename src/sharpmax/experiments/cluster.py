"""Run the same jobs as `jobs.run_jobs` on a Ray cluster that may lose nodes on the way.

Each job has one CPU and one thread, so its numbers do not depend on how many cores a node has.
Different kinds of processor may still round differently. A job whose node or process dies starts
again on another node, and its result counts once.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import sharpmax
from sharpmax._errors import MissingExtraError, UserError
from sharpmax.experiments.jobs import (
    ONE_THREAD,
    POLL_SECONDS,
    Job,
    JobProgress,
    JobResult,
    ReportShare,
    StoppedError,
)

RETRIES = 5
"""Nodes come and go, but a job that loses six workers is itself at fault."""
CONNECT_SECONDS = 30.0
"""Time in which a cluster has to answer."""
STOP_SECONDS = 5.0
"""Time that unwanted jobs have to end before they are killed."""

QUIET = {
    "RAY_DEDUP_LOGS_SKIP_REGEX": "worker died or was killed|marked dead|died unexpectedly|"
    "retries (left|remaining)|Raylet is terminated"
}
"""Ray prints the death of a worker or node to standard output, even with log_to_driver=False. It
reads this variable when it is imported."""

PROBE = """
import logging, sys, ray
try:
    ray.init(sys.argv[1], log_to_driver=False, logging_level=logging.CRITICAL)
except Exception as error:
    print(*str(error).split())
    sys.exit(1)
"""


def run_on_cluster(
    function: Callable[[Job, ReportShare], JobResult],
    jobs: Sequence[Job],
    *,
    address: str,
    progress: JobProgress | None = None,
    on_result: Callable[[int, JobResult], None] | None = None,
) -> list[JobResult]:
    """Call `function(job, report_share)` for every job, as many at a time as there are CPUs.

    Files that a job writes stay on the disk of its node.

    Args:
        function: Must be importable on every node, which needs this version of sharpmax.
        jobs: Picklable arguments of `function`.
        address: `host:port` of a running cluster, or `auto` on a machine that belongs to one.
        progress: Called in this process while the jobs run.
        on_result: Called in this process with a job's index and result as soon as it is finished.

    Returns:
        The results in the order of the jobs.

    Raises:
        UserError: If no usable cluster answers, or a job was lost too often.
        MissingExtraError: If Ray is not installed.
    """
    if not jobs:
        return []
    with _connect(address) as ray:
        _check_nodes(ray, address)
        # On the driver's node, so that no other node takes it along when it dies. If the mailbox
        # process itself is killed, it restarts empty.
        driver_node = _node_options(ray, ray.get_runtime_context().get_node_id(), soft=False)
        mailbox = (
            ray.remote(_Mailbox)
            .options(**driver_node, max_restarts=-1, max_task_retries=-1)
            .remote()
        )
        task = ray.remote(_run_job).options(
            num_cpus=1, max_retries=RETRIES, runtime_env={"env_vars": ONE_THREAD}
        )
        pending = {task.remote(function, i, job, mailbox): i for i, job in enumerate(jobs)}
        try:
            results = _wait_for_all(ray, pending, mailbox, progress, on_result)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error  # the job's own error, without Ray's wrapper
        except ray.exceptions.RayError as error:
            raise UserError(
                f"a job was lost on the Ray cluster after {RETRIES} retries, perhaps because "
                f"memory ran out ({type(error).__name__}); repeat the command to resume"
            ) from error
        finally:
            _stop(ray, pending, mailbox)
    return [results[index] for index in range(len(jobs))]


@contextmanager
def _connect(address: str) -> Iterator[Any]:
    """Connect to the cluster and yield the `ray` module; leave this process as it was."""
    ray = import_ray()
    if ray.is_initialized():
        current = ray.get_runtime_context().gcs_address
        if address not in ("auto", current):
            raise UserError(
                f"this process is connected to the Ray cluster at {current} and cannot connect to "
                f"{address!r}: pass 'auto', or call ray.shutdown() first"
            )
        yield ray
        return
    _probe(address)
    with _restore_process():
        try:
            ray.init(address, log_to_driver=False, logging_level=logging.CRITICAL)
            yield ray
        finally:
            ray.shutdown()


def import_ray() -> Any:
    """Import Ray, and keep it from printing the death of workers if it is not imported yet."""
    before = {name: os.environ.get(name) for name in QUIET}
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("ray", "ray", "running a sweep on a Ray cluster") from error
    finally:
        _restore_environment(before)
    return ray


@contextmanager
def _restore_process() -> Iterator[None]:
    """Undo the changes that `ray.init` makes to a process and `ray.shutdown` leaves."""
    logger = logging.getLogger("ray")
    handler, level = signal.getsignal(signal.SIGTERM), logger.level
    environment = {"PYTHONBREAKPOINT": os.environ.get("PYTHONBREAKPOINT")}
    try:
        yield
    finally:
        logger.setLevel(level)
        if signal.getsignal(signal.SIGTERM) is not handler:
            signal.signal(signal.SIGTERM, handler)
        _restore_environment(environment)


def _restore_environment(before: dict[str, str | None]) -> None:
    for name, value in before.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


def _probe(address: str) -> None:
    """Try the connection in another process.

    Where nothing answers, Ray tries for minutes, writes past Python's logging, and may end the
    process that asked.
    """
    command = [sys.executable, "-P", "-c", PROBE, address]
    try:
        if not re.fullmatch(r"auto|[^\s/]+:\d+", address):
            refusal = "not an address"  # Ray would start a new cluster for some other strings
        else:
            probe = subprocess.run(command, capture_output=True, text=True, timeout=CONNECT_SECONDS)
            if probe.returncode == 0:
                return
            refusal = probe.stdout.strip() or f"Ray ended with code {probe.returncode}"
    except subprocess.TimeoutExpired:
        refusal = f"no answer in {CONNECT_SECONDS:.0f} seconds"
    raise UserError(
        f"cannot use a Ray cluster at {address!r} ({refusal}): expected host:port or auto, of a "
        "cluster with the same Ray and Python; start one with ray start --head"
    )


def _check_nodes(ray: Any, address: str) -> None:
    """Refuse nodes that have another version of sharpmax, or none."""

    # A local function is sent with its code: a node may have no sharpmax to import it from.
    def installed_version() -> str:
        try:
            import sharpmax
        except ModuleNotFoundError:
            return "no sharpmax"
        return f"sharpmax {sharpmax.__version__}"

    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]
    if not nodes:
        raise UserError(f"the Ray cluster at {address!r} has no CPU: add a node with ray start")
    # Soft: if a node has died meanwhile, another one answers, and no job will run on the dead one.
    tasks = [
        ray.remote(installed_version).options(**_node_options(ray, node["NodeID"], soft=True))
        for node in nodes
    ]
    here = f"sharpmax {sharpmax.__version__}"
    for node, there in zip(nodes, ray.get([task.remote() for task in tasks]), strict=True):
        if there != here:
            raise UserError(
                f"the node {node['NodeManagerAddress']} of the Ray cluster has {there}, this "
                f"process {here}: install the same version of sharpmax[ray] on both"
            )


def _node_options(ray: Any, node_id: str, *, soft: bool) -> dict[str, Any]:
    """Return task options that select a node without taking one of its CPUs."""
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id, soft=soft)
    return {"num_cpus": 0, "scheduling_strategy": strategy}


class _Mailbox:
    """Ray actor that collects progress for the driver and tells jobs whether to go on."""

    def __init__(self) -> None:
        self.messages, self.wanted = list[tuple[int, float]](), True

    def put(self, index: int, share: float) -> bool:
        """Store a job's progress; return whether its result is still wanted."""
        self.messages.append((index, share))
        return self.wanted

    def take(self) -> list[tuple[int, float]]:
        """Return and forget the messages since the last call."""
        messages, self.messages = self.messages, []
        return messages

    def stop(self) -> None:
        self.wanted = False


def _run_job(
    function: Callable[[Any, ReportShare], Any], index: int, job: Any, mailbox: Any
) -> Any:
    def report_share(share: float) -> None:
        # Not ray.get: while a task waits there, Ray starts another one on its CPU.
        if not mailbox.put.remote(index, share).future().result():
            raise StoppedError

    report_share(0.0)
    return function(job, report_share)


def _wait_for_all(
    ray: Any,
    pending: dict[Any, int],
    mailbox: Any,
    progress: JobProgress | None,
    on_result: Callable[[int, Any], None] | None,
) -> dict[int, Any]:
    """Return the results by index. Jobs that have ended are removed from `pending`."""
    results = dict[int, Any]()
    while pending:
        ended, _ = ray.wait(list(pending), timeout=POLL_SECONDS)
        for index, share in ray.get(mailbox.take.remote()):
            if progress and index not in results:  # a message may arrive after the job's result
                progress(index, share)
        for task in ended:
            index = pending.pop(task)
            results[index] = ray.get(task)  # raises what the job raised
            if on_result:
                on_result(index, results[index])
            if progress:
                progress(index, 1.0)
    return results


def _stop(ray: Any, pending: dict[Any, int], mailbox: Any) -> None:
    """Stop unwanted jobs at their next progress report; kill those that do not report."""
    if pending:
        mailbox.stop.remote()
        _, silent = ray.wait(list(pending), num_returns=len(pending), timeout=STOP_SECONDS)
        for task in silent:
            ray.cancel(task, force=True)
    ray.kill(mailbox)
