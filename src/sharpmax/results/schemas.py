"""The fields of each kind of result: one class per kind, read with `Kind.of(result)`.

A schema shows config, seeds and measurements as one object. Where config and measurements have the
same key, the measurement counts: it says what was done, not only what was asked for. Keys that no
reader needs are left out; a missing one is reported by its name. The JSON keys are those of the
files, also where the code has another word for them: an "arm" is a condition.
"""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from sharpmax._errors import UserError
from sharpmax.results.result import Result, first_problem

Numbers = list[float]
Gaps = list[float | None]
"""Numbers, some of which were not measured."""


class DamagedError(UserError):
    """A result does not hold what its kind needs."""


class Schema(BaseModel):
    """Base of the schemas and of their parts."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)

    @classmethod
    def of(cls, result: Result) -> Self:
        """Read a result through this schema; a field that is missing or wrong is named."""
        fields: dict[str, Any] = {"seeds": result.seeds, **result.config, **result.measurements}
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            raise DamagedError(
                f"not what a result of kind {result.kind!r} holds ({first_problem(error)}); run "
                "its command again"
            ) from error


class ModelInfo(Schema):
    """The model that was measured."""

    model: str
    architecture: str
    parameters: int
    dtype: str
    device: str
    notes: list[str]


class Layer(Schema):
    """An attention layer: its number, its name in the model, its sliding window if it has one."""

    index: int
    name: str
    window: int | None = None


class TokenText(Schema):
    """The texts of some tokens of an input, and their positions."""

    positions: list[int]
    pieces: list[str]

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if len(self.positions) != len(self.pieces):
            raise ValueError("the tokens' positions and texts differ in number")
        return self


class Scan(ModelInfo):
    """`scan`: statistics per head over inputs of growing length; the arrays hold most of them."""

    prompt: str
    unit: str
    lengths: list[int]
    seed: int
    policy: str | None
    tokens: list[int]
    layers: list[Layer]
    heads: list[int]
    labels: list[list[str | None]]
    slopes: list[Gaps]
    laws: list[list[str]] = []
    seconds: Numbers
    rules: dict[str, str]
    texts: list[TokenText] = []


class Interval(Schema):
    """A mean with its 95 % interval."""

    mean: float
    low: float
    high: float


class Change(Schema):
    """A difference to plain attention with its 95 % interval, and for accuracy its test."""

    difference: float
    low: float
    high: float
    p_adjusted: float = 1.0
    detectable: float = 0.0


class EvaluationRow(Schema):
    """One condition at one length; plain attention is not compared with itself."""

    length: int
    arm: str
    accuracy: Interval
    log_probability: float
    compared: Change | None = None
    log_probability_compared: Change | None = None


class Evaluation(ModelInfo):
    """`evaluate`: accuracy of a model as it is and sharpened, on the same questions."""

    task: str
    unit: str
    lengths: list[int]
    prompts: int
    questions: int
    seed: int
    arms: dict[str, Any]
    rows: list[EvaluationRow]
    level: float

    def rows_of(self, condition: str) -> list[EvaluationRow]:
        """Return the rows of one condition, by length."""
        return [row for row in self.rows if row.arm == condition]


class NeedleSplit(Schema):
    """Attention on the token to copy at one length, and the split of what was lost."""

    weight: float
    ranked_first: float
    winners: dict[str, float]
    loss: float
    dispersion: float
    ranking: float
    window: float
    lost_to: dict[str, float]
    dispersion_share: float | None
    dispersion_share_low: float | None
    dispersion_share_high: float | None


class DiagnosisRow(Schema):
    """One length: the answers, and the means over the retrieval heads if there are any."""

    length: int
    tokens: int
    accuracy: Interval
    split: NeedleSplit | None


class RetrievalHead(Schema):
    """A head that finds the token to copy, and its split at each length."""

    layer: int
    head: int
    score: float
    power: float | None = None
    law: str = ""
    """The law of sharpening that would hold the answer's weight; empty if not measured."""
    splits: list[NeedleSplit]


