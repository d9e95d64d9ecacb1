"""A diagnosis: do the heads that copy the answer lose it to dispersion or to ranking?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sharpmax.report.blocks import (
    Axis,
    Block,
    Cell,
    Chart,
    Column,
    Content,
    Heads,
    Line,
    Measure,
    Table,
    Verdict,
)
from sharpmax.report.kinds._shared import model_facts
from sharpmax.report.kinds.laws import LAWS
from sharpmax.report.numbers import ABSENT, join_numbers, percent, plural
from sharpmax.results import Result, schemas

KINDS = {
    "needle": "the answer",
    "rest of the answer": "a later token of the answer",
    "another number": "another number",
    "first token": "the first token",
    "last tokens": "one of the last tokens",
    "elsewhere": "any other token",
    "hidden": "outside the window",
}
"""What can be ranked first, in words."""
COLOURS = dict(zip(KINDS, (f"series-{number}" for number in (1, 7, 4, 5, 3, 6, 2)), strict=True))
DISPERSION, RANKING = "series-2", "series-1"
MIN_SHOWN = 0.005
"""Lines that never reach this share are left out of charts."""


def describe(result: Result) -> Content:
    diagnosis = schemas.Diagnosis.of(result)
    weight, score = result.arrays.get("weight"), result.arrays.get("score")
    if weight is None or score is None:
        raise schemas.DamagedError(
            f"not what a result of kind {result.kind!r} holds (its arrays are missing); run its "
            "command again"
        )
    blocks: list[Block] = []
    if diagnosis.retrieval_heads:
        blocks = [_attention(diagnosis), _loss(diagnosis), _winners(diagnosis)]
    head_map = _map(diagnosis, score, weight, result.arrays["winner"])
    tables = [_length_table(diagnosis)]
    if diagnosis.retrieval_heads:
        tables.append(_head_table(diagnosis))
    return Content(
        what=f"diagnosis on {diagnosis.task}",
        title=diagnosis.model,
        facts=[
            *model_facts(diagnosis),
            f"task {diagnosis.task}",
            f"{plural(diagnosis.prompts * diagnosis.questions, 'question')} of each length",
            f"seed {diagnosis.seed}",
            *_policy_fact(diagnosis),
        ],
        sentences=_sentences(diagnosis),
        verdict=_verdict(diagnosis),
        blocks=[*blocks, head_map, *tables],
        notes=diagnosis.notes,
        glossary={"Terms": _glossary(diagnosis)},
    )


def _policy_fact(diagnosis: schemas.Diagnosis) -> list[str]:
    policy = diagnosis.policy
    if policy is None:
        return []
    if "calibration" in policy:
        return [f"sharpened by a calibration of {plural(policy['sharpened_heads'], 'head')}"]
    return [f"sharpened by {policy['policy']}"]


def _ends(diagnosis: schemas.Diagnosis) -> tuple[schemas.NeedleSplit, schemas.NeedleSplit] | None:
    """Return the split at the shortest and at the longest length, if any head finds answers."""
    first, last = diagnosis.rows[0].split, diagnosis.rows[-1].split
    return None if first is None or last is None else (first, last)


# What the diagnosis says.


def _sentences(diagnosis: schemas.Diagnosis) -> list[str]:
    short, long = diagnosis.rows[0], diagnosis.rows[-1]
    at, until = f"at {short.length:,} {diagnosis.unit}", f"at {long.length:,}"
    sentences = [
        f"The model answers {percent(short.accuracy.mean, 0)} correctly {at} and "
        f"{percent(long.accuracy.mean, 0)} {until}."
    ]
    total = plural(sum(diagnosis.heads), "head")
    ends = _ends(diagnosis)
    if ends is None:
        return [f"None of {total} finds the answer {at}.", *sentences]
    found, layers = len(diagnosis.retrieval_heads), sorted(_layers(diagnosis))
    verb, pronoun = ("finds", "It ranks") if found == 1 else ("find", "They rank")
    where = f"in layer{'' if len(layers) == 1 else 's'} {join_numbers(layers)}"
    first, last = ends
    sentences = [
        f"{found} of {total} {verb} the answer, {where}.",
        f"{pronoun} it first in {percent(first.ranked_first, 0)} of cases {at} and in "
        f"{percent(last.ranked_first, 0)} {until}.",
        f"{pronoun.partition(' ')[0]} give{'s' if found == 1 else ''} it {first.weight:.2f} of the "
        f"weight {at} and {last.weight:.2f} {until}.",
        *sentences,
    ]
    if diagnosis.cause in ("dispersion", "ranking", "window") and last.dispersion_share is not None:
        amount = "none" if last.dispersion_share <= 0 else percent(last.dispersion_share, 0)
        text = f"Dispersion explains {amount} of the loss {until} {diagnosis.unit}"
        if last.dispersion_share_low is not None and last.dispersion_share_high is not None:
            low, high = last.dispersion_share_low, last.dispersion_share_high
            text += f" (95 % interval {100 * low:z.0f} to {percent(high, 0)})"
        sentences.insert(3, f"{text}.")
    return sentences


def _longer(lengths: Sequence[int]) -> str:
    """Return further lengths to try, as an option's value."""
    return ",".join(str(factor * lengths[-1]) for factor in (2, 4))


