"""`sharpmax demo`: what this is about, in one table and two pictures."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from sharpmax._files import refuse_overwriting
from sharpmax.cli.options import Out, Overwrite
from sharpmax.cli.reproduce import files_of, run_and_draw
from sharpmax.results import Result

PICTURES = ("figure1", "figure5")


def demo(out: Out = Path("demo"), overwrite: Overwrite = False) -> None:
    """Show dispersion: a table of the same logits growing, and the pictures of figures 1 and 5."""
    from sharpmax.experiments import growth

    target = out / "growth.json"
    pictures = [path for name in PICTURES for path in files_of(name, out)]
    refuse_overwriting([target, *pictures], overwrite)
    result = growth.run()
    written = [result.save(target, overwrite=overwrite)]
    Console().print(growth_table(result))
    typer.echo(
        "Sharpened: the factor on the logits. Largest: the largest weight. Bound: the most that\n"
        "any logits of this spread, so sharpened, could give one item. Effective: exp(entropy).\n"
        "Softmax sinks towards 1/n, however sharp it was in training. The paper's adaptive\n"
        "temperature holds out longer, then switches itself off above 5.945 nats. Hard\n"
        "selection stays sharp, but has no gradient to train with.\n"
    )
    for name in PICTURES:
        written += run_and_draw(name, out, overwrite)[1]
    typer.echo("Written: " + ", ".join(str(path) for path in written))


def growth_table(result: Result) -> Table:
    """One line a size and method."""
    title = "The same logits, spread {spread:g}, growing from {first:,} to {last:,} items".format(
        spread=result.config["spread"],
        first=min(result.config["sizes"]),
        last=max(result.config["sizes"]),
    )
    table = Table(title=title, title_justify="left")
    for heading in ("method", "items", "sharpened", "largest", "bound", "entropy", "effective"):
        table.add_column(heading, justify="left" if heading == "method" else "right", no_wrap=True)
    rows = result.measurements["rows"]
    previous = None
    for row in rows:
        if previous not in (None, row["method"]):
            table.add_section()
        inverse = row["inverse_temperature"]
        table.add_row(
            row["method"] if row["method"] != previous else "",
            f"{row['items']:,}",
            "∞" if inverse is None else f"{inverse:.2f}",
            f"{row['largest_weight']:.4f}",
            f"{row['largest_weight_allowed']:.4f}",
            f"{row['entropy']:.3f}",
            f"{row['effective_items']:,.1f}",
        )
        previous = row["method"]
    return table
