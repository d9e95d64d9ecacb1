"""`sharpmax scan`: how dispersed is each head of this model, and which heads disperse."""

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
    numbers,
)
from sharpmax.cli.policies import LISTING, policy_named
from sharpmax.cli.progress import bar

if TYPE_CHECKING:
    from sharpmax.hf import Scan
    from sharpmax.hf.loading.loader import Loaded

PART = "scan.part.json"
"""What a scan that was stopped leaves in its folder."""

STEEPEST = 8
"""Heads that the second table names."""


def scan(
    model: Model = "smollm2",
    prompt: Annotated[
        str,
        typer.Option(
            help="max: the paper's Figure 3, lengths count numbers; text: the beginning of --text; "
            "passkey: a number hidden in filler.",
            metavar="max|text|passkey",
        ),
    ] = "max",
    text: Annotated[
        Path | None, typer.Option(help="File for --prompt text.", show_default=False)
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            help="Such as 64,128,256. Default: 8 to 512 numbers, or 64 to 4096 tokens, in "
            "doublings as far as they fit.",
            show_default=False,
        ),
    ] = None,
    layers: Annotated[
        str | None, typer.Option(help="Only these, such as 0,4-7.", show_default=False)
    ] = None,
    heads: Annotated[
        str | None, typer.Option(help="Only these, such as 0-3.", show_default=False)
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(help=f"Measure the model sharpened. {LISTING}.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the random numbers in the prompt.", min=0)] = 0,
    device: Device = "auto",
    dtype: Dtype = "auto",
    out: Out = Path("scan"),
    overwrite: Overwrite = False,
    allow_pickle: AllowPickle = False,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Measure how far each attention head spreads as the input grows: a table, scan.json, a picture
    and an HTML report. A scan that was stopped goes on where it was if the command is repeated.
    """
    refuse_overwriting(files_of(out), overwrite)
    asked = {
        "lengths": None if lengths is None else numbers("--lengths", lengths),
        "layers": None if layers is None else numbers("--layers", layers),
        "heads": None if heads is None else numbers("--heads", heads),
        "policy": None if policy is None else policy_named(policy),
    }
    # Imported late: `sharpmax --help` should not wait for a framework.
    from sharpmax.hf.loading.loader import load

    loaded = load(
        model,
        device=device,
        dtype=dtype,
        allow_pickle=allow_pickle,
        trust_remote_code=trust_remote_code,
        report=say,
    )
    result = scan_with_bar(loaded, out, prompt, text=text, seed=seed, **asked)
    written = write_all(result, out, overwrite)
    print_tables(result)
    typer.echo("Written: " + ", ".join(map(str, written)))


def files_of(out: Path) -> list[Path]:
    """What a scan writes."""
    return [out / f"scan.{suffix}" for suffix in ("json", "png", "svg", "html")]


def say(line: str) -> None:
    typer.echo(line, err=True)


def scan_with_bar(loaded: Loaded, out: Path, prompt: str, **asked: object) -> Scan:
    """Scan with a bar and an estimate on standard error, resuming what was left in the folder."""
    from sharpmax import hf
    from sharpmax.hf.model_info import is_encoder_decoder

    subject = loaded.model
    if is_encoder_decoder(subject):
        say(f"{loaded.name} is an encoder-decoder: its encoder is scanned")
        subject = subject.get_encoder()
    with bar("scanning") as progress:
        return hf.scan(
            subject,
            loaded.tokenizer,
            prompt=prompt,
            name=loaded.name,
            notes=loaded.notes,
            resume=out / PART,
            progress=progress,
            **asked,  # type: ignore[arg-type]
        )


def write_all(result: Scan, out: Path, overwrite: bool) -> list[Path]:
    """The result, its picture and its report."""
    from sharpmax import hf, plot, report
    from sharpmax.plot import style

    json_file, _, _, html_file = files_of(out)
    written = [result.save(json_file, overwrite=overwrite)]
    hf.forget(out / PART)
    written += style.save(plot.draw(result), out / "scan", overwrite=overwrite)
    return [*written, report.write([result], html_file, overwrite=overwrite)]


def print_tables(result: Scan) -> None:
    """The lengths, what the report says of them, and the heads that disperse most."""
    from sharpmax.report import reading, summary

    console = Console(highlight=False)
    console.print(lengths_table(result))
    for sentence in summary.sentences(reading.read(result)):
        console.print(sentence)
    console.print()
    console.print(heads_table(result))


def lengths_table(result: Scan) -> Table:
    """A line a length: means over all measured heads, at the last token."""
    title = f"{result.config['model']}\nMeans over all heads, at the last token"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    headings = (result.config["unit"], "tokens", "entropy", "of log n", "effective", "largest")
    for heading in (*dict.fromkeys(headings), "sink", "spread"):
        table.add_column(heading, justify="right", no_wrap=True)
    for place, (length, tokens) in enumerate(zip(result.lengths, result.tokens, strict=True)):
        same = result.config["unit"] == "tokens"
        table.add_row(
            *([] if same else [f"{length:,}"]),
            f"{tokens:,}",
            f"{np.nanmean(result.entropy[place]):.2f}",
            f"{np.nanmean(result.normalised_entropy[place]):.2f}",
            f"{np.nanmean(result.effective_tokens[place]):,.1f}",
            f"{np.nanmean(result.max_weight[place]):.3f}",
            f"{np.nanmean(result.sink[place]):.3f}",
            f"{np.nanmean(result.spread[place]):.1f}",
        )
    return table


def heads_table(result: Scan) -> Table:
    """The steepest heads: from the shortest to the longest input."""
    table = Table(title="The steepest heads", title_justify="left", box=box.SIMPLE_HEAD)
    for heading in ("layer", "head", "slope", "entropy", "effective", "largest weight", "label"):
        table.add_column(heading, justify="left" if heading == "label" else "right", no_wrap=True)
    slopes = np.where(np.isnan(result.slopes), -np.inf, result.slopes)
    order = np.argsort(-slopes, axis=None, kind="stable")[:STEEPEST]
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
