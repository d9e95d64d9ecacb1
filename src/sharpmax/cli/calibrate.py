"""`sharpmax calibrate`: which heads of this model to sharpen, and how much."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from sharpmax._files import refuse_overwriting
from sharpmax.cli.evaluate import TASK_HELP
from sharpmax.cli.formats import new_table
from sharpmax.cli.options import (
    AllowPickle,
    Device,
    Dtype,
    Model,
    Out,
    Overwrite,
    TrustRemoteCode,
    numbers,
)
from sharpmax.cli.progress import bar
from sharpmax.cli.scan import say

if TYPE_CHECKING:
    from sharpmax.hf import Calibration


def calibrate(
    model: Model = "smollm2",
    task: Annotated[str, typer.Option(help=TASK_HELP, metavar="lookup|passkey|max")] = "lookup",
    choose: Annotated[
        str,
        typer.Option(
            help="answers: heads whose sharpening makes the right answers to short texts more "
            "probable; entropy: heads that are sharp there and have dispersed on long texts.",
            metavar="answers|entropy",
        ),
    ] = "answers",
    short: Annotated[
        str | None,
        typer.Option(help="Lengths that the model answers well, such as 4,8.", show_default=False),
    ] = None,
    long: Annotated[
        str | None, typer.Option(help="Lengths to sharpen for, such as 32.", show_default=False)
    ] = None,
    prompts: Annotated[int, typer.Option(help="Texts of each length.", min=1)] = 16,
    questions: Annotated[
        int | None, typer.Option(help="Questions about each text. Default: 4 for lookup.", min=1)
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the texts; evaluate with another one.", min=0)] = 1,
    device: Device = "auto",
    dtype: Dtype = "auto",
    out: Out = Path("calibrate"),
    overwrite: Overwrite = False,
    allow_pickle: AllowPickle = False,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Find the few heads of a model that are worth sharpening, and how much: a readable file for
    `sharpmax evaluate --policy` and `sharpmax.hf.sharpen`. Interrupted calibrations resume when you
    run the same command again.
    """
    path = out / f"calibration-{choose}.json"
    refuse_overwriting([path], overwrite)
    # Imported late: `sharpmax --help` should not wait for a framework.
    from sharpmax.hf import calibrate, forget, load

    wanted = {
        "short": None if short is None else numbers("--short", short),
        "long": None if long is None else numbers("--long", long),
    }
    loaded = load(
        model,
        device=device,
        dtype=dtype,
        allow_pickle=allow_pickle,
        trust_remote_code=trust_remote_code,
        report=say,
    )
    checkpoint = path.with_suffix(".part.json")
    with bar("calibrating") as progress:
        found = calibrate(
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
            **wanted,
        )
    written = found.save(path, overwrite=overwrite)
    forget(checkpoint)
    Console(highlight=False).print(table(found))
    typer.echo(f"Written: {written}")


def table(found: Calibration) -> Table:
    """A line a head."""
    of = sum(found.architecture.heads)
    made = new_table(
        f"{found.model}\n{len(found.heads)} of {of} heads are sharpened beyond "
        f"{found.from_tokens:,} tokens, by 1 + rate log(n / {found.from_tokens:,})"
    )
    answered = any(one.benefit is not None for one in found.heads)
    headings = (
        "layer",
        "head",
        "rate",
        "entropy, short",
        "long",
        *(["benefit"] if answered else []),
    )
    for heading in headings:
        made.add_column(heading, justify="right", no_wrap=True)
    for one in found.heads:
        cells = [str(one.layer), str(one.head), f"{one.rate:.3g}"]
        cells += [f"{one.short_entropy:.2f}", f"{one.long_entropy:.2f}"]
        if one.benefit is not None and one.benefit_error is not None:
            cells.append(f"{one.benefit:.2f} ± {one.benefit_error:.2f}")
        made.add_row(*cells)
    return made
