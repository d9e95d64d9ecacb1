"""Everything that sharpmax does with a model, in one process or as one of several that share it.

Run by `torchrun --nproc-per-node N parallel_worker.py FOLDER`: each process writes what it got to
FOLDER/RANK.pt.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM
from transformers.distributed import DistributedConfig

import sharpmax as sx
import sharpmax.hf as shf
from hf.small import random_tokens, tokenizer
from sharpmax._errors import UserError
from sharpmax.hf.evaluate.resolve import resolve_task
from sharpmax.hf.evaluate.tasks import make_prompts
from sharpmax.hf.model_info import weights_fingerprint
from sharpmax.hf.tune.calibration import architecture_of
from sharpmax.hf.tune.head_profiles import measure_benefits, measure_entropies
from sharpmax.results.calibration import Head

HARD = sx.Constant(3.0)
SHARPENED: dict[str, dict[str, Any]] = {
    "all heads": {"policy": sx.PAPER},
    "first head": {"policy": HARD, "heads": [0]},
    "last head": {"policy": HARD, "heads": [-1]},
    "across": {"policy": sx.LogLength(4), "heads": [1, 2]},
    "entropy, one head": {"policy": sx.PAPER, "heads": [3], "layers": [1]},
}
GUARD = [
    "".join(map(chr, random_tokens(300, seed=seed).remainder(60).add(40).tolist()))
    for seed in range(6)
]


def short_task(length: int, generator: Any) -> tuple[str, str]:
    number = int(generator.integers(10))
    return f"{'x' * length}{number}{'y' * length}", f" {number}"


def make_calibration(model: Any) -> shf.Calibration:
    """Return a calibration with heads in several processes' shares."""
    heads = [Head(layer=0, head=1, rate=0.7), Head(layer=0, head=2, rate=-0.2)]
    heads += [Head(layer=1, head=3, rate=0.5)]
    return shf.Calibration(
        model="small",
        weights=weights_fingerprint(model),
        architecture=architecture_of(model),
        method={},
        from_tokens=6,
        heads=tuple(heads),
    )


def run(model: Any, folder: Path, *, gradients: bool = True) -> dict[str, Any]:
    """Return what each function gives for a model, those with a backward pass if that works."""
    shf.sharpen(model, HARD)  # refused before the model runs, which would fail in some other way
    tokens, answers = random_tokens(2, 17), {}
    with torch.no_grad():
        answers["plain"] = model(tokens).logits
        for name, options in SHARPENED.items():
            with shf.sharpen(model, **{"policy": sx.PAPER, **options}):
                answers[name] = model(tokens).logits
        calibration = make_calibration(model)
        handle = shf.apply(model, calibration)
        answers["calibration"] = model(tokens).logits
        generated = model.generate(tokens, max_new_tokens=4, do_sample=False, pad_token_id=0)
        handle.remove()
        answers["after"] = model(tokens).logits
    results: dict[str, Any] = {"logits": answers, "generated": generated.tolist()}
    scans = {
        "scan": {},
        "heads": {"heads": [-1]},
        "two heads": {"heads": [1, 2], "layers": [1]},
        "policy": {"policy": sx.PAPER},
    }
    for name, options in scans.items():
        scan = shf.scan(model, tokenizer(), [5, 9], resume=folder / f"{name}.part.json", **options)
        results[name] = {"arrays": scan.arrays, "labels": scan.measurements["labels"]}

    def evaluate(path: Path, progress: Callable[[float], None] | None = None) -> shf.Evaluation:
        return shf.evaluate(
            model,
            tokenizer(),
            "lookup",
            {"hard": HARD, "calibration": calibration},
            lengths=[2],
            prompts=6,
            questions=2,
            resume=path,
            progress=progress,
        )

    resumed = evaluate(interrupted(folder / "evaluate.part.json", evaluate))
    results["evaluate"] = {"arrays": resumed.arrays}
    diagnosis = shf.diagnose(model, tokenizer(), "lookup", lengths=[2, 4], prompts=2, questions=2)
    results["diagnose"] = {"arrays": diagnosis.arrays}
    prompt = make_prompts(model, resolve_task(short_task), tokenizer(), [6], 1, 1, 0)[6][0]
    profiles = {"entropies": measure_entropies(model, prompt, (1.0, 1.5))}
    if gradients:
        profiles["benefits"] = measure_benefits(model, prompt)
    results["profiles"] = {"arrays": profiles}
    for choose in ("entropy", "answers") if gradients else ("entropy",):
        results[f"calibrate, {choose}"] = describe_calibration(
            lambda choose=choose: shf.calibrate(
                model, tokenizer(), short_task, choose=choose, short=[4, 6], long=[30], prompts=6
            )
        )
    if not gradients:
        return results
    results["tune"] = describe_calibration(
        lambda: shf.tune(
            model,
            tokenizer(),
            {short_task: [10, 20]},
            guard=GUARD,
            from_tokens=8,
            steps=6,
            check_prompts=2,
            guard_weight=0.1,
            max_text_cost=None,
            resume=folder / "tune.part.json",
        )
    )
    return results


def describe_calibration(job: Callable[[], shf.Calibration]) -> Any:
    """Return what a calibration file would hold, or why there is nothing to gain."""
    try:
        return job().model_dump(mode="json")
    except shf.NothingToGain as error:
        return str(error)


class _Interrupted(Exception):  # noqa: N818
    pass


def interrupted(path: Path, job: Callable[..., object]) -> Path:
    """Run a job until a third of it is done, and return its checkpoint."""

    def stop(share: float) -> None:
        if share > 1 / 3:
            raise _Interrupted

    try:
        job(path, stop)
    except _Interrupted:
        return path
    raise AssertionError("the job was not interrupted")


def refusals(model: Any, folder: Path) -> dict[str, str]:
    """Return the messages of what cannot be done with a part of a model."""
    calibration = make_calibration(model)
    jobs: dict[str, Callable[[], object]] = {
        "export": lambda: shf.export(model, calibration, folder / "exported", 64),
        "certify": lambda: shf.certify(model),
    }
    messages = {}
    for name, job in jobs.items():
        try:
            job()
        except UserError as error:
            messages[name] = str(error)
    return messages


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    size, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    results: dict[str, Any]
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder / "model",
            distributed_config=DistributedConfig(tp_size=size),
            dtype=torch.float64,
        ).eval()
        results = run(model, folder) | {"refused": refusals(model, folder)}
    except UserError as error:
        results = {"error": str(error)}
    torch.save(results, folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
