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
from functools import partial
from pathlib import Path

os.environ.update({"NPROC": "1", "JAX_PLATFORMS": "cpu"})  # as a job of a sweep has it

import jax
import jax.numpy as jnp
import numpy as np
import optax

from sharpmax.experiments.max_retrieval import data, heads, model, table1
from sharpmax.experiments.max_retrieval.exam import Exam, examine
from sharpmax.experiments.max_retrieval.train import (
    LOSS_EVERY,
    State,
    Training,
    begin,
    optimiser,
    streams,
)
from sharpmax.results import Result, Stopwatch

ROUNDS = 11
SETS, ITEMS = 128, 16_384


@partial(jax.jit, static_argnames=("forward", "training"))
def advance(state, key, first, forward, training):
    """As in training, by either way of writing the model."""
    method = optimiser(training)

    def loss_of(weights, sets):
        classes = forward(weights, sets, scaled=training.scaled)
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(classes, sets.answer))

    def step(state, number):
        sets = data.draw(
            training.task,
            jax.random.fold_in(key, number),
            training.batch,
            training.smallest,
            training.largest,
        )
        loss, gradient = jax.value_and_grad(loss_of)(state.weights, sets)
        changes, moments = method.update(gradient, state.optimiser, state.weights)
        return State(optax.apply_updates(state.weights, changes), moments), loss

    return jax.lax.scan(step, state, first + jnp.arange(LOSS_EVERY, dtype=jnp.int32))


def training_speed() -> dict[str, object]:
    training = Training()
    initialising, key = streams(0)
    start = begin(initialising, training)
    first = jnp.asarray(0, jnp.int32)
    arms = {"folded": model.forward, "as written": model.reference}
    losses = {
        name: np.asarray(advance(start, key, first, forward, training)[1])
        for name, forward in arms.items()
    }
    apart = float(np.abs(losses["folded"][:20] / losses["as written"][:20] - 1).max())
    if apart > 1e-3:
        sys.exit(f"the losses of the first 20 steps differ by {apart:.1e}: nothing is published")
    rounds = []
    for _ in range(ROUNDS):
        seconds = {}
        for name, forward in arms.items():
            begun = time.perf_counter()
            jax.block_until_ready(advance(start, key, first, forward, training))
            seconds[name] = (time.perf_counter() - begun) / LOSS_EVERY
        rounds.append(seconds)
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
    exam = Exam(found.of(0), True, "max", 0, (ITEMS,), SETS, table1.METHODS)
    begun = time.perf_counter()
    examine(exam)
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