class Diagnosis(ModelInfo):
    """`diagnose`: why answers are lost; the arrays hold every head and question."""

    task: str
    unit: str
    lengths: list[int]
    prompts: int
    questions: int
    seed: int
    policy: dict[str, Any] | None
    heads: list[int]
    last_tokens: int
    min_score: float
    cause: str
    rows: list[DiagnosisRow]
    retrieval_heads: list[RetrievalHead]


class CertifiedLayer(Layer):
    """The bounds of a layer's heads, and the tokens from which no weight reaches each share."""

    smallest: float
    median: float
    largest: float
    log10_items: dict[str, float]
    measured: float | None = None


class ScanInfo(Schema):
    """The scan that a certificate is compared with."""

    prompt: str
    tokens: int


class Certificate(ModelInfo):
    """`certify`: bounds on the spread of logits from the weights; the arrays hold them per head."""

    epsilons: Numbers
    context: int | None
    scan: ScanInfo | None
    layers: list[CertifiedLayer]


class Training(Schema):
    """How the heads of max retrieval were trained."""

    steps: int
    smallest: int
    largest: int


class Printed(Schema):
    """A row of the paper's Table 1, and how sure we are of it."""

    baseline: float
    adaptive: float
    p: float | None
    sure: str


class Causes(Schema):
    """Shares of the sets that were answered wrongly, by cause and size."""

    dispersion: Numbers
    ranking: Numbers


class Table1(Schema):
    """`table1`: accuracy of max retrieval by size and method, beside the paper's."""

    training: Training
    seeds: tuple[int, ...]
    sets: int
    sizes: list[int]
    mean: dict[str, Numbers]
    std: dict[str, Numbers | None]
    p: Gaps
    attribution: dict[str, Causes]
    paper: dict[int, Printed]
    training_seconds: Numbers = []


class Distance(Schema):
    """Distance to the paper's Table 1, in points of accuracy."""

    mean: float
    worst: float


class Setting(Schema):
    """One combination of settings that the paper leaves open."""

    scaled: bool
    decoupled: bool
    steps: int
    seeds: int
    mean: dict[str, Numbers]
    distance: Distance


class Unknowns(Schema):
    """`unknowns`: which settings come closest to the paper's Table 1."""

    sizes: list[int]
    sets: int
    cells: list[Setting]
    closest: int
    paper: dict[int, Printed]


class PolicyTask(Schema):
    """Accuracy of each policy on one task, by size."""

    mean: dict[str, Numbers]
    std: dict[str, Numbers | None]
    p_against_paper: dict[str, Gaps]


class Policies(Schema):
    """`policies`: the same trained heads, sharpened in different ways."""

    seeds: tuple[int, ...]
    sets: int
    sizes: list[int]
    tasks: dict[str, PolicyTask]
    keeps_guard: dict[str, bool]


class Figure1(Schema):
    """`figure1`: weights of one head as its input grows, and their bounds."""

    vocabulary: int
    spread: float
    shown_sizes: list[int]
    repeats: int
    epsilon: float
    sizes: list[int]
    needle_weight: list[Numbers]
    smallest_weight: list[Numbers]
    entropy: list[Numbers]
    tight_low: Numbers
    tight_high: Numbers
    paper_low: Numbers
    paper_high: Numbers
    minimum_entropy: Numbers
    dispersed_from: float
    shown_weights: list[Numbers]


class AttentionMaps(Schema):
    """`figure2` and `figure7`: weights of the items of highest priority, set by set."""

    methods: list[str]
    sets: int
    items: int
    sizes: list[int]
    weights: dict[str, list[list[Numbers]]]
    weight_of_maximum: dict[str, Numbers]

    @model_validator(mode="after")
    def _fit(self) -> Self:
        for name, frames in self.weights.items():
            widths = {len(row) for frame in frames for row in frame}
            heights = {len(frame) for frame in frames}
            if (len(frames), heights, widths) != (len(self.sizes), {self.sets}, {self.items}):
                raise ValueError(f"the weights of {name} are not one of each size, set and item")
        return self


class Figure3(Schema):
    """`figure3`: entropy of the heads of one block, [seed, length, head]."""

    model: str
    notes: list[str]
    lengths: list[int]
    seeds: tuple[int, ...]
    layer: int
    tokens: Numbers
    entropy: list[list[Numbers]]
    mean_entropy: Numbers
    seed_spread: Numbers
    slope: float
    window: int | None = None


