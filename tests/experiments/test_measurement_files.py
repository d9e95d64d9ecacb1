"""Measurements are found again only for the settings that they were made with."""

from __future__ import annotations

import pytest

from sharpmax._errors import UserError
from sharpmax.experiments.measurement_files import MeasurementFiles


def test_a_measurement_is_found_with_its_settings_only(tmp_path):
    files, settings = MeasurementFiles(tmp_path), {"weights": "a", "threads": 1}
    assert files.load("log-length:128", "lookup-8", settings) is None
    files.save("log-length:128", "lookup-8", settings, {"right": [[1, 0]]})
    assert files.load("log-length:128", "lookup-8", settings) == {"right": [[1, 0]]}
    assert files.load("plain", "lookup-8", settings) is None
    assert (tmp_path / "measured" / "log-length-128" / "lookup-8.json").exists()
    with pytest.raises(UserError, match="was measured with 1 threads, not 2: repeat"):
        files.load("log-length:128", "lookup-8", settings | {"threads": 2})
    with pytest.raises(UserError, match="was measured with other settings: repeat"):
        files.load("log-length:128", "lookup-8", settings | {"weights": "b"})
