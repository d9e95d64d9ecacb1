"""Measure what a calibration costs while a model generates, relative to the plain model.

    python benchmarks/generate_cost.py results/bench_generate.json

Both generate greedily after the same prompt, in turns. Up to the calibration's `from_tokens` their
logits must be the same bit for bit. Beyond, the calibrated logits of a token that is generated with
a cache must be those of one pass over all tokens.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import torch
from measure import ratios
from torch import Tensor

import sharpmax.hf as shf
from sharpmax.hf.loading.loader import Loaded, load
from sharpmax.hf.scan.prompts import choose_prompt
from sharpmax.results import Result, Stopwatch

CALIBRATION = Path(__file__).parents[1] / "results" / "calibration-answers.json"
NEW_TOKENS = 64
ROUNDS = {64: 21, 1024: 11}
LARGEST_DIFFERENCE = 1e-3
"""Between logits of about 20 in float32, after 30 layers that add in another order."""


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


def check_short(model: torch.nn.Module, tokens: list[int], calibration: shf.Calibration) -> None:
    """Stop unless nothing changes up to `from_tokens`, and something does with one token more."""
    ids = torch.tensor([tokens[: calibration.from_tokens + 1]])
    plain = generate(model, tokens[:64], calibration.from_tokens + 1 - 64)
    short, longer = model(ids[:, :-1]).logits, model(ids).logits
    with shf.sharpen(model, calibration):
        same = torch.equal(model(ids[:, :-1]).logits, short)
        generated = all(map(torch.equal, generate(model, tokens[:64], len(plain)), plain))
        changed = not torch.equal(model(ids).logits[:, -1], longer[:, -1])
    if not (same and generated and changed):
        sys.exit(
            f"up to {calibration.from_tokens} tokens: same logits of a pass {same}, of generated "
            f"tokens {generated}; one token more: changed {changed}; no result was written"
        )


def check_long(model: torch.nn.Module, tokens: list[int], calibration: shf.Calibration) -> float:
    """Return the largest difference between logits with a cache and those of one pass."""
    with shf.sharpen(model, calibration):
        logits = torch.cat(generate(model, tokens))
        answer = logits.argmax(-1).tolist()
        once = model(torch.tensor([tokens + answer[:-1]])).logits[0, len(tokens) - 1 :]
    difference = float((logits - once).abs().max())
    if difference > LARGEST_DIFFERENCE:
        sys.exit(f"logits with a cache are off by {difference}; no result was written")
    return difference


def compare(
    model: torch.nn.Module, tokens: list[int], calibration: shf.Calibration
) -> dict[str, dict[str, float]]:
    """Return the time of both, and their ratio."""
    with ExitStack() as stack:

        def sharpen() -> None:
            stack.enter_context(shf.sharpen(model, calibration))

        call = partial(generate, model, tokens)
        return ratios(
            {"plain": call, "calibrated": call},
            ROUNDS[len(tokens)],
            before={"plain": stack.close, "calibrated": sharpen},
        )


def measure(loaded: Loaded) -> Result:
    """Check both, then time them."""
    watch = Stopwatch()
    model, calibration = loaded.model, shf.Calibration.load(CALIBRATION)
    prompt = choose_prompt("passkey", loaded.tokenizer)
    check_short(model, prompt.tokens(max(ROUNDS)), calibration)
    difference = check_long(model, prompt.tokens(max(ROUNDS)), calibration)
    times = {}
    for count in ROUNDS:
        times[str(count)] = compare(model, prompt.tokens(count), calibration)
        print(count, times[str(count)], flush=True)
    return Result(
        kind="bench-generate",
        config={
            "model": loaded.name,
            "calibration": CALIBRATION.name,
            "from_tokens": calibration.from_tokens,
            "new_tokens": NEW_TOKENS,
            "rounds": {str(tokens): rounds for tokens, rounds in ROUNDS.items()},
            "threads": torch.get_num_threads(),
        },
        seeds=(0,),
        measurements={"times": times, "largest_difference": difference},
        provenance=watch.provenance(),
    )


def main() -> None:
    torch.set_grad_enabled(False)
    path = Path(sys.argv[1])
    measure(load()).save(path, overwrite=True)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
