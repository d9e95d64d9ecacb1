"""Means, spreads and tests over seeds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

if TYPE_CHECKING:
    from jaxtyping import Float


def spread(values: Float[np.ndarray, "seeds sizes"]) -> Float[np.ndarray, " sizes"] | None:
    """The standard deviation between seeds; None for one seed."""
    return values.std(0, ddof=1) if len(values) > 1 else None


def paired_p(
    one: Float[np.ndarray, "seeds sizes"], other: Float[np.ndarray, "seeds sizes"]
) -> list[float | None]:
    """p of a two-sided paired t-test over seeds, size by size.

    None where there is nothing to test: fewer than two seeds, or the same difference in all of them
    (of zero spread, as when both are right everywhere).
    """
    differences = other - one
    return [
        float(stats.ttest_1samp(column, 0.0).pvalue) if np.ptp(column) > 0 else None
        for column in differences.T
    ]


def sampling_error(accuracy: Float[np.ndarray, " sizes"], sets: int) -> Float[np.ndarray, " sizes"]:
    """The standard error of a share found on so many independent sets."""
    return np.sqrt(accuracy * (1 - accuracy) / sets)
