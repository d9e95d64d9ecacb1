"""Adaptive attention over a sequence whose keys are split across processes.

    torchrun --nproc-per-node 4 examples/sharded_torch.py

Each process holds a quarter of the keys. Processes exchange only the statistics and outputs of
rows, never keys.
"""

import torch
import torch.distributed as dist

from sharpmax.torch import attention, sharded_attention


def main() -> None:
    dist.init_process_group("gloo")  # "nccl" on GPUs
    rank, size = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(0)  # the same numbers in all processes
    query, key, value = (torch.randn(1, 8, 1000, 64, generator=generator) for _ in range(3))

    mine = slice(rank * 1000 // size, (rank + 1) * 1000 // size)
    output, stats = sharded_attention(query, key[:, :, mine], value[:, :, mine], is_causal=True)

    whole = attention(query, key, value, is_causal=True)
    error = (output - whole.output).abs().max().item()
    if rank == 0:
        print(f"{size} processes, {stats.count.max().item()} keys in all")
        print(f"largest difference from one process with all keys: {error:.1e}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
