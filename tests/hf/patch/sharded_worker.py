"""Everything that sharpmax does with a model whose weights `fully_shard` splits among processes.

Run by `torchrun --nproc-per-node N sharded_worker.py FOLDER`: each process writes what it got to
FOLDER/RANK.pt.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from transformers import AutoModelForCausalLM

import sharpmax.hf as shf
from hf.patch.parallel_worker import GUARD, HARD, refusals, run, short_task
from hf.small import random_tokens, tokenizer
from sharpmax._errors import UserError
from sharpmax.hf.model_info import describe_model, weights_fingerprint


def load(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float64).eval()


def shard(model: Any) -> Any:
    """Split the weights of each layer, and of the rest, among all processes."""
    for layer in model.model.layers:
        fully_shard(layer)
    return fully_shard(model)


def refusal(job: Any) -> str:
    try:
        job()
    except UserError as error:
        return str(error)
    return "not refused"


def run_old_wrapper(model: Any) -> dict[str, Any]:
    """Return what can be done with FSDP1: the user runs the wrapper inside a block."""
    wrapped = FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))
    tokens = random_tokens(2, 17)
    with torch.no_grad(), shf.sharpen(wrapped, HARD, heads=[1]):
        logits = wrapped(tokens).logits
    short = {"short": [4], "long": [30], "prompts": 4}
    return {
        "logits": logits,
        "scan": refusal(lambda: shf.scan(wrapped, tokenizer(), [5])),
        "evaluate": refusal(lambda: shf.evaluate(wrapped, tokenizer(), "lookup")),
        "diagnose": refusal(lambda: shf.diagnose(wrapped, tokenizer(), "lookup")),
        "calibrate": refusal(lambda: shf.calibrate(wrapped, tokenizer(), short_task, **short)),
        "tune": refusal(lambda: shf.tune(wrapped, tokenizer(), {short_task: [10]})),
        "export": refusal(lambda: shf.export(wrapped, HARD, "nowhere")),
        "certify": refusal(lambda: shf.certify(wrapped)),
    }


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = shard(load(folder))
    refused = refusals(model, folder)
    options = {"guard": GUARD, "from_tokens": 8, "steps": 2}
    refused["tune"] = refusal(
        lambda: shf.tune(model, tokenizer(), {short_task: [10, 20]}, **options)
    )
    short = {"short": [4], "long": [30], "prompts": 4}
    refused["calibrate"] = refusal(lambda: shf.calibrate(model, tokenizer(), short_task, **short))
    results = run(model, folder, gradients=False)
    results |= {"refused": refused, "description": describe_model(model, None, [])}
    checkpoint = folder / f"{os.environ['RANK']}.part.json"
    shf.scan(model, tokenizer(), [5], resume=checkpoint)
    results["checkpoint"] = checkpoint.exists()
    results |= {"fingerprint": weights_fingerprint(model), "fsdp1": run_old_wrapper(load(folder))}
    torch.save(results, folder / f"{os.environ['RANK']}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
