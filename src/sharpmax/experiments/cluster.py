"""Many jobs on many machines: those of `jobs.run`, on a Ray cluster that may lose nodes on the way.

One CPU and one thread a job, as there, so the numbers do not depend on how many cores a node has;
kinds of processor may still round differently. A job whose node or process dies is begun again on
another, and what it found is counted once.
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
from sharpmax.experiments.jobs import ONE_THREAD, PATIENCE, Found, Job, Progress, StoppedError, Tell

RETRIES = 5  # nodes come and go, but a job that loses six workers is itself at fault
CONNECTING = 30.0  # seconds in which a cluster has to answer
GRACE = 5.0  # seconds in which jobs that are no longer wanted may end by themselves

PROBE = """
import logging, sys, ray
try:
    ray.init(sys.argv[1], log_to_driver=False, logging_level=logging.CRITICAL)
except Exception as error:
    print(*str(error).split())
    sys.exit(1)
"""


def run(
    function: Callable[[Job, Tell], Found],
    jobs: Sequence[Job],
    *,
    address: str,
    progress: Progress | None = None,
    keep: Callable[[int, Found], None] | None = None,
) -> list[Found]:
    """The function of every job, in the jobs' order, as many at a time as the cluster has CPUs.

    `address` is that of a running cluster, `host:port`, or `auto` on a machine that belongs to one.
    All else is as in `jobs.run`, but what a job itself writes stays on the disk of its node. Every
    node needs this version of sharpmax, and `function` must be importable there.
    """
    if not jobs:
        return []
    with _connected(address) as ray:
        _check_nodes(ray, address)
        # On the driver's node: no other takes it along. Killed itself, it begins again, empty.
        here = _on(ray, ray.get_runtime_context().get_node_id(), soft=False)
        mailbox = (
            ray.remote(_Mailbox).options(**here, max_restarts=-1, max_task_retries=-1).remote()
        )
        options = {"max_retries": RETRIES, "runtime_env": {"env_vars": ONE_THREAD}}
        work = ray.remote(_work).options(num_cpus=1, **options)
        pending = {work.remote(function, at, job, mailbox): at for at, job in enumerate(jobs)}
        try:
            found = _attend(ray, pending, mailbox, progress, keep)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error  # what the job raised, without Ray's wrapping
        except ray.exceptions.RayError as error:
            raise UserError(
                f"a job was lost on the Ray cluster after {RETRIES} retries, perhaps for want of "
                f"memory ({type(error).__name__}); repeat the command to go on"
            ) from error
        finally:
            _stop(ray, pending, mailbox)
    return [found[place] for place in range(len(jobs))]


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    """Ray, connected to the cluster; afterwards this process is as it was."""
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("ray", "ray", "running a sweep on a Ray cluster") from error
    if ray.is_initialized():
        here = ray.get_runtime_context().gcs_address
        if address not in ("auto", here):
            raise UserError(
                f"this process is connected to the Ray cluster at {here} and cannot use that at "
                f"{address!r}: pass 'auto', or call ray.shutdown() before"
            )
        yield ray
        return
    _probe(address)
    with _restored(ray):
        try:
            ray.init(address, log_to_driver=False, logging_level=logging.CRITICAL)
            yield ray
        finally:
            ray.shutdown()


@contextmanager
def _restored(ray: Any) -> Iterator[None]:
    """Undo what Ray changes in a process and does not change back, and keep it quiet."""
    worker, logger, name = ray._private.worker, logging.getLogger("ray"), "PYTHONBREAKPOINT"
    handler, level, value = signal.getsignal(signal.SIGTERM), logger.level, os.environ.get(name)
    # Not public, but the only way: Ray prints the death of a worker to standard output.
    printing, worker._worker_logs_enabled = worker._worker_logs_enabled, False
    try:
        yield
    finally:
        worker._worker_logs_enabled = printing
        logger.setLevel(level)
        if signal.getsignal(signal.SIGTERM) is not handler:
            signal.signal(signal.SIGTERM, handler)
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


def _probe(address: str) -> None:
    """Connect once in another process: where nothing answers, Ray tries for minutes, writes past
    Python's logging, and may end the process that asked.
    """
    command = [sys.executable, "-P", "-c", PROBE, address]
    try:
        if not re.fullmatch(r"auto|[^\s/]+:\d+", address):
            refusal = "not an address"  # Ray takes some others for the wish to start a cluster
        else:
            done = subprocess.run(command, capture_output=True, text=True, timeout=CONNECTING)
            if done.returncode == 0:
                return
            refusal = done.stdout.strip() or f"Ray ended with code {done.returncode}"
    except subprocess.TimeoutExpired:
        refusal = f"no answer in {CONNECTING:.0f} seconds"
    raise UserError(
        f"cannot use a Ray cluster at {address!r} ({refusal}): expected host:port or auto, of one "
        "that runs with the same Ray and Python; start it with ray start --head"
    )


def _check_nodes(ray: Any, address: str) -> None:
    """Refuse nodes where jobs would run another sharpmax, or none."""

    # Inside this function, so that it is sent as a whole: a node may have nothing to import.
    def version() -> str:
        try:
            import sharpmax
        except ModuleNotFoundError:
            return "no sharpmax"
        return f"sharpmax {sharpmax.__version__}"

    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]
    if not nodes:
        raise UserError(f"the Ray cluster at {address!r} has no CPU: add a node with ray start")
    # Soft: if the node has died meanwhile, another answers, and no job will run there.
    tasks = [ray.remote(version).options(**_on(ray, node["NodeID"], soft=True)) for node in nodes]
    here = f"sharpmax {sharpmax.__version__}"
    for node, there in zip(nodes, ray.get([task.remote() for task in tasks]), strict=True):
        if there != here:
            raise UserError(
                f"the node {node['NodeManagerAddress']} of the Ray cluster has {there}, this "
                f"process {here}: install the same version of sharpmax[ray] on both"
            )


def _on(ray: Any, node: str, *, soft: bool) -> dict[str, Any]:
    """Options of what runs on one node, beside what its CPUs do."""
    place = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=soft)
    return {"num_cpus": 0, "scheduling_strategy": place}


class _Mailbox:
    """What jobs have told since the driver last looked, and whether they are still wanted."""

    def __init__(self) -> None:
        self.told, self.wanted = list[tuple[int, float]](), True

    def tell(self, place: int, share: float) -> bool:
        self.told.append((place, share))
        return self.wanted

    def take(self) -> list[tuple[int, float]]:
        told, self.told = self.told, []
        return told

    def stop(self) -> None:
        self.wanted = False


def _work(function: Callable[[Any, Tell], Any], place: int, job: Any, mailbox: Any) -> Any:
    def tell(share: float) -> None:
        # Not ray.get: while a task waits there, Ray begins another on its CPU.
        if not mailbox.tell.remote(place, share).future().result():
            raise StoppedError

    tell(0.0)
    return function(job, tell)


def _attend(
    ray: Any,
    pending: dict[Any, int],
    mailbox: Any,
    progress: Progress | None,
    keep: Callable[[int, Any], None] | None,
) -> dict[int, Any]:
    """What every job found, by place. Those that have ended leave `pending`."""
    found = dict[int, Any]()
    while pending:
        ended, _ = ray.wait(list(pending), timeout=PATIENCE)
        for place, share in ray.get(mailbox.take.remote()):
            if progress and place not in found:  # what a job said may arrive after its result
                progress(place, share)
        for task in ended:
            place = pending.pop(task)
            found[place] = ray.get(task)  # raises what the job raised
            if keep:
                keep(place, found[place])
            if progress:
                progress(place, 1.0)
    return found


def _stop(ray: Any, pending: dict[Any, int], mailbox: Any) -> None:
    """End what is no longer wanted: jobs that tell end by that, the others are killed."""
    if pending:
        mailbox.stop.remote()
        _, silent = ray.wait(list(pending), num_returns=len(pending), timeout=GRACE)
        for task in silent:
            ray.cancel(task, force=True)
    ray.kill(mailbox)
