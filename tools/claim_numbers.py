"""What each result says about a claim, in one cell of a table.

Every function reads one result and nothing else; `claim_rows.py` says which claim it is about.
Sentences that a report has too come from `sharpmax.report.kinds`.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from sharpmax.report.kinds import (
    bench,
    calibration,
    certify,
    evaluate,
    figure1,
    figure8,
    scan,
    train_normalisers,
    unknowns,
)
from sharpmax.report.kinds import corollary as corollary_kind
from sharpmax.report.kinds.laws import LAWS
from sharpmax.report.kinds.scan_view import ScanView
from sharpmax.report.numbers import join, plural, points, share
from sharpmax.report.palette import name
from sharpmax.results import Calibration, Result, schemas

AGAIN = "to be measured again"
"""For a benchmark whose file is of an older format than its program writes."""

ROUNDING = 1e-9
"""A weight that attains its bound may exceed it by as much as it was rounded."""

LONG = 1024
"""From so many tokens on, the fixed cost of a call no longer matters."""


def mean_and_std(values: Any, digits: int = 2) -> str:
    """Format the mean ± standard deviation of some numbers."""
    values = np.asarray(values)
    return f"{values.mean():.{digits}f} ± {values.std(ddof=1):.{digits}f}"


def p_text(p: float | None) -> str:
    """Format the p of a test, if there was something to test and it is known."""
    return "" if p is None else f", p {p:.2g}"


# Figures 1 to 8


def bounds(result: Result) -> str:
    head = schemas.Figure1.of(result)
    weights = np.stack([head.needle_weight, head.smallest_weight])  # [2, size, draw]
    parts = []
    for low, high in ((head.paper_low, head.paper_high), (head.tight_low, head.tight_high)):
        least, most = np.asarray(low)[:, None], np.asarray(high)[:, None]
        held = (weights >= least * (1 - ROUNDING)) & (weights <= most * (1 + ROUNDING))
        parts.append(f"{held.sum()} of {held.size}")
    return f"{parts[0]} weights within the printed bounds, {parts[1]} within the tight ones"


def one_head(result: Result) -> str:
    head = schemas.Figure1.of(result)
    needle = np.asarray(head.needle_weight)
    return (
        f"weight of the needle {figure1.needle_weight(head, 8)} on 8 items, "
        f"{100 * needle[-1].mean():.1g} % on {head.sizes[-1]:,}; no weight can reach "
        f"{head.epsilon} from "
        f"{head.dispersed_from:,.0f} items on"
    )


def attention_maps(result: Result) -> str:
    """Of one head, so without a spread over seeds."""
    maps = schemas.AttentionMaps.of(result)
    parts = []
    for size in (16, 1024, 16384):
        index = maps.sizes.index(size)
        weights = [f"{values[index]:.2f}" for values in maps.weight_of_maximum.values()]
        parts.append(f"{' → '.join(weights)} on {size:,} items")
    return f"weight of the maximum {', '.join(parts)}; one head, {maps.sets} sets"


def head_entropy(result: Result) -> str:
    block = schemas.Figure3.of(result)
    ends = [
        f"{block.mean_entropy[index]:.2f} ± {block.seed_spread[index]:.3f} nats on "
        f"{block.lengths[index]} numbers"
        for index in (0, -1)
    ]
    model = block.model.partition(" (")[0]
    return f"{', '.join(ends)}: {block.slope:.2f} per nat of log n, {model}"


def power_series(result: Result) -> str:
    series = schemas.Figure5.of(result)
    return (
        f"{series.entropy_at_base_0:.4f} and {series.entropy_at_base_1:.4f} nats at the edges, "
        f"{series.least_entropy:.1g} at least; sharp on "
        f"{100 * series.share_of_plane['sharp']:.0f} % of the plane"
    )


def fit(result: Result) -> str:
    fits = schemas.Figure6.of(result)
    errors, (low, high) = fits.temperature_error, fits.sharpens["paper"][0]
    return (
        f"error of the best temperature {errors['paper']:.2f}, of a polynomial fitted to these "
        f"heads {errors['temperature']:.2f}; it sharpens from {low:.2f} to {high:.2f} nats only"
    )


def clrs_beyond(result: Result) -> str:
    return "; ".join(figure8.beyond_training(schemas.Figure8.of(result)))


def clrs_inside(result: Result) -> str:
    """Of the first condition, by algorithm."""
    figure = schemas.Figure8.of(result)
    first = next(iter(figure.labels))
    parts = []
    for algorithm, one in figure.algorithms.items():
        accuracy = figure8.by_training(one, first, beyond=False)
        parts.append(f"{figure8.algorithm_name(algorithm)} {figure8.over_trainings(accuracy)}")
    return ", ".join(parts) + " %"


# Max retrieval and the leaderboard


def accuracy(result: Result, size: int) -> str:
    table = schemas.Table1.of(result)
    index = table.sizes.index(size)
    parts = []
    for method in ("baseline", "adaptive"):
        std = table.std[method]
        parts.append(share(table.mean[method][index], None if std is None else std[index]))
    return f"{' → '.join(parts)}{p_text(table.p[index])}"


def significant(result: Result) -> str:
    table = schemas.Table1.of(result)
    pairs = zip(table.sizes, table.p, strict=True)
    below = [size for size, p in pairs if p is not None and p < 0.05]
    all_above = below == table.sizes[table.sizes.index(below[0]) :]
    sizes = "every size" if all_above else f"{len(below)} sizes"
    return f"p below 0.05 at {sizes} from {below[0]} up, {len(result.seeds)} seeds"


def ranking(result: Result) -> str:
    table, parts = schemas.Table1.of(result), []
    lost = table.attribution["baseline"]
    for size in (1024, 16384):
        index = table.sizes.index(size)
        parts.append(
            f"{share(lost.ranking[index])} against {share(lost.dispersion[index])} % on {size:,} "
            "items"
        )
    return ", ".join(parts)


def unknown_settings(result: Result) -> str:
    return unknowns.closest_setting(schemas.Unknowns.of(result)).rstrip(".")


def policies(result: Result) -> str:
    compared = schemas.Policies.of(result)
    index, task = compared.sizes.index(4096), compared.tasks["max"]
    parts = []
    for policy in ("paper", "log-length"):
        std = task.std[policy]
        parts.append(share(task.mean[policy][index], None if std is None else std[index]))
    guard = compared.tasks["most-frequent"].mean
    loss = np.min(np.subtract(guard["log-length"], guard["plain"]))
    return (
        f"{' → '.join(parts)} on 4,096 items{p_text(task.p_against_paper['log-length'][index])}; a "
        f"task of averaging loses {-100 * loss:.1f} points at most"
    )


def board_share(board: schemas.Leaderboard, track: str, method: str, size: int) -> str | None:
    """Return the accuracy of a method on the maximum; None if it did not take part."""
    row = board.row(track, "max", method)
    if row is None:
        return None
    index = board.sizes.index(size)
    return share(row.mean[index], None if row.std is None else row.std[index])


def unnormalised(result: Result) -> str:
    board = schemas.Leaderboard.of(result)
    methods = ("softmax", "sigmoid", "linear", "stick-breaking")
    cells = [f"{method} {board_share(board, 'trained', method, 1024)}" for method in methods]
    return f"{', '.join(cells)} % on 1,024 items"


def best_of_a_million(result: Result) -> str:
    board = schemas.Leaderboard.of(result)
    found = {name: board_share(board, "augmented", name, 1_048_576) for name in METHODS_OF_LONGEST}
    return ", ".join(f"{found[name]} with {name}" for name in METHODS_OF_LONGEST)


METHODS_OF_LONGEST = ("stieltjes", "softmax")


def best(result: Result) -> str:
    """The best method of each track."""
    board, parts = schemas.Leaderboard.of(result), []
    for track in board.tracks:
        rows = board.ranking(track, "max")
        if rows:
            method = rows[0].method
            parts.append(f"{track}: {name(method)} {board_share(board, track, method, 16384)}")
    return "; ".join(parts)


# Language models


def answered(result: Result, condition: str, length: int) -> str:
    """A condition beside plain attention, with the interval of the difference."""
    evaluation = schemas.Evaluation.of(result)
    row = next(row for row in evaluation.rows_of(condition) if row.length == length)
    if row.compared is None:
        raise LookupError(f"{condition} is not compared with plain attention")
    change = row.compared
    return (
        f"{evaluate.change(evaluation, condition, length)}, {points(change.difference)} points "
        f"({points(change.low)} to {points(change.high)}), {length:,} {evaluation.unit}"
    )


def calibrated(found: Calibration) -> str:
    rates = sorted({head.rate for head in found.heads})
    span = f"{rates[0]:.2g}" + (f" to {rates[-1]:.2g}" if len(rates) > 1 else "")
    heads = calibration.chosen_heads(found)
    return f"{heads}; rate {span}, seed {found.method['seed']}"


def studied(result: Result) -> str:
    """Say what tuning changes in each family that is finished, and how much is."""
    found = schemas.Study.of(result)
    parts = []
    for model in found.models:
        for family in found.families:
            pool = found.pool(model, family, "tune")
            if pool is not None and pool.compared is not None:
                change = pool.compared
                parts.append(
                    f"{model}, {family}: {points(change.difference)} points "
                    f"({points(change.low)} to {points(change.high)}), p {change.p_adjusted:.1g}"
                )
    tests = sum(row.compared is not None for row in found.pools if row.group in found.families)
    parts.append(f"{tests} of {found.primary_tests} primary tests are finished")
    return "; ".join(parts)


def diagnosed(result: Result) -> str:
    lengths, unit = result.config["lengths"], result.config["unit"]
    split = result.measurements["rows"][-1]["split"]
    if split is None:
        return f"no head finds the answer at {lengths[0]:,} {unit}"
    heads = plural(len(result.measurements["retrieval_heads"]), "head")
    verb = "finds" if heads == "1 head" else "find"
    if split["dispersion_share"] is None:
        return f"{heads} {verb} the answer; no weight is lost up to {lengths[-1]:,} {unit}"
    share = split["dispersion"] / split["loss"]
    return (
        f"{heads} {verb} the answer; from {lengths[0]:,} to {lengths[-1]:,} {unit} dispersion "
        f"explains {100 * share:.0f} % of the weight that they lose, ranking the rest"
    )


def scanned(result: Result) -> str:
    view = ScanView.of(result)
    tokens = view.scan.tokens
    return f"{scan.label_counts(view).rstrip('.')} ({tokens[0]} to {tokens[-1]:,} tokens)"


def laws(result: Result) -> str:
    view = ScanView.of(result)
    measured = [head.law for head in view.heads if head.law in LAWS]
    counts = Counter(measured)
    parts = [f"{counts[law]} {words}" for law, words in LAWS.items() if counts[law]]
    return f"of {len(measured)} heads, {join(parts)}"


def model_name(result: Result) -> str:
    """Return the model's name without where it comes from."""
    return str(result.config["model"]).partition(" (")[0]


