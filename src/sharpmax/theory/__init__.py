"""The paper's theorems as functions: bounds on attention weights, entropies and logits.

And a measure of its own: how fast the competitors of a row's maximum grow in number.

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
from sharpmax.theory.growth import (
    count_competitors,
    growth_power,
    name_law,
    sharpening_to_hold_focus,
)
from sharpmax.theory.spread import product_spread_bound, spread_bound
from sharpmax.theory.temperature import entropy_derivative

__all__ = [
    "count_competitors",
    "entropy_derivative",
    "growth_power",
    "items_until_dispersed",
    "items_until_ignored",
    "minimum_entropy",
    "name_law",
    "paper_items_until_dispersed",
    "paper_weight_bounds",
    "product_spread_bound",
    "sharpening_to_hold_focus",
    "spread_bound",
    "weight_bounds",
]
