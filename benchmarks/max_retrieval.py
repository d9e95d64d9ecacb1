"""What the algebra of the max-retrieval model saves, and what an exam of 16,384 items holds.

    python benchmarks/max_retrieval.py results/bench_max_retrieval.json

Training steps of the folded model and of the model as it is written, in turns, on one thread, with
the same data, batch and optimiser; that both have the same losses is checked in the same run.
Memory is that of a fresh process which examines a head on 128 sets of 16,384 items.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

os.environ.update({"NPROC": "1", "JAX_PLATFORMS": "cpu"})  # as a job of a sweep has it

import jax
import numpy as np

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
    training = Training()
    initialising, key = random_keys(0)
    steps = np.arange(LOSS_EVERY, dtype=np.int32)
    rates = training.learning_rates(steps)
    arms = {"folded": model.forward, "as written": model.reference}

    def timed(function) -> tuple[float, float]:
        start = jax.block_until_ready(initial_state(initialising, training.compile_key))
        begun = time.perf_counter()
        loss = float(train_steps(start, key, steps, rates, training.compile_key, function)[1])
        return (time.perf_counter() - begun) / LOSS_EVERY, loss

    losses = {name: timed(function)[1] for name, function in arms.items()}  # and compiles them
    apart = abs(losses["folded"] / losses["as written"] - 1)
    if apart > 1e-3:
        sys.exit(f"the losses of the first steps differ by {apart:.1e}: nothing is published")
    rounds = [{name: timed(function)[0] for name, function in arms.items()} for _ in range(ROUNDS)]
    ratios = sorted(one["as written"] / one["folded"] for one in rounds)
    return {
        "milliseconds": {
            name: 1e3 * statistics.median(one[name] for one in rounds) for name in arms
        },
        "speed_up": statistics.median(ratios),
        "range": [ratios[0], ratios[-1]],
        "losses_apart": apart,
    }


def examination() -> dict[str, float]:
    found = heads.load("max")
    job = EvaluationJob(found.of(0), True, "max", 0, (ITEMS,), SETS, table1.METHODS)
    begun = time.perf_counter()
    evaluate_head(job)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": time.perf_counter() - begun, "peak_gigabytes": peak / 2**20}


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
