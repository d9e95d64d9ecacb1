"""`sharpmax certify`: bound from the weights how sharp each head of a model can be."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from sharpmax._errors import UserError
from sharpmax._files import refuse_overwriting
from sharpmax.cli.options import AllowPickle, Model, Out, Overwrite, TrustRemoteCode, load_model
from sharpmax.cli.output import print_written, result_files, save_result
from sharpmax.cli.progress import print_status
from sharpmax.results import Result

if TYPE_CHECKING:
    from sharpmax.hf import Certificate, Scan


def certify(
    model: Model = "smollm2",
    scan: Annotated[
        Path | None,
        typer.Option(
            help="A scan.json of the same model, to show the measured spread beside the bound.",
            metavar="FILE",
        ),
    ] = None,
    out: Out = Path("certify"),
    overwrite: Overwrite = False,
    allow_pickle: AllowPickle = False,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Compute from the weights when each head must disperse.

    Bounds the spread of every head's logits for all inputs. Prints from how many tokens on no
    weight can reach 10 % or more, and writes certify.json and a picture.
    """
    stem = out / "certify"
    refuse_overwriting(result_files(stem), overwrite)
    # Imported late so that `sharpmax --help` does not wait for a framework.
    from sharpmax import hf
    from sharpmax.hf.model_info import is_encoder_decoder

    measured = None if scan is None else _load_scan(scan)
    loaded = load_model(
        model, device="cpu", allow_pickle=allow_pickle, trust_remote_code=trust_remote_code
    )
    certified = loaded.model
    if is_encoder_decoder(certified):
        print_status(f"{loaded.name} is an encoder-decoder: certifying its encoder")
        certified = certified.get_encoder()
    result = hf.certify(certified, scan=measured, name=loaded.name, notes=loaded.notes)
    written = save_result(result, stem, overwrite)
    print_table(result)
    print_written(written)


def _load_scan(path: Path) -> Scan:
    """Load a scan, and refuse results of any other kind."""
    from sharpmax.hf import Scan

    kind = Result.load(path).kind
    if kind != "scan":
        raise UserError(f"--scan {path} is a result of kind {kind!r}: expected a scan")
    return Scan.load(path)


def print_table(result: Certificate) -> None:
    """Print one row per layer, and what the bounds mean within the model's context."""
    title = "Spread of logits that the weights allow; tokens beyond which all weights are below"
    table = Table(
        title=f"{result.config['model']}\n{title}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
    )
    has_scan = result.measured_spread is not None
    epsilons = result.config["epsilons"]
    headings = ["layer", "smallest", "median", "largest", *(["measured"] if has_scan else [])]
    for heading in (*headings, *(f"{epsilon:.0%}" for epsilon in epsilons)):
        table.add_column(heading, justify="right", no_wrap=True)
    for layer in result.measurements["layers"]:
        spreads = [layer["smallest"], layer["median"], layer["largest"]]
        if has_scan:
            spreads.append(layer.get("measured"))
        table.add_row(
            str(layer["index"]),
            *("-" if spread is None else format_spread(spread) for spread in spreads),
            *(format_power(layer["log10_items"][str(epsilon)]) for epsilon in epsilons),
        )
    console = Console(highlight=False)
    console.print(table)
    console.print(sentence(result))


def format_spread(spread: float) -> str:
    return f"{spread:,.1f}" if spread < 100 else f"{spread:,.0f}"


def format_power(logarithm: float) -> str:
    """Format a number of tokens given as its decimal logarithm: `1,337`, or `10^30` if large."""
    return f"{round(10**logarithm):,}" if logarithm < 7 else f"10^{logarithm:.0f}"


def sentence(result: Certificate) -> str:
    """Say how many heads must disperse within the model's context."""
    context, heads = result.config["context"], result.spread_bound.size
    least = format_power(float(result.log10_items(0.1).min()))
    first = f"From {least} tokens on, the first of {heads} heads cannot give 10 % to any token"
    if context is None:
        return f"{first}."
    within = int(np.sum(result.items_until_dispersed(0.1) <= context))
    return f"{first}; within the context of {context:,} tokens this holds for {within} heads."
