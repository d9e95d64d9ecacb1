"""The texts that a report shows are those of the tokens, and never too many."""

from __future__ import annotations

import numpy as np

from sharpmax.hf.scan.tokens import AROUND, WHOLE, describe_tokens


class Tokenizer:
    """Words are numbers; a word that begins after a space has SentencePiece's mark."""

    def decode(self, tokens):
        return "".join(f"w{token}" for token in tokens)

    def convert_ids_to_tokens(self, token):
        return f"\N{LOWER ONE EIGHTH BLOCK}w{token}" if token % 2 else f"w{token}"


def test_a_short_text_is_whole_and_keeps_its_spaces():
    text = describe_tokens(Tokenizer(), [4, 5, 6], np.array([[[0, -1]]]))
    assert text == {"positions": [0, 1, 2], "pieces": ["w4", " w5", "w6"]}


def test_of_a_long_text_the_tokens_that_heads_look_at_are_kept():
    tokens = list(range(WHOLE + 100))
    text = describe_tokens(Tokenizer(), tokens, np.array([[[0, 2_000], [2_000, -1]]]))
    around = range(2_000 - AROUND, 2_000 + AROUND + 1)
    assert text["positions"] == [*range(AROUND + 1), *around]


def test_a_long_text_that_every_head_reads_elsewhere_stays_bounded():
    count = 4 * WHOLE
    strongest = np.arange(0, count, 2).reshape(4, -1, 8)
    strongest[0, 0] = count - 1  # eight times: kept first
    text = describe_tokens(Tokenizer(), list(range(count)), strongest)
    assert WHOLE // 2 < len(text["positions"]) <= WHOLE
    assert count - 1 in text["positions"]
