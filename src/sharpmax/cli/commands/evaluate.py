"""`sharpmax evaluate`: compare a model with and without sharpening on a task."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sharpmax._errors import UserError
from sharpmax.cli.options import (
    CONDITION_HELP,
    AllowPickle,
    Device,
    DeviceMap,
    Dtype,
    MaxMemory,
    Model,
    Out,
    Overwrite,
    Task,
    TensorParallel,
    TrustRemoteCode,
    load_model,
    parse_condition,
    parse_length_option,
    task_file_name,
)
from sharpmax.cli.output import claim_files, print_written, result_files, save_result
from sharpmax.cli.processes import is_first_process, join_processes
from sharpmax.cli.progress import progress_bar


def evaluate(
    model: Model = "smollm2",
    task: Task = "lookup",
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help=f"What to compare with plain attention: {CONDITION_HELP} Repeat for several. "
            "Default: tuned.",
            metavar="POLICY",
        ),
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            help="Prompt lengths, such as 16,32,64: names for lookup, tokens for passkey, numbers "
            "for max. Default: depends on the task.",
            metavar="LIST",
        ),
    ] = None,
    prompts: Annotated[
        int | None,
        typer.Option(
            help="Number of prompts per length. Default: depends on the task.", metavar="N", min=1
        ),
    ] = None,
    questions: Annotated[
        int | None,
        typer.Option(
            help="Number of questions per prompt, for lookup. Default: 8.", metavar="N", min=1
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed for the prompts.", metavar="N", min=0)] = 0,
    processes: Annotated[
        int | None,
        typer.Option(
            help="Number of processes on this machine that share the prompts, each with a model of "
            "its own. On several machines, start the command by torchrun. Default: 1.",
            metavar="N",
            min=1,
        ),
    ] = None,
    device: Device = "auto",
    device_map: DeviceMap = None,
    max_memory: MaxMemory = None,
    tensor_parallel: TensorParallel = False,
    dtype: Dtype = "auto",
    out: Out = Path("evaluate"),
    overwrite: Overwrite = False,
    allow_pickle: AllowPickle = False,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Test whether sharpening improves a model's answers.

    Asks questions with known answers, the same ones with plain attention and with each policy.
    Prints a table with paired tests and writes the result and a picture. Interrupted evaluations
    resume when you run the same command again.
    """
    # Imported late so that `sharpmax --help` does not wait for a framework.
    from sharpmax import report
    from sharpmax.hf import evaluate, forget
    from sharpmax.hf.evaluate.resolve import resolve_task

    resolve_task(task)
    stem = out / f"evaluate_{task_file_name(task)}"
    with claim_files(result_files(stem), overwrite) as claim:
        selected_lengths = parse_length_option("--lengths", lengths)
        conditions = dict(parse_condition(text) for text in policy or ["tuned"])
        if policy is not None and len(conditions) < len(policy):
            raise UserError(f"--policy: two of {', '.join(policy)} have the same name")
        joined = None if tensor_parallel else join_processes(processes)
        loaded = load_model(
            model,
            device=device,
            device_map=device_map,
            max_memory=max_memory,
            tensor_parallel=tensor_parallel,
            dtype=dtype,
            allow_pickle=allow_pickle,
            trust_remote_code=trust_remote_code,
            processes=joined,
        )
        checkpoint = stem.with_suffix(".part.json")
        with progress_bar("evaluating") as progress:
            result = evaluate(
                loaded.model,
                loaded.tokenizer,
                task,
                conditions,
                lengths=selected_lengths,
                prompts=prompts,
                questions=questions,
                seed=seed,
                name=loaded.name,
                notes=loaded.notes,
                resume=checkpoint,
                progress=progress,
                processes=joined,
            )
        if not is_first_process():
            return
        with claim.writing():
            written = save_result(result, stem, claim.overwrite)
            forget(checkpoint)
        report.show(result)
        print_written(written)
