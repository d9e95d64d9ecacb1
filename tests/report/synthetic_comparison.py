"""A made-up comparison of tuning, whose numbers are easy to follow."""

from __future__ import annotations

from typing import Any

from sharpmax.results import Result, Stopwatch

RIGHT = {"plain": 0.16, "tune-1": 0.88, "tune-2": 0.9, "tune-3": 0.86, "lora-8": 0.7, "paper": 0.02}
COST = {"tune-1": 0.004, "tune-2": 0.005, "tune-3": 0.004, "lora-8": 0.02, "paper": 0.3}
LENGTHS = (16, 32, 64, 128, 256)


def interval(mean: float) -> dict[str, float]:
    return {"mean": mean, "low": max(0.0, mean - 0.04), "high": min(1.0, mean + 0.04)}


def change(difference: float) -> dict[str, float]:
    return {
        "difference": difference,
        "low": difference - 0.01,
        "high": difference + 0.01,
        "p_adjusted": 0.001 if difference else 1.0,
    }


def row(cell: str, group: str, condition: str, pooled: bool = False, **more: Any) -> dict[str, Any]:
    right = RIGHT[condition]
    made = {
        "cell": cell,
        "group": group,
        "task": group,
        "length": int(cell.rpartition("-")[2]) if cell != "hellaswag" else 0,
        "pooled": pooled,
        "condition": condition,
        "questions": 320,
        "accuracy": interval(right),
        "log_probability": -2.0,
    }
    if condition != "plain":
        made |= {"compared": change(right - RIGHT["plain"]), "identical": 0.0}
    if condition not in ("plain", "tune-1"):
        made["tuned_compared"] = change(RIGHT["tune-1"] - right)
    return made | more


def comparison(*conditions: str, heads: bool = True) -> Result:
    rows, texts = [], []
    for condition in conditions:
        rows += [row(f"lookup-{length}", "lookup", condition) for length in LENGTHS]
        rows += [row(f"held-out-{n}", "held-out", condition, pooled=True) for n in (32, 64)]
        rows += [row("passkey-1024", "passkey", condition), row("lookup-8", "short", condition)]
        identical = {} if condition == "plain" else {"identical": float("tune" in condition)}
        rows.append(row("hellaswag", "choices", condition, **identical))
        cost = COST.get(condition, 0.0)
        text = {"cell": "essays", "condition": condition, "nats": 3 * (1 + cost), "short_nats": 3.5}
        if condition != "plain":
            text |= {"nats_change": change(cost), "short_nats_change": change(0.0)}
        texts += [text, text | {"cell": "guard"}]
    seeds = [name for name in conditions if name.startswith("tune-")]
    tuned_heads = {
        "rows": [
            {"layer": 0, "head": head, "rates": dict.fromkeys(seeds, head / 10 - 0.3),
             "score": head / 10, "short_entropy": 1.0, "long_entropy": 2.0}
            for head in range(9)
        ],
        "lengths": [8, 64],
        "retrieval_heads": 8,
        "retrieval_size": 0.25,
        "other_size": 0.1,
        "between_seeds": {"tune-1 tune-2": 0.81, "tune-1 tune-3": 0.92},
        "size_with_score": 0.4,
        "rate_with_score": 0.5,
        "rate_with_entropy_growth": None,
    }  # fmt: skip
    return Result(
        kind="tune-comparison",
        config={
            "model": "small", "architecture": "Llama", "parameters": 1000, "dtype": "float32",
            "device": "cpu", "notes": [], "steps": 150, "seed": 0,
        },
        seeds=(0,),
        measurements={
            "finished": {
                name: {
                    "summary": name,
                    "learns": None,
                    "numbers": 270,
                    "seconds": 600.0 if name != "plain" else None,
                    "failure": "nothing to gain" if name == "tune-3" else "",
                }
                for name in conditions
            },
            "rows": rows,
            "texts": texts,
            "heads": tuned_heads if heads and seeds else None,
        },
        provenance=Stopwatch().provenance(),
    )  # fmt: skip
