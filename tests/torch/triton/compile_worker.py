"""Compile the kernels of `impl="triton"` to the machine code of a GPU, and print their names."""

from __future__ import annotations

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import mangle_type

import sharpmax as sx
from sharpmax.torch.interface import prepare_inputs
from sharpmax.torch.triton import attention as triton_attention
from sharpmax.torch.triton import launch

CAPABILITY = 80
MULTIPROCESSOR = 99 * 1024
"""Bytes of shared memory that a program may have on the smallest GPU of this capability."""


def calls(needs_gradient, queries=32, heads=2, **options):
    """The kernels that an attention call would launch, with their arguments."""
    found = []
    launch._launch = lambda kernel, along, block, given: found.append((kernel, given))
    shapes = ((1, heads, queries, 16), (1, 1, 32, 16), (1, 1, 32, 16))
    tensors = [torch.zeros(s, dtype=torch.bfloat16, requires_grad=needs_gradient) for s in shapes]
    inputs = prepare_inputs(*tensors, enable_gqa=True, **options)
    output, stats = triton_attention.attend(inputs, sx.PAPER, True)
    if needs_gradient:
        (output.sum() + stats.entropy.sum()).backward()
    return sorted(found, key=lambda call: call[0].__name__)


def compiled(kernel, given):
    given = given | {"BLOCK_ROWS": 32, "BLOCK_KEYS": 16}
    signature, constants = {}, {}
    for index, parameter in enumerate(kernel.params):
        argument = given[parameter.name]
        is_one = isinstance(argument, int) and argument == 1  # compiled in
        if parameter.is_constexpr or argument is None or is_one:
            signature[parameter.name], constants[(index,)] = "constexpr", argument
        else:
            signature[parameter.name] = mangle_type(argument)
    return triton.compile(
        ASTSource(kernel, signature, constants),
        target=GPUTarget("cuda", CAPABILITY, 32),
        options={"num_warps": 4, "num_stages": 2, "enable_fp_fusion": True},
    )


def main() -> None:
    settings = [
        calls(False, queries=1, heads=1),  # decoding
        calls(True, attn_mask=torch.ones(32, 32, dtype=torch.bool), is_causal=True),
        calls(
            True,
            attn_mask=torch.zeros(32, 32, requires_grad=True),
            softcap=5.0,
            sinks=torch.zeros(2),
        ),
    ]
    for kernel, given in [call for setting in settings for call in setting]:
        assert compiled(kernel, given).metadata.shared <= MULTIPROCESSOR
        print(kernel.__name__)


if __name__ == "__main__":
    main()
