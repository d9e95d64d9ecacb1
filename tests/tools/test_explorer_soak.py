"""The explorer serves many users for a while: no error, flat memory, and Stop works."""

from __future__ import annotations

import explorer_soak
import pytest
from explorer_soak import MAX_GROWTH, Measurements, report, soak

from model_folder import make_folder


def test_growth_is_from_the_second_third_to_the_last():
    assert Measurements(memory=[1, 9, 10, 8, 11, 9]).growth == pytest.approx(0.1)
    assert Measurements(memory=[1, 1, 10, 10, 5, 5]).growth == pytest.approx(-0.5)


def test_errors_and_memory_are_in_the_report():
    measurements = Measurements({"scan": [1.0, 3.0]}, memory=[100.0, 120.0, 110.0])
    measurements.errors["scan: OSError: gone"] += 2
    text = report(measurements)
    assert "| scan | 2 | 2.00 | 3.00 |" in text
    assert "MB: 100, 120, 110" in text
    assert "2 x scan: OSError: gone" in text


def test_users_and_time_are_bounded():
    assert explorer_soak.MAX_USERS <= 50
    assert explorer_soak.MAX_SECONDS <= 900


@pytest.mark.slow
def test_twenty_users_for_twenty_seconds(tmp_path):
    measurements = soak(make_folder(tmp_path), users=20, seconds=20)
    assert not +measurements.errors
    assert {"load the page", "draw softmax", "draw max retrieval"} <= set(measurements.seconds)
    assert any(name.startswith("stop a") for name in measurements.seconds)
    # Caches still fill: whether memory is flat shows after minutes, when the tool asks for it.
    assert measurements.growth < 5 * MAX_GROWTH