class Figure5(Schema):
    """`figure5`: entropy of a power series; the arrays hold the plane."""

    elements: int
    coldest: float
    hottest: float
    entropy_at_base_0: float
    entropy_at_base_1: float
    largest_entropy: float
    sharp_below_entropy: float
    least_entropy: float
    hot_from_temperature: float | None
    share_of_plane: dict[str, float]


class Figure6(Schema):
    """`figure6`: the best inverse temperature of each set, and polynomials through it."""

    seeds: tuple[int, ...]
    degree: int
    points: int
    leading: dict[int, float]
    coefficients: dict[str, Numbers]
    threshold: float
    sharpens: dict[str, list[tuple[float, float]]]
    entropies: tuple[float, float]
    temperature_error: dict[str, float]


class Curve(Schema):
    """One condition on one algorithm; `accuracy` is [training, test set, size]."""

    mean: Numbers
    std_tests: Numbers | None
    std_trainings: Numbers | None
    mean_familiar: Gaps
    mean_entropy: Gaps
    accuracy: list[list[Numbers]] = []


class Algorithm(Schema):
    """One algorithm of CLRS-Text; `familiar` is the share of answers that training can teach."""

    sizes: list[int]
    train_sizes: list[int]
    familiar: Numbers
    arms: dict[str, Curve]


class TrainedModel(Schema):
    """One training of CLRS-Text."""

    seconds: float
    config: dict[str, Any] = {}

    @property
    def from_scratch(self) -> bool:
        """Whether the model began with random weights, and not with those of another model."""
        return "shape" in self.config.get("training", {})


class Figure8(Schema):
    """`figure8`: exact match on CLRS-Text by algorithm, size and condition."""

    seeds: tuple[int, ...]
    model: str
    notes: list[str] = []
    test_seeds: list[int]
    labels: dict[str, str]
    algorithms: dict[str, Algorithm]
    trainings: list[TrainedModel] = []


class Budget(Schema):
    """The training and evaluation that every method of the leaderboard gets."""

    steps: int


class BoardRow(Schema):
    """One method on one task in one track; `reason` says why it did not take part.

    `accuracy` is [seed, size].
    """

    track: str
    task: str
    method: str
    reason: str | None = None
    mean: Numbers = []
    std: Numbers | None = None
    accuracy: list[Numbers] = []
    sharpness: Gaps = []


class Cost(Schema):
    """Time of a training step with each method over that with softmax."""

    ratio: dict[str, float]


class Leaderboard(Schema):
    """`leaderboard`: methods from logits to weights, trained and compared alike."""

    seeds: tuple[int, ...]
    tasks: list[str]
    budget: Budget
    tracks: dict[str, str]
    sizes: list[int]
    rows: list[BoardRow]
    cost: Cost
    unit_seconds: float = 0.0

    def ranking(self, track: str, task: str) -> list[BoardRow]:
        """Return the rows that took part, the most accurate on the largest sets first."""
        rows = [row for row in self.rows if (row.track, row.task) == (track, task) and row.mean]
        return sorted(rows, key=lambda row: -row.mean[-1])

    def row(self, track: str, task: str, method: str) -> BoardRow | None:
        """Return the row of a method that took part; None if it did not."""
        return next((row for row in self.ranking(track, task) if row.method == method), None)


class Timing(Schema):
    """Time as a ratio to the baseline's, with quartiles."""

    ratio: float
    low: float
    high: float
    milliseconds: float


class AttentionBench(Schema):
    """`bench-torch` and `bench-jax`: time and memory of attention, by case and implementation."""

    heads: int
    dims: list[int] = []
    dim: int | None = None
    rounds: int | dict[str, int]
    decode_keys: int | None = None
    memory_tokens: int | None = None
    prefill: dict[str, dict[str, Timing]]
    decode: dict[str, dict[str, Timing]] = {}
    growth: dict[str, dict[str, Timing]] = {}
    torch_after: dict[str, dict[str, Timing]] = {}
    memory: dict[str, dict[str, float]] = {}
    first_call: dict[str, dict[str, float]] = {}


