"""Alarms name each head once, when it crosses a limit."""

from __future__ import annotations

import numpy as np
import pytest

from sharpmax import UserError
from sharpmax.hf.train.alarms import Alarm, AlarmBell


def heads(*values: float) -> np.ndarray:
    return np.array([values], float)


def test_each_head_rings_once_per_kind():
    bell = AlarmBell(max_logit=50, min_entropy=0.2)
    assert bell.check(1, heads(1.0, 1.0), heads(50.0, 10.0)) == []  # at the limit
    assert bell.check(2, heads(0.2, 1.0), heads(51.0, 10.0)) == [Alarm("logits", 2, 0, 0, 51.0)]
    assert bell.check(3, heads(0.1, 1.0), heads(80.0, 60.0)) == [
        Alarm("logits", 3, 0, 1, 60.0),
        Alarm("entropy", 3, 0, 0, 0.1),
    ]
    assert bell.check(4, heads(0.1, 1.0), heads(80.0, 60.0)) == []
    assert [alarm.step for alarm in bell.alarms] == [2, 3, 3]
    assert bell.alarms[0].describe() == {
        "kind": "logits",
        "step": 2,
        "layer": 0,
        "head": 0,
        "value": 51.0,
    }


def test_a_head_that_was_never_spread_has_not_collapsed():
    bell = AlarmBell(min_entropy=0.2)
    logits = heads(0.0, 0.0)
    for step, entropy in enumerate([heads(0.1, 0.39), heads(0.0, 0.0), heads(0.0, 0.4)]):
        assert bell.check(step, entropy, logits) == []
    assert [alarm.head for alarm in bell.check(3, heads(0.1, 0.1), logits)] == [1]


def test_what_was_not_measured_is_no_alarm():
    bell = AlarmBell()
    assert bell.check(1, heads(1.0, np.nan), heads(1.0, np.nan)) == []
    assert bell.check(2, heads(np.nan, np.nan), heads(np.nan, np.nan)) == []


def test_infinite_logits_are_an_alarm():
    assert [alarm.kind for alarm in AlarmBell().check(1, heads(1.0), heads(np.inf))] == ["logits"]


@pytest.mark.parametrize("limit", ["max_logit", "min_entropy"])
@pytest.mark.parametrize("value", [0, -1.0, float("nan"), "3", True, None])
def test_limits_that_make_no_sense_are_refused(limit, value):
    with pytest.raises(UserError, match=rf"{limit}=.*: give a positive number"):
        AlarmBell(**{limit: value})
