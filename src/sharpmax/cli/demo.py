"""`sharpmax demo`: the main job on a real model: scan it, print the table, draw figure 3, write the
report.
"""

from __future__ import annotations

from pathlib import Path

import typer

from sharpmax._files import refuse_overwriting
from sharpmax.cli import scan
from sharpmax.cli.options import Out, Overwrite
from sharpmax.cli.reproduce import files_of, run_and_draw


def demo(out: Out = Path("demo"), overwrite: Overwrite = False) -> None:
    """Scan SmolLM2, a real language model, on the prompt of the paper's Figure 3."""
    refuse_overwriting([*scan.files_of(out), *files_of(out / "figure3")], overwrite)
    from sharpmax import report
    from sharpmax.hf.loading.loader import load

    loaded = load(report=scan.say)
    result = scan.scan_with_bar(loaded, out, "max")
    written = scan.write_all(result, out, overwrite)
    report.show(result)
    figure, files = run_and_draw("figure3", out, overwrite)
    typer.echo(
        "Effective: exp(entropy), over how many tokens a head is spread. Largest: its largest\n"
        "weight. Sink: the weight of the first token. Slope: the growth of entropy, as above.\n"
        "Most heads of the first block spread over everything, as in the paper's Figure 3.\n"
        + "First block, mean entropy: "
        + " ".join(f"{nats:.2f}" for nats in figure.measurements["mean_entropy"])
        + " nats at "
        + " ".join(map(str, figure.config["lengths"]))
        + " numbers.\n"
    )
    typer.echo("Written: " + ", ".join(str(path) for path in [*written, *files]))
    typer.echo(f"Open {out / 'scan.html'} in a browser.")
