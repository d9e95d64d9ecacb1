"""Write the question that the explorer opens with, and what SmolLM2 answers.

The question was chosen because it shows the effect; the shares of right answers over many such
questions, from `results/smollm2/evaluate_lookup.json`, are written beside it.
Run: python tools/explorer_example.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import sharpmax as sx
import sharpmax.hf as shf
from sharpmax.app.model.generation import GenerationRequest, generate_pair
from sharpmax.hf.evaluate.tasks import TASKS
from sharpmax.results import Result, schemas

ROOT = Path(__file__).parents[1]
FILE = ROOT / "src" / "sharpmax" / "app" / "assets" / "lookup_example.json"
EVALUATION = ROOT / "results" / "smollm2" / "evaluate_lookup.json"
NAMES, SEED = 24, (7, 24, 4)
MAX_TOKENS = 6


def shares(length: int) -> dict[str, Any]:
    """Return how often plain attention and the calibration were right among so many names."""
    evaluation = schemas.Evaluation.of(Result.load(EVALUATION))
    rows = {name: evaluation.rows_of(name) for name in ("plain", "tuned")}
    right = {
        name: next(row.accuracy.mean for row in found if row.length == length)
        for name, found in rows.items()
    }
    return {"names": length, "questions": evaluation.prompts * evaluation.questions, **right}


def main() -> None:
    """Ask the question with plain attention, the calibration and the paper's polynomial."""
    loaded = shf.load("smollm2")
    tokenizer: Any = loaded.tokenizer
    prompt = TASKS["lookup"].make_prompt(tokenizer, NAMES, 1, np.random.default_rng(SEED))
    text = str(tokenizer.decode([*prompt.context, *prompt.questions[0]]))
    content: dict[str, Any] = {
        "model": loaded.name,
        "sharpmax": sx.__version__,
        "prompt": text,
        "answer": str(tokenizer.decode(prompt.answers[0])),
        "max_tokens": MAX_TOKENS,
        "evaluated": shares(32),
        "conditions": {},
    }
    for name, policy in (("tuned", "tuned"), ("paper", sx.PAPER)):
        request = GenerationRequest(text, policy, None, None, MAX_TOKENS, False)
        pair = generate_pair(loaded, request, lambda share: None)
        assert pair.tokens is not None
        inputs = [
            dict(one) | {"needle": list(range(*prompt.needles[0]))}
            for one in pair.tokens.data["inputs"]
        ]
        content["conditions"][name] = {
            "plain": pair.plain,
            "sharpened": pair.sharpened,
            "first_difference": pair.first_difference,
            "tokens": dict(pair.tokens.data) | {"inputs": inputs},
        }
    FILE.write_text(json.dumps(content, separators=(",", ":")) + "\n", "utf-8")
    for name, one in content["conditions"].items():
        print(name, repr(one["plain"]), repr(one["sharpened"]))


if __name__ == "__main__":
    main()