def measured_spread(result: Result) -> str:
    measured = result.arrays["measured_spread"]
    return (
        f"{model_name(result)}: {mean_and_std(measured)}, from {measured.min():.2f} to "
        f"{measured.max():.2f}, at the last of up to {result.config['scan']['tokens']:,} tokens"
    )


def corollary(result: Result) -> str:
    """Say at which size the answers are at chance, and from which one that is certain."""
    heads = schemas.Corollary.of(result)
    low, high = corollary_kind.certain_from(heads, "bfloat16")
    right = np.mean([row[-1] for row in heads.accuracy])
    return (
        f"{share(float(right))} % right on {heads.sizes[-1]:,} items, where a guess is right in "
        f"10 %; in bfloat16 no exchange of the highest item can be seen from {low:,.0f} items on "
        f"for the first of {len(heads.accuracy)} heads, from {high:,.0f} for the last"
    )


def certified(result: Result) -> str:
    bound, measured = result.arrays["spread_bound"], result.arrays["measured_spread"]
    held = bound >= measured
    loose = certify.bound_over_measured(bound, measured)
    return f"holds in {held.sum()} of {held.size} heads. {loose}".rstrip(".")


# Benchmarks


def _torch(result: Result) -> schemas.AttentionBench | None:
    """Return the benchmark; None for a file from before it had head sizes and the CPU kernel."""
    found = schemas.AttentionBench.of(result)
    return found if found.dims else None


