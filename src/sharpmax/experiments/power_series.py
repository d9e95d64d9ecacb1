"""Figure 5: entropy of softmax over the powers x, x², ..., x¹⁰ at temperature t, for all (x, t).

The paper (arXiv 2410.01104) shows this plane in four regions and calls the edges x = 0 and x = 1
degenerate. We know neither its exact boundaries nor whether the exponent starts at 0 or 1. With
exponents 1 to 10 both edges are degenerate as the paper says: all logits are equal, so the entropy
is log 10 at every temperature. Therefore the exponent starts at 1 here.

Our regions are computed. A point is *sharp* if its effective number of items is below half of all,
exp(H) < 10/2. Otherwise it is *hot* if no x is sharp at its temperature; else *vanishing* if x is
smaller than the sharpest x at this temperature (all powers near 0), or *constant* if it is larger.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sharpmax.ops import entropy
from sharpmax.results import Result, Stopwatch

if TYPE_CHECKING:
    from jaxtyping import Float, Int

__all__ = ["Config", "run"]

REGIONS = ("sharp", "hot", "vanishing", "constant")


@dataclass(frozen=True)
class Config:
    """Settings of Figure 5."""

    elements: int = 10
    """Number of powers."""
    bases: int = 401
    """Grid points of x, from 0 to 1."""
    temperatures: int = 301
    """Grid points of the temperature, evenly spaced in its logarithm."""
    coldest: float = 1e-3
    """Lowest temperature."""
    hottest: float = 1e1
    """Highest temperature."""
    sharp_fraction: float = 0.5
    """A point is sharp if its effective number of items is below this share of all items."""


def run(config: Config = Config()) -> Result:  # noqa: B008 - frozen, so sharing the default is safe
    """Compute the entropy and the region of every point of the plane.

    Args:
        config: The grid and the definition of sharp.

    Returns:
        A result of kind `figure5` with the arrays `base`, `temperature`, `entropy` and `region`.
    """
    watch = Stopwatch()
    base = np.linspace(0.0, 1.0, config.bases)
    temperature = np.geomspace(config.coldest, config.hottest, config.temperatures)
    plane = entropy_plane(base, temperature, config.elements)
    limit = float(np.log(config.elements * config.sharp_fraction))
    regions = classify(plane, limit)
    sharpest = np.unravel_index(np.argmin(plane), plane.shape)
    hot = temperature[(plane >= limit).all(axis=1)]
    measurements: dict[str, Any] = {
        "entropy_at_base_0": float(plane[:, 0].max()),
        "entropy_at_base_1": float(plane[:, -1].max()),
        "largest_entropy": float(np.log(config.elements)),
        "sharp_below_entropy": limit,
        "least_entropy": float(plane[sharpest]),
        "least_entropy_base": float(base[sharpest[1]]),
        "hot_from_temperature": float(hot.min()) if hot.size else None,
        "share_of_plane": {
            name: float((regions == code).mean()) for code, name in enumerate(REGIONS)
        },
    }
    return Result(
        kind="figure5",
        config=asdict(config),
        seeds=(),
        measurements=measurements,
        provenance=watch.provenance(),
    ).with_arrays(base=base, temperature=temperature, entropy=plane, region=regions)


def entropy_plane(
    base: Float[np.ndarray, " bases"],
    temperature: Float[np.ndarray, " temperatures"],
    elements: int,
) -> Float[np.ndarray, "temperatures bases"]:
    """Return the entropy of the powers of each base at each temperature."""
    powers = base[:, None] ** np.arange(1, elements + 1)
    return entropy(powers[None], temperature=temperature[:, None, None])


def classify(
    plane: Float[np.ndarray, "temperatures bases"], limit: float
) -> Int[np.ndarray, "temperatures bases"]:
    """Return the region of every point as an index into `REGIONS`; sharp is below `limit` nats."""
    sharp = plane < limit
    hot = ~sharp.any(axis=1, keepdims=True)
    before = np.arange(plane.shape[1])[None] < plane.argmin(axis=1, keepdims=True)
    conditions = [sharp, hot & ~sharp, before & ~sharp & ~hot]
    return np.select(conditions, [0, 1, 2], default=3).astype(np.int8)
