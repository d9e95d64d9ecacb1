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


@pytest.mark.parametrize(
    "command",
    [
        "scan --lengths",
        "diagnose --lengths",
        "evaluate --lengths",
        "calibrate --short",
        "calibrate --long",
        "export --at-length auto --lengths",
    ],
)
@pytest.mark.parametrize("lengths", ["1-9999999999", "9999999999", ",".join(["1-99999"] * 99)])
def test_lengths_are_checked_before_a_model_is_loaded(tmp_path, fail, command, lengths):
    name, *options = command.split()
    error = fail(name, tmp_path / "no_model", *options, lengths, "--out", tmp_path / "out")
    assert options[-1] in error
    assert "00,000" in error  # the limit
