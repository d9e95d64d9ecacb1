"""What pictures and pages call the things that results name shortly."""

from __future__ import annotations

WAYS_TO_SHARPEN = {
    "plain": "plain softmax",
    "paper": "the paper's policy",
    "saturating": "the same, held at its peak",
    "refitted-temperature": "refitted to temperatures",
    "refitted-inverse-temperature": "refitted to inverse temperatures",
    "log-length": "log n / log 16",
    "entropy-target": "back to the entropy at 16 items",
    "argmax": "argmax (no temperature at all)",
}
