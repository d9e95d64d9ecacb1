"""Policies by name, as the command and the explorer offer them."""

from __future__ import annotations

import pytest

from sharpmax import PAPER, Constant, LogLength, Saturating, TargetEntropy, UserError
from sharpmax.policies import CriticalScale, GrokScale, InfoScale, Llama4Scale, YarnScale
from sharpmax.policy_names import (
    POLICY_HELP,
    POLICY_NAMES,
    make_policy,
    parse_policy,
    policy_title,
)

EXPECTED = {
    "paper": PAPER,
    "saturating": Saturating(PAPER),
    "constant:1.5": Constant(1.5),
    "target-entropy:3": TargetEntropy(3.0),
    "log-length:512": LogLength(512.0),
    "infoscale:512": InfoScale(512.0),
    "yarn:512": YarnScale(512.0),
    "llama4:8192": Llama4Scale(),
    "grok:1024": GrokScale(),
    "critical:0.16": CriticalScale(0.16),
}


@pytest.mark.parametrize("text", EXPECTED)
def test_a_policy_by_its_text(text):
    assert parse_policy(text) == EXPECTED[text]


def test_every_policy_can_be_made_as_its_help_says():
    assert {text.partition(":")[0] for text in EXPECTED} == set(POLICY_NAMES)
    for name, policy in POLICY_NAMES.items():
        assert f"{policy.usage} ({policy.label})" in POLICY_HELP
        assert parse_policy(policy.usage) == make_policy(name, policy.example)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("softest", "unknown policy 'softest': expected one of paper (the paper's polynomial), "),
        ("", "unknown policy '': expected one of"),
        ("paper:2", "policy 'paper:2': paper takes no number"),
        ("paper:", "policy 'paper:': paper takes no number"),
        ("constant", "policy 'constant' needs a number, such as constant:1.2"),
        ("constant:x", "policy 'constant:x' needs a number, such as constant:1.2"),
        ("constant:-1", "policy constant:-1: inverse_temperature must be"),
        ("log-length:1", "policy log-length:1: reference must be a number of items above 1"),
    ],
)
def test_a_wrong_text_is_explained(text, message):
    with pytest.raises(UserError) as caught:
        parse_policy(text)
    assert message in str(caught.value)


def test_a_number_is_needed_or_ignored():
    assert make_policy("paper", 3.0) is PAPER
    with pytest.raises(UserError, match="policy log-length needs a number, such as 512"):
        make_policy("log-length", None)


def test_titles():
    assert policy_title("constant", 1.25) == "constant 1.25"
    assert policy_title("paper", 2.0) == policy_title("paper") == "paper"
