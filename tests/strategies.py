"""What the property tests draw their examples from.

JAX compiles every operation for every shape, so tests that draw a library draw few shapes.
"""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from libraries import LIBRARIES

LIBRARY = st.sampled_from(LIBRARIES)
WITHOUT_JAX = st.sampled_from([library for library in LIBRARIES if library.name != "jax"])
GENERATOR = st.builds(np.random.default_rng, st.integers(0, 2**32 - 1))
"""Random numbers from a drawn seed, which a failing example prints."""
GARBAGE = st.sampled_from([0.0, 7.5, 1e4, np.inf, -np.inf, np.nan])
"""What may stand at a masked item."""
EVERY_DTYPE = ("float16", "bfloat16", "float32", "float64")
HALF_UNIT = {"float16": 2**-11, "bfloat16": 2**-8, "float32": 2**-24, "float64": 2**-53}
"""The largest relative error of rounding to a type."""


def dtypes_of(library) -> tuple[str, ...]:
    """The floating types of a library; the standard has no half precision."""
    return EVERY_DTYPE[2:] if library.name == "strict" else EVERY_DTYPE
