"""`sharpmax tune`: learn how much each head of a model should sharpen or soften with length."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sharpmax._ranges import MAX_LENGTH
from sharpmax.cli.options import (
    AllowPickle,
    CheckPrompts,
    Device,
    DeviceMap,
    Dtype,
    MaxMemory,
    Model,
    Out,
    Overwrite,
    TensorParallel,
    TrustRemoteCode,
    TuningSteps,
    load_model,
)
from sharpmax.cli.output import claim_files, print_written
from sharpmax.cli.processes import is_first_process
from sharpmax.cli.progress import print_status, tuning_progress


def tune(
    model: Model = "smollm2",
    task: Annotated[
        list[str] | None,
        typer.Option(
            help="Tune on this task. Repeat for several. Default: six formats of lookup and "
            "passkey; five other formats are checked only.",
            metavar="NAME",
        ),
    ] = None,
    guard: Annotated[
        Path | None,
        typer.Option(
            help="Text file that the model must still predict as before. Default: texts that come "
            "with sharpmax.",
            metavar="FILE",
        ),
    ] = None,
    guard_weight: Annotated[
        float | None,
        typer.Option(
            help="Weight of that text in the loss. More costs less elsewhere and gains less.",
            metavar="X",
        ),
    ] = None,
    max_text_cost: Annotated[
        float | None,
        typer.Option(
            help="Scale all rates down until ordinary text costs at most this share more nats per "
            "token. Default: 0.004.",
            metavar="X",
            min=0,
        ),
    ] = None,
    from_tokens: Annotated[
        int | None,
        typer.Option(
            help="Change nothing for inputs up to this length.",
            metavar="N",
            min=1,
            max=MAX_LENGTH,
        ),
    ] = None,
    max_heads: Annotated[
        int | None,
        typer.Option(help="Keep only the N heads that matter most.", metavar="N", min=1),
    ] = None,
    steps: TuningSteps = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Learning rate, which falls to 0.", metavar="X")
    ] = None,
    check_prompts: CheckPrompts = 3,
    save_memory: Annotated[
        bool,
        typer.Option(
            "--save-memory",
            help="Compute activations again instead of keeping them. Slower; for large models.",
        ),
    ] = False,
    seed: Annotated[
        int, typer.Option(help="Seed for the prompts. Evaluate with another.", metavar="N", min=0)
    ] = 1,
    device: Device = "auto",
    device_map: DeviceMap = None,
    max_memory: MaxMemory = None,
    tensor_parallel: TensorParallel = False,
    dtype: Dtype = "auto",
    out: Out = Path("tune"),
    overwrite: Overwrite = False,
    allow_pickle: AllowPickle = False,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Learn how much each head of a model should sharpen with length.

    The weights stay as they are: one number per head is learned from questions with known answers.
    Prints answers before and after, on fresh prompts and formats that were not tuned on. Writes the
    calibration, a small JSON file, and a report. Interrupted tunings resume when you run the same
    command again.
    """
    path, page = out / "tuned.json", out / "tuned.html"
    with claim_files([path, page], overwrite) as claim:
        # Imported late so that `sharpmax --help` does not wait for a framework.
        from sharpmax import hf, report
        from sharpmax.hf.evaluate.resolve import resolve_task
        from sharpmax.hf.evaluate.tasks import TUNING_TASKS

        for name in task or ():
            resolve_task(name)
        given = {
            "guard_weight": guard_weight,
            "max_text_cost": max_text_cost,
            "from_tokens": from_tokens,
            "steps": steps,
            "learning_rate": learning_rate,
        }
        options = {option: value for option, value in given.items() if value is not None}
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
        with tuning_progress() as progress:
            calibration = hf.tune(
                loaded.model,
                loaded.tokenizer,
                task or TUNING_TASKS,
                guard=guard,
                max_heads=max_heads,
                check_prompts=check_prompts,
                save_memory=save_memory,
                seed=seed,
                name=loaded.name,
                resume=checkpoint,
                progress=progress,
                **options,  # type: ignore[arg-type]
            )
        if not is_first_process():
            return
        with claim.writing():
            written = [
                calibration.save(path, overwrite=claim.overwrite),
                report.write([calibration], page, names=[path.name], overwrite=claim.overwrite),
            ]
            hf.forget(checkpoint)
        report.show(calibration)
        print_written(written)
        print_status(f"Next: sharpmax evaluate {model} --policy {path}")