def _layers(diagnosis: schemas.Diagnosis) -> set[int]:
    return {head.layer for head in diagnosis.retrieval_heads}


def _verdict(diagnosis: schemas.Diagnosis) -> Verdict:
    ends = _ends(diagnosis)
    long = f"at {diagnosis.lengths[-1]:,} {diagnosis.unit}"
    if ends is None:
        return Verdict(
            "neutral",
            "Nothing to diagnose: no head copies the answer, even from the shortest text.",
            ["Give a shorter length, or a task that the model answers well."],
            command="sharpmax diagnose MODEL --lengths 4,8,16",
        )
    last = ends[1]
    many = len(diagnosis.retrieval_heads) > 1
    if diagnosis.cause == "nothing lost":
        return Verdict(
            "good",
            f"{'These heads lose' if many else 'This head loses'} no weight over these lengths.",
            ["Longer inputs may show otherwise."],
            command=f"sharpmax diagnose MODEL --lengths {_longer(diagnosis.lengths)}",
        )
    these = "these heads" if many else "this head"
    limit = (
        f"Infinitely sharp, {these} would give it {last.ranked_first:.2f} of the weight, the share "
        "of cases in which it is ranked first."
    )
    if diagnosis.cause == "dispersion":
        return Verdict(
            "good",
            f"Sharpening can help: {long} {these} still rank{'' if many else 's'} the answer first "
            f"in {percent(last.ranked_first, 0)} of cases, and give{'' if many else 's'} it "
            f"{last.weight:.2f} of the weight.",
            [limit],
            command="sharpmax tune MODEL",
        )
    if diagnosis.cause == "window":
        return Verdict(
            "bad",
            f"Sharpening cannot help: {long} the answer is outside the sliding window of {these} "
            f"in {percent(last.winners['hidden'], 0)} of cases.",
            command="sharpmax scan MODEL",
        )
    instead = max(_ranking_kinds(last), key=lambda kind: last.lost_to[kind])
    return Verdict(
        "mixed",
        f"Sharpening {these} cannot bring most of the weight back: {long} something else is ranked "
        f"first in {percent(1 - last.ranked_first, 0)} of cases, mostly {KINDS[instead]}.",
        [
            limit,
            "What a head ranks first depends on what the heads below it pass on, so sharpening or "
            "softening those may help. Only a trial can tell.",
        ],
        command="sharpmax tune MODEL",
    )


def _ranking_kinds(split: schemas.NeedleSplit) -> list[str]:
    return [kind for kind in split.lost_to if kind not in ("needle", "hidden")]


# Charts, map and tables.


def _length_axis(diagnosis: schemas.Diagnosis) -> Axis:
    return Axis(diagnosis.unit, scale="log", noun=diagnosis.unit, ticks=diagnosis.lengths)


def _splits(diagnosis: schemas.Diagnosis) -> list[schemas.NeedleSplit]:
    return [row.split for row in diagnosis.rows if row.split is not None]


