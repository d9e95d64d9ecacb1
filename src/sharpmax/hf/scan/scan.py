"""Measure how dispersed each head of a model is, over inputs of growing length."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from transformers import PreTrainedModel

from sharpmax.hf.bos import prepare_tokenizer
from sharpmax.hf.checkpoint import Checkpoint
from sharpmax.hf.model_info import describe_model, weights_fingerprint
from sharpmax.hf.patch.parallel import group_of
from sharpmax.hf.patch.parity import require_support
from sharpmax.hf.patch.wrappers import unwrap_model
from sharpmax.hf.progress import Progress, ProgressCallback
from sharpmax.hf.scan import forward
from sharpmax.hf.scan.forward import PassStatistics, Selection
from sharpmax.hf.scan.prompts import PromptFunction, choose_prompt, make_inputs
from sharpmax.hf.scan.tokens import describe_tokens
from sharpmax.hf.tune.calibration import Calibration, find_calibration
from sharpmax.policies import Policy
from sharpmax.results import Result, Stopwatch
from sharpmax.theory import growth_power, name_law

if TYPE_CHECKING:
    from jaxtyping import Float, Int

UNIFORM = 0.9
SINK = 0.5
DISPERSES = 0.5

LABELS = {
    "local": "it sees a window and not the whole input, so that adding tokens adds none to it",
    "sink": f"at the longest input it rests on the first token: {SINK:g} or more of its weight",
    "uniform": f"its entropy is {UNIFORM:g} or more of the most possible at every length: it "
    "averages, and never was sharp",
    "disperses": f"its entropy grows by {DISPERSES:g} nats or more for each nat of log n: the "
    f"tokens it is spread over grow like n to the power of {DISPERSES:g} or faster",
    "stays sharp": f"its entropy grows by less than {DISPERSES:g} nats for each nat of log n",
    "unknown": "there is only one length, so nothing can be said of growth",
}
"""When a head gets a label; the first that fits counts. The thresholds are conventions, the same
for every model, and are stored with every result."""


class Scan(Result):
    """Attention statistics per head over growing inputs, as `scan` measures them.

    The properties give arrays [length, layer, head] at the last position of each input. `arrays`
    also holds means over positions, as `mean_entropy` and so on, and the positions and weights of
    the tokens that each head looks at most from the last position, as `strongest` and
    `strongest_weight` [length, layer, head, token]. `competitors` [length, layer, head, gap] counts
    the tokens, without the first, within each of `sharpmax.theory.growth.GAPS` of the largest logit
    there. Where a layer has fewer heads than others, its
    rows end in NaN.
    """

    kind: Literal["scan"] = "scan"
    """The kind of result."""

    @property
    def lengths(self) -> list[int]:
        """The lengths that were asked for, in the unit of the prompt."""
        return list(self.config["lengths"])

    @property
    def tokens(self) -> list[int]:
        """The number of tokens of each input."""
        return list(self.measurements["tokens"])

    @property
    def labels(self) -> list[list[str]]:
        """One word per head, by layer and head: `measurements["rules"]` defines them."""
        return [list(row) for row in self.measurements["labels"]]

    @property
    def slopes(self) -> np.ndarray:
        """Growth of entropy in nats per nat of log(visible tokens), [layer, head]."""
        return self.arrays["slopes"]

    @property
    def entropy(self) -> np.ndarray:
        """Entropy of the weights, in nats."""
        return self.arrays["last_entropy"]

    @property
    def normalised_entropy(self) -> np.ndarray:
        """entropy / log(visible tokens): 1 is uniform."""
        return self.arrays["last_normalised_entropy"]

    @property
    def effective_tokens(self) -> np.ndarray:
        """exp(entropy): over how many equal tokens the head would be as spread."""
        return self.arrays["last_effective_tokens"]

    @property
    def max_weight(self) -> np.ndarray:
        """The largest weight."""
        return self.arrays["last_max_weight"]

    @property
    def sink(self) -> np.ndarray:
        """The weight of the first token."""
        return self.arrays["last_sink"]

    @property
    def spread(self) -> np.ndarray:
        """The largest logit minus the smallest: the delta of the paper's bounds."""
        return self.arrays["last_spread"]

    @property
    def growth_power(self) -> np.ndarray:
        """The power of log n with which sharpening would have to grow to hold each head's focus.

        [layer, head]; NaN where nothing competes, or the head sees a window.
        """
        return self.arrays["growth_power"]

    @property
    def laws(self) -> list[list[str]]:
        """The law of sharpening that this power stands for, by layer and head."""
        return [list(row) for row in self.measurements["laws"]]

    def heads(self, label: str) -> list[tuple[int, int]]:
        """Return all heads with a label.

        Args:
            label: One of `labels`, such as "disperses".

        Returns:
            Pairs of a layer's number and a head's number.
        """
        layers, heads = self.measurements["layers"], self.measurements["heads"]
        return [
            (layer["index"], head)
            for layer, row in zip(layers, self.labels, strict=True)
            for head, its_label in zip(heads, row, strict=True)
            if its_label == label
        ]


