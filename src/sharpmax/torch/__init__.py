"""Attention for PyTorch: adaptive temperature as a drop-in, and the statistics of each row without
the matrix of weights.
"""

from sharpmax._errors import MissingExtraError

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise MissingExtraError("torch", "torch", "sharpmax.torch") from error

from sharpmax.torch.api import attention, attention_stats, scaled_dot_product_attention
from sharpmax.torch.multihead import MultiheadAttention
from sharpmax.torch.sharded import sharded_attention
from sharpmax.torch.stats import AttentionOutput, AttentionStats

__all__ = [
    "AttentionOutput",
    "AttentionStats",
    "MultiheadAttention",
    "attention",
    "attention_stats",
    "scaled_dot_product_attention",
    "sharded_attention",
]
