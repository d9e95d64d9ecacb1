"""One of several processes with a shard of the keys each, started by test_sharded.

Compares the sharded answer and its gradients with those of one process, for uneven and empty
shards; exits with an error if they differ.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

import sharpmax as sx
from sharpmax.torch import attention, blockwise, sharded_attention

STATS = (
    *("entropy", "log_sum_exp", "max_logit", "min_logit", "inverse_temperature"),
    "varentropy",
)


def main(rank: int, size: int, meeting: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
    blockwise.MAX_LOGITS, blockwise.MAX_ROWS = 300, 4
    compare(rank, size, [0, 10, 10, 23], True, False, 4, None)
    compare(rank, size, [0, 7, 15, 23], True, True, 2, 3.0)
    compare(rank, size, [0, 0, 23, 23], False, True, 2, None)
    dist.destroy_process_group()


def compare(rank, size, cuts, causal, masked, kv_heads, softcap):
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 4, 19, 8), (2, kv_heads, 23, 8), (2, kv_heads, 23, 8), (2, 4, 19, 8))
    query, key, value, weight = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes
    )
    mask = torch.rand(2, 1, 19, 23, generator=generator) < 0.5
    mask[0, 0, 3] = False
    mine = slice(cuts[rank], cuts[rank + 1])
    options = {"is_causal": causal, "enable_gqa": True, "softcap": softcap}
    policy = sx.Saturating(sx.PAPER)

    whole = [tensor.clone().requires_grad_() for tensor in (query, key, value)]
    expected = attention(
        *whole, attn_mask=mask if masked else None, policy=policy, impl="reference", **options
    )
    (expected.output * weight + expected.stats.entropy[..., None]).sum().backward()

    part = [query.clone(), key[:, :, mine].clone(), value[:, :, mine].clone()]
    part = [tensor.requires_grad_() for tensor in part]
    found = sharded_attention(
        *part, attn_mask=mask[..., mine] if masked else None, policy=policy, **options
    )
    # The same loss everywhere, so a share of it each.
    ((found.output * weight + found.stats.entropy[..., None]).sum() / size).backward()

    torch.testing.assert_close(found.output, expected.output, rtol=0, atol=1e-12)
    assert torch.equal(found.stats.count, expected.stats.count)
    for name in STATS:
        ours, theirs = getattr(found.stats, name), getattr(expected.stats, name)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    gradient = part[0].grad.clone()
    dist.all_reduce(gradient)
    torch.testing.assert_close(gradient, whole[0].grad, rtol=0, atol=1e-11)
    torch.testing.assert_close(part[1].grad, whole[1].grad[:, :, mine], rtol=0, atol=1e-11)
    torch.testing.assert_close(part[2].grad, whole[2].grad[:, :, mine], rtol=0, atol=1e-11)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
