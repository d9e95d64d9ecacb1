"""`impl="triton"`: adaptive attention by our own CUDA kernels.

`attention` checks and runs a call, `launch` passes arguments to the kernels, `kernels` and
`gradients` hold the kernels, `trial` tests them on the GPU at hand. Only `kernels` and `gradients`
import the package triton, at the first use.
"""
