"""`sharpmax diagnose`: find out why a model loses answers as its input grows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
)
from sharpmax.cli.output import claim_files, print_written, result_files, save_result
from sharpmax.cli.processes import is_first_process
from sharpmax.cli.progress import progress_bar


def diagnose(
    model: Model = "smollm2",
    task: Task = "lookup",
    policy: Annotated[
        str | None,
        typer.Option(
            help=f"Diagnose the model while this sharpens it: {CONDITION_HELP}", metavar="POLICY"
        ),
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            help="Prompt lengths, such as 8,16,32,64: names for lookup, tokens for passkey, "
            "numbers for max. Heads are chosen at the shortest. Default: depends on the task.",
            metavar="LIST",
        ),
    ] = None,
    prompts: Annotated[
        int | None,
        typer.Option(
            help="Number of prompts per length. Default: enough for 96 questions.",
            metavar="N",
            min=1,
        ),
    ] = None,
    questions: Annotated[
        int | None,
        typer.Option(
            help="Number of questions per prompt, for lookup. Default: 8.", metavar="N", min=1
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed for the prompts.", metavar="N", min=0)] = 0,
    device: Device = "auto",
    device_map: DeviceMap = None,
    max_memory: MaxMemory = None,
    tensor_parallel: TensorParallel = False,
    dtype: Dtype = "auto",
    out: Out = Path("diagnose"),
    overwrite: Overwrite = False,
    allow_pickle: AllowPickle = False,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Find out why a model loses answers as inputs grow.

    Measures, per head, the weight of the token to copy and what is ranked first. Says how much of
    the loss is dispersion, which sharpening can undo, and how much is ranking. Writes the result
    and a picture. Interrupted diagnoses resume when you run the same command again.
    """
    # Imported late so that `sharpmax --help` does not wait for a framework.
    from sharpmax import report
    from sharpmax.hf import diagnose, forget
    from sharpmax.hf.evaluate.resolve import resolve_task

    resolve_task(task)
    stem = out / "diagnose"
    with claim_files(result_files(stem), overwrite) as claim:
        selected_lengths = parse_length_option("--lengths", lengths)
        condition = None if policy is None else parse_condition(policy)[1]
        loaded = load_model(
            model,
            device=device,
            device_map=device_map,
            max_memory=max_memory,
            tensor_parallel=tensor_parallel,
            dtype=dtype,
            allow_pickle=allow_pickle,
            trust_remote_code=trust_remote_code,
        )
        checkpoint = stem.with_suffix(".part.json")
        with progress_bar("diagnosing") as progress:
            result = diagnose(
                loaded.model,
                loaded.tokenizer,
                task,
                lengths=selected_lengths,
                prompts=prompts,
                questions=questions,
                policy=condition,
                seed=seed,
                name=loaded.name,
                notes=loaded.notes,
                resume=checkpoint,
                progress=progress,
            )
        if not is_first_process():
            return
        with claim.writing():
            written = save_result(result, stem, claim.overwrite)
            forget(checkpoint)
        report.show(result)
        print_written(written)
