"""Measure what folding the max-retrieval model saves, and the memory of an exam of 16,384 items.

    python benchmarks/max_retrieval.py results/bench_max_retrieval.json

Training steps of the folded model and of the model as written run in turns on one thread, with the
same data, batch and optimiser. The run checks that both have the same losses. Memory is that of a
fresh process that examines a head on 128 sets of 16,384 items.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

os.environ.update({"NPROC": "1", "JAX_PLATFORMS": "cpu"})  # as in a job of a sweep

import jax
import numpy as np
from measure import peak_gigabytes

from sharpmax.experiments.max_retrieval import heads, model, table1
from sharpmax.experiments.max_retrieval.evaluation import EvaluationJob, evaluate_head
from sharpmax.experiments.max_retrieval.train import (
    LOSS_EVERY,
    Training,
    initial_state,
    random_keys,
    train_steps,
)
from sharpmax.results import Result, Stopwatch

ROUNDS = 11
SETS, ITEMS = 128, 16_384


def training_speed() -> dict[str, object]:
    """Return milliseconds per training step of both models, and their ratio."""
    training = Training()
    initialising, key = random_keys(0)
    steps = np.arange(LOSS_EVERY, dtype=np.int32)
    rates = training.learning_rates(steps)
    models = {"folded": model.forward, "as written": model.reference}

    def timed(function) -> tuple[float, float]:
        start = jax.block_until_ready(initial_state(initialising, training.compile_key))
        begun = time.perf_counter()
        loss = float(train_steps(start, key, steps, rates, training.compile_key, function)[1])
        return (time.perf_counter() - begun) / LOSS_EVERY, loss

    losses = {name: timed(function)[1] for name, function in models.items()}  # compiles them too
    difference = abs(losses["folded"] / losses["as written"] - 1)
    if difference > 1e-3:
        sys.exit(f"the losses of the first steps differ by {difference:.1e}; no result was written")
    rounds = [
        {name: timed(function)[0] for name, function in models.items()} for _ in range(ROUNDS)
    ]
    ratios = sorted(times["as written"] / times["folded"] for times in rounds)
    return {
        "milliseconds": {
            name: 1e3 * statistics.median(times[name] for times in rounds) for name in models
        },
        "speed_up": statistics.median(ratios),
        "range": [ratios[0], ratios[-1]],
        "losses_apart": difference,
    }


def examination() -> dict[str, float]:
    """Return time and peak memory of one exam."""
    found = heads.load("max")
    job = EvaluationJob(found.of(0), True, "max", 0, (ITEMS,), SETS, table1.METHODS)
    begun = time.perf_counter()
    evaluate_head(job)
    return {"seconds": time.perf_counter() - begun, "peak_gigabytes": peak_gigabytes()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", type=Path)
    parser.add_argument("--only-exam", action="store_true")
    arguments = parser.parse_args()
    if arguments.only_exam:
        print(json.dumps(examination()))
        return
    watch = Stopwatch()
    speed = training_speed()
    command = [sys.executable, __file__, "--only-exam"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    measurements = {"training": speed, "exam": json.loads(done.stdout)}
    print(json.dumps(measurements, indent=1))
    Result(
        kind="bench-max-retrieval",
        config={"rounds": ROUNDS, "sets": SETS, "items": ITEMS, "batch": Training().batch},
        seeds=(0,),
        measurements=measurements,
        provenance=watch.provenance(),
    ).save(arguments.out, overwrite=True)


if __name__ == "__main__":
    main()
