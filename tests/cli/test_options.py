"""Values of options that several commands share."""

from __future__ import annotations

import pytest

import sharpmax.hf as shf
from sharpmax import PAPER, Constant, UserError
from sharpmax.cli.options import parse_condition, parse_range_option


def test_conditions():
    name, condition = parse_condition("constant:1.2@0,4-6")
    assert name == "constant:1.2@0,4-6"
    assert condition == shf.Condition(Constant(1.2), [0, 4, 5, 6])
    assert parse_condition("paper") == ("paper", shf.Condition(PAPER))
    with pytest.raises(UserError, match=r"none\.json does not exist"):
        parse_condition("none.json")


def test_an_option_that_was_not_given():
    assert parse_range_option("--layers", None) is None
    assert parse_range_option("--layers", "0-1") == [0, 1]
