"""Measure what sharpening costs whole models: generating, reading a prompt, and a training step.

    python benchmarks/whole_models.py results/bench_models.json

SmolLM2 under every condition in turn, as ratios to the plain model in the same round. Before it is
timed, a condition is checked: up to a calibration's `from_tokens` the logits must be the same bit
for bit, beyond they must differ, logits with a cache must be those of one pass over all tokens, and
the loss of a training step must be that of textbook attention. What `scan`, `evaluate` and `tune`
cost is measured in passes of the plain model over the same tokens.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import ratios
from torch import Tensor

import sharpmax as sx
import sharpmax.hf as shf
from sharpmax.hf.evaluate.scoring import (
    answer_log_probability,
    answer_logits,
    keep_logits,
    read_context,
    score_answers,
)
from sharpmax.hf.evaluate.tasks import TASKS, TaskPrompt, make_prompts
from sharpmax.hf.loading.loader import Loaded, load
from sharpmax.hf.patch import attention
from sharpmax.hf.scan.prompts import choose_prompt
from sharpmax.hf.tune.head_profiles import frozen_weights
from sharpmax.hf.tune.learnable import HeadRates
from sharpmax.hf.tune.settings import FROM_TOKENS, LAW
from sharpmax.policies import Policy, needs_entropy
from sharpmax.results import Result, Stopwatch

Apply = Callable[[], AbstractContextManager[Any]]

NEW_TOKENS = 64
TOKENS = (64, 1024, 4096)
TRAINING_TOKENS = (64, 512, 1024, 4096)
ROUNDS = {64: 21, 512: 9, 1024: 7, 4096: 3}
TRAINED = ("plain", "paper", "log-length", "tuned")
"""Conditions of a training step over many tokens, which takes a minute."""
LONG_TRAINING = 4096
COMMAND_ROUNDS = 5
SCANNED_TOKENS = 1024
NAMES = 64
"""Names to look up in the prompt of an evaluation and of a tuning step."""
LARGEST_DIFFERENCE = 1e-3
"""Between logits of about 20 in float32, after 30 layers that add in another order."""

POLICIES: dict[str, Policy] = {
    "constant": sx.Constant(1.2),
    "log-length": sx.LogLength(128),
    "infoscale": sx.policies.InfoScale(128),
    "paper": sx.PAPER,
    "saturating": sx.Saturating(sx.PAPER),
}


def conditions(model: torch.nn.Module) -> dict[str, Apply]:
    """Return every condition by name; the first is the plain model."""
    return {
        "plain": nullcontext,
        "tuned": partial(shf.sharpen, model, "smollm2"),
        **{name: partial(shf.sharpen, model, policy) for name, policy in POLICIES.items()},
    }


def compare(
    applied: dict[str, Apply], call: Callable[[], Any], rounds: int
) -> dict[str, dict[str, float]]:
    """Return the time of a call under each condition, as a ratio to the first."""
    with ExitStack() as stack:

        def enter(apply: Apply) -> None:
            stack.close()
            stack.enter_context(apply())

        return ratios(
            dict.fromkeys(applied, call),
            rounds,
            before={name: partial(enter, apply) for name, apply in applied.items()},
        )


# The three jobs.


def generate(
    model: torch.nn.Module, tokens: list[int], new: int = NEW_TOKENS
) -> tuple[Tensor, ...]:
    """Return the logits of each token that the model generates."""
    ids = torch.tensor([tokens])
    answer = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new,
        min_new_tokens=new,
        do_sample=False,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return answer.logits


def read(model: torch.nn.Module, tokens: list[int]) -> Tensor:
    """Return the logits after the last token of a prompt."""
    options = keep_logits(model, 1)
    return model(torch.tensor([tokens]), use_cache=False, **options).logits[0, -1]


def train(model: torch.nn.Module, tokens: list[int]) -> tuple[float, Tensor]:
    """Return the loss of a training step, and the gradient of one weight matrix."""
    model.zero_grad(set_to_none=True)
    ids = torch.tensor([tokens])
    with torch.enable_grad():
        loss = model(ids, labels=ids, use_cache=False).loss
        loss.backward()
    return float(loss), model.model.layers[15].self_attn.q_proj.weight.grad


# What must be right before anything is timed.


def check_short(model: torch.nn.Module, tokens: list[int]) -> None:
    """Stop unless a calibration changes nothing up to `from_tokens`, and something after."""
    first = shf.shipped_calibrations()["smollm2"].from_tokens
    ids = torch.tensor([tokens[: first + 1]])
    plain = generate(model, tokens[:64], first + 1 - 64)
    short, longer = model(ids[:, :-1]).logits, model(ids).logits
    with shf.sharpen(model, "smollm2"):
        same = torch.equal(model(ids[:, :-1]).logits, short)
        generated = all(map(torch.equal, generate(model, tokens[:64], len(plain)), plain))
        changed = not torch.equal(model(ids).logits[:, -1], longer[:, -1])
    if not (same and generated and changed):
        sys.exit(
            f"up to {first} tokens: same logits of a pass {same}, of generated tokens {generated}; "
            f"one token more: changed {changed}; no result was written"
        )


def check_cache(model: torch.nn.Module, tokens: list[int], applied: dict[str, Apply]) -> float:
    """Return the largest difference between logits with a cache and those of one pass."""
    worst = 0.0
    for name, apply in applied.items():
        with apply():
            logits = torch.cat(generate(model, tokens))
            answer = logits.argmax(-1).tolist()
            once = model(torch.tensor([tokens + answer[:-1]])).logits[0, len(tokens) - 1 :]
        difference = float((logits - once).abs().max())
        if difference > LARGEST_DIFFERENCE:
            sys.exit(f"{name}: logits with a cache are off by {difference}; no result was written")
        worst = max(worst, difference)
    return worst


def check_training(model: torch.nn.Module, tokens: list[int]) -> float:
    """Return how far the gradient with the paper's policy is from that of plain torch."""
    with shf.sharpen(model, sx.PAPER):
        loss, gradient = train(model, tokens)
        kept = gradient.clone()
    compute = attention.scaled_dot_product_attention
    attention.scaled_dot_product_attention = partial(compute, impl="reference")
    try:
        with shf.sharpen(model, sx.PAPER):
            expected_loss, expected = train(model, tokens)
    finally:
        attention.scaled_dot_product_attention = compute
    difference = float((kept - expected).abs().max() / expected.abs().max())
    if difference > LARGEST_DIFFERENCE or abs(loss - expected_loss) > LARGEST_DIFFERENCE:
        sys.exit(f"a training step is off by {difference}; no result was written")
    return difference