def torch_prefill(result: Result) -> str:
    found = _torch(result)
    if found is None:
        return AGAIN
    short, long = {}, {}
    for case, row in found.prefill.items():
        tokens = int(case.partition(" ")[0].replace(",", ""))
        (long if tokens >= LONG else short)[case] = row

    def both(implementation: str) -> tuple[str, str]:
        return bench.ratio_range(long, implementation), bench.ratio_range(short, implementation)

    cpu, statistics, textbook = both("cpu"), both("statistics"), both("textbook")
    return (
        f"{cpu[0]} times SDPA's time from {LONG:,} tokens up, {cpu[1]} below; statistics alone "
        f"{statistics[0]} and {statistics[1]}; the textbook's matrix {textbook[0]} and "
        f"{textbook[1]}; medians"
    )


def torch_decode(result: Result) -> str:
    found = _torch(result)
    if found is None:
        return AGAIN
    ratios = bench.ratio_range(found.decode, "cpu")
    return f"{ratios} times SDPA's time, {found.decode_keys:,} keys, medians"


def torch_memory(result: Result) -> str:
    found = _torch(result)
    if found is None:
        return AGAIN
    parts = [
        f"{implementation} {row['megabytes']:,.0f} ({plural(int(row['heads']), 'head')})"
        for implementation, row in found.memory.items()
    ]
    return f"MB at {found.memory_tokens:,} tokens: {', '.join(parts)}"


