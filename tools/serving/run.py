"""Compare vLLM and llama.cpp with `shf.sharpen`, and write what was found as a result.

    python tools/serving/run.py results/serving.json [PART ...]

Each part is saved when it is finished. Parts that the file has are not repeated unless they are
named. `throughput` runs only if it is named: it needs a machine that does nothing else.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable
from pathlib import Path

import models
from comparison import Part
from export_parts import export, gguf, lookup
from plugin_parts import architectures, parity, refusals, zero_rates
from throughput import throughput

import sharpmax.hf as shf
from sharpmax.hf.loading.catalogue import CATALOGUE
from sharpmax.hf.loading.loader import Loaded, load
from sharpmax.results import Result, Stopwatch

PARTS: dict[str, Callable[[Loaded], Part]] = {
    "parity": parity,
    "zero_rates": zero_rates,
    "architectures": architectures,
    "refusals": refusals,
    "export": export,
    "gguf": gguf,
    "lookup": lookup,
    "throughput": throughput,
}
"""The parts by name, in the order in which they run."""


def make_config() -> Part:
    """Return what the numbers of all parts depend on."""
    text = shf.shipped_calibrations()["smollm2"].text()
    return {
        "model": CATALOGUE["smollm2"].title,
        "calibration": "smollm2",
        "calibration_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "dtype": "float32",
    }


def main() -> None:
    path, names = Path(sys.argv[1]), sys.argv[2:]
    unknown = set(names) - set(PARTS)
    if unknown:
        sys.exit(f"unknown part {', '.join(sorted(unknown))}: expected {', '.join(PARTS)}")
    config = make_config()
    before = Result.load(path) if path.exists() else None
    # What was measured with another calibration does not belong to this one.
    done = dict(before.measurements) if before and before.config == config else {}
    missing = [name for name in PARTS if name not in done and name != "throughput"]
    todo = [name for name in PARTS if name in (names or missing)]
    if not todo:
        print(f"{path} has all parts; name those to repeat: {', '.join(PARTS)}")
        return
    models.MODELS.mkdir(parents=True, exist_ok=True)
    loaded = load()
    for name in todo:
        watch, begin = Stopwatch(), time.perf_counter()
        print(f"{name} ...", flush=True)
        done[name] = PARTS[name](loaded)
        provenance = watch.provenance()
        done[name] |= {"commit": provenance.commit, "seconds": time.perf_counter() - begin}
        parts = {part: done[part] for part in PARTS if part in done}
        # Of all parts, whenever they ran.
        whole = {
            "command": "make test-serving",
            "seconds": sum(part["seconds"] for part in parts.values()),
        }
        Result(
            kind="serving",
            config=config,
            seeds=(7,),
            measurements=parts,
            provenance=provenance.model_copy(update=whole),
        ).save(path, overwrite=True)
        print(f"wrote {name} to {path}", flush=True)


if __name__ == "__main__":
    main()
