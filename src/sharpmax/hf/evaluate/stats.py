"""Did the change help? Two ways of answering the same questions, compared question by question.

Each prompt asks several questions about one text, so its answers may be right or wrong together:
prompts are drawn anew, questions of one prompt are not. Everything here takes [prompt, question]
and treats the prompt as the unit; with one question a prompt each part is the textbook's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from sharpmax._errors import MissingExtraError

try:
    from scipy import stats
    from scipy.optimize import brentq
except ModuleNotFoundError as error:
    raise MissingExtraError("scipy", "hf", "comparing answers") from error

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

LEVEL = 0.95
"""Of every interval."""
POWER = 0.8
"""With which a difference of the size called detectable is seen."""

FEWEST = 6
"""Prompts that a test needs: if fewer all go one way, that is no surprise at the 5 % level."""


def sign_flip(differences: Int[np.ndarray, " prompts"]) -> float:
    """p that neither way is better: how often the sum of the differences would be as far from 0
    as it is, had each prompt's difference had its sign by a coin.

    With one question a prompt this is the exact test of McNemar (Psychometrika 12, 1947): all
    differences are -1, 0 or 1. Written out since SciPy's `permutation_test` draws signs at random
    where there are many prompts; the sums are whole numbers, so all of them can be counted.
    """
    sizes = [abs(int(one)) for one in differences if one]
    chances = np.ones(1)  # of each sum, from -reach to reach
    for size in sizes:
        wider = np.zeros(len(chances) + 2 * size)
        wider[: len(chances)] += chances / 2
        wider[2 * size :] += chances / 2
        chances = wider
    reach, observed = sum(sizes), abs(int(np.sum(differences)))
    sums = np.abs(np.arange(-reach, reach + 1))
    return float(min(1.0, chances[sums >= observed].sum()))


def design_effect(values: Float[np.ndarray, "prompts questions"]) -> float:
    """How many times wider the variance of a mean is than of as many independent questions.

    mean of a prompt's answers: variance / (variance of one answer / questions),  at least 1
    """
    prompts, questions = values.shape
    single = float(values.var())
    if single == 0 or prompts < 2 or questions == 1:
        return 1.0
    return max(1.0, float(values.mean(1).var(ddof=1)) / (single / questions))


def share(right: Bool[np.ndarray, "prompts questions"]) -> dict[str, float]:
    """Accuracy, with Wilson's interval for as many independent questions as these are worth."""
    worth = right.size / design_effect(right.astype(float))
    mean = float(right.mean())
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    middle = (mean + z * z / (2 * worth)) / (1 + z * z / worth)
    half = z / (1 + z * z / worth) * math.sqrt(mean * (1 - mean) / worth + (z / worth) ** 2 / 4)
    # At 0 and 1 the interval reaches to the end; rounding must not put it beyond.
    return {"mean": mean, "low": min(mean, middle - half), "high": max(mean, middle + half)}


def compare(
    base: Bool[np.ndarray, "prompts questions"], other: Bool[np.ndarray, "prompts questions"]
) -> dict[str, float]:
    """How much more often `other` is right than `base`.

    The interval is that of Bonett and Price (J. Educ. Behav. Stat. 37, 2012) for paired shares,
    which adds a question of either kind so that no disagreement at all is not taken for certainty;
    `detectable` is the difference that these questions would show with a power of 80 %, by
    Connor's formula (Biometrics 43, 1987) at the rate at which the two disagreed.
    """
    change = other.astype(int) - base.astype(int)
    gained, lost = int((change > 0).sum()), int((change < 0).sum())
    effect = design_effect(change.astype(float))
    worth = change.size / effect
    up, down = ((count / effect + 1) / (worth + 2) for count in (gained, lost))
    middle, disagree = up - down, up + down
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    half = z * math.sqrt((disagree - middle**2) / (worth + 2))
    return {
        "difference": float(change.mean()),
        "low": max(-1.0, middle - half),
        "high": min(1.0, middle + half),
        "gained": gained,
        "lost": lost,
        "p": sign_flip(change.sum(1)),
        "design_effect": effect,
        "detectable": detectable(worth, disagree),
    }


def detectable(questions: float, disagree: float) -> float:
    """The smallest difference in accuracy that so many independent questions show with a power of
    80 % at the 5 % level, if the two ways disagree on this share of them, d:

        sqrt(questions) * d = z1 * sqrt(disagree) + z2 * sqrt(disagree - d^2)
    """
    z1, z2 = NormalDist().inv_cdf((1 + LEVEL) / 2), NormalDist().inv_cdf(POWER)

    def excess(d: float) -> float:
        share = max(disagree, d)  # the two disagree at least as often as they differ
        return math.sqrt(questions) * d - z1 * math.sqrt(share) - z2 * math.sqrt(share - d * d)

    return float(brentq(excess, 0.0, 1.0))


def mean_difference(
    base: Float[np.ndarray, "prompts questions"], other: Float[np.ndarray, "prompts questions"]
) -> dict[str, float]:
    """By how much a number grew: mean and Student's interval over prompts."""
    by_prompt = (other - base).mean(1)
    if not by_prompt.any():
        return {"difference": 0.0, "low": 0.0, "high": 0.0}
    interval = stats.ttest_1samp(by_prompt, 0.0).confidence_interval(LEVEL)
    return {
        "difference": float(by_prompt.mean()),
        "low": float(interval.low),
        "high": float(interval.high),
    }


def holm(chances: Sequence[float]) -> list[float]:
    """p of several tests, each raised so that the chance of any false alarm among them stays what
    a single test's is (Holm, Scand. J. Stat. 6, 1979).
    """
    order = np.argsort(chances, kind="stable")
    adjusted, largest = [0.0] * len(chances), 0.0
    for place, index in enumerate(order):
        largest = max(largest, min(1.0, (len(chances) - place) * chances[index]))
        adjusted[index] = largest
    return adjusted
