"""Different policies on the same trained heads: what does each gain, and what does it cost?"""

from __future__ import annotations

from sharpmax.report.blocks import Axis, Chart, Column, Content, Group, Line, Table, Verdict
from sharpmax.report.kinds._shared import accuracy_axis, percents, size_axis
from sharpmax.report.numbers import join, percent, plural
from sharpmax.report.palette import looks
from sharpmax.results import Result, schemas

TASKS = {"max": "Max retrieval", "most-frequent": "The guard task, the most frequent class"}
BRIEF = (16, 256, 1024, 4096, 16384)
"""The sizes that a terminal has room for."""


def describe(result: Result) -> Content:
    compared = schemas.Policies.of(result)
    return Content(
        what="policies",
        title="The same trained heads, sharpened in different ways",
        facts=[
            plural(len(compared.seeds), "head"),
            f"{compared.sets:,} sets of each size",
            "no training",
        ],
        sentences=_sentences(compared),
        verdict=Verdict(
            "mixed",
            "Choose among the policies that keep the guard task.",
            [
                "A policy that ruins a head that averages is safe only for heads that are known to "
                "look for one item."
            ],
            command="sharpmax tune MODEL",
        ),
        blocks=[
            _curves(compared),
            *(_table(compared, task) for task in TASKS if task in compared.tasks),
        ],
    )


def _sentences(compared: schemas.Policies) -> list[str]:
    mean, look = compared.tasks["max"].mean, looks(compared.tasks["max"].mean)
    kept = [name for name in mean if compared.keeps_guard[name] and name != "plain"]
    lost = [name for name in mean if not compared.keeps_guard[name]]
    best = max(kept, key=lambda name: sum(mean[name]))
    sentences = [
        f"Of the policies that keep the guard task, {look[best].name} is the most accurate over "
        f"all sizes: {percent(mean[best][-1])} at {compared.sizes[-1]:,} items, where softmax has "
        f"{percent(mean['plain'][-1])} and adaptive temperature {percent(mean['paper'][-1])}."
    ]
    if lost:
        names = join([look[name].name for name in lost])
        sentences.append(f"These lose more than one point on the guard task: {names}.")
    return sentences


def _curves(compared: schemas.Policies) -> Group:
    sizes, tasks = compared.sizes, compared.tasks
    look, plain = looks(tasks["max"].mean), tasks["max"].mean["plain"]
    gains = [
        Line.of(
            look[name],
            sizes,
            percents([after - before for after, before in zip(mean, plain, strict=True)]),
        )
        for name, mean in tasks["max"].mean.items()
    ]
    axis = Axis("points above softmax", digits=1)
    charts = [Chart("Max retrieval: what sharpening gains", size_axis(sizes), axis, gains)]
    if "most-frequent" in tasks:
        costs = [
            Line.of(look[name], sizes, percents(mean))
            for name, mean in tasks["most-frequent"].mean.items()
        ]
        title = "The most frequent class: what it costs"
        charts.append(Chart(title, size_axis(sizes), accuracy_axis(), costs))
    return Group("Gain and cost", charts)


def _table(compared: schemas.Policies, task: str) -> Table:
    guard = task == "most-frequent"
    columns = [Column("Policy")]
    for size in compared.sizes:
        columns.append(Column(f"{size:,}", 1, short=None if size in BRIEF else ""))
    columns += [Column("Within one point", short="Kept")] if guard else []
    look = looks(compared.tasks[task].mean)
    rows = []
    for name, mean in compared.tasks[task].mean.items():
        kept = ["yes" if compared.keeps_guard[name] else "no"] if guard else []
        rows.append([look[name].name, *percents(mean), *kept])
    title = f"{TASKS[task]}: accuracy % by items"
    return Table(title, columns, rows, "Higher is better.")