class ScanBenchRow(Schema):
    """A scan of one length against a plain forward pass."""

    tokens: int
    plain_seconds: float
    scan_seconds: float
    ratio: float
    ratio_range: tuple[float, float]
    rounds: int
    peak_gigabytes: float


class ScanBench(Schema):
    """`bench-scan`: the time of a scan as a ratio to a plain pass."""

    model: str
    threads: int
    checked_tokens: int
    rows: list[ScanBenchRow]
    largest_difference: float


class LongRow(Schema):
    """Inputs of one length: time of a plain pass and a scan, memory of each job."""

    tokens: int
    plain_seconds: float
    scan_seconds: float
    ratio: float
    ratio_range: tuple[float, float]
    rounds: int
    peak_gigabytes: dict[str, float]
    cache_gigabytes: float


class LongBench(Schema):
    """`bench-long`: time and memory of long inputs."""

    model: str
    parameters: int
    threads: int
    chunk: int
    checked_tokens: int
    rows: list[LongRow]
    idle_gigabytes: float
    gigabytes_per_thousand_tokens: dict[str, float]
    largest_difference: float


class GenerateBench(Schema):
    """`bench-generate`: time of generating with a calibration, as a ratio to the plain model."""

    model: str
    calibration: str
    from_tokens: int
    new_tokens: int
    threads: int
    rounds: dict[str, int]
    times: dict[str, dict[str, Timing]]
    """By the number of tokens in the prompt: `plain` and `calibrated`."""
    largest_difference: float


class TrainingShare(Schema):
    """What sampled steps cost, as a share of a whole training."""

    ratio: float
    low: float
    high: float


class TrainingBench(Schema):
    """`bench-training`: the cost of attention statistics and QK-clip in a training step."""

    model: str
    batch: int
    tokens: int
    every: int
    rows: int
    sequences: int
    rounds: int
    threads: int
    times: dict[str, Timing]
    """Of a step: `plain`, `sampled` and `clipped`."""
    callback: TrainingShare
    largest_difference: float


class Agreement(Schema):
    """How far an engine's log-probabilities are from those of transformers, in nats."""

    compared: int
    largest_difference: float
    tolerance: float
    effect: float
    """The largest difference to the plain model."""


class ServingParity(Schema):
    """The vLLM plugin on a real model, by how vLLM cuts the batch."""

    versions: dict[str, str]
    ways: dict[str, Agreement]


class ServingZero(Schema):
    """The vLLM plugin in cases where it must change nothing."""

    prompts: int
    short: int
    same_bits: bool


class ServingModels(Schema):
    """The vLLM plugin on small random models, by their name."""

    models: dict[str, Agreement]


class ServingExport(Schema):
    """An exported folder, by engine."""

    at_length: int
    engines: dict[str, Agreement]


class ServingGguf(Schema):
    """Exported GGUF files in llama.cpp, by the type of their weights."""

    versions: dict[str, str]
    files: dict[str, Agreement]


class ServingLookup(Schema):
    """The same questions in each engine."""

    questions: int
    names: int
    right: dict[str, int]


class Workload(Schema):
    """The time of a batch, stock and with the plugin."""

    stock_seconds: float
    plugin_seconds: float
    ratio: float
    quartiles: tuple[float, float]
    stock_spread: float
    """How much longer the slowest process of stock vLLM takes than the fastest."""


class ServingThroughput(Schema):
    """The time that the plugin adds, by workload."""

    rounds: int
    processes: int
    threads: int
    workloads: dict[str, Workload]


class Serving(Schema):
    """`serving`: vLLM and llama.cpp compared with `sharpen`."""

    model: str
    parity: ServingParity
    zero_rates: ServingZero
    architectures: ServingModels
    export: ServingExport
    gguf: ServingGguf
    lookup: ServingLookup
    throughput: ServingThroughput | None = None

    def groups(self) -> dict[str, dict[str, Agreement]]:
        """Return all comparisons, by engine and what was compared."""
        engines = self.export.engines
        exported = {name: {"exported folder": part} for name, part in engines.items()}
        return {
            "vLLM": {
                **{f"plugin, {name}": part for name, part in self.parity.ways.items()},
                **{f"plugin, {name}": part for name, part in self.architectures.models.items()},
                **exported["vLLM"],
            },
            "transformers": exported["transformers"],
            "llama.cpp": {f"exported {name} file": part for name, part in self.gguf.files.items()},
        }


