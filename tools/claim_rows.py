"""The claims of the paper (arXiv 2410.01104) and ours, one row each.

A claim of the paper has a mark that says how sure we are of its number; docs/reproduce.md explains
the marks. The paper's Table 1 is in `sharpmax.experiments.max_retrieval.paper`, its polynomial is
`sharpmax.PAPER`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import claim_numbers as numbers

from sharpmax import PAPER
from sharpmax.experiments.max_retrieval.paper import TABLE1

CONFIRMED, ONE_TEXT = "confirmed", "one text"
UNKNOWN = "not known"
NO_NUMBER = "a picture"


@dataclass(frozen=True)
class Claim:
    """One row of the tables."""

    text: str
    page: str
    """The page of docs/ that explains it."""
    file: str
    """The file of results/ that has the number."""
    command: str
    """The command that makes the file; shown if the file does not record one."""
    ours: Callable[[Any], str]
    """Returns our number from the result."""
    paper: str = "—"
    sure: str = "—"
    brief: bool = False
    """Whether the README shows it too."""


def _table1(size: int, **more: Any) -> Claim:
    row = TABLE1[size]
    return Claim(
        f"Table 1: {size:,} items, softmax → adaptive temperature, %",
        "max_retrieval.md#table-1",
        "table1.json",
        "sharpmax reproduce table1",
        partial(numbers.accuracy, size=size),
        f"{row.baseline} → {row.adaptive}{numbers.p_text(row.p)}",
        row.sure,
        **more,
    )


def _figure(number: int, text: str, ours: Callable[[Any], str], paper: str, sure: str) -> Claim:
    pages = {2: "max_retrieval.md#figures-2-and-7-where-the-head-looks"}
    pages |= {6: "max_retrieval.md#figure-6-where-the-polynomial-comes-from", 7: pages[2]}
    return Claim(
        f"Figure {number}: {text}",
        pages.get(number, f"reproduce.md#figure-{number}"),
        f"figure{number}.json",
        f"sharpmax reproduce figure{number}",
        ours,
        paper,
        sure,
    )


_FIGURE3 = _figure(
    3,
    "entropy of a language model's first heads grows with the input",
    numbers.head_entropy,
    "a straight line in log n for Gemma 2B, without known values",
    CONFIRMED,
)

_COEFFICIENTS = " ".join(f"{value:g}" for value in PAPER.coefficients).replace(
    "-", "\N{MINUS SIGN}"
)

PAPERS = (
    Claim(
        "Lemma 2.1: weights lie within e^(±δ)/n",
        "theory.md",
        "figure1.json",
        "sharpmax reproduce figure1",
        numbers.bounds,
        "every weight, always",
        CONFIRMED,
    ),
    Claim(
        "Theorem 2.2, Figure 1: a head over a vocabulary must disperse",
        "reproduce.md#figure-1",
        "figure1.json",
        "sharpmax reproduce figure1",
        numbers.one_head,
        "below any ε from some n on; the figure illustrates it",
        CONFIRMED,
        brief=True,
    ),
    Claim(
        "Proposition 3.1: weights bound the spread of logits",
        "certify.md",
        "certify.json",
        "sharpmax certify --scan results/scan.json",
        numbers.certified,
        "every head, always",
        CONFIRMED,
    ),
    Claim(
        "Spread of logits in a language model",
        "certify.md#the-spreads-published-for-gemma",
        "certify.json",
        "sharpmax certify --scan results/scan.json",
        numbers.measured_spread,
        "Gemma 2B: 5.69 ± 2.05, from 2.28 to 14.78, on a file of about 4,000 tokens",
        ONE_TEXT,
    ),
    Claim(
        "Corollary: dispersion induces reasoning failures",
        "max_retrieval.md#the-corollary-when-the-answer-cannot-be-right",
        "corollary.json",
        "sharpmax reproduce corollary",
        numbers.corollary,
        "said without a number",
        ONE_TEXT,
    ),
    _figure(
        2,
        "a head that finds the maximum looks away from it",
        numbers.attention_maps,
        NO_NUMBER,
        UNKNOWN,
    ),
    _FIGURE3,
    *(_table1(size, brief=size == 16384) for size, row in TABLE1.items() if row.sure == CONFIRMED),
    Claim(
        "Table 1: the gain is significant",
        "max_retrieval.md#table-1",
        "table1.json",
        "sharpmax reproduce table1",
        numbers.significant,
        "p below 0.05 at every size from 64 up",
        ONE_TEXT,
    ),
    _figure(
        5,
        "entropy of a power series; degenerate at both edges",
        numbers.power_series,
        "log 10 = 2.3026 at both edges; four regions",
        CONFIRMED,
    ),
    _figure(
        6,
        "Figure 4's polynomial of the entropy is the best inverse temperature",
        numbers.fit,
        f"{_COEFFICIENTS}, without a known error",
        CONFIRMED,
    ),
    _figure(
        7,
        "Figure 2 without → with adaptive temperature",
        numbers.attention_maps,
        NO_NUMBER,
        UNKNOWN,
    ),
    Claim(
        "Section 5: the polynomial at inference only does not help a language model",
        "evaluate.md#what-it-does-to-smollm2",
        "evaluate_lookup.json",
        "sharpmax evaluate smollm2 --task lookup --policy paper",
        partial(numbers.answered, condition="paper", length=32),
        "said of Gemma 2B on CLRS-Text; no number",
        CONFIRMED,
        brief=True,
    ),
    Claim(
        "Figure 8: CLRS-Text beyond the sizes trained at, fine-tuned, exact match",
        "clrs.md#our-results",
        "tuned/figure8.json",
        "sharpmax clrs evaluate build/clrs/test --trained build/clrs/tuned --out results/tuned",
        numbers.clrs_beyond,
        "fine-tuned with it, Gemma 2B is better on nearly all of 30 tasks; no number",
        ONE_TEXT,
    ),
    Claim(
        "Un-normalised attention does not disperse, but ranks items less well",
        "leaderboard.md",
        "leaderboard.json",
        "sharpmax leaderboard",
        numbers.unnormalised,
        "said without a number",
        CONFIRMED,
    ),
)
"""Figure 4 is code (`sharpmax.PAPER`), and we do not know what Figure 9 shows."""


def _other_model(title: str, name: str, figures: tuple[str, ...]) -> tuple[Claim, ...]:
    """Return the rows of a further language model."""
    certify = f"sharpmax certify {name} --scan results/{name}/scan.json"
    return (
        *(
            Claim(
                f"{title}, Figure 3, layer {layer or 0}",
                "reproduce.md#other-models",
                f"{name}/figure3{f'-layer-{layer}' if layer else ''}.json",
                f"sharpmax reproduce figure3 --model {name}"
                + (f" --layer {layer}" if layer else ""),
                numbers.head_entropy,
            )
            for layer in figures
        ),
        Claim(
            f"{title}, spread of logits",
            "certify.md#the-spreads-published-for-gemma",
            f"{name}/certify.json",
            certify,
            numbers.measured_spread,
        ),
        Claim(
            f"{title}, certified spread",
            "certify.md#three-models",
            f"{name}/certify.json",
            certify,
            numbers.certified,
        ),
        Claim(
            f"{title}, what its heads do as its input grows",
            "models.md#what-their-heads-do",
            f"{name}/scan.json",
            f"sharpmax scan {name}",
            numbers.scanned,
        ),
        *(
            Claim(
                f"{title}, why it loses answers, {task}",
                "study.md#what-limits-the-plain-models",
                f"{name}/{folder}diagnose.json",
                f"sharpmax diagnose {name} --task {task}",
                numbers.diagnosed,
            )
            for folder, task in (("", "lookup"), ("niah/", "niah_multikey_2"))
        ),
    )


CLRS = "sharpmax clrs evaluate build/clrs/test --trained build/clrs/models"

OURS = (
    Claim(
        "What softmax loses is ranking more than dispersion, % of the sets",
        "max_retrieval.md#where-the-lost-answers-went",
        "table1.json",
        "sharpmax reproduce table1",
        numbers.ranking,
    ),
    Claim(
        "Which of the paper's unknown settings gives its Table 1",
        "max_retrieval.md#the-papers-unknown-settings",
        "unknowns.json",
        "sharpmax reproduce unknowns",
        numbers.unknown_settings,
    ),
    Claim(
        "log n / log 16 sharpens better than the paper's polynomial, %",
        "max_retrieval.md#other-policies-and-a-task-on-which-sharpening-must-hurt",
        "policies.json",
        "sharpmax reproduce policies",
        numbers.policies,
    ),
    Claim(
        "Leaderboard: the best of each track, maximum of 16,384 items, %",
        "leaderboard.md",
        "leaderboard.json",
        "sharpmax leaderboard",
        numbers.best,
    ),
    Claim(
        "A head that saw at most 16 items finds the maximum of 16,384, %",
        "leaderboard.md#with-three-times-the-steps",
        "long/leaderboard.json",
        "sharpmax leaderboard --steps 15000 --track augmented --track augmented-drop-in",
        numbers.best,
        brief=True,
    ),
    Claim(
        "The same among 1,048,576 items, %",
        "leaderboard.md#on-larger-sets",
        "longest/leaderboard.json",
        "sharpmax leaderboard --track augmented --task max --steps 15000 --size 1048576",
        numbers.best_of_a_million,
    ),
    Claim(
        "A small Gemma learns CLRS-Text: exact match at the sizes trained at, ordinary softmax",
        "clrs.md#our-results",
        "figure8.json",
        CLRS,
        numbers.clrs_inside,
    ),
    Claim(
        "Figure 8 with that Gemma trained from scratch, beyond these sizes",
        "clrs.md#our-results",
        "figure8.json",
        CLRS,
        numbers.clrs_beyond,
    ),
    *(
        Claim(
            f"Tuned, SmolLM2 answers lookups among {length} names",
            "tune.md#results",
            "smollm2/evaluate_lookup.json",
            "sharpmax evaluate smollm2 --policy tuned",
            partial(numbers.answered, condition="tuned", length=length),
            brief=length == 64,
        )
        for length in (32, 64, 128)
    ),
    *(
        Claim(
            f"The same in a format that it was not tuned on, {task}",
            "tune.md#results",
            f"smollm2/evaluate_{task}.json",
            f"sharpmax evaluate smollm2 --task {task} --policy tuned",
            partial(numbers.answered, condition="tuned", length=32),
        )
        for task in ("births", "scores", "settings", "records", "boxes")
    ),
    Claim(
        "Tuned, it loses no passkey among 1,024 tokens",
        "tune.md#results",
        "smollm2/evaluate_passkey.json",
        "sharpmax evaluate smollm2 --task passkey --policy tuned",
        partial(numbers.answered, condition="tuned", length=1024),
    ),
    Claim(
        "Three models on lookup and RULER, tuned",
        "study.md#results",
        "study.json",
        "sharpmax reproduce study",
        numbers.studied,
    ),
    *_other_model("Gemma 3 270M", "gemma-3-270m", ("", "5")),
    *_other_model("Qwen2.5-Coder 1.5B", "qwen2.5-coder-1.5b", ("",)),
    Claim(
        "Why SmolLM2 loses answers as lists grow",
        "diagnose.md#smollm2",
        "diagnose.json",
        "sharpmax diagnose smollm2",
        numbers.diagnosed,
    ),
    Claim(
        "The same on RULER's niah_multikey_2",
        "study.md#what-limits-the-plain-models",
        "smollm2/diagnose.json",
        "sharpmax diagnose smollm2 --task niah_multikey_2",
        numbers.diagnosed,
    ),
    Claim(
        "Few heads of SmolLM2 are chosen for sharpening, by answers",
        "evaluate.md#calibrate",
        "calibration-answers.json",
        "sharpmax calibrate smollm2 --task lookup",
        numbers.calibrated,
    ),
    Claim(
        "The same, by entropy",
        "evaluate.md#calibrate",
        "calibration-entropy.json",
        "sharpmax calibrate smollm2 --task lookup --choose entropy",
        numbers.calibrated,
    ),
    *(
        Claim(
            f"Calibrated sharpening answers lookups among {length} names",
            "evaluate.md#what-it-does-to-smollm2",
            "evaluate_lookup.json",
            "sharpmax evaluate smollm2 --policy results/calibration-answers.json",
            partial(numbers.answered, condition="calibration-answers", length=length),
        )
        for length in (32, 64)
    ),
    *(
        Claim(
            f"It loses no passkey among {length:,} tokens",
            "evaluate.md#what-it-does-to-smollm2",
            f"{folder}evaluate_passkey.json",
            "sharpmax evaluate smollm2 --task passkey --policy results/calibration-answers.json",
            partial(numbers.answered, condition="calibration-answers", length=length),
        )
        for folder, length in (("", 1024), ("long/", 2048))
    ),
    Claim(
        "What SmolLM2's heads do as its input grows",
        "models.md#scan",
        "scan.json",
        "sharpmax scan",
        numbers.scanned,
    ),
    Claim(
        "By which law SmolLM2's heads would have to be sharpened to stay focused",
        "read_a_scan.md#which-law-would-hold-the-focus",
        "growth/scan.json",
        "sharpmax scan smollm2 --lengths 8,16,32,64,128,256 --out results/growth",
        numbers.laws,
    ),
    Claim(
        "A scan, as a ratio to a plain pass of the model",
        "benchmarks.md#scan",
        "bench_scan.json",
        "python benchmarks/scan_cost.py results/bench_scan.json",
        numbers.scan_cost,
    ),
    Claim(
        "Generating with a calibration, as a ratio to the plain model",
        "benchmarks.md#generating-with-a-calibration",
        "bench_generate.json",
        "python benchmarks/generate_cost.py results/bench_generate.json",
        numbers.generating_cost,
    ),
    Claim(
        "Small language models that saw at most 16 items, trained with normalisers or repaired",
        "train.md#does-it-keep-a-model-sharp",
        "train-normalisers.json",
        "sharpmax reproduce train-normalisers",
        numbers.trained_normalisers,
    ),
    *(
        Claim(
            text,
            "train.md#an-example",
            f"training-statistics{suffix}.json",
            f"python examples/train_with_statistics.py docs build/train{option}",
            numbers.trained_attention,
        )
        for text, suffix, option in (
            ("A training with too high a learning rate: what its heads do", "", ""),
            ("The same with QK-clip", "-clipped", " --tau 30"),
        )
    ),
    Claim(
        "Attention statistics while training, as a share of the time",
        "benchmarks.md",
        "bench_training.json",
        "python benchmarks/training_cost.py results/bench_training.json",
        numbers.training_cost,
    ),
    Claim(
        "The vLLM plugin equals sharpen",
        "deploy.md#vllm",
        "serving.json",
        "make test-serving",
        numbers.serving_agreement,
    ),
    Claim(
        "Tuned lookups among 40 names in serving engines",
        "deploy.md#llamacpp",
        "serving.json",
        "make test-serving",
        numbers.serving_answers,
    ),
    Claim(
        "The vLLM plugin's time, as a ratio to stock vLLM",
        "deploy.md#tests",
        "serving.json",
        "make bench-serving",
        numbers.serving_cost,
    ),
    Claim(
        "A scan of a long input, as a ratio to a plain pass",
        "benchmarks.md#long-inputs",
        "bench_long.json",
        "python benchmarks/long_inputs.py results/bench_long.json",
        numbers.long_inputs,
    ),
    *(
        Claim(
            text,
            "benchmarks.md",
            "bench_torch.json",
            "python benchmarks/attention_torch.py results/bench_torch.json",
            ours,
            brief=brief,
        )
        for text, ours, brief in (
            ("Adaptive attention for PyTorch on a CPU", numbers.torch_prefill, True),
            ("The same, one token more", numbers.torch_decode, False),
            ("The same, memory without a matrix", numbers.torch_memory, False),
        )
    ),
    Claim(
        "Adaptive attention for JAX on a CPU",
        "benchmarks.md#jax-prefill",
        "bench_jax.json",
        "python benchmarks/attention_jax.py results/bench_jax.json",
        numbers.jax_prefill,
    ),
    Claim(
        "Max retrieval trains faster than as written",
        "benchmarks.md#max-retrieval",
        "bench_max_retrieval.json",
        "python benchmarks/max_retrieval.py results/bench_max_retrieval.json",
        numbers.head_training,
    ),
)