def jax_prefill(result: Result) -> str:
    found = schemas.AttentionBench.of(result)
    longest = list(found.memory)[-1]
    memory = found.memory[longest]
    return (
        f"{bench.ratio_range(found.prefill, 'ours')} times the time of jax.nn, statistics alone "
        f"{bench.ratio_range(found.prefill, 'statistics')}; {memory['ours']:,.0f} MB instead of "
        f"{memory['jax.nn']:,.0f} at {longest}"
    )


def scan_cost(result: Result) -> str:
    found = schemas.ScanBench.of(result)
    parts = [
        f"{row.ratio:.2f} ({row.ratio_range[0]:.2f} to {row.ratio_range[1]:.2f}) at "
        f"{row.tokens:,} tokens"
        for row in found.rows
    ]
    return f"{', '.join(parts)}; entropies within {found.largest_difference:.0e}"


def trained_normalisers(result: Result) -> str:
    """Say what each way of training and repairing answers on the longest texts."""
    run = schemas.TrainNormalisers.of(result)
    parts = []
    for condition in run.summaries:
        shares = [row.accuracy[-1] for row in run.of_condition(condition)]
        name = train_normalisers.LOOKS[condition].name
        parts.append(f"{name} {share(float(np.mean(shares)), float(np.std(shares, ddof=1)))}")
    return f"{'; '.join(parts)} % on {run.sizes[-1]:,} items, {plural(len(run.seeds), 'seed')}"


def trained_attention(result: Result) -> str:
    """Say what became of entropies and logits in a training."""
    training = schemas.TrainingStatistics.of(result)
    first, last = (float(np.nanmean(result.arrays["entropy"][step])) for step in (0, -1))
    largest = float(np.nanmax(result.arrays["max_logit"]))
    return (
        f"mean entropy {first:.2f} → {last:.2f} nats, largest logit {largest:,.0f}, "
        f"{plural(len(training.alarms), 'alarm')}"
    )


def training_cost(result: Result) -> str:
    """Say what the statistics callback costs in a training, and QK-clip in a step."""
    bench = schemas.TrainingBench.of(result)
    share_of, clipped = bench.callback, bench.times["clipped"]
    return (
        f"{100 * share_of.ratio:.1f} % ({100 * share_of.low:.1f} to {100 * share_of.high:.1f}); "
        f"QK-clip {clipped.ratio:.2f} ({clipped.low:.2f} to {clipped.high:.2f}) times a step; "
        "gradients the same bit for bit"
    )


def generating_cost(result: Result) -> str:
    found = schemas.GenerateBench.of(result)
    parts = [
        f"{ratio.ratio:.2f} ({ratio.low:.2f} to {ratio.high:.2f}) after {int(tokens):,} tokens"
        for tokens, ratio in ((tokens, row["calibrated"]) for tokens, row in found.times.items())
    ]
    return f"{', '.join(parts)}; up to {found.from_tokens} tokens the same bit for bit"


def serving_agreement(result: Result) -> str:
    found = schemas.Serving.of(result)
    ways, models = found.parity.ways.values(), found.architectures.models.values()
    largest = max(part.largest_difference for part in (*ways, *models))
    real = max(part.largest_difference for part in ways)
    return (
        f"log-probabilities within {real:.1e} nats on SmolLM2, {largest:.1e} on random models with "
        "windows and two processes; rates of 0 the same bit for bit"
    )


def serving_answers(result: Result) -> str:
    found = schemas.Serving.of(result).lookup
    right = found.right
    return (
        f"vLLM {right['vLLM, plain']} → {right['vLLM, plugin']} (plugin), llama.cpp "
        f"{right['llama.cpp, plain']} → {right['llama.cpp, exported']} (export) of "
        f"{found.questions} questions"
    )


def serving_cost(result: Result) -> str:
    found = schemas.Serving.of(result).throughput
    if found is None:
        return AGAIN
    parts = [
        f"{name} {work.ratio:.2f} ({work.quartiles[0]:.2f} to {work.quartiles[1]:.2f})"
        for name, work in found.workloads.items()
    ]
    spread = max(work.stock_spread for work in found.workloads.values())
    return f"{', '.join(parts)}; processes of stock vLLM differ by up to {spread:.2f}"


def long_inputs(result: Result) -> str:
    found = schemas.LongBench.of(result)
    last = found.rows[-1]
    memory = ", ".join(f"{job} {size:.1f}" for job, size in last.peak_gigabytes.items())
    return (
        f"{last.ratio:.2f} ({last.ratio_range[0]:.2f} to {last.ratio_range[1]:.2f}) at "
        f"{last.tokens:,} tokens; peak memory in GB: {memory}"
    )


def head_training(result: Result) -> str:
    training = schemas.HeadBench.of(result).training
    low, high = training.range
    return f"{training.speed_up:.1f} times as fast ({low:.1f} to {high:.1f})"