class HeadTraining(Schema):
    """A training step of max retrieval, as the library runs it and as the paper writes it."""

    milliseconds: dict[str, float]
    speed_up: float
    range: tuple[float, float]


class Exam(Schema):
    """Time and memory of one evaluation of a head."""

    seconds: float
    peak_gigabytes: float


class HeadBench(Schema):
    """`bench-max-retrieval`: the cost of training and evaluating a head."""

    rounds: int
    sets: int
    items: int
    batch: int
    training: HeadTraining
    exam: Exam


class ComparedCondition(Schema):
    """A condition of `tune-comparison`: what it is, what it learned and how long that took."""

    summary: str
    learns: str | None
    numbers: int
    changed_heads: int | None = None
    steps: int | None = None
    seconds: float | None = None
    learning_rate: float | None = None
    failure: str = ""


class ComparisonRow(Schema):
    """Answers of one condition to one task at one length."""

    cell: str
    group: str
    task: str
    length: int
    pooled: bool
    condition: str
    questions: int
    accuracy: Interval
    log_probability: float
    compared: Change | None = None
    tuned_compared: Change | None = None
    identical: float | None = None


class ComparisonText(Schema):
    """Nats per token of one condition on ordinary text, after the first 128 tokens and before."""

    cell: str
    condition: str
    nats: float
    short_nats: float
    nats_change: Change | None = None
    short_nats_change: Change | None = None


class TunedHead(Schema):
    """A head, its rates by tuning, and what it does in the plain model."""

    layer: int
    head: int
    rates: dict[str, float]
    score: float
    short_entropy: float
    long_entropy: float


class TunedHeads(Schema):
    """All heads, and rank correlations of their rates."""

    rows: list[TunedHead]
    lengths: list[int]
    retrieval_heads: int
    retrieval_size: float | None
    other_size: float | None
    between_seeds: dict[str, float | None]
    size_with_score: float | None
    rate_with_score: float | None
    rate_with_entropy_growth: float | None


class TuneComparison(ModelInfo):
    """`tune-comparison`: tuning and everything else, on the same questions."""

    steps: int
    seed: int
    finished: dict[str, ComparedCondition]
    rows: list[ComparisonRow]
    texts: list[ComparisonText]
    heads: TunedHeads | None

    def row(self, cell: str, condition: str) -> ComparisonRow | None:
        """Return a row; None if it has not been measured."""
        return next((r for r in self.rows if (r.cell, r.condition) == (cell, condition)), None)

    def text(self, cell: str, condition: str) -> ComparisonText | None:
        """Return the nats per token; None if they have not been measured."""
        return next((r for r in self.texts if (r.cell, r.condition) == (cell, condition)), None)


class Corollary(Schema):
    """`corollary`: from how many items on heads ignore the highest; lists by head, then by size."""

    sizes: list[int]
    types: list[str]
    sets: int
    ignored_from: list[Gaps]
    """By head and floating type."""
    largest_change_bound: list[Numbers]
    largest_change: list[Numbers]
    unseen: list[list[Numbers]]
    """By head, size and floating type."""
    accuracy: list[Numbers]
    follows: list[Numbers]
    depends: list[Numbers]
    weight: list[Numbers]


class StudyModel(ModelInfo):
    """A model of the study, with what is known of its conditions."""

    facts: dict[str, dict[str, Any]]


class StudyChange(Change):
    """A change with the exact test over prompts, and what the strictest test would find."""

    p: float
    p_adjusted: float = 1.0
    detectable_strictly: float


class StudyRow(Schema):
    """Answers of a model under one condition to one task at one length."""

    model: str
    condition: str
    group: str
    task: str
    length: int
    prompts: int
    score: Interval
    log_probability: float
    compared: StudyChange | None = None