def scan(
    model: PreTrainedModel,
    tokenizer: Any,
    lengths: Sequence[int] | None = None,
    prompt: str | PromptFunction = "max",
    *,
    text: str | Path | None = None,
    layers: Collection[int] | None = None,
    heads: Collection[int] | None = None,
    policy: Policy | Calibration | str | None = None,
    seed: int = 0,
    name: str | None = None,
    notes: Sequence[str] = (),
    resume: str | Path | None = None,
    progress: ProgressCallback | None = None,
) -> Scan:
    """Measure how spread out the attention of each head is as inputs grow.

    Runs one forward pass per length and holds no matrix of tokens by tokens: memory grows with the
    length, not with its square.

    Args:
        model: A transformers model that reads tokens: a decoder or an encoder.
        tokenizer: Its tokenizer.
        lengths: The lengths to measure, or None for the usual ones that fit the model's context.
        prompt: `"max"` (the question of the paper's Figure 3; lengths count numbers), `"text"` (the
            first tokens of a file), `"passkey"` (a number hidden in filler), or a function from a
            length to a text or a list of tokens.
        text: The file for `prompt="text"`.
        layers: Numbers of the attention layers to measure, negative ones from the end. None means
            all. The pass ends after the last of them.
        heads: Numbers of the heads to measure in each layer. None means all.
        policy: Sharpen the model by this policy, calibration, or calibration's name or path, as
            `sharpen` takes them, and measure the sharpened weights.
        seed: The seed of the random numbers in prompts.
        name: What the result calls the model.
        notes: What a reader of the result must know about the model.
        resume: A checkpoint file for finished lengths. The same call resumes from it. It stays, so
            that nothing is lost before the result is saved; `forget` removes it.
        progress: Called with the share of the work that is done, 0 to 1.

    Returns:
        The statistics and a label for each head.

    Raises:
        UserError: The architecture is not supported, a layer or head does not exist, a prompt does
            not fit the model, or the checkpoint belongs to another scan.
        NotImplementedError: A policy was given for a model with a softcap or a bias on its logits.

    Examples:
        >>> scan = shf.scan(model, tokenizer, lengths=[8, 64, 512])
        >>> scan.heads("disperses")
    """
    model = unwrap_model(model)
    watch = Stopwatch()
    selection = Selection.create(model, layers, heads)
    require_support(model)
    if isinstance(policy, str):
        policy = find_calibration(model, policy)
    tokenizer, bos_notes = prepare_tokenizer(model, tokenizer)
    chosen = choose_prompt(prompt, tokenizer, text=text, seed=seed)
    inputs = make_inputs(model, chosen, lengths, progress)
    config = {
        **describe_model(model, name, (*notes, *bos_notes)),
        "prompt": chosen.name,
        "unit": chosen.unit,
        "lengths": list(inputs),
        "inputs_sha256": hashlib.sha256(json.dumps(list(inputs.values())).encode()).hexdigest(),
        "seed": seed,
        "policy": None if policy is None else _describe_policy(policy),
        "layers": [layer.index for layer in selection.layers],
        "heads": selection.heads,
    }
    checkpoint, passes = _open_checkpoint(resume, config, model)
    # A pass over n tokens takes about as long as n + n * n / 4,000.
    costs = [len(tokens) + len(tokens) ** 2 / 4000 for tokens in inputs.values()]
    steps = None if progress is None else Progress(progress, costs)
    finish_layer = None if steps is None else partial(steps.finish_part, len(selection.layers))
    for length, tokens in inputs.items():
        if length not in passes:
            passes[length] = forward.measure_forward_pass(
                model, selection, tokens, policy, finish_layer
            )
            if checkpoint is not None:
                _save_pass(checkpoint, length, passes[length])
        if steps is not None:
            steps.finish_step()
    measured = [passes[length] for length in inputs]
    return _make_result(config, selection, tokenizer, inputs, measured, watch)


def _describe_policy(policy: Policy | Calibration) -> str:
    if not isinstance(policy, Calibration):
        return repr(policy)
    digest = hashlib.sha256(policy.text().encode()).hexdigest()
    return f"calibration of {len(policy.heads)} heads, SHA-256 {digest[:12]}"


def _open_checkpoint(
    path: str | Path | None, config: dict[str, Any], model: PreTrainedModel
) -> tuple[Checkpoint | None, dict[int, PassStatistics]]:
    """Return the checkpoint, if there is to be one, and the passes that it holds by length."""
    if path is None:
        return None, {}
    checkpoint = Checkpoint(
        path,
        "scan",
        config | {"weights_sha256": weights_fingerprint(model)},
        group=group_of(model),
    )
    passes = {
        int(length): PassStatistics({}, seconds)
        for length, seconds in checkpoint.values.setdefault("seconds", {}).items()
    }
    for key, array in checkpoint.arrays.items():
        length, _, name = key.partition("_")
        passes[int(length)].arrays[name] = array
    return checkpoint, passes