def _attention(diagnosis: schemas.Diagnosis) -> Chart:
    lengths, splits = diagnosis.lengths, _splits(diagnosis)
    rows = diagnosis.rows
    return Chart(
        "Attention on the answer",
        _length_axis(diagnosis),
        Axis("%", digits=1, unit="%", low=0, high=104),
        [
            Line(
                "ranked first",
                lengths,
                [100 * split.ranked_first for split in splits],
                colour=RANKING,
            ),
            Line("weight", lengths, [100 * split.weight for split in splits], colour=DISPERSION),
            Line(
                "correct answers",
                lengths,
                [100 * row.accuracy.mean for row in rows],
                [100 * row.accuracy.low for row in rows],
                [100 * row.accuracy.high for row in rows],
                spread="bars",
                colour="ink",
            ),
            Line(
                "weight if uniform",
                lengths,
                [100 / row.tokens for row in rows],
                colour="muted",
                dash="dot",
                marks=0,
            ),
        ],
        text="Means over the heads that find the answer. Infinitely sharp, their weight would be "
        "the share ranked first. Bars: 95 % intervals.",
    )


def _loss(diagnosis: schemas.Diagnosis) -> Chart:
    lengths, splits = diagnosis.lengths, _splits(diagnosis)
    lines = [
        Line("loss", lengths, [split.loss for split in splits], colour="ink"),
        Line("dispersion", lengths, [split.dispersion for split in splits], colour=DISPERSION),
        Line("ranking", lengths, [split.ranking for split in splits], colour=RANKING),
    ]
    if any(split.window for split in splits):
        window = [split.window for split in splits]
        lines.append(Line("outside the window", lengths, window, colour=COLOURS["elsewhere"]))
    for kind in _ranking_kinds(splits[-1]):
        values = [split.lost_to[kind] for split in splits]
        if max(map(abs, values)) >= MIN_SHOWN:
            name = f"ranking: {KINDS[kind]}"
            lines.append(Line(name, lengths, values, colour=COLOURS[kind], dash="dash"))
    return Chart(
        "Weight lost, by cause",
        _length_axis(diagnosis),
        Axis("weight lost since the shortest length", digits=3),
        lines,
        text="Dispersion: the answer is still ranked first. Ranking: something else is, split by "
        "what it is. The parts sum to the loss.",
    )


def _winners(diagnosis: schemas.Diagnosis) -> Chart:
    splits = _splits(diagnosis)
    lines = []
    for kind, words in KINDS.items():
        shares = [100 * split.winners[kind] for split in splits]
        if max(shares) >= 100 * MIN_SHOWN:
            lines.append(Line(words, diagnosis.lengths, shares, colour=COLOURS[kind]))
    return Chart(
        "What is ranked first",
        _length_axis(diagnosis),
        Axis("cases, %", digits=1, unit="%", low=0, high=104),
        lines,
        text="Share of questions and heads, among the heads that find the answer at the shortest "
        "length.",
    )


def _map(
    diagnosis: schemas.Diagnosis, score: np.ndarray, weight: np.ndarray, winner: np.ndarray
) -> Heads:
    present = np.isfinite(score)
    short, long = (f"{diagnosis.lengths[end]:,} {diagnosis.unit}" for end in (0, -1))
    first = np.where(winner[-1] == 0, 1.0, 0.0).mean((0, 1))
    values = {
        "score": ("Retrieval score", score, 2),
        "short": (f"Weight at {short}", weight[0].mean((0, 1), dtype=np.float64), 3),
        "long": (f"Weight at {long}", weight[-1].mean((0, 1), dtype=np.float64), 3),
        "first": (f"Ranked first at {long}", first, 2),
    }
    best = np.unravel_index(int(np.nanargmax(score)), score.shape)
    return Heads(
        title="Retrieval score of each head",
        layers=[
            {"index": layer, "name": f"attention layer {layer}"} for layer in range(len(score))
        ],
        present=present.tolist(),
        measures=[
            Measure(key, name, np.where(present, numbers, np.nan).tolist(), digits)
            for key, (name, numbers, digits) in values.items()
        ],
        first=(int(best[0]), int(best[1])),
        without="not measured",
        text=f"Share of questions at {short} in which the head ranks the answer first. From "
        f"{diagnosis.min_score:g} on it is a retrieval head.",
    )


