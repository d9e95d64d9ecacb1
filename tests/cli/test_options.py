"""Values of options that several commands share."""

from __future__ import annotations

import numpy as np
import pytest

import sharpmax.hf as shf
from sharpmax import PAPER, Constant, UserError
from sharpmax.cli.options import parse_condition, parse_max_memory, parse_range_option
from sharpmax.hf.loading import loader


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


def test_sizes_of_memory():
    assert parse_max_memory(None) is None
    sizes = parse_max_memory("0=10GiB, cpu = 20GiB")
    assert sizes == {0: "10GiB", "cpu": "20GiB"}
    for text, message in (
        ("10GiB", "'10GiB' is not PLACE=SIZE"),
        ("0=1GB,", "'' is not PLACE=SIZE"),
        ("cpu=", "'cpu=' is not PLACE=SIZE"),
        ("0=1GB,0=2GB", "0 is given twice"),
        ("", "'' is not PLACE=SIZE"),
    ):
        with pytest.raises(UserError, match=f"--max-memory.*{message}"):
            parse_max_memory(text)


@pytest.mark.parametrize("command", ["scan", "evaluate", "diagnose", "calibrate", "tune"])
def test_every_command_that_runs_a_model_can_spread_it(command, tmp_path, fail, monkeypatch):
    given = {}

    def load(name, **options):
        given.update(options)
        raise UserError("enough")

    monkeypatch.setattr(loader, "load", load)
    words = ["--device-map", "auto", "--max-memory", "0=10GiB,cpu=20GiB"]
    assert "enough" in fail(command, "tiny", "--out", tmp_path / "out", *words)
    assert given["device_map"] == "auto"
    assert given["max_memory"] == {0: "10GiB", "cpu": "20GiB"}


def test_what_excludes_each_other_is_one_line(saved_model, tmp_path, fail):
    command = ["scan", saved_model, "--out", tmp_path / "out"]
    error = fail(*command, "--device", "cpu", "--device-map", "auto")
    assert "device='cpu' and device_map='auto' exclude each other" in error
    assert "--device-map auto" in fail(*command, "--max-memory", "cpu=1GB")


def test_an_offloaded_model_scans_as_it_does_in_memory(saved_model, tmp_path, succeed):
    lengths = ["--lengths", "4,8"]
    succeed("scan", saved_model, "--out", tmp_path / "plain", *lengths)
    spread = ["--device-map", "auto", "--max-memory", "cpu=40KB"]
    succeed("scan", saved_model, "--out", tmp_path / "spread", *lengths, *spread)
    plain, scan = (shf.Scan.load(tmp_path / place / "scan.json") for place in ("plain", "spread"))
    for name, values in plain.arrays.items():
        np.testing.assert_array_equal(scan.arrays[name], values)
    assert plain.config["notes"] == []
    (note,) = scan.config["notes"]
    assert "weights were spread over disk, and brought" in note
