"""Train in one of several processes, with and without callbacks.

Run by `torchrun --nproc-per-node N worker.py FOLDER`: each process writes what it got to
FOLDER/RANK.pt.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import sharpmax.hf as shf
from hf.train.tiny import make_trainer, weights
from sharpmax.hf.train.rows import STATISTICS

TAU = 0.5


class Kept(shf.StatisticsCallback):
    """Keep what this process has measured, before processes are combined."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.own: list[Any] = []

    def on_step_end(self, *arguments: Any, **kwargs: Any) -> None:
        if self._statistics is not None:
            self.own.append(self._statistics.sums.copy())
        super().on_step_end(*arguments, **kwargs)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    plain = make_trainer(folder / "plain", use_cpu=True)
    plain.train()
    statistics = Kept(folder / "statistics.jsonl", every=2)
    watched = make_trainer(folder / "watched", callbacks=[statistics])
    watched.train()
    clip = shf.QKClipCallback(TAU)
    clipped = make_trainer(folder / "clipped", callbacks=[clip])
    clipped.train()
    results = {
        "plain": weights(plain),
        "watched": weights(watched),
        "clipped": weights(clipped),
        "own": statistics.own,
        "writes": statistics.history is not None,
        "clips": clip.clipped,
        "statistics": STATISTICS,
        "world": dist.get_world_size(),
    }
    torch.save(results, folder / f"{os.environ['RANK']}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
