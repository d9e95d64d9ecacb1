"""Results as tables in the terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from sharpmax.cli.formats import chance, new_table, percent
from sharpmax.cli.standings import standings
from sharpmax.results import Result

SHORTER = {"recollection": "recalled"}
"""A terminal of 80 columns has no room for more."""


def show(result: Result) -> None:
    """Print the table of a result that has one."""
    made = TABLES.get(result.kind)
    if made is None:
        return
    console = Console(highlight=False)
    for part in made(result):
        console.print(part)


def table1(result: Result) -> list[Any]:
    found, config = result.measurements, result.config
    seeds, steps = len(config["seeds"]), config["training"]["steps"]
    table = new_table(
        f"Max retrieval: accuracy %, mean ± standard deviation over {seeds} seeds, {steps:,} steps"
    )
    for heading in ("items", "softmax", "adaptive", "p", "argmax", "paper", "p", "how sure"):
        left = heading == "how sure"
        table.add_column(heading, justify="left" if left else "right", no_wrap=True)
    std = {name: values or [None] * len(found["sizes"]) for name, values in found["std"].items()}
    for place, size in enumerate(found["sizes"]):
        ours = {
            name: percent(found["mean"][name][place], std[name][place])
            for name in ("baseline", "adaptive")
        }
        paper = found["paper"].get(str(size))
        theirs = (
            ["", "", ""]
            if paper is None
            else [
                f"{paper['baseline']:.1f} {paper['adaptive']:.1f}",
                chance(paper["p"], 1),
                SHORTER.get(paper["sure"], paper["sure"]),
            ]
        )
        p = chance(found["p"][place], 1)
        argmax = percent(found["mean"]["argmax"][place])
        table.add_row(f"{size:,}", ours["baseline"], ours["adaptive"], p, argmax, *theirs)
    return [table, *_where_it_went(found)]


def _where_it_went(found: dict[str, Any]) -> list[str]:
    """The largest set, in words."""
    lost = {
        name: (causes["dispersion"][-1], causes["ranking"][-1])
        for name, causes in found["attribution"].items()
    }
    size = found["sizes"][-1]
    return [
        f"At {size:,} items softmax loses {percent(lost['baseline'][0])} points to dispersion (the "
        f"largest logit is right, the answer wrong) and {percent(lost['baseline'][1])} to ranking "
        f"(the largest logit is wrong), with adaptive temperature {percent(lost['adaptive'][0])} "
        f"and {percent(lost['adaptive'][1])}.",
    ]


def unknowns(result: Result) -> list[Any]:
    found = result.measurements
    table = new_table("Distance to Table 1 over all sizes and both columns, in points of accuracy")
    for heading in ("logits", "decay", "steps", "mean distance", "largest", "at 1,024", "seeds"):
        table.add_column(heading, justify="left" if heading in ("logits", "decay") else "right")
    sizes = result.config["sizes"]
    for place, cell in enumerate(found["cells"]):
        at = percent(cell["mean"]["baseline"][sizes.index(1024)]) if 1024 in sizes else "-"
        table.add_row(
            "/ √128" if cell["scaled"] else "as they are",
            "decoupled" if cell["decoupled"] else "in the loss",
            f"{cell['steps']:,}",
            f"{cell['distance']['mean']:.1f}" + (" ←" if place == found["closest"] else ""),
            f"{cell['distance']['worst']:.1f}",
            at,
            str(cell["seeds"]),
        )
    return [table, "← the closest; the paper has 53.8 at 1,024 items."]


def policies(result: Result) -> list[Any]:
    found = result.measurements
    shown = [size for size in (16, 256, 1024, 4096, 16384) if size in found["sizes"]]
    places = [found["sizes"].index(size) for size in shown]
    tables: list[Any] = []
    for task, title in (
        ("max", "Max retrieval, the same heads"),
        ("most-frequent", "The guard task: the most frequent class"),
    ):
        table = new_table(f"{title}: accuracy % by items")
        table.add_column("method")
        for size in shown:
            table.add_column(f"{size:,}", justify="right")
        if task == "most-frequent":
            table.add_column("within one point")
        for name, mean in found["tasks"][task]["mean"].items():
            row = [percent(mean[place]) for place in places]
            if task == "most-frequent":
                row.append("yes" if found["keeps_guard"][name] else "no")
            table.add_row(name, *row)
        tables.append(table)
    return tables


def figure6(result: Result) -> list[Any]:
    found = result.measurements
    table = new_table("Inverse temperature as a polynomial of the entropy, highest power first")
    for heading in ("", "coefficients", "sharpens, nats", "error of the temperature"):
        table.add_column(heading)
    for name, coefficients in found["coefficients"].items():
        ranges = ", ".join(f"{low:.2f} to {high:.2f}" for low, high in found["sharpens"][name])
        table.add_row(
            name,
            " ".join(f"{value:.4g}" for value in coefficients),
            ranges,
            f"{found['temperature_error'][name]:.2f}",
        )
    return [table]


def figure8(result: Result) -> list[Any]:
    found = result.measurements
    table = new_table(
        f"CLRS-Text, {found['model']}: exact match % by size, ± over {len(found['test_seeds'])} "
        "test sets"
    )
    table.add_column("algorithm")
    table.add_column("arm")
    table.add_column("size: exact match", overflow="fold")
    for name, one in found["algorithms"].items():
        for place, (arm, curve) in enumerate(one["arms"].items()):
            std = curve["std_tests"] or [None] * len(one["sizes"])
            cells = [
                f"{size}: {percent(mean, spread)}"
                for size, mean, spread in zip(one["sizes"], curve["mean"], std, strict=True)
            ]
            table.add_row(name if place == 0 else "", arm, "  ".join(cells))
    return [table]


TABLES = {
    "table1": table1,
    "unknowns": unknowns,
    "policies": policies,
    "leaderboard": standings,
    "figure6": figure6,
    "figure8": figure8,
}
"""By kind of result."""
