"""`sharpmax clrs evaluate`: what each arm knows, at sizes trained at and beyond."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sharpmax._files import refuse_overwriting
from sharpmax.cli.clrs_options import DATA, Algorithm, Limit, Sizes
from sharpmax.cli.options import Device, Overwrite, numbers
from sharpmax.cli.progress import bars
from sharpmax.cli.reproduce import files_of, show


def evaluate(
    data: Annotated[str, typer.Argument(help=DATA.format("test"), metavar="DATA")],
    trained: Annotated[
        Path, typer.Option("--trained", help="The folder that train wrote into.")
    ] = Path("clrs-models"),
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write figure8 into.")] = Path(
        "results"
    ),
    arm: Annotated[
        list[str] | None,
        typer.Option(
            help="softmax, adaptive (trained and tested), inference (adaptive when tested only) or "
            "calibrated (a few heads, chosen by --calibration). Repeat for several. Default: all, "
            "calibrated only with --calibration.",
            show_default=False,
        ),
    ] = None,
    calibration: Annotated[
        str | None,
        typer.Option(
            help="A folder of test data with other seeds, at sizes trained at and beyond.",
            metavar="DATA",
            show_default=False,
        ),
    ] = None,
    algorithm: Algorithm = None,
    sizes: Sizes = None,
    samples: Limit = None,
    batch: Annotated[int, typer.Option(help="Questions at a time.", min=1)] = 64,
    device: Device = "auto",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, float16 or auto.")] = "float32",
    threads: Annotated[
        int | None, typer.Option(help="On a CPU. Default: as torch has it.", min=1)
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Exact match of every arm by algorithm and size, and the heads' entropy: figure8.

    Writes figure8.json, .png and .svg. What is finished is kept with the trained models: repeat a
    command that was stopped, and it goes on.
    """
    stem = out / "figure8"
    refuse_overwriting(files_of(stem), overwrite)
    import torch

    from sharpmax import plot
    from sharpmax.experiments.clrs_text import evaluate as evaluating
    from sharpmax.experiments.clrs_text.conditions import CONDITIONS, UNCALIBRATED
    from sharpmax.plot import style

    if threads is not None:
        torch.set_num_threads(threads)
    config = evaluating.Config(
        data,
        str(trained),
        calibration,
        conditions=tuple(arm or (CONDITIONS if calibration else UNCALIBRATED)),
        algorithms=tuple(algorithm or ()),
        sizes=() if sizes is None else tuple(numbers("--sizes", sizes)),
        samples=samples,
        batch=batch,
        device=device,
        dtype=dtype,
    )
    with bars("arms") as progress:
        result = evaluating.run(config, progress=progress)
    written = [result.save(stem.with_suffix(".json"), overwrite=overwrite)]
    show(result, written + style.save(plot.draw(result), stem, overwrite=overwrite))
