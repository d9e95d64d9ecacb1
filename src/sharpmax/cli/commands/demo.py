"""`sharpmax demo`: scan a real model, print its tables, draw Figure 3 and write the report."""

from __future__ import annotations

from pathlib import Path

import typer

from sharpmax._files import refuse_overwriting
from sharpmax.cli.commands import scan
from sharpmax.cli.commands.reproduce import run_experiment
from sharpmax.cli.options import Out, Overwrite, load_model
from sharpmax.cli.output import print_written, result_files


def demo(out: Out = Path("demo"), overwrite: Overwrite = False) -> None:
    """Scan SmolLM2, a small language model, as a first example.

    Prints which heads spread over more tokens as the prompt grows, and writes an HTML report and
    the paper's Figure 3 for this model.
    """
    refuse_overwriting([*scan.scan_files(out), *result_files(out / "figure3")], overwrite)
    # Imported late so that `sharpmax --help` does not wait for it.
    from sharpmax import report

    result = scan.run_scan(load_model("smollm2"), out, "max")
    written = scan.save_scan(result, out, overwrite)
    report.show(result)
    figure, figure_files = run_experiment("figure3", out, overwrite)
    entropies = " ".join(f"{nats:.2f}" for nats in figure.measurements["mean_entropy"])
    lengths = " ".join(map(str, figure.config["lengths"]))
    typer.echo(
        "effective: the number of tokens that a head spreads over, exp(entropy).\n"
        "largest: its largest weight. sink: the weight of the first token.\n"
        "slope: the growth of entropy, as above.\n"
        "In the first block most heads spread over everything, as in the paper's Figure 3:\n"
        f"mean entropy {entropies} nats with {lengths} numbers.\n"
    )
    print_written([*written, *figure_files])
    typer.echo(f"Open {out / 'scan.html'} in a browser.")
