"""The tables and the picture of docs/benchmarks.md, from the measured results alone."""

from __future__ import annotations

import sys
from pathlib import Path

from matplotlib.figure import Figure

from sharpmax._files import write_atomically
from sharpmax.plot import style
from sharpmax.results import Result

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def cell(measured) -> str:
    if measured is None:
        return ""
    return f"{measured['ratio']:.2f} ({measured['low']:.2f} to {measured['high']:.2f})"


def table(rows: dict, columns: list[str], first: str) -> str:
    head = f"| {first} | {columns[0]}, ms | " + " | ".join(columns[1:]) + " |"
    lines = [head, "|---" * (len(columns) + 1) + "|"]
    for name, row in rows.items():
        cells = " | ".join(cell(row.get(column)) for column in columns[1:])
        lines.append(f"| {name} | {row[columns[0]]['milliseconds']:.1f} | {cells} |")
    return "\n".join(lines)


def machine(result: Result) -> str:
    made = result.provenance
    versions = ", ".join(f"{name} {version}" for name, version in made.packages.items())
    return (
        f"{made.processor}, {made.cores} cores; Python {made.python}, {versions}; sharpmax "
        f"{made.sharpmax} at {(made.commit or 'no commit')[:9]}, {made.started:%Y-%m-%d}."
    )


def scan_table(scans: Result) -> str:
    lines = ["| tokens | plain pass, s | scan, s | ratio | peak memory, GB |", "|---" * 5 + "|"]
    for row in scans.measurements["rows"]:
        low, high = row["ratio_range"]
        lines.append(
            f"| {row['tokens']:,} | {row['plain_seconds']:.1f} | {row['scan_seconds']:.1f} | "
            f"{row['ratio']:.2f} ({low:.2f} to {high:.2f}) | {row['peak_gigabytes']:.2f} |"
        )
    return "\n".join(lines)


def max_retrieval(result: Result) -> str:
    """The experiment's training and exams, in a sentence each."""
    speed, exam = result.measurements["training"], result.measurements["exam"]
    times = speed["milliseconds"]
    return (
        f"A training step of batch {result.config['batch']} on one thread takes "
        f"{times['folded']:.1f} ms folded and {times['as written']:.1f} ms as it is written: "
        f"{speed['speed_up']:.1f} times faster ({speed['range'][0]:.1f} to "
        f"{speed['range'][1]:.1f}, {result.config['rounds']} rounds). Their mean losses of a "
        f"hundred steps differ by {speed['losses_apart']:.0e} of themselves. An exam of "
        f"{result.config['sets']} sets of {result.config['items']:,} items under three methods "
        f"takes {exam['seconds']:.0f} s, compiling included, and {exam['peak_gigabytes']:.2f} GB "
        f"in all. {machine(result)}"
    )


def page(torchs: Result, jaxs: Result, scans: Result, heads: Result) -> str:
    found = torchs.measurements
    columns = ["SDPA", "auto", "streaming", "fused", "statistics", "log-length policy", "textbook"]
    memory = "\n".join(
        f"| {name} | {row['heads']} | {row['megabytes']:,.0f} |"
        for name, row in found["memory"].items()
    )
    jax_memory = "\n".join(
        f"| {name} | " + " | ".join(f"{row[column]:,.0f}" for column in row) + " |"
        for name, row in jaxs.measurements["memory"].items()
    )
    names = list(next(iter(jaxs.measurements["memory"].values())))
    return f"""{BEGIN}
### PyTorch, prefill

{torchs.config["heads"]} heads of size {torchs.config["dim"]}, float32, {torchs.config["threads"]}
threads; ratio to `F.scaled_dot_product_attention` in the same round: median (quartiles) of
{torchs.config["rounds"]} rounds. {machine(torchs)}

{table(found["prefill"], columns, "")}

`auto` is `streaming` here, by its rules. "statistics" is `attention_stats`, with `fused`.
"log-length policy" is `LogLength(512)` with `fused`: a policy that does not look at the entropy.

### PyTorch, decoding

One query over {torchs.config["decode_keys"]:,} keys.

{table(found["decode"], ["SDPA", "auto", "statistics"], "")}

### PyTorch, peak memory

By how much resident memory rises at its peak, {torchs.config["memory_tokens"]:,} tokens, no mask;
the output is part of it.

| | heads | MB |
|---|---|---|
{memory}

### PyTorch, growth

![Time and ratio to SDPA against the number of tokens](../results/bench_torch.png)

### JAX, prefill

Compiled; ratio to `jax.nn.dot_product_attention`. {machine(jaxs)}

{table(jaxs.measurements["prefill"], ["jax.nn", "ours", "statistics", "textbook"], "")}

Working memory of the compiled program, MB:

| | {" | ".join(names)} |
|{"---|" * (len(names) + 1)}
{jax_memory}

### Scan

{scans.config["model"]}, all heads, {scans.config["threads"]} threads: a scan as a ratio to a plain
forward pass with SDPA, without the output layer; median (range) of
{" and ".join(str(row["rounds"]) for row in scans.measurements["rows"])} rounds. Memory is all that
the process holds at its peak, the model's 0.54 GB included. Entropies of the scan differ from those
of eager attention's matrices by at most {scans.measurements["largest_difference"]:.1e} nats at
{scans.config["checked_tokens"]} tokens. {machine(scans)}

{scan_table(scans)}

### Max retrieval

{max_retrieval(heads)}
{END}"""


def picture(result: Result) -> Figure:
    growth = result.measurements["growth"]
    shown = ("SDPA", "streaming", "fused", "statistics", "textbook")
    with style.house_style():
        figure = Figure(figsize=(9.6, 4.2))
        times, relative = figure.subplots(1, 2)
        for name in shown:
            points = [(int(n), row[name]) for n, row in growth.items() if name in row]
            tokens = [n for n, _ in points]
            times.plot(tokens, [p["milliseconds"] for _, p in points], marker="o", ms=4, label=name)
            if name == "SDPA":
                relative.plot([], [])
                continue
            (line,) = relative.plot(tokens, [p["ratio"] for _, p in points], marker="o", ms=4)
            relative.fill_between(
                tokens,
                [p["low"] for _, p in points],
                [p["high"] for _, p in points],
                color=line.get_color(),
                alpha=0.2,
                lw=0,
            )
        times.set(xscale="log", yscale="log", xlabel="tokens", ylabel="ms", title="time, causal")
        relative.set(xscale="log", yscale="log", xlabel="tokens", title="ratio to SDPA")
        relative.axhline(1, color=style.MUTED, lw=1)
        relative.set_yticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
        relative.minorticks_off()
        for axes in (times, relative):
            ticks = [int(n) for n in growth]
            axes.set_xticks(ticks, [f"{n:,}" for n in ticks], fontsize=8)
            axes.minorticks_off()
        times.legend()
    return figure


def main() -> None:
    torchs, jaxs, scans, heads = map(Result.load, sys.argv[1:5])
    document = Path(sys.argv[5])
    text = document.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    write_atomically(document, (before + page(torchs, jaxs, scans, heads) + after).encode())
    style.save(picture(torchs), Path(sys.argv[1]).with_suffix(""), overwrite=True)
    print(f"wrote {document}")


if __name__ == "__main__":
    main()
