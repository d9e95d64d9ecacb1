"""Measure what sharpening costs on ordinary text, with a task of your own.

    python examples/ordinary_text.py results/calibration-answers.json docs/*.md

The model continues passages of the files by 30 words. Compare the log-probability of the real
continuation. Accuracy is 0 everywhere: no model writes 30 words exactly as a file has them.
"""

import sys
from pathlib import Path

import numpy as np

import sharpmax as sx
import sharpmax.hf as shf
from sharpmax import report

NEXT = 30
"""Words that the model continues a passage by."""


def main(calibration: str, *files: str) -> None:
    words = " ".join(Path(file).read_text("utf-8") for file in sorted(files)).split()

    def passage(length: int, generator: np.random.Generator) -> tuple[str, str]:
        """Return a random passage of `length` words and the words that follow it."""
        begin = int(generator.integers(len(words) - length - NEXT))
        text, after = words[begin : begin + length], words[begin + length :][:NEXT]
        return " ".join(text), " " + " ".join(after)

    loaded = shf.load("smollm2")
    result = shf.evaluate(
        loaded.model,
        loaded.tokenizer,
        passage,
        {"paper": sx.PAPER, "log-length:128": sx.LogLength(128), "calibrated": calibration},
        lengths=[100, 400],
        prompts=30,
        name=loaded.name,
        notes=loaded.notes,
    )
    report.show(result)


if __name__ == "__main__":
    main(*sys.argv[1:])
