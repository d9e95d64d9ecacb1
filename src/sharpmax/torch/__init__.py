"""Attention for PyTorch with adaptive temperature, and statistics of each row.

`scaled_dot_product_attention` replaces torch's function of that name. `attention` returns the
statistics too, and `attention_stats` only them; neither needs the matrix of weights.
"""

from sharpmax._errors import MissingExtraError

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise MissingExtraError("torch", "torch", "sharpmax.torch") from error

from sharpmax.torch.api import attention, attention_stats, scaled_dot_product_attention
from sharpmax.torch.interface import AttentionOutput, AttentionStats
from sharpmax.torch.multihead import MultiheadAttention
from sharpmax.torch.sharded import sharded_attention

__all__ = [
    "AttentionOutput",
    "AttentionStats",
    "MultiheadAttention",
    "attention",
    "attention_stats",
    "scaled_dot_product_attention",
    "sharded_attention",
]
