"""Figure 5: entropy of softmax at temperature t for ten elements of a power series a_i = x^i, over
(x, t).

The paper (arXiv 2410.01104) shows this plane in four regions and calls the edges x = 0 and x = 1
degenerate. We do not have its exact boundaries, nor whether i starts at 0 or 1. With i = 1..10 both
edges are degenerate, as it says: all logits are equal there and the entropy is log 10 at every
temperature. So i starts at 1 here.

Our regions have a computed meaning. A point is *sharp* if it looks at fewer than half of the items
in effect, exp(H) < 10/2. Where it is not, the reason is one of three: *hot*, if no x is sharp at
this temperature; else *vanishing* (x nearer 0 than the sharpest x of this temperature: all powers
near 0) or *constant* (nearer 1).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sharpmax.ops import entropy
from sharpmax.results import Result, Stopwatch

REGIONS = ("sharp", "hot", "vanishing", "constant")


@dataclass(frozen=True)
class Config:
    elements: int = 10
    bases: int = 401
    temperatures: int = 301
    coldest: float = 1e-3
    hottest: float = 1e1
    sharp_fraction: float = 0.5


def run(config: Config = Config()) -> Result:  # noqa: B008 - frozen, so sharing the default is safe
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


def entropy_plane(base: np.ndarray, temperature: np.ndarray, elements: int) -> np.ndarray:
    """Entropy of the powers of each base at each temperature, [temperature, base]."""
    powers = base[:, None] ** np.arange(1, elements + 1)
    return entropy(powers[None], temperature=temperature[:, None, None])


def classify(plane: np.ndarray, limit: float) -> np.ndarray:
    """The region of every point, as a place in REGIONS, [temperature, base]."""
    sharp = plane < limit
    hot = ~sharp.any(axis=1, keepdims=True)
    before = np.arange(plane.shape[1])[None] < plane.argmin(axis=1, keepdims=True)
    names = [sharp, hot & ~sharp, before & ~sharp & ~hot]
    return np.select(names, [0, 1, 2], default=3).astype(np.int8)
