"""`sharpmax clrs evaluate`: test trained models at the sizes of training and beyond."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sharpmax.cli.commands.clrs.options import Algorithm, Sizes, TestData
from sharpmax.cli.options import Device, Overwrite, Threads, parse_range_option
from sharpmax.cli.output import claim_files, print_result, result_files, save_result
from sharpmax.cli.progress import job_progress


def evaluate(
    data: TestData,
    trained: Annotated[
        Path,
        typer.Option(
            "--trained", help="Folder written by `sharpmax clrs train`.", metavar="FOLDER"
        ),
    ] = Path("clrs-models"),
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Write figure8 into this folder.", metavar="FOLDER")
    ] = Path("results"),
    conditions: Annotated[
        list[str] | None,
        typer.Option(
            "--condition",
            "--arm",
            help="softmax. adaptive: adaptive temperature in training and testing. inference: "
            "adaptive temperature in testing only. calibrated: some heads only, chosen with "
            "--calibration. Repeat for several. Default: all, calibrated only with --calibration.",
            metavar="NAME",
        ),
    ] = None,
    calibration: Annotated[
        str | None,
        typer.Option(
            help="Folder of test data with other seeds, at sizes of training and larger ones.",
            metavar="DATA",
        ),
    ] = None,
    algorithm: Algorithm = None,
    sizes: Sizes = None,
    samples: Annotated[
        int | None,
        typer.Option(
            help="Maximum number of samples per algorithm, size and seed.", metavar="N", min=1
        ),
    ] = None,
    batch: Annotated[int, typer.Option(help="Questions per batch.", metavar="N", min=1)] = 64,
    device: Device = "auto",
    dtype: Annotated[
        str, typer.Option(help="float32, bfloat16, float16 or auto.", metavar="NAME")
    ] = "float32",
    threads: Threads = None,
    overwrite: Overwrite = False,
) -> None:
    """Measure exact match by algorithm and size (Figure 8).

    Writes figure8.json, .png and .svg, with the entropy of the heads. Finished parts are kept with
    the trained models: interrupted runs resume when you run the same command again.
    """
    stem = out / "figure8"
    with claim_files(result_files(stem), overwrite) as claim:
        import torch

        from sharpmax.experiments.clrs_text import evaluate as evaluation
        from sharpmax.experiments.clrs_text.conditions import CONDITIONS, UNCALIBRATED

        if threads is not None:
            torch.set_num_threads(threads)
        config = evaluation.Config(
            data,
            str(trained),
            calibration,
            conditions=tuple(conditions or (CONDITIONS if calibration else UNCALIBRATED)),
            algorithms=tuple(algorithm or ()),
            sizes=tuple(parse_range_option("--sizes", sizes) or ()),
            samples=samples,
            batch=batch,
            device=device,
            dtype=dtype,
        )
        with job_progress("conditions") as progress:
            result = evaluation.run(config, progress=progress)
        with claim.writing():
            written = save_result(result, stem, claim.overwrite)
        print_result(result, written)
