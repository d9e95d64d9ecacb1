"""Laws of sharpening that hold a head's focus, in words."""

from __future__ import annotations

LAWS = {
    "none": "hardly",
    "sqrt(log n)": "like √log n",
    "log n": "like log n",
    "(log n)^2": "like (log n)²",
    "faster": "faster than (log n)²",
}
"""Laws of sharpening that hold a head's focus, as adverbs, the slowest first."""
