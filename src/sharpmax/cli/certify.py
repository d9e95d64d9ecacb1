"""`sharpmax certify`: how sharp can each head of this model ever be, by its weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from sharpmax._errors import UserError
from sharpmax._files import refuse_overwriting
from sharpmax.cli.options import AllowPickle, Model, Out, Overwrite, TrustRemoteCode
from sharpmax.cli.scan import say

if TYPE_CHECKING:
    from sharpmax.hf import Certificate


def certify(
    model: Model = "smollm2",
    scan: Annotated[
        Path | None,
        typer.Option(
            help="A scan.json of the same model: its spread beside the bound.", show_default=False
        ),
    ] = None,
    out: Out = Path("certify"),
    overwrite: Overwrite = False,
    allow_pickle: AllowPickle = False,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Bound the spread of every head's logits for all inputs, from the weights alone, and say from
    how many tokens on it must disperse: a table, certify.json and a picture.
    """
    refuse_overwriting(files_of(out), overwrite)
    # Imported late: `sharpmax --help` should not wait for a framework.
    from sharpmax import hf, plot
    from sharpmax.hf.model_info import is_encoder_decoder
    from sharpmax.plot import style

    measured = None if scan is None else _scan_in(scan)
    loaded = hf.load(
        model,
        device="cpu",
        allow_pickle=allow_pickle,
        trust_remote_code=trust_remote_code,
        report=say,
    )
    subject = loaded.model
    if is_encoder_decoder(subject):
        say(f"{loaded.name} is an encoder-decoder: its encoder is certified")
        subject = subject.get_encoder()
    result = hf.certify(subject, scan=measured, name=loaded.name, notes=loaded.notes)
    written = [result.save(files_of(out)[0], overwrite=overwrite)]
    written += style.save(plot.draw(result), out / "certify", overwrite=overwrite)
    print_table(result)
    typer.echo("Written: " + ", ".join(map(str, written)))


def files_of(out: Path) -> list[Path]:
    """What it writes."""
    return [out / f"certify.{suffix}" for suffix in ("json", "png", "svg")]


def _scan_in(path: Path) -> Any:
    """The scan in a file; another kind of result is refused."""
    from sharpmax.hf import Scan
    from sharpmax.results import Result

    kind = Result.load(path).kind
    if kind != "scan":
        raise UserError(f"--scan {path} is a result of kind {kind!r}, not a scan")
    return Scan.load(path)


def print_table(result: Certificate) -> None:
    """A line a layer, then what it means within the model's context."""
    console = Console(highlight=False)
    title = "The spread of logits that the weights allow; tokens from which on all are below"
    table = Table(
        title=f"{result.config['model']}\n{title}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
    )
    measured = result.measured_spread is not None
    epsilons = result.config["epsilons"]
    headings = ["layer", "smallest", "median", "largest", *(["measured"] if measured else [])]
    for heading in (*headings, *(f"{epsilon:.0%}" for epsilon in epsilons)):
        table.add_column(heading, justify="right", no_wrap=True)
    for layer in result.measurements["layers"]:
        seen = layer.get("measured")
        table.add_row(
            str(layer["index"]),
            *(size(layer[part]) for part in ("smallest", "median", "largest")),
            *(["-" if seen is None else size(seen)] if measured else []),
            *(power(layer["log10_items"][str(epsilon)]) for epsilon in epsilons),
        )
    console.print(table)
    console.print(sentence(result))


def size(spread: float) -> str:
    return f"{spread:,.1f}" if spread < 100 else f"{spread:,.0f}"


def power(logarithm: float) -> str:
    """A number of tokens by its decimal logarithm, as a number while it is one to read."""
    return f"{round(10**logarithm):,}" if logarithm < 7 else f"10^{logarithm:.0f}"


def sentence(result: Certificate) -> str:
    """How many heads the certificate says anything about within the context."""
    context, heads = result.config["context"], result.spread_bound.size
    least = power(float(result.log10_items(0.1).min()))
    first = f"From {least} tokens on the first of {heads} heads cannot give any token 10 %"
    if context is None:
        return f"{first}."
    within = int(np.sum(result.items_until_dispersed(0.1) <= context))
    return f"{first}; within the context of {context:,} tokens that is so for {within} of them."