class StudyPool(Schema):
    """Answers to all prompts of a family, or of the short tasks."""

    model: str
    condition: str
    group: str
    cells: int
    measured: int
    prompts: int = 0
    score: Interval | None = None
    compared: StudyChange | None = None


class StudyText(Schema):
    """Nats per token of ordinary text, after the first 128 tokens and before."""

    model: str
    condition: str
    cell: str
    nats: float
    nats_change: Change | None = None


class StudyVerdict(Schema):
    """Whether a condition helps a model, by the rules of the protocol."""

    model: str
    condition: str
    verdict: Literal["helps", "harms", "undecided", "unfinished"]
    reasons: list[str]


class Study(Schema):
    """`study`: three models under eight conditions, on lookup, RULER and short tasks."""

    models: dict[str, StudyModel]
    conditions: dict[str, str]
    families: list[str]
    rows: list[StudyRow]
    texts: list[StudyText]
    pools: list[StudyPool]
    verdicts: list[StudyVerdict]
    primary_tests: int
    seed: int
    sizes: dict[str, Any]
    """How much is asked, by model, also of models that were not measured yet."""

    def pool(self, model: str, group: str, condition: str) -> StudyPool | None:
        """Return the pooled answers; None if the condition was not measured."""
        key = (model, group, condition)
        found = (row for row in self.pools if (row.model, row.group, row.condition) == key)
        return next(found, None)

    def text(self, model: str, cell: str, condition: str) -> StudyText | None:
        """Return the nats per token; None if they have not been measured."""
        key = (model, cell, condition)
        found = (row for row in self.texts if (row.model, row.cell, row.condition) == key)
        return next(found, None)


class TrainingAlarm(Schema):
    """The first sample in which a head crossed a limit: `logits` or `entropy`."""

    kind: Literal["logits", "entropy"]
    step: int
    layer: int
    head: int
    value: float


class TrainingStatistics(ModelInfo):
    """`training-statistics`: attention statistics of a training; the arrays hold most of them."""

    layers: list[str]
    heads: list[int]
    every: int
    rows: int
    sequences: int
    max_logit: float
    min_entropy: float
    steps: list[int]
    alarms: list[TrainingAlarm]


class TrainedNormaliser(Schema):
    """One condition and seed of `train-normalisers`; sharpness only where nothing is added."""

    condition: str
    seed: int
    accuracy: Numbers
    nats: Numbers
    largest_weight: Numbers | None
    facts: dict[str, Any] = {}
    final_loss: float
    seconds: float


class TrainNormalisers(Schema):
    """`train-normalisers`: small models trained with normalisers, tested beyond training."""

    seeds: list[int]
    layers: int
    hidden: int
    heads: int
    largest: int
    steps: int
    batch: int
    texts: int
    questions: int
    sizes: list[int]
    summaries: dict[str, str]
    rows: list[TrainedNormaliser]
    sampled_steps: list[int]
    statistics: list[str]

    def of_condition(self, name: str) -> list[TrainedNormaliser]:
        """Return the rows of a condition, one per seed."""
        return [row for row in self.rows if row.condition == name]


SCHEMAS: dict[str, type[Schema]] = {
    "bench-generate": GenerateBench,
    "bench-jax": AttentionBench,
    "bench-long": LongBench,
    "bench-max-retrieval": HeadBench,
    "bench-scan": ScanBench,
    "bench-torch": AttentionBench,
    "bench-training": TrainingBench,
    "certify": Certificate,
    "corollary": Corollary,
    "diagnose": Diagnosis,
    "evaluate": Evaluation,
    "figure1": Figure1,
    "figure2": AttentionMaps,
    "figure3": Figure3,
    "figure5": Figure5,
    "figure6": Figure6,
    "figure7": AttentionMaps,
    "figure8": Figure8,
    "leaderboard": Leaderboard,
    "policies": Policies,
    "scan": Scan,
    "serving": Serving,
    "study": Study,
    "table1": Table1,
    "train-normalisers": TrainNormalisers,
    "training-statistics": TrainingStatistics,
    "tune-comparison": TuneComparison,
    "unknowns": Unknowns,
}
"""By kind of result."""
