"""One command in several processes: started by torchrun, or by the command itself."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any

from sharpmax._errors import UserError

if TYPE_CHECKING:
    from accelerate import PartialState

LAUNCHED = "SHARPMAX_LAUNCHED"
"""Set in processes that `launch` started: it prints their errors."""


class NeedsProcesses(Exception):  # noqa: N818 - asks `main` for processes
    """Ask for the command to be run by several processes.

    Args:
        number: How many.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def count_processes() -> int:
    """Return how many processes run this command together; 1 if it runs alone."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_first_process() -> bool:
    """Return whether this process prints and writes for all."""
    return int(os.environ.get("RANK", "0")) == 0


def refuse_processes(command: str = "this command") -> None:
    """Refuse to run in several processes that would all do the same.

    Raises:
        UserError: torchrun has started several.
    """
    if count_processes() > 1:
        raise UserError(
            f"torchrun has started {count_processes()} processes, and {command} does not share its "
            "work among them: start it without torchrun, or give --tensor-parallel to the commands "
            "that have it"
        )


def join_processes(asked: int | None) -> PartialState | None:
    """Return the processes that share the work of this command; None if it runs alone.

    Args:
        asked: How many the user asks for.

    Raises:
        NeedsProcesses: They have to be started first.
        UserError: torchrun has started another number.
    """
    running = count_processes()
    if running == 1:
        if asked is not None and asked > 1:
            raise NeedsProcesses(asked)
        return None
    if asked is not None and asked != running:
        raise UserError(f"--processes {asked}: torchrun has started {running}: leave it out")
    import torch
    from accelerate import PartialState

    # Without the argument it does not join processes on a machine without a GPU.
    return PartialState(cpu=not torch.cuda.is_available())


def launch(arguments: list[str], number: int) -> int:
    """Run a command in several processes on this machine and return its exit code.

    Each has one thread where the user has not set OMP_NUM_THREADS: they share the cores.

    Args:
        arguments: Words after `sharpmax`.
        number: The number of processes.

    Raises:
        UserError: What the first process that failed has raised.
        KeyboardInterrupt: After Ctrl-C.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in list(logging.root.manager.loggerDict):  # each has a level of its own
        if name.startswith("torch.distributed"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # we report failures
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=number,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
        run_id="sharpmax",
    )
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ[LAUNCHED] = "1"
    try:
        elastic_launch(config, sys.executable)("-m", "sharpmax", *arguments)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        raise UserError(_explain(rank, failure)) from error
    except SignalException as error:
        raise KeyboardInterrupt from error
    finally:
        del os.environ[LAUNCHED]
    return 0


def _explain(rank: int, failure: Any) -> str:
    message = failure.message
    if isinstance(message, dict):
        return str(message["message"]).removeprefix(f"{UserError.__name__}: ")
    return (
        f"process {rank} was lost ({failure.signal_name()}, exit code {failure.exitcode}): what is "
        "finished is saved; repeat the command to go on, with any number of processes"
    )


def tell_launcher(error: BaseException) -> bool:
    """Leave an error to the process that started this one; return whether there is one."""
    if LAUNCHED not in os.environ:
        return False
    from torch.distributed.elastic.multiprocessing.errors import get_error_handler

    get_error_handler().record_exception(error)
    return True
