"""Attention for JAX, with adaptive temperature and statistics of each row.

`dot_product_attention` replaces `jax.nn.dot_product_attention`. No function holds the matrix of
weights in memory.
"""

from sharpmax._errors import MissingExtraError

try:
    import jax as _jax  # noqa: F401
except ImportError as error:
    raise MissingExtraError("jax", "jax", "sharpmax.jax") from error

from sharpmax.jax.api import attention, attention_stats, dot_product_attention
from sharpmax.jax.flax import attention_fn
from sharpmax.jax.sharded import sharded_attention
from sharpmax.jax.stats import AttentionOutput, AttentionStats

__all__ = [
    "AttentionOutput",
    "AttentionStats",
    "attention",
    "attention_fn",
    "attention_stats",
    "dot_product_attention",
    "sharded_attention",
]
