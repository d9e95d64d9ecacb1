"""`sharpmax scan`: measure how far each head of a model spreads as its input grows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from sharpmax._files import refuse_overwriting
from sharpmax.cli.options import (
    AllowPickle,
    Device,
    Dtype,
    Model,
    Out,
    Overwrite,
    TrustRemoteCode,
    load_model,
    parse_range_option,
)
from sharpmax.cli.output import print_written, result_files, save_result
from sharpmax.cli.progress import print_status, progress_bar
from sharpmax.policy_names import POLICY_HELP, parse_policy

if TYPE_CHECKING:
    from sharpmax.hf import Scan
    from sharpmax.hf.loading.loader import Loaded

CHECKPOINT = "scan.part.json"
"""File in the output folder that an interrupted scan resumes from."""

STEEPEST_HEADS = 8
"""Number of heads in the second table."""


def scan(
    model: Model = "smollm2",
    prompt: Annotated[
        str,
        typer.Option(
            help="max: the prompt of the paper's Figure 3, a list of numbers. text: the beginning "
            "of the file --text. passkey: a number hidden in filler text.",
            metavar="NAME",
        ),
    ] = "max",
    text: Annotated[
        Path | None, typer.Option(help="Text file for --prompt text.", metavar="FILE")
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            help="Input lengths, such as 64,128,256: numbers for --prompt max, tokens otherwise. "
            "Default: 8 to 512 numbers or 64 to 4096 tokens, as far as they fit the model.",
            metavar="LIST",
        ),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(help="Layers to measure, such as 0,4-7. Default: all.", metavar="LIST"),
    ] = None,
    heads: Annotated[
        str | None,
        typer.Option(
            help="Heads to measure in each layer, such as 0-3. Default: all.", metavar="LIST"
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help=f"Measure the model while this policy sharpens it: {POLICY_HELP}.",
            metavar="POLICY",
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Seed for the random numbers in the prompt.", metavar="N", min=0)
    ] = 0,
    device: Device = "auto",
    dtype: Dtype = "auto",
    out: Out = Path("scan"),
    overwrite: Overwrite = False,
    allow_pickle: AllowPickle = False,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Find the heads of a model that spread as inputs grow.

    Runs the model on prompts of growing length and measures every attention head. Prints two
    tables and writes scan.json, a picture and an HTML report. Interrupted scans resume when you
    run the same command again.
    """
    refuse_overwriting(scan_files(out), overwrite)
    selection = {
        "lengths": parse_range_option("--lengths", lengths),
        "layers": parse_range_option("--layers", layers),
        "heads": parse_range_option("--heads", heads),
        "policy": None if policy is None else parse_policy(policy),
    }
    loaded = load_model(
        model,
        device=device,
        dtype=dtype,
        allow_pickle=allow_pickle,
        trust_remote_code=trust_remote_code,
    )
    result = run_scan(loaded, out, prompt, text=text, seed=seed, **selection)
    written = save_scan(result, out, overwrite)
    print_tables(result)
    print_written(written)


def scan_files(out: Path) -> list[Path]:
    """Return the files that a scan writes into a folder."""
    return [*result_files(out / "scan"), out / "scan.html"]


def run_scan(loaded: Loaded, out: Path, prompt: str, **options: object) -> Scan:
    """Scan a model with a progress bar, resuming from a checkpoint in the output folder.

    `options` are passed to `sharpmax.hf.scan`.
    """
    from sharpmax import hf
    from sharpmax.hf.model_info import is_encoder_decoder

    model = loaded.model
    if is_encoder_decoder(model):
        print_status(f"{loaded.name} is an encoder-decoder: scanning its encoder")
        model = model.get_encoder()
    with progress_bar("scanning") as progress:
        return hf.scan(
            model,
            loaded.tokenizer,
            prompt=prompt,
            name=loaded.name,
            notes=loaded.notes,
            resume=out / CHECKPOINT,
            progress=progress,
            **options,  # type: ignore[arg-type]
        )


def save_scan(result: Scan, out: Path, overwrite: bool) -> list[Path]:
    """Write the result, its picture and its report, then delete the checkpoint."""
    from sharpmax import hf, report

    written = save_result(result, out / "scan", overwrite)
    written.append(report.write([result], out / "scan.html", overwrite=overwrite))
    hf.forget(out / CHECKPOINT)
    return written


def print_tables(result: Scan) -> None:
    """Print one table of lengths, the summary of the report, and one table of heads."""
    from sharpmax.report import reading, summary

    console = Console(highlight=False)
    console.print(lengths_table(result))
    for sentence in summary.sentences(reading.read(result)):
        console.print(sentence)
    console.print()
    console.print(heads_table(result))


def lengths_table(result: Scan) -> Table:
    """Return a table with one row per length: means over all heads, at the last token."""
    title = f"{result.config['model']}\nMeans over all heads, at the last token"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    headings = (result.config["unit"], "tokens", "entropy", "of log n", "effective", "largest")
    for heading in (*dict.fromkeys(headings), "sink", "spread"):
        table.add_column(heading, justify="right", no_wrap=True)
    for index, (length, tokens) in enumerate(zip(result.lengths, result.tokens, strict=True)):
        table.add_row(
            *([] if result.config["unit"] == "tokens" else [f"{length:,}"]),
            f"{tokens:,}",
            f"{np.nanmean(result.entropy[index]):.2f}",
            f"{np.nanmean(result.normalised_entropy[index]):.2f}",
            f"{np.nanmean(result.effective_tokens[index]):,.1f}",
            f"{np.nanmean(result.max_weight[index]):.3f}",
            f"{np.nanmean(result.sink[index]):.3f}",
            f"{np.nanmean(result.spread[index]):.1f}",
        )
    return table


def heads_table(result: Scan) -> Table:
    """Return a table of the heads whose entropy grows fastest, at both ends of the lengths."""
    table = Table(title="The steepest heads", title_justify="left", box=box.SIMPLE_HEAD)
    for heading in ("layer", "head", "slope", "entropy", "effective", "largest weight", "label"):
        table.add_column(heading, justify="left" if heading == "label" else "right", no_wrap=True)
    slopes = np.where(np.isnan(result.slopes), -np.inf, result.slopes)
    order = np.argsort(-slopes, axis=None, kind="stable")[:STEEPEST_HEADS]
    for row, column in zip(*np.unravel_index(order, slopes.shape), strict=True):
        ends = [
            (array[0, row, column], array[-1, row, column])
            for array in (result.entropy, result.effective_tokens, result.max_weight)
        ]
        table.add_row(
            str(result.measurements["layers"][row]["index"]),
            str(result.measurements["heads"][column]),
            f"{result.slopes[row, column]:.2f}",
            "{:.2f} → {:.2f}".format(*ends[0]),
            "{:,.0f} → {:,.0f}".format(*ends[1]),
            "{:.3f} → {:.3f}".format(*ends[2]),
            result.labels[row][column],
        )
    return table
