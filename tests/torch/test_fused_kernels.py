"""Private kernels are trusted only after they have shown that they do what is expected."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from sharpmax.torch import fused_kernels, scaled_dot_product_attention
from sharpmax.torch.fused_kernels import KERNELS, Kernel, trial

CPU = KERNELS[0]


def wrong(change):
    """A kernel that is the CPU one but for a change of its answer."""
    return dataclasses.replace(CPU, name="changed", call=lambda *args: change(*CPU.call(*args)))


def hides_nothing(query, key, value, bias, causal, scale):
    return CPU.call(query, key, value, None, causal, scale)


def refuses(*args):
    raise RuntimeError("no such operator\nwith a long explanation")


WRONG = {
    "base 2": wrong(lambda output, total: (output, total / math.log(2))),
    "shape": wrong(lambda output, total: (output, total[..., :-1])),
    "transposed": wrong(lambda output, total: (output.mT, total)),
    "nan": wrong(lambda output, total: (output, total * torch.nan)),
    "output": wrong(lambda output, total: (output * 1.001, total)),
    "mask": dataclasses.replace(CPU, call=hides_nothing),
    "raises": dataclasses.replace(CPU, call=refuses),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_cpu_kernel_passes(dtype):
    assert trial(CPU, "cpu", dtype) is None


@pytest.mark.parametrize("kernel", WRONG.values(), ids=WRONG)
def test_a_kernel_that_does_something_else_is_left_alone(monkeypatch, kernel):
    reason = trial(kernel, "cpu", torch.float32)
    assert reason is not None
    assert "failed its trial" in reason
    assert "\n" not in reason
    monkeypatch.setattr(fused_kernels, "KERNELS", (kernel,))
    query = torch.ones(1, 2, 3, 8)
    with pytest.raises(NotImplementedError, match="failed its trial"):
        scaled_dot_product_attention(query, query, query, impl="fused")
    scaled_dot_product_attention(query, query, query)


def test_a_kernel_that_pads_its_rows_is_understood():
    def padded(*args):
        output, total = CPU.call(*args)
        return output, torch.nn.functional.pad(total, (0, 27))[..., None].squeeze(-1)

    assert trial(dataclasses.replace(CPU, call=padded), "cpu", torch.float32) is None


def test_a_trial_is_made_once(monkeypatch):
    made = []
    counted = dataclasses.replace(
        CPU, name="counted", call=lambda *args: made.append(1) or CPU.call(*args)
    )
    monkeypatch.setattr(fused_kernels, "KERNELS", (counted,))
    query = torch.ones(1, 2, 3, 8)
    for _ in range(3):
        scaled_dot_product_attention(query, query, query, impl="fused")
    assert len(made) == 8 + 3 * 2


def test_keys_are_repeated_for_a_kernel_that_cannot_share_them():
    def strict(query, key, *rest):
        assert query.shape[1] == key.shape[1]
        return CPU.call(query, key, *rest)

    kernel = dataclasses.replace(CPU, call=strict, shares_keys=False)
    assert trial(kernel, "cpu", torch.float64) is None


def test_flex_attention_would_pass_if_compiled():
    """Uncompiled it holds the matrix and so is not offered, but computes the same."""

    def eager(*args):
        return fused_kernels.flex_attention_with_lse(*args, compiled=False)

    with pytest.warns(UserWarning, match="flex_attention called without torch.compile"):
        assert trial(Kernel("flex", "cpu", (torch.float32,), eager), "cpu", torch.float32) is None


@pytest.mark.parametrize(
    ("kernel", "query", "reason"),
    [
        (KERNELS[0], torch.ones(1, 1, 1, 8, dtype=torch.float16), "does not take torch.float16"),
        (KERNELS[1], torch.ones(1, 1, 1, 8), "runs on cuda"),
        (
            Kernel("x", "cpu", (torch.float32,), CPU.call, dim_multiple=8),
            torch.ones(1, 1, 1, 9),
            "8",
        ),
        (
            Kernel("x", "cpu", (torch.float32,), CPU.call, takes_mask=False),
            torch.ones(1, 1, 1, 8),
            "no mask",
        ),
    ],
)
def test_kernels_say_what_they_do_not_take(kernel, query, reason):
    mask = torch.ones(1, 1, 1, 1, dtype=torch.bool)
    assert reason in kernel.refusal(query, query.dtype, mask)


@pytest.mark.parametrize("causal", [False, True])
def test_a_large_mask_is_converted_a_few_rows_at_a_time(monkeypatch, rng, causal):
    query, key, value = (torch.tensor(rng.normal(size=(1, 2, n, 8))) for n in (13, 9, 9))
    mask = torch.tensor(rng.random((13, 9)) < 0.6)
    whole = scaled_dot_product_attention(query, key, value, mask, is_causal=causal, impl="fused")
    sizes = []
    additive = fused_kernels.additive_mask
    monkeypatch.setattr(
        fused_kernels, "additive_mask", lambda *a: sizes.append(a[0].numel()) or additive(*a)
    )
    monkeypatch.setattr(fused_kernels, "MAX_MASK", 40)
    parts = scaled_dot_product_attention(query, key, value, mask, is_causal=causal, impl="fused")
    torch.testing.assert_close(parts, whole)
    assert max(sizes) <= 40
    assert len(sizes) == 2 * 4