def _length_table(diagnosis: schemas.Diagnosis) -> Table:
    columns = [
        Column(diagnosis.unit.capitalize(), 0),
        Column("Tokens", 0),
        Column("Correct %", 1, "higher"),
    ]
    splits = bool(diagnosis.retrieval_heads)
    if splits:
        columns += [
            Column("Ranked first %", 1, "higher", short="First %"),
            Column("Weight", 3, "higher"),
            Column("Lost", 3),
            Column("to dispersion", 3, short="dispersion"),
            Column("to ranking", 3, short="ranking"),
            Column("Dispersion's share %", short=""),
        ]
    rows = []
    for row in diagnosis.rows:
        cells: list[object] = [row.length, row.tokens, 100 * row.accuracy.mean]
        if row.split is not None:
            split = row.split
            cells += [100 * split.ranked_first, split.weight, split.loss, split.dispersion]
            cells += [split.ranking, _share_range(split)]
        rows.append(cells)
    text = "Weight and ranks: means over the retrieval heads. Share: 95 % interval over prompts."
    return Table("By length", columns, rows, text if splits else "")


def _share_range(split: schemas.NeedleSplit) -> str:
    low, high = split.dispersion_share_low, split.dispersion_share_high
    if split.dispersion_share is None or low is None or high is None:
        return ABSENT
    return f"{100 * split.dispersion_share:z.0f} ({100 * low:z.0f} to {100 * high:z.0f})"


def _head_table(diagnosis: schemas.Diagnosis) -> Table:
    columns = [
        Column("Layer", 0),
        Column("Head", 0),
        Column("Retrieval score", 2, short="Score"),
        Column("Weight", 2),
        Column("Ranked first %", 0, short="First %"),
        Column("Lost to dispersion", 3, short="Dispersion"),
        Column("Lost to ranking", 3, short="Ranking"),
        Column("Ranked first instead, mostly", short="Instead"),
    ]
    with_law = any(head.law for head in diagnosis.retrieval_heads)
    columns += [Column("Held by sharpening that grows", short="")] if with_law else []
    rows = []
    for head in diagnosis.retrieval_heads:
        first, last = head.splits[0], head.splits[-1]
        instead = max(last.winners, key=lambda kind: (kind != "needle") * last.winners[kind])
        rows.append(
            [
                head.layer,
                head.head,
                head.score,
                Cell(last.weight, f"{first.weight:.2f} → {last.weight:.2f}"),
                Cell(
                    last.ranked_first,
                    f"{100 * first.ranked_first:.0f} → {100 * last.ranked_first:.0f}",
                ),
                last.dispersion,
                last.ranking,
                ABSENT if last.ranked_first == 1 else KINDS[instead],
                *([LAWS.get(head.law, ABSENT)] if with_law else []),
            ]
        )
    short, long = diagnosis.lengths[0], diagnosis.lengths[-1]
    title = f"Retrieval heads, from {short:,} to {long:,} {diagnosis.unit}"
    return Table(title, columns, rows)


def _glossary(diagnosis: schemas.Diagnosis) -> dict[str, str]:
    return {
        "Answer": "The token to copy: the first token of the right number, where the text has it. "
        "Attention is measured at the position that predicts it.",
        "Ranked first": "It has the largest logit of all tokens that the head can see.",
        "Retrieval score": "Share of questions at the shortest length in which a head ranks the "
        f"answer first. A head with {diagnosis.min_score:g} or more is a retrieval head.",
        "Dispersion": "Weight lost on questions in which the answer is still ranked first. "
        "Sharpening brings it back.",
        "Held by sharpening that grows": "How fast a head would have to be sharpened for the other "
        "tokens not to gain weight on the answer as the input grows, from their number within some "
        "distances of its logit, over the questions whose answer is ranked first.",
        "Ranking": "Weight lost on questions in which another token is ranked first. Sharpening "
        "that head moves more weight to the other token.",
        "Last tokens": f"The last {diagnosis.last_tokens} tokens before the answer, where the "
        "question is.",
        "First token": "Many heads rest on the first token when they have nothing to do: an "
        "attention sink.",
    }