def _save_pass(checkpoint: Checkpoint, length: int, statistics: PassStatistics) -> None:
    checkpoint.arrays |= {f"{length}_{name}": array for name, array in statistics.arrays.items()}
    checkpoint.values["seconds"][str(length)] = statistics.seconds
    checkpoint.save()


def _make_result(
    config: dict[str, Any],
    selection: Selection,
    tokenizer: Any,
    inputs: dict[int, list[int]],
    passes: list[PassStatistics],
    watch: Stopwatch,
) -> Scan:
    arrays = {
        name: np.stack([statistics.arrays[name] for statistics in passes])
        for name in passes[0].arrays
    }
    tokens = [len(prompt) for prompt in inputs.values()]
    count = arrays["last_count"]
    arrays["slopes"] = entropy_slopes(arrays["last_entropy"], count)
    # A head that does not see the whole input has a window.
    local = (count[-1] > 0) & (count[-1] < tokens[-1])
    arrays["growth_power"] = measure_growth(arrays["competitors"], count, tokens)
    layers = [
        {
            "index": layer.index,
            "name": layer.name,
            "window": int(count[-1, row].max()) if local[row].any() else None,
        }
        for row, layer in enumerate(selection.layers)
    ]
    labels = [
        [_label_of(arrays, layer, head, tokens[-1]) for head in range(local.shape[1])]
        for layer in range(local.shape[0])
    ]
    scan = Scan(
        config=config,
        seeds=(config["seed"],),
        measurements={
            "tokens": tokens,
            "layers": layers,
            "heads": selection.heads,
            "labels": labels,
            "slopes": [
                [None if np.isnan(slope) else float(slope) for slope in row]
                for row in arrays["slopes"]
            ],
            "seconds": [round(statistics.seconds, 3) for statistics in passes],
            "laws": [
                [name_law(power) if label else "" for power, label in zip(row, names, strict=True)]
                for row, names in zip(arrays["growth_power"].tolist(), labels, strict=True)
            ],
            "rules": LABELS,
            "texts": [
                describe_tokens(tokenizer, prompt, statistics.arrays["strongest"])
                for prompt, statistics in zip(inputs.values(), passes, strict=True)
            ],
        },
        provenance=watch.provenance(),
    )
    return scan.with_arrays(**arrays)


def measure_growth(
    competitors: Int[np.ndarray, "length layer head gap"],
    count: Int[np.ndarray, "length layer head"],
    tokens: Sequence[int],
) -> Float[np.ndarray, "layer head"]:
    """Return the power of log n by which sharpening would hold the focus of each head.

    NaN for heads that do not see the whole input, and if the inputs do not grow.
    """
    sizes = [number - 1 for number in tokens]  # without the first token
    if len(sizes) < 2 or sizes[0] < 2 or min(np.diff(sizes)) <= 0:
        return np.full(count.shape[1:], np.nan)
    power = growth_power(sizes, competitors.astype(np.float64))
    sees_all = (count == np.asarray(tokens)[:, None, None]).all(0)
    return np.where(sees_all, power, np.nan)


def entropy_slopes(
    entropy: Float[np.ndarray, "length layer head"], count: Int[np.ndarray, "length layer head"]
) -> Float[np.ndarray, "layer head"]:
    """Return the growth of entropy in nats per nat of log n, by least squares.

    n is the number of visible tokens. Where it does not change, the slope is NaN.
    """
    logs = np.log(np.maximum(count, 1))
    logs = logs - logs.mean(0)
    power = (logs**2).sum(0)
    covered = (logs * (entropy - entropy.mean(0))).sum(0)
    return np.where(power > 1e-12, covered / np.where(power > 1e-12, power, 1.0), np.nan)


def _label_of(arrays: dict[str, np.ndarray], layer: int, head: int, tokens: int) -> str:
    """Return the label of a head at the last position; empty where the layer has fewer heads."""
    visible = arrays["last_count"][-1, layer, head]
    if visible == 0:
        return ""
    return label_head(
        arrays["last_normalised_entropy"][:, layer, head],
        arrays["last_sink"][:, layer, head],
        float(arrays["slopes"][layer, head]),
        local=bool(visible < tokens),
    )


def label_head(
    normalised_entropy: Float[np.ndarray, " length"],
    sink: Float[np.ndarray, " length"],
    slope: float,
    *,
    local: bool,
) -> str:
    """Return the label of one head; see `LABELS`."""
    if local:
        return "local"
    if sink[-1] >= SINK:
        return "sink"
    if normalised_entropy.min() >= UNIFORM:
        return "uniform"
    if np.isnan(slope):
        return "unknown"
    return "disperses" if slope >= DISPERSES else "stays sharp"
