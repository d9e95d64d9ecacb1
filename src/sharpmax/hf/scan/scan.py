"""How dispersed each head of a model is, over inputs of growing length."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from transformers import PreTrainedModel

from sharpmax.hf.checkpoint import Checkpoint
from sharpmax.hf.model_info import fingerprint
from sharpmax.hf.patch.layers import own_temperature
from sharpmax.hf.patch.parity import require_support
from sharpmax.hf.progress import Progress, ProgressCallback
from sharpmax.hf.scan import forward, labels
from sharpmax.hf.scan.forward import Pass, Plan
from sharpmax.hf.scan.inputs import inputs_of
from sharpmax.hf.scan.prompts import UserPrompt, choose
from sharpmax.policies import Policy
from sharpmax.results import Result, Stopwatch


class Scan(Result):
    """What `scan` found: arrays [length, layer, head]."""

    kind: Literal["scan"] = "scan"

    @property
    def lengths(self) -> list[int]:
        return list(self.config["lengths"])

    @property
    def tokens(self) -> list[int]:
        """How many tokens each input had."""
        return list(self.measurements["tokens"])

    @property
    def labels(self) -> list[list[str]]:
        """By layer and head."""
        return [list(row) for row in self.measurements["labels"]]

    @property
    def slopes(self) -> np.ndarray:
        """Growth of entropy in nats for each nat of log n, [layer, head]."""
        return self.arrays["slopes"]

    @property
    def entropy(self) -> np.ndarray:
        """In nats, at the last position, as all of these; `arrays` has the means over positions."""
        return self.arrays["last_entropy"]

    @property
    def normalised_entropy(self) -> np.ndarray:
        """entropy / log(visible tokens): 1 is uniform."""
        return self.arrays["last_normalised_entropy"]

    @property
    def effective_tokens(self) -> np.ndarray:
        """exp(entropy)."""
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

    def heads(self, label: str) -> list[tuple[int, int]]:
        """(layer, head) of all heads with this label."""
        layers, heads = self.measurements["layers"], self.measurements["heads"]
        return [
            (layer["index"], head)
            for layer, row in zip(layers, self.labels, strict=True)
            for head, found in zip(heads, row, strict=True)
            if found == label
        ]


def scan(
    model: PreTrainedModel,
    tokenizer: Any,
    lengths: Sequence[int] | None = None,
    prompt: str | UserPrompt = "max",
    *,
    text: str | Path | None = None,
    layers: Collection[int] | None = None,
    heads: Collection[int] | None = None,
    policy: Policy | None = None,
    seed: int = 0,
    name: str | None = None,
    notes: Sequence[str] = (),
    resume: str | Path | None = None,
    progress: ProgressCallback | None = None,
) -> Scan:
    """Measure the attention of each head on one input of each length, by one forward pass a length
    and without a matrix of tokens by tokens: memory grows with the length, not with its square.

    `prompt` is `"max"` (the paper's Figure 3; lengths count numbers), `"text"` (the first tokens of
    the file `text`), `"passkey"`, or a function from a length to a text or a list of tokens.
    `layers` and `heads` limit what is measured, and the pass ends after the last such layer.
    With a `policy` the model is sharpened by it, and the sharpened weights are measured.
    `resume` names a file that keeps finished lengths, for the same call to go on from; it stays,
    so that nothing is lost before the result is saved. `forget` removes it.
    """
    watch = Stopwatch()
    plan = Plan.of(model, layers, heads)
    require_support(model)
    kind = choose(prompt, tokenizer, text=text, seed=seed)
    inputs = inputs_of(model, kind, lengths)
    config = {
        **described(model, name, notes),
        "prompt": kind.name,
        "unit": kind.unit,
        "lengths": list(inputs),
        "inputs_sha256": _digest_of_inputs(inputs),
        "seed": seed,
        "policy": None if policy is None else repr(policy),
        **plan.numbers,
    }
    checkpoint = Checkpoint(resume, "scan", config | {"weights_sha256": fingerprint(model)})
    finished = _finished_passes(checkpoint)
    # A pass over n tokens takes about as long as n + n * n / 4,000.
    steps = Progress(progress, [len(some) + len(some) ** 2 / 4000 for some in inputs.values()])
    finish_layer = partial(steps.finish_part, len(plan.layers))
    for length, tokens in inputs.items():
        if length not in finished:
            finished[length] = forward.run(model, plan, tokens, policy, finish_layer)
            _keep_pass(checkpoint, length, finished[length])
        steps.finish_step()
    return _result(config, plan, inputs, finished, watch)


def _finished_passes(checkpoint: Checkpoint) -> dict[int, Pass]:
    """Return the passes in a checkpoint by length."""
    passes = {
        int(length): Pass({}, seconds)
        for length, seconds in checkpoint.values.setdefault("seconds", {}).items()
    }
    for key, array in checkpoint.arrays.items():
        length, _, name = key.partition("_")
        passes[int(length)].arrays[name] = array
    return passes


def _keep_pass(checkpoint: Checkpoint, length: int, finished: Pass) -> None:
    """Save a finished pass to a checkpoint."""
    checkpoint.arrays |= {f"{length}_{name}": array for name, array in finished.arrays.items()}
    checkpoint.values["seconds"][str(length)] = finished.seconds
    checkpoint.save()


def described(model: PreTrainedModel, name: str | None, notes: Sequence[str]) -> dict[str, Any]:
    """A model, as results name it."""
    own = own_temperature(model)
    added = () if own is None else (f"the model has a length temperature of its own: {own}",)
    return {
        "model": name or model.config._name_or_path or type(model).__name__,
        "architecture": type(model).__name__,
        "model_type": model.config.model_type,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": model.device.type,
        "notes": [*notes, *added],
    }


def _digest_of_inputs(inputs: dict[int, list[int]]) -> str:
    return hashlib.sha256(json.dumps(list(inputs.values())).encode()).hexdigest()


def _result(
    config: dict[str, Any],
    plan: Plan,
    inputs: dict[int, list[int]],
    passes: dict[int, Pass],
    watch: Stopwatch,
) -> Scan:
    found = [passes[length] for length in inputs]
    arrays = {name: np.stack([one.arrays[name] for one in found]) for name in found[0].arrays}
    tokens = [len(some) for some in inputs.values()]
    count = arrays["last_count"]
    arrays["slopes"] = labels.slopes(arrays["last_entropy"], count)
    local = (count[-1] > 0) & (count[-1] < tokens[-1])
    names = labels.all_labels(arrays, local)
    layers = [
        {
            "index": layer.index,
            "name": layer.name,
            "window": int(count[-1, row].max()) if local[row].any() else None,
        }
        for row, layer in enumerate(plan.layers)
    ]
    known = arrays["slopes"]
    scan = Scan(
        config=config,
        seeds=(config["seed"],),
        measurements={
            "tokens": tokens,
            "layers": layers,
            "heads": plan.heads,
            "labels": names,
            "slopes": [[None if np.isnan(one) else float(one) for one in row] for row in known],
            "seconds": [round(one.seconds, 3) for one in found],
            "rules": labels.RULES,
        },
        provenance=watch.provenance(),
    )
    return scan.with_arrays(**arrays)
