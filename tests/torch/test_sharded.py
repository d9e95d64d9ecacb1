"""Keys split across processes give the answer of one process that has them all."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

import sharpmax as sx
from attention_cases import STATS, calls, small_blocks  # noqa: F401
from sharpmax.torch import attention, sharded, sharded_attention

HERE = Path(__file__).parent


class ThreadGroup:
    """Threads that exchange tensors as the processes of torch.distributed do."""

    ReduceOp = dist.ReduceOp

    def __init__(self, size):
        self.size, self.local = size, threading.local()
        self.barrier = threading.Barrier(size, timeout=60)
        self.slots = [None] * size

    def run(self, work):
        """Run `work(rank)` in a thread per rank."""

        def ranked(rank):
            self.local.rank = rank
            try:
                return work(rank)
            except BaseException:
                self.barrier.abort()  # the others wait for this one
                raise

        with ThreadPoolExecutor(self.size) as pool:
            return list(pool.map(ranked, range(self.size)))

    def is_initialized(self):
        return True

    def get_rank(self, group):
        return self.local.rank

    def get_world_size(self, group):
        return self.size

    def exchange(self, tensor):
        self.slots[self.local.rank] = tensor.clone()
        self.barrier.wait()
        tensors = list(self.slots)
        self.barrier.wait()
        return tensors

    def all_gather(self, tensors, tensor, group):
        for mine, theirs in zip(tensors, self.exchange(tensor), strict=True):
            mine.copy_(theirs)

    def all_reduce(self, tensor, operation, group):
        reduce = {dist.ReduceOp.SUM: torch.sum, dist.ReduceOp.MAX: torch.amax}
        reduce[dist.ReduceOp.MIN] = torch.amin
        tensor.copy_(reduce[operation](torch.stack(self.exchange(tensor)), 0))


def loss(answer, weight):
    output, stats = answer
    total = torch.where(stats.count > 0, stats.log_sum_exp, 0.0)
    return (output * weight).sum() + (stats.entropy.square() + total * stats.entropy).sum()


@settings(max_examples=40)
@given(call=calls("reference"), data=st.data())
def test_shards_give_the_answer_of_the_whole(call, data):
    """And its gradients; parts may be empty."""
    keys, size = call.key.shape[2], 3
    inner = sorted(data.draw(st.lists(st.integers(0, keys), min_size=2, max_size=2)))
    cuts = [0, *inner, keys]
    options = call.options("reference")
    mask = options.pop("attn_mask")
    mask = None if mask is None else mask.expand(*mask.shape[:-1], keys)
    for name in ("sinks", "window", "impl"):  # sharded_attention has none of them
        del options[name]
    whole = [tensor.requires_grad_() for tensor in call.tensors("reference")]
    expected = attention(*whole, attn_mask=mask, impl="reference", **options)
    weight = torch.tensor(np.random.default_rng(0).normal(size=expected.output.shape))
    gradients = torch.autograd.grad(loss(expected, weight), whole)

    def work(rank):
        shard = slice(cuts[rank], cuts[rank + 1])
        query, key, value = call.tensors("reference")
        parts = [query, key[:, :, shard], value[:, :, shard]]
        parts = [part.requires_grad_() for part in parts]
        mine = None if mask is None else mask[..., shard]
        found = sharded_attention(*parts, attn_mask=mine, **options)
        # The same loss everywhere, so a share of it each.
        return found, torch.autograd.grad(loss(found, weight) / size, parts, materialize_grads=True)

    with pytest.MonkeyPatch.context() as patch:
        group = ThreadGroup(size)
        patch.setattr(sharded, "dist", group)
        answers = group.run(work)
    tolerance = {"rtol": 1e-10, "atol": 1e-10}
    for found, _ in answers:
        torch.testing.assert_close(found.output, expected.output, **tolerance)
        for name in STATS:
            ours, theirs = getattr(found.stats, name), getattr(expected.stats, name)
            torch.testing.assert_close(ours, theirs, check_dtype=False, **tolerance)
    by_rank = [gradients for _, gradients in answers]
    torch.testing.assert_close(sum(rank[0] for rank in by_rank), gradients[0], **tolerance)
    for place in (1, 2):
        joined = torch.cat([rank[place] for rank in by_rank], 2)
        torch.testing.assert_close(joined, gradients[place], **tolerance)


@pytest.mark.slow
def test_three_processes(tmp_path):
    worker = [sys.executable, "-W", "error", HERE / "sharded_worker.py"]
    running = [
        subprocess.Popen(
            [*worker, str(rank), "3", str(tmp_path / "meeting")],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    errors = [process.communicate(timeout=300)[1] for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], "\n".join(errors)


@pytest.mark.slow
def test_the_example():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    example = HERE.parents[1] / "examples" / "sharded_torch.py"
    done = subprocess.run([*command, "2", example], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "2 processes, 1000 keys in all"
    # float32: an entropy good to 1e-6 moves a logit of 4 by up to 5 * 4 * 1e-6.
    assert float(second.rpartition(" ")[2]) < 1e-4


def test_alone_it_says_what_is_missing():
    query = torch.ones(1, 2, 3, 8)
    with pytest.raises(RuntimeError, match="call init_process_group first"):
        sharded_attention(query, query, query, policy=sx.Constant(1.0))
