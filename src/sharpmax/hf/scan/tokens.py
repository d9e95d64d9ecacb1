"""The texts of the tokens of an input, as far as a report shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Int

WHOLE = 4_096
"""Tokens up to which a text is kept whole."""
AROUND = 2
"""Of a longer text, tokens that are kept on both sides of one that a head looks at."""


def describe_tokens(
    tokenizer: Any, tokens: list[int], strongest: Int[np.ndarray, "layer head token"]
) -> dict[str, Any]:
    """Return the text of each token of an input, or of a long input those that heads look at.

    Args:
        tokenizer: The model's tokenizer.
        tokens: The input.
        strongest: The positions of the tokens that each head looks at most; negative ones are none.

    Returns:
        `positions` and `pieces`: where the tokens stand and what they say. At most `WHOLE` of them.
    """
    positions = list(range(len(tokens)))
    if len(tokens) > WHOLE:
        # Those that most heads look at come first, so that the limit drops the rarest.
        looked_at, heads = np.unique(strongest[strongest >= 0], return_counts=True)
        kept: set[int] = set()
        for position in looked_at[np.argsort(-heads, kind="stable")].tolist():
            near = range(max(0, position - AROUND), min(len(tokens), position + AROUND + 1))
            if len(kept.union(near)) > WHOLE:
                break
            kept.update(near)
        positions = sorted(kept)
    return {
        "positions": positions,
        "pieces": [_text_of(tokenizer, tokens[position]) for position in positions],
    }


def _text_of(tokenizer: Any, token: int) -> str:
    text = str(tokenizer.decode([token]))
    piece = tokenizer.convert_ids_to_tokens(token)
    # SentencePiece drops the space before the first word of what it decodes.
    if (
        isinstance(piece, str)
        and piece.startswith("\N{LOWER ONE EIGHTH BLOCK}")
        and text[:1] != " "
    ):
        return f" {text}"
    return text