# What commands cost, in passes.


def measure_commands(loaded: Loaded, tokens: list[int]) -> dict[str, dict[str, float]]:
    """Return the time of each command's work as a ratio to plain passes over the same tokens."""
    model, tokenizer = loaded.model, loaded.tokenizer
    lookup = TASKS["lookup"]
    prompt = make_prompts(model, lookup, tokenizer, [NAMES], 1, lookup.questions, 0)[NAMES][0]
    context = list(prompt.context)

    pairs = {
        "scan": (
            lambda: read(model, tokens),
            lambda: shf.scan(model, tokenizer, [SCANNED_TOKENS], prompt="passkey"),
        ),
        "evaluate": (lambda: read(model, context), lambda: score_answers(model, tokenizer, prompt)),
        "tune": (lambda: read(model, context), lambda: step_of_tuning(model, prompt)),
    }
    return {
        name: ratios({"plain pass": base, name: work}, COMMAND_ROUNDS)[name]
        for name, (base, work) in pairs.items()
    }


def step_of_tuning(model: torch.nn.Module, prompt: TaskPrompt) -> None:
    """Compute the gradients of one prompt of a tuning."""
    rates = HeadRates(model, FROM_TOKENS, LAW)
    with torch.enable_grad(), frozen_weights(model), rates.applied():
        logits = answer_logits(model, prompt, read_context(model, prompt))
        scores = [
            answer_log_probability(rows.float().log_softmax(-1), answer)
            for rows, answer in zip(logits, prompt.answers, strict=True)
        ]
        torch.stack(scores).sum().backward()


def measure(loaded: Loaded) -> Result:
    """Check all conditions, then time them."""
    watch = Stopwatch()
    model = loaded.model
    tokens = choose_prompt("passkey", loaded.tokenizer).tokens(max(TOKENS) + NEW_TOKENS)
    applied = conditions(model)
    check_short(model, tokens)
    differences = {
        "cache": check_cache(model, tokens[:1024], applied),
        "training": check_training(model, tokens[:512]),
    }
    times: dict[str, dict[str, Any]] = {"generate": {}, "prefill": {}, "training": {}}
    jobs = (
        ("generate", TOKENS, generate),
        ("prefill", TOKENS, read),
        ("training", TRAINING_TOKENS, train),
    )
    for job, counts, work in jobs:
        for count in counts:
            names = TRAINED if (job, count) == ("training", LONG_TRAINING) else applied
            call = partial(work, model, tokens[:count])
            chosen = {name: applied[name] for name in names}
            times[job][str(count)] = compare(chosen, call, ROUNDS[count])
            model.zero_grad(set_to_none=True)
            found = {name: timing["ratio"] for name, timing in times[job][str(count)].items()}
            print(job, count, found, flush=True)
    commands = measure_commands(loaded, tokens[:SCANNED_TOKENS])
    print(commands, flush=True)
    calibration = shf.shipped_calibrations()["smollm2"]
    return Result(
        kind="bench-models",
        config={
            "model": loaded.name,
            "from_tokens": calibration.from_tokens,
            "new_tokens": NEW_TOKENS,
            "rounds": {str(count): rounds for count, rounds in ROUNDS.items()},
            "threads": torch.get_num_threads(),
            "policies": {name: repr(policy) for name, policy in POLICIES.items()},
            "by_length": [name for name, policy in POLICIES.items() if not needs_entropy(policy)],
            "scanned_tokens": SCANNED_TOKENS,
            "names": NAMES,
            "command_rounds": COMMAND_ROUNDS,
        },
        seeds=(0,),
        measurements={
            **times,
            "commands": commands,
            "largest_difference": float(np.max(list(differences.values()))),
        },
        provenance=watch.provenance(),
    )


def main() -> None:
    torch.set_grad_enabled(False)
    path = Path(sys.argv[1])
    measure(load("smollm2")).save(path, overwrite=True)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
