"""Keys split across four devices of one process: run by test_sharded with "few" or "all"."""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, PartitionSpec

from sharpmax.jax import attention, blocks, sharded_attention

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")


def main() -> None:
    assert jax.device_count() == 4
    blocks.FEWEST_ROWS = 2
    cases = [
        (1200, True, True),
        (10**6, False, True),
        (10**6, True, False),
        (1200, False, False),
    ]
    for block, causal, masked in cases[: 1 if sys.argv[1] == "few" else None]:
        blocks.BLOCK = block
        compare(causal, masked)


def compare(causal, masked):
    rng = np.random.default_rng(0)
    query, key, value, weight = (
        jnp.asarray(rng.normal(size=(2, n, heads, 8)))
        for n, heads in ((19, 4), (24, 2), (24, 2), (19, 4))
    )
    mask = rng.random((2, 1, 19, 24)) < 0.5
    mask[0, 0, 3] = False
    mask[:, :, 5, :12] = False  # the first two devices have nothing for this row
    mask = jnp.asarray(mask if masked else np.ones_like(mask))
    by_key = PartitionSpec(None, "keys")
    sharded = jax.jit(
        jax.shard_map(
            lambda q, k, v, m: sharded_attention(
                q, k, v, mask=m, axis_name="keys", is_causal=causal
            ),
            mesh=jax.make_mesh((4,), ("keys",), axis_types=(AxisType.Auto,)),
            in_specs=(PartitionSpec(), by_key, by_key, PartitionSpec(None, None, None, "keys")),
            out_specs=PartitionSpec(),
        )
    )

    def whole(q, k, v, m):
        return attention(q, k, v, mask=m, is_causal=causal)

    def loss(attend):
        def of(*arrays):
            output, stats = attend(*arrays, mask)
            return (output * weight).sum() + stats.entropy.sum()

        return jax.grad(of, (0, 1, 2))

    def close(ours, theirs):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-11)

    jax.tree.map(close, sharded(query, key, value, mask), whole(query, key, value, mask))
    jax.tree.map(close, loss(sharded)(query, key, value), loss(whole)(query, key, value))


if __name__ == "__main__":
    main()
