"""A made-up study, whose numbers are easy to follow."""

from __future__ import annotations

from typing import Any

from sharpmax.results import Result, Stopwatch

CONDITIONS = {"plain": "the model as it is", "tune": "tuned", "paper": "the polynomial"}
GAIN = {"plain": 0.0, "tune": 0.3, "paper": -0.3}
VERDICTS = {"tune": ("helps", ["lookup rises"]), "paper": ("harms", ["lookup falls"])}


def change(difference: float) -> dict[str, float]:
    return {
        "difference": difference,
        "low": difference - 0.05,
        "high": difference + 0.05,
        "p": 0.0001,
        "p_adjusted": 0.004,
        "detectable": 0.07,
        "detectable_strictly": 0.1,
    }


def answers(model: str, condition: str, **more: Any) -> dict[str, Any]:
    mean = 0.5 + GAIN[condition]
    row = {
        "model": model,
        "condition": condition,
        "prompts": 40,
        "score": {"mean": mean, "low": mean - 0.05, "high": mean + 0.05},
        **more,
    }
    return row if condition == "plain" else row | {"compared": change(GAIN[condition])}


def study(finished: bool = True) -> Result:
    """Return a study of two models; if unfinished, the second has no RULER and a third nothing."""
    absent = () if finished else ("qwen",)
    models = ("smollm2", "gemma-3-270m")
    rows, texts, pools, verdicts = [], [], [], []
    for model in models:
        complete = finished or model == "smollm2"
        for condition in CONDITIONS:
            cell = {"task": "lookup", "length": 32, "group": "lookup", "log_probability": -1.5}
            rows.append(answers(model, condition, **cell))
            for group in ("lookup", "ruler", "short tasks"):
                empty = {"model": model, "condition": condition, "group": group, "measured": 0}
                there = complete or group != "ruler"
                pool = answers(model, condition, group=group, measured=2) if there else empty
                pools.append(pool | {"cells": 2})
            for cell_name in ("essays", "guard"):
                text = {"model": model, "condition": condition, "cell": cell_name, "nats": 3.0}
                if condition != "plain":
                    text["nats_change"] = change(-GAIN[condition] / 100)
                texts.append(text)
            if condition != "plain":
                verdict, reasons = VERDICTS[condition]
                verdict = verdict if complete or verdict == "harms" else "unfinished"
                verdicts.append(
                    {"model": model, "condition": condition, "verdict": verdict, "reasons": reasons}
                )
    info = {
        "architecture": "LlamaForCausalLM",
        "parameters": 1,
        "dtype": "bfloat16",
        "device": "cpu",
        "notes": ["the weights were quantised"],
        "facts": {"plain": {}, "tune": {"changed_heads": 7}, "paper": {}},
    }
    return Result(
        kind="study",
        config={"seed": 0, "sizes": {model: {} for model in (*models, *absent)}},
        seeds=(0,),
        measurements={
            "models": {model: info | {"model": model} for model in models},
            "conditions": CONDITIONS,
            "families": ["lookup", "ruler"],
            "rows": rows,
            "texts": texts,
            "pools": pools,
            "verdicts": verdicts,
            "primary_tests": 42,
        },
        provenance=Stopwatch().provenance(),
    )
