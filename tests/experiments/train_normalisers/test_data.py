"""Texts of the retrieval task have one right answer to every question."""

from __future__ import annotations

import numpy as np
import pytest

from sharpmax.experiments.train_normalisers.config import Config
from sharpmax.experiments.train_normalisers.data import first_value, make_texts, vocabulary

CONFIG = Config(keys=8, values=4, context=64)


def read(config, texts, row):
    """Return the pairs of key and value in a text, and its questions with their answers."""
    tokens, first = texts.tokens[row].tolist(), int(texts.asked[0])
    items = [divmod(token, config.values) for token in tokens[1:first]]
    asked = [token - config.keys * config.values for token in tokens[first::2]]
    answers = [token - first_value(config) for token in tokens[first + 1 :: 2]]
    return tokens[0], items, list(zip(asked, answers, strict=True))


@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.parametrize(("items", "questions"), [(2, 2), (5, 3), (20, 1), (20, 7)])
def test_each_question_has_one_item_with_its_answer(items, questions, spread):
    generator = np.random.default_rng(3)
    texts = make_texts(CONFIG, generator, 6, items, questions, spread=spread)
    assert texts.values.shape == (6, questions)
    for row in range(6):
        start, pairs, asked = read(CONFIG, texts, row)
        assert start == vocabulary(CONFIG) - 1
        assert len(pairs) == items
        assert [value for _, value in asked] == texts.values[row].tolist()
        assert len({key for key, _ in asked}) == questions
        for key, value in asked:
            assert [found for other, found in pairs if other == key] == [value]
        assert texts.row(row).tokens.tolist() == [texts.tokens[row].tolist()]
        assert texts.tokens[row].max() < vocabulary(CONFIG)


def test_answers_and_places_are_random():
    texts = make_texts(CONFIG, np.random.default_rng(3), 400, 6, 1, spread=False)
    assert np.bincount(texts.values[:, 0], minlength=4).min() > 60
    places = []
    for row in range(400):
        _, pairs, [(key, _)] = read(CONFIG, texts, row)
        places.append([other for other, _ in pairs].index(key))
    assert np.bincount(places, minlength=6).min() > 30


def test_positions_are_those_of_the_tokens_or_spread_over_the_context():
    generator = np.random.default_rng(3)
    close = make_texts(CONFIG, generator, 3, 5, 2, spread=False)
    assert close.positions.tolist() == [list(range(10))] * 3
    far = make_texts(CONFIG, generator, 200, 5, 2, spread=True)
    assert (far.positions.diff(dim=1) >= 1).all()
    assert far.positions.min() >= 0
    assert 32 < far.positions.max() < CONFIG.context
    assert len(set(far.positions[:, -1].tolist())) > 20
