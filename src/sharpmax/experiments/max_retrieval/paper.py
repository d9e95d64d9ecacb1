"""Table 1 of arXiv 2410.01104, with a mark for each number that says how sure we are of it.

The numbers come from texts that quote the paper; we did not have the paper itself.
"""

from __future__ import annotations

from typing import Final, NamedTuple

SIZES: Final = tuple(2**power for power in range(4, 15))

SURE = {
    "confirmed": "two or more independent texts agree",
    "one text": "one text says so",
    "recollection": "recalled, but no text was found that says so",
}


class Row(NamedTuple):
    """Accuracy in percent with softmax and with adaptive temperature, and p of a paired t-test."""

    baseline: float
    adaptive: float
    p: float | None
    """None if the number is not known; the paper is said to have p below 0.05 from 64 items on."""
    sure: str
    """A key of `SURE`."""


TABLE1: Final[dict[int, Row]] = {
    16: Row(98.6, 98.6, 0.4, "confirmed"),
    32: Row(97.1, 97.2, 0.4, "recollection"),
    64: Row(94.3, 94.5, 0.002, "one text"),
    128: Row(89.7, 89.9, None, "one text"),
    256: Row(81.3, 82.1, 2e-4, "one text"),
    512: Row(70.1, 72.5, None, "confirmed"),
    1024: Row(53.8, 57.7, 1e-4, "confirmed"),
    2048: Row(35.7, 39.4, None, "one text"),
    4096: Row(22.6, 24.9, 0.02, "confirmed"),
    8192: Row(15.7, 17.5, None, "recollection"),
    16384: Row(12.4, 14.0, 4e-3, "confirmed"),
}
"""The table by number of items."""
