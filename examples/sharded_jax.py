"""Adaptive attention over a sequence whose keys are split across devices.

    XLA_FLAGS=--xla_force_host_platform_device_count=4 python examples/sharded_jax.py

The flag splits one CPU into four devices; leave it out on GPUs or TPUs. Devices exchange only the
statistics and outputs of rows, never keys.
"""

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec

from sharpmax.jax import attention, sharded_attention


def main() -> None:
    devices = jax.device_count()
    mesh = jax.make_mesh((devices,), ("keys",), axis_types=(AxisType.Auto,))
    seeds = jax.random.split(jax.random.key(0), 3)
    query, key, value = (jax.random.normal(seed, (1, 1000, 8, 64)) for seed in seeds)

    def attend(query, key, value):
        return sharded_attention(query, key, value, axis_name="keys", is_causal=True)

    by_key = PartitionSpec(None, "keys")
    sharded = jax.jit(
        jax.shard_map(
            attend,
            mesh=mesh,
            in_specs=(PartitionSpec(), by_key, by_key),
            out_specs=PartitionSpec(),
        )
    )
    output, stats = sharded(query, key, value)

    whole = attention(query, key, value, is_causal=True)
    error = jnp.abs(output - whole.output).max()
    print(f"{devices} devices, {stats.count.max()} keys in all")
    print(f"largest difference from one device with all keys: {error:.1e}")


if __name__ == "__main__":
    main()
