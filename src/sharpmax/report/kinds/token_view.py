"""What heads look at: the tokens with the largest weights, from one scan or from two to compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sharpmax._errors import UserError
from sharpmax.report.blocks import TokenView
from sharpmax.report.kinds.scan_view import ScanView
from sharpmax.results.schemas import TokenText

MOST_WEIGHTS = 30_000
"""Weights in one view; of a model with more heads, fewer tokens per head are shown."""
SMALLEST = 0.005
"""Weights below this are left out: their colour could not be seen."""


@dataclass(frozen=True)
class _Input:
    name: str
    text: TokenText
    tokens: int
    strongest: np.ndarray
    weights: np.ndarray


def token_view(views: Sequence[tuple[str, ScanView]], first: tuple[int, int]) -> TokenView | None:
    """Return a view of the shortest and the longest input of each scan.

    Args:
        views: Scans of the same inputs, each with its name; an empty name for a single scan.
        first: The head that is chosen when the page opens: row and column.

    Returns:
        The view, or None if the scans were made before they kept tokens.
    """
    if not all(view.scan.texts and "strongest" in view.result.arrays for _, view in views):
        return None
    scan = views[0][1].scan
    ends = sorted({0, len(scan.tokens) - 1})
    inputs = [_input(name, view, end) for end in ends for name, view in views]
    kept = max(1, MOST_WEIGHTS // (len(inputs) * inputs[0].strongest[..., 0].size))
    data = {
        "layers": [layer.model_dump() for layer in scan.layers],
        "heads": scan.heads,
        "present": _present(views),
        "first": first,
        "inputs": [_data(one, kept) for one in inputs],
    }
    return TokenView(
        title="What a head looks at",
        inputs=[one.name for one in inputs],
        data=data,
        text="The prompt as the model reads it. The stronger the colour, the more of the head's "
        "weight a token gets when the model is about to write the answer. Click a token to see "
        "which heads look at it.",
    )


def _input(name: str, view: ScanView, end: int) -> _Input:
    scan, arrays = view.scan, view.result.arrays
    shape = (len(scan.tokens), len(scan.layers), len(scan.heads))
    strongest, weights = arrays["strongest"], arrays.get("strongest_weight")
    if weights is None or weights.shape != strongest.shape or strongest.shape[:3] != shape:
        raise UserError("the scan is damaged: its strongest tokens do not fit its heads")
    if len(scan.texts) != len(scan.tokens):
        raise UserError(
            f"the scan is damaged: {len(scan.texts)} texts of {len(scan.tokens)} inputs"
        )
    length = f"{scan.tokens[end]:,} tokens"
    return _Input(
        f"{name}, {length}" if name else length,
        scan.texts[end],
        scan.tokens[end],
        strongest[end],
        weights[end],
    )


def _data(one: _Input, kept: int) -> dict[str, Any]:
    """Return an input for the page's script; per head position, weight, position, weight, ..."""
    heads = [
        [
            [
                number
                for position, weight in zip(tokens[:kept], weights[:kept], strict=True)
                if position >= 0 and weight >= SMALLEST
                for number in (int(position), round(float(weight), 3))
            ]
            for tokens, weights in zip(by_head, weights_by_head, strict=True)
        ]
        for by_head, weights_by_head in zip(one.strongest, one.weights, strict=True)
    ]
    return {
        "name": one.name,
        "tokens": one.tokens,
        "positions": None if len(one.text.positions) == one.tokens else one.text.positions,
        "pieces": one.text.pieces,
        "heads": heads,
    }


def _present(views: Sequence[tuple[str, ScanView]]) -> list[list[bool]]:
    scan = views[0][1].scan
    present = [[False] * len(scan.heads) for _ in scan.layers]
    for head in views[0][1].heads:
        present[head.row][head.column] = True
    return present
