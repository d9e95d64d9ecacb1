"""Paired statistics: compare two conditions that answered the same questions.

A prompt has several questions about one text, and its answers may be right or wrong together.
Prompts are independent of each other, questions about one prompt are not. All functions therefore
take arrays [prompt, question] and treat the prompt as the unit; with one question per prompt each
is the textbook method.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from sharpmax._errors import MissingExtraError

try:
    from scipy.optimize import brentq
    from scipy.stats import ttest_1samp
except ModuleNotFoundError as error:
    raise MissingExtraError("scipy", "hf", "comparing answers") from error

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

LEVEL = 0.95
"""The confidence level of all intervals."""
POWER = 0.8
"""The probability with which a difference of the size called detectable is significant."""
MIN_PROMPTS = 6
"""With fewer prompts no outcome is significant at the 5 % level: 2 * 0.5**5 > 0.05."""

_Z = NormalDist().inv_cdf((1 + LEVEL) / 2)
_Z_POWER = NormalDist().inv_cdf(POWER)


def sign_flip_test(differences: Int[np.ndarray, " prompts"]) -> float:
    """Return the p-value of the exact sign-flip test that neither condition is better.

    It is the probability that the sum of the differences is at least as far from 0 as observed if
    each prompt's difference has a random sign. With one question per prompt this is McNemar's exact
    test (Psychometrika 12, 1947): all differences are -1, 0 or 1. SciPy's `permutation_test` draws
    signs at random if there are many prompts; the sums are integers, so all can be counted.
    """
    sizes = [abs(int(difference)) for difference in differences if difference]
    probabilities = np.ones(1)  # of each sum, from -sum(sizes) to sum(sizes)
    for size in sizes:
        wider = np.zeros(len(probabilities) + 2 * size)
        wider[: len(probabilities)] += probabilities / 2
        wider[2 * size :] += probabilities / 2
        probabilities = wider
    sums = np.abs(np.arange(-sum(sizes), sum(sizes) + 1))
    return float(min(1.0, probabilities[sums >= abs(int(np.sum(differences)))].sum()))


def design_effect(values: Float[np.ndarray, "prompts questions"]) -> float:
    """Return how many times larger the variance of the mean is than for independent questions.

    variance of the prompts' means / (variance of single answers / questions),  at least 1
    """
    prompts, questions = values.shape
    single = float(values.var())
    if single == 0 or prompts < 2 or questions == 1:
        return 1.0
    return max(1.0, float(values.mean(1).var(ddof=1)) / (single / questions))


def accuracy(right: Bool[np.ndarray, "prompts questions"]) -> dict[str, float]:
    """Return the share of right answers with Wilson's interval.

    The interval is for the number of independent questions that these are worth.
    """
    effective = right.size / design_effect(right.astype(float))
    mean = float(right.mean())
    shrink = 1 + _Z * _Z / effective
    middle = (mean + _Z * _Z / (2 * effective)) / shrink
    half = _Z / shrink * math.sqrt(mean * (1 - mean) / effective + (_Z / effective) ** 2 / 4)
    # At 0 and 1 the interval ends at the mean; rounding must not exclude it.
    return {"mean": mean, "low": min(mean, middle - half), "high": max(mean, middle + half)}


def compare_answers(
    base: Bool[np.ndarray, "prompts questions"], other: Bool[np.ndarray, "prompts questions"]
) -> dict[str, float]:
    """Return how much more often `other` is right than `base`, with interval and test.

    The interval is that of Bonett and Price (J. Educ. Behav. Stat. 37, 2012) for paired shares. It
    adds one question that got better and one that got worse, so that two conditions that never
    disagree are not taken for certainly equal. `detectable` is the difference that would be found
    with a power of 80 % by Connor's formula (Biometrics 43, 1987), at the observed rate of
    disagreement.
    """
    change = other.astype(int) - base.astype(int)
    gained, lost = int((change > 0).sum()), int((change < 0).sum())
    effect = design_effect(change.astype(float))
    effective = change.size / effect
    up, down = ((count / effect + 1) / (effective + 2) for count in (gained, lost))
    middle, disagreement = up - down, up + down
    half = _Z * math.sqrt((disagreement - middle**2) / (effective + 2))
    return {
        "difference": float(change.mean()),
        "low": max(-1.0, middle - half),
        "high": min(1.0, middle + half),
        "gained": gained,
        "lost": lost,
        "p": sign_flip_test(change.sum(1)),
        "design_effect": effect,
        "detectable": detectable_difference(effective, disagreement),
    }


def detectable_difference(questions: float, disagreement: float) -> float:
    """Return the smallest difference in accuracy found with 80 % power at the 5 % level.

    For this many independent questions, on a share `disagreement` of which the two conditions
    disagree, it is the d that solves

        sqrt(questions) * d = z1 * sqrt(disagreement) + z2 * sqrt(disagreement - d^2)
    """

    def excess(d: float) -> float:
        share = max(disagreement, d)  # the conditions disagree at least as often as they differ
        return (
            math.sqrt(questions) * d - _Z * math.sqrt(share) - _Z_POWER * math.sqrt(share - d * d)
        )

    return float(brentq(excess, 0.0, 1.0))


def mean_difference(
    base: Float[np.ndarray, "prompts questions"], other: Float[np.ndarray, "prompts questions"]
) -> dict[str, float]:
    """Return the mean increase from `base` to `other` with Student's interval over prompts."""
    by_prompt = (other - base).mean(1)
    if not np.ptp(by_prompt):  # Student's interval would have no width, with a warning
        return dict.fromkeys(("difference", "low", "high"), float(by_prompt[0]))
    interval = ttest_1samp(by_prompt, 0.0).confidence_interval(LEVEL)
    return {
        "difference": float(by_prompt.mean()),
        "low": float(interval.low),
        "high": float(interval.high),
    }


def adjust_p_values(p_values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p-values (Scand. J. Stat. 6, 1979).

    They keep the probability of any false positive among all tests at the level of a single test.
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(np.argsort(p_values, kind="stable")):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted
