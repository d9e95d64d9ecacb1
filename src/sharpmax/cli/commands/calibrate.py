"""`sharpmax calibrate`: choose which heads of a model to sharpen, and how much."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sharpmax.cli.options import (
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
    parse_length_option,
)
from sharpmax.cli.output import claim_files, print_written
from sharpmax.cli.processes import is_first_process
from sharpmax.cli.progress import progress_bar


def calibrate(
    model: Model = "smollm2",
    task: Task = "lookup",
    choose: Annotated[
        str,
        typer.Option(
            help="answers: heads whose sharpening makes the right answers to short prompts more "
            "probable. entropy: heads that are sharp on short prompts and disperse on long ones.",
            metavar="NAME",
        ),
    ] = "answers",
    short: Annotated[
        str | None,
        typer.Option(
            help="Lengths that the model answers well, such as 4,8. Default: depends on the task.",
            metavar="LIST",
        ),
    ] = None,
    long: Annotated[
        str | None,
        typer.Option(
            help="Lengths to sharpen for, such as 32. Default: depends on the task.", metavar="LIST"
        ),
    ] = None,
    prompts: Annotated[
        int, typer.Option(help="Number of prompts per length.", metavar="N", min=1)
    ] = 16,
    questions: Annotated[
        int | None,
        typer.Option(
            help="Number of questions per prompt. Default: 4 for lookup.", metavar="N", min=1
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            help="Seed for the prompts. Evaluate with a different one.", metavar="N", min=0
        ),
    ] = 1,
    device: Device = "auto",
    device_map: DeviceMap = None,
    max_memory: MaxMemory = None,
    tensor_parallel: TensorParallel = False,
    dtype: Dtype = "auto",
    out: Out = Path("calibrate"),
    overwrite: Overwrite = False,
    allow_pickle: AllowPickle = False,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Choose which heads of a model to sharpen, and how much.

    Writes a small JSON file, the calibration. Test it with `sharpmax evaluate --policy FILE`, and
    apply it with `sharpmax.hf.sharpen`. Interrupted calibrations resume when you run the same
    command again.
    """
    path = out / f"calibration-{choose}.json"
    with claim_files([path], overwrite) as claim:
        # Imported late so that `sharpmax --help` does not wait for a framework.
        from sharpmax import report
        from sharpmax.hf import calibrate, forget

        lengths = {
            "short": parse_length_option("--short", short),
            "long": parse_length_option("--long", long),
        }
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
        checkpoint = path.with_suffix(".part.json")
        with progress_bar("calibrating") as progress:
            calibration = calibrate(
                loaded.model,
                loaded.tokenizer,
                task,
                choose=choose,
                prompts=prompts,
                questions=questions,
                seed=seed,
                name=loaded.name,
                resume=checkpoint,
                progress=progress,
                **lengths,
            )
        if not is_first_process():
            return
        with claim.writing():
            written = calibration.save(path, overwrite=claim.overwrite)
            forget(checkpoint)
        report.show(calibration)
        print_written([written])
