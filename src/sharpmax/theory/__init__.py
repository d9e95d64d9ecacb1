"""The paper's theorems as functions: bounds on attention weights, entropies and logits.

Each takes plain numbers or arrays of any library, broadcast together.
"""

from sharpmax.theory.dispersion import (
    items_until_dispersed,
    items_until_ignored,
    minimum_entropy,
    paper_items_until_dispersed,
    paper_weight_bounds,
    weight_bounds,
)
from sharpmax.theory.spread import product_spread_bound, spread_bound
from sharpmax.theory.temperature import entropy_derivative

__all__ = [
    "entropy_derivative",
    "items_until_dispersed",
    "items_until_ignored",
    "minimum_entropy",
    "paper_items_until_dispersed",
    "paper_weight_bounds",
    "product_spread_bound",
    "spread_bound",
    "weight_bounds",
]
