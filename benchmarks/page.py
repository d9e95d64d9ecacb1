"""Write the tables and the picture of docs/benchmarks.md from the measured results."""

from __future__ import annotations

import sys
from pathlib import Path

from sharpmax import report
from sharpmax._files import write_atomically
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
    source = result.provenance
    versions = ", ".join(f"{name} {version}" for name, version in source.packages.items())
    return (
        f"{source.processor}, {source.cores} cores; Python {source.python}, {versions}; sharpmax "
        f"{source.sharpmax} at {(source.commit or 'no commit')[:9]}, {source.started:%Y-%m-%d}."
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


def long_table(longs: Result) -> str:
    found = longs.measurements
    jobs = list(found["gigabytes_per_thousand_tokens"])
    heads = ["tokens", "plain pass, s", "scan, s", "ratio", *(f"{job}, GB" for job in jobs)]
    lines = [f"| {' | '.join([*heads, 'keys and values, GB'])} |", "|---" * (len(heads) + 1) + "|"]
    for row in found["rows"]:
        low, high = row["ratio_range"]
        memory = " | ".join(f"{row['peak_gigabytes'][job]:.2f}" for job in jobs)
        lines.append(
            f"| {row['tokens']:,} | {row['plain_seconds']:.1f} | {row['scan_seconds']:.1f} | "
            f"{row['ratio']:.2f} ({low:.2f} to {high:.2f}) | {memory} | "
            f"{row['cache_gigabytes']:.2f} |"
        )
    return "\n".join(lines)


def long_inputs(longs: Result) -> str:
    """Describe time and memory of inputs up to a long context."""
    found, config = longs.measurements, longs.config
    growth = ", ".join(
        f"{job} {1000 * gigabytes:.0f} MB"
        for job, gigabytes in found["gigabytes_per_thousand_tokens"].items()
    )
    return f"""{config["model"]}, {config["threads"]} threads: a scan as a ratio to a plain forward
pass with SDPA, without the output layer; median (range) of
{" to ".join(str(row["rounds"]) for row in found["rows"][:: len(found["rows"]) - 1])} rounds. Memory
is all that a fresh process holds at its peak; with the model alone it is
{found["idle_gigabytes"]:.2f} GB. Growth per thousand tokens: {growth}. "evaluate" reads the context
{config["chunk"]:,} tokens at a time, sharpened by the paper's policy, and answers one question.
Against one pass this changes the answer's log-probability by {found["largest_difference"]:.0e} nats
at {config["checked_tokens"]:,} tokens. {machine(longs)}

{long_table(longs)}"""


def generating(result: Result) -> str:
    """Describe what a calibration costs, with a table by the length of the prompt."""
    config = result.config
    rows = {f"{int(tokens):,}": row for tokens, row in result.measurements["times"].items()}
    return f"""{config["model"]}, {config["new_tokens"]} tokens generated with
[{config["calibration"]}](../results/{config["calibration"]}), {config["threads"]} threads; ratio to
the plain model in the same round: median (quartiles) of
{" and ".join(map(str, config["rounds"].values()))} rounds. Up to {config["from_tokens"]} tokens the
logits are the same bit for bit; beyond, logits with a cache differ from those of one pass by at
most {result.measurements["largest_difference"]:.0e}. {machine(result)}

{table(rows, ["plain", "calibrated"], "tokens in the prompt")}"""


def training(result: Result) -> str:
    """Describe what the statistics callback and QK-clip cost, with a table."""
    config, found = result.config, result.measurements
    cost = {key: 100 * found["callback"][key] for key in ("ratio", "low", "high")}
    names = {"sampled": "step with statistics", "clipped": "step with QK-clip"}
    times = {names.get(name, name): row for name, row in found["times"].items()}
    return f"""{config["model"]}, AdamW, {config["batch"]} texts of {config["tokens"]} tokens,
{config["threads"]} threads; ratio to a plain step in the same round: median (quartiles) of
{config["rounds"]} rounds.
`StatisticsCallback` samples every {config["every"]}th step by default, {config["rows"]} rows of
{config["sequences"]} sequences, and so costs {cost["ratio"]:.1f} % ({cost["low"]:.1f} to
{cost["high"]:.1f}) of the training. QK-clip looks at every step. Gradients are the same bit for
bit, and entropies differ from those of eager attention's matrices by at most
{found["largest_difference"]:.0e} nats. {machine(result)}

{table({f"{config['batch'] * config['tokens']:,}": times}, list(times), "tokens in a step")}"""


def max_retrieval(result: Result) -> str:
    """Describe the cost of training and of exams, in a sentence each."""
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


PREFILL = ["SDPA", "products alone", "cpu", "statistics", "plain", "streaming", "fused", "textbook"]


def by_kind(prefill: dict) -> str:
    """Return a table for each head size, causal and not."""
    parts: dict[str, dict] = {}
    for name, row in prefill.items():
        tokens, _, kind = name.partition(" tokens, ")
        parts.setdefault(kind, {})[tokens] = row
    return "\n\n".join(
        f"**{kind.capitalize()}{'' if 'causal' in kind else ', every key seen'}**\n\n"
        + table(rows, PREFILL, "tokens")
        for kind, rows in parts.items()
    )


def page(
    torchs: Result,
    jaxs: Result,
    scans: Result,
    heads: Result,
    generated: Result,
    longs: Result,
    trained: Result,
) -> str:
    found = torchs.measurements
    rounds = torchs.config["rounds"]
    ours = found["torch_after"]["a product of torch's"]["after cpu"]
    first = found["first_call"]["seconds"]
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

{torchs.config["heads"]} heads, float32, {torchs.config["threads"]} threads; ratio to
`F.scaled_dot_product_attention` in the same round: median (quartiles) of
{max(rounds.values())} rounds at {min(map(int, rounds))} tokens down to {min(rounds.values())} at
{max(map(int, rounds)):,}. {machine(torchs)}

{by_kind(found["prefill"])}

"products alone" is the roofline: what the two matrix products of any exact attention would cost at
the speed that torch's BLAS reaches in a product of large square matrices. `cpu` is what `auto`
picks here. "statistics" is `attention_stats` and "plain" attention with `Constant(1.0)`, both with
`cpu`.

### PyTorch, growth

![Time and ratio to SDPA against the number of tokens](../results/bench_torch.png)

### PyTorch, decoding

One query over {torchs.config["decode_keys"]:,} keys, {torchs.config["decode_rounds"]} rounds.

{table(found["decode"], ["SDPA", "cpu", "statistics", "streaming"], "")}

### PyTorch, what else `cpu` costs

The first call of a process takes {first["compiling"]:.1f} s where numba has to compile, and
{first["kept"]:.1f} s where it kept what it compiled before, importing numba included. A product of
torch's, of 512 rows and columns, takes {ours["ratio"]:.2f} ({ours["low"]:.2f} to
{ours["high"]:.2f}) times as long right after a call of `cpu` as right after one of SDPA.

By how much resident memory rises at its peak, {torchs.config["memory_tokens"]:,} tokens, head size
64, no mask; the output is part of it:

| | heads | MB |
|---|---|---|
{memory}

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

### Long inputs

{long_inputs(longs)}

### Generating with a calibration

{generating(generated)}

### Training with statistics

{training(trained)}

### Max retrieval

{max_retrieval(heads)}
{END}"""


def main() -> None:
    torchs, *others = map(Result.load, sys.argv[1:8])
    document = Path(sys.argv[8])
    text = document.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    write_atomically(document, (before + page(torchs, *others) + after).encode())
    stem = Path(sys.argv[1]).with_suffix("")
    report.save_picture(report.draw(torchs), stem, overwrite=True)
    print(f"wrote {document}")


if __name__ == "__main__":
    main()
