"""`sharpmax calibrate`: choose which heads of a model to sharpen, and how much."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from sharpmax._files import refuse_overwriting
from sharpmax.cli.formats import new_table
from sharpmax.cli.options import (
    AllowPickle,
    Device,
    Dtype,
    Model,
    Out,
    Overwrite,
    Task,
    TrustRemoteCode,
    load_model,
    parse_range_option,
)
from sharpmax.cli.output import print_written
from sharpmax.cli.progress import progress_bar

if TYPE_CHECKING:
    from sharpmax.hf import Calibration


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
    refuse_overwriting([path], overwrite)
    # Imported late so that `sharpmax --help` does not wait for a framework.
    from sharpmax.hf import calibrate, forget

    lengths = {
        "short": parse_range_option("--short", short),
        "long": parse_range_option("--long", long),
    }
    loaded = load_model(
        model,
        device=device,
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
    written = calibration.save(path, overwrite=overwrite)
    forget(checkpoint)
    Console(highlight=False).print(table(calibration))
    print_written([written])


def table(calibration: Calibration) -> Table:
    """Return a table with one row per sharpened head."""
    heads = sum(calibration.architecture.heads)
    start = f"{calibration.from_tokens:,}"
    sharpened = new_table(
        f"{calibration.model}\n{len(calibration.heads)} of {heads} heads are sharpened beyond "
        f"{start} tokens, by 1 + rate log(n / {start})"
    )
    headings = ["layer", "head", "rate", "entropy, short", "long"]
    if any(head.benefit is not None for head in calibration.heads):
        headings.append("benefit")
    for heading in headings:
        sharpened.add_column(heading, justify="right", no_wrap=True)
    for head in calibration.heads:
        cells = [str(head.layer), str(head.head), f"{head.rate:.3g}"]
        cells += [f"{head.short_entropy:.2f}", f"{head.long_entropy:.2f}"]
        if head.benefit is not None and head.benefit_error is not None:
            cells.append(f"{head.benefit:.2f} ± {head.benefit_error:.2f}")
        sharpened.add_row(*cells)
    return sharpened
