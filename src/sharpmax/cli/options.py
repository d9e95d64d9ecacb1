"""Options and parsers that several commands share, so that they read the same everywhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from sharpmax._errors import UserError
from sharpmax._ranges import parse_lengths, parse_ranges
from sharpmax.cli.processes import refuse_processes
from sharpmax.cli.progress import print_status
from sharpmax.policy_names import POLICY_HELP, parse_policy

if TYPE_CHECKING:
    from accelerate import PartialState

    from sharpmax.hf import Condition
    from sharpmax.hf.loading.loader import Loaded

Model: TypeAlias = Annotated[
    str,
    typer.Argument(
        help="smollm2 or another name that `sharpmax models` lists, a folder with safetensors or "
        "GGUF weights, a .gguf file, or a model name on the Hugging Face hub.",
        metavar="MODEL",
    ),
]
Task: TypeAlias = Annotated[
    str,
    typer.Option(
        help="lookup: recall the code of one name among many. passkey: find a number hidden in "
        "filler text. max: name the largest of a list of numbers (the paper's prompt). "
        "niah_multikey_2, ruler_vt and so on: tasks of RULER. FILE.jsonl: your own questions.",
        metavar="TASK",
    ),
]
TuningSteps: TypeAlias = Annotated[
    int | None, typer.Option(help="Number of prompts to learn from.", metavar="N", min=1)
]
CheckPrompts: TypeAlias = Annotated[
    int,
    typer.Option(
        help="Number of fresh prompts per task to measure the gain on. 0 skips it.",
        metavar="N",
        min=0,
    ),
]
Device: TypeAlias = Annotated[
    str, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.", metavar="NAME")
]
DeviceMap: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Spread a model that fits no single device over all GPUs, then CPU memory, then disk: "
        "auto, balanced, balanced_low_0 or sequential. Instead of --device.",
        metavar="NAME",
    ),
]
TensorParallel: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--tensor-parallel",
        help="Split each layer among processes, one device each. Start them by torchrun "
        "--nproc-per-node N -m sharpmax.",
    ),
]
MaxMemory: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="With --device-map: how much each place may hold, by the number of the GPU, or cpu. "
        "Places that are not named get nothing. Example: 0=10GiB,cpu=20GiB.",
        metavar="PLACE=SIZE,...",
    ),
]
Dtype: TypeAlias = Annotated[
    str,
    typer.Option(help="auto (as stored), float32, bfloat16, float16 or float64.", metavar="NAME"),
]
AllowPickle: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--allow-pickle",
        help="Load weights stored as pickles. A pickle can run any code: trust its author first.",
    ),
]
TrustRemoteCode: TypeAlias = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run Python code that comes with the model.")
]
Out: TypeAlias = Annotated[
    Path,
    typer.Option(
        "--out", "-o", help="Write results into this folder; created if missing.", metavar="FOLDER"
    ),
]
Overwrite: TypeAlias = Annotated[
    bool, typer.Option("--overwrite", help="Replace existing results.")
]
Processes: TypeAlias = Annotated[
    int | None,
    typer.Option(
        help="Number of jobs to run in parallel. Default: one per core.", metavar="N", min=1
    ),
]
Threads: TypeAlias = Annotated[
    int | None, typer.Option(help="CPU threads to use. Default: PyTorch's.", metavar="N", min=1)
]

CONDITION_HELP = (
    "tuned (the calibration that comes with sharpmax for this model), a calibration file, "
    f"{POLICY_HELP}. Add @20-29 to a policy to sharpen those layers only."
)


def parse_range_option(option: str, text: str | None) -> list[int] | None:
    """Parse the value of an option such as `--layers 0,4-7`; None if the option was not given."""
    return None if text is None else parse_ranges(option, text)


def parse_length_option(option: str, text: str | None) -> list[int] | None:
    """Parse the value of `--lengths` and its like; None if the option was not given."""
    return None if text is None else parse_lengths(option, text)


def parse_condition(text: str) -> tuple[str, Condition]:
    """Return the name and the condition for a value of `--policy`.

    Args:
        text: The path of a calibration (`tuned.json`), `tuned` for the one that comes with the
            package, a policy (`paper`), or a policy in some layers (`constant:1.2@20-29`).
    """
    # Imported late so that `sharpmax --help` does not wait for a framework.
    from sharpmax.hf import Calibration, Condition
    from sharpmax.hf.tune.calibration import TUNED

    if text == TUNED:
        return text, Condition(TUNED)
    if text.endswith(".json"):
        return Path(text).stem, Condition(Calibration.load(text))
    policy, at, layers = text.partition("@")
    return text, Condition(parse_policy(policy), parse_ranges("--policy", layers) if at else None)


def task_file_name(task: str) -> str:
    """Return what files about a task are named after: its name, or that of the user's file."""
    return re.sub(r"[^\w-]+", "-", Path(task).stem) if task.endswith(".jsonl") else task


def parse_max_memory(text: str | None) -> dict[int | str, int | str] | None:
    """Parse the value of `--max-memory`, such as `0=10GiB,cpu=20GiB`; None if it was not given."""
    if text is None:
        return None
    sizes: dict[int | str, int | str] = {}
    for part in text.split(","):
        place, equals, size = (piece.strip() for piece in part.partition("="))
        if not (place and equals and size):
            raise UserError(
                f"--max-memory {text}: {part!r} is not PLACE=SIZE; expected something like "
                "0=10GiB,cpu=20GiB"
            )
        if place in map(str, sizes):
            raise UserError(f"--max-memory {text}: {place} is given twice")
        sizes[int(place) if place.isascii() and place.isdigit() else place] = size
    return sizes


def load_model(
    name: str,
    *,
    device: str = "auto",
    device_map: str | None = None,
    max_memory: str | None = None,
    tensor_parallel: bool = False,
    dtype: str = "auto",
    allow_pickle: bool = False,
    trust_remote_code: bool = False,
    processes: PartialState | None = None,
) -> Loaded:
    """Load a model as the shared options ask for, with status messages on standard error.

    `processes` are those that share the work, each with a model of its own.

    Raises:
        UserError: Several processes run, and neither work nor model are shared among them; or the
            model cannot be loaded.
    """
    if processes is None and not tensor_parallel:
        refuse_processes()
    if processes is not None and device == "auto" and processes.device.type == "cuda":
        device = str(processes.device)  # each process has a GPU of its own
    # Imported late so that `sharpmax --help` does not wait for a framework.
    from sharpmax.hf.loading.loader import load

    return load(
        name,
        device=device,
        device_map=device_map,
        max_memory=parse_max_memory(max_memory),
        tensor_parallel=tensor_parallel,
        dtype=dtype,
        allow_pickle=allow_pickle,
        trust_remote_code=trust_remote_code,
        report=print_status,
    )
