"""`sharpmax clrs`: three commands from nothing to a figure."""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import fields
from typing import get_type_hints

import pytest
from clrs_text.small import SAMPLE, gemma_folder

from sharpmax.cli.commands.clrs.train import train
from sharpmax.experiments.clrs_text import config, generate
from sharpmax.results import Result

TRAIN, TEST = str(SAMPLE / "train"), str(SAMPLE / "test")
TINY = ("--shape", "width=32,layers=1,heads=2,head_size=16,inner=48")
SHORT = ("--steps", "2", "--batch", "4", "--micro", "2", "--threads", "1")


def test_three_commands_make_a_figure(tmp_path, succeed, fail):
    data, models = tmp_path / "data", tmp_path / "models"
    algorithms = ("--algorithm", "minimum=4,6", "--algorithm", "bfs", "--largest", "5")
    options = (*algorithms, "--samples", "2", "--processes", "1")
    generated = succeed("clrs", "generate", data, *options)
    manifest = json.loads((data / "manifest.json").read_text())
    assert manifest["sizes"] == {"minimum": [4, 6], "bfs": [4, 5]}
    assert manifest["sha256"] in generated.out

    trained = succeed("clrs", "train", data, "--out", models, *TINY, *SHORT)
    assert f"{models}/softmax-seed0: loss" in trained.out
    assert f"{models}/adaptive-seed0: loss" in trained.out
    assert "softmax, seed 0: step 2 of 2, loss" in trained.err

    evaluate = ["clrs", "evaluate", TEST, "--trained", models, "--out", tmp_path, "--samples", "1"]
    succeed(*evaluate, "--device", "cpu", "--threads", "1")
    result = Result.load(tmp_path / "figure8.json")
    assert list(result.measurements["algorithms"]) == ["minimum", "bfs"]
    assert (tmp_path / "figure8.png").read_bytes().startswith(b"\x89PNG")
    assert "exists already" in fail(*evaluate)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("generate", "x", "--algorithm", "sorting"),
            "unknown algorithm 'sorting': expected one of",
        ),
        (
            ("generate", "x", "--algorithm", "minimum=2"),
            "size 2 of minimum is out of range: 4 to 10",
        ),
        (
            ("generate", "x", "--algorithm", "minimum=a"),
            "--algorithm minimum: expected whole numbers such as 0,4-7, got 'a'",
        ),
        (("generate", "x", "--largest", "3"), "no size of activity_selector is left"),
        (("generate", "x", "--split", "validation"), "unknown split 'validation'"),
        ((), "Missing command"),
        (("train", "nowhere"), "nowhere is not a folder of CLRS-Text"),
        (("train", TEST), "holds the test split, expected train"),
        (("train", TRAIN, "--algorithm", "sorting"), "unknown algorithm 'sorting'"),
        (("train", TRAIN, "--samples", "bfs=many"), "--samples bfs=many: expected a number, 1 or"),
        (("train", TRAIN, "--samples", "sorting=2"), "unknown algorithm 'sorting'"),
        (("train", TRAIN, "--attention", "sharp"), "unknown attention 'sharp'"),
        (("train", TRAIN, "--shape", "depth=3"), "shape 'depth=3': expected one of width"),
        (("train", TRAIN, "--vocabulary", "words"), "unknown vocabulary 'words'"),
        (("train", TRAIN, "--shape", "context=16"), "the model's context has room for 16"),
        (
            ("train", TRAIN, "--model", "google/gemma-2b", "--vocabulary", "pieces"),
            "--vocabulary goes with --model small, not with google/gemma-2b",
        ),
        (("train", TRAIN, "--model", "./nowhere"), "'./nowhere': no such folder"),
        (("evaluate", TEST, "--trained", "nowhere"), "nowhere holds no finished training"),
        (("evaluate", TEST, "--condition", "sharp"), "'sharp': expected one of softmax"),
        (("evaluate", TEST, "--arm", "sharp"), "'sharp': expected one of softmax"),
    ],
)
def test_an_error_leaves_nothing(arguments, message, tmp_path, monkeypatch, fail):
    monkeypatch.chdir(tmp_path)
    assert message in fail("clrs", *arguments)
    left = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"]
    assert left == []


def test_without_dm_clrs(monkeypatch, tmp_path, fail):
    real = importlib.util.find_spec
    monkeypatch.setattr(generate, "find_spec", lambda name: None if name == "clrs" else real(name))
    generate.load_official_generator.cache_clear()
    error = fail("clrs", "generate", tmp_path / "data")
    assert "pip install --no-deps dm-clrs==2.0.3" in error
    assert not (tmp_path / "data").exists()


def test_a_folder_like_gemma_2b(tmp_path, succeed):
    folder, models = gemma_folder(tmp_path / "gemma-2b"), tmp_path / "models"
    common = ("--algorithm", "minimum", "--samples", "1")
    attention = ("--attention", "adaptive", "--saving-memory")
    succeed("clrs", "train", TRAIN, "--out", models, "--model", folder, *attention, *SHORT, *common)
    evaluate = ["clrs", "evaluate", TEST, "--trained", models, "--condition", "adaptive"]
    succeed(*evaluate, "--device", "cpu", "--out", tmp_path, *common)
    assert Result.load(tmp_path / "figure8.json").measurements["model"].startswith("Gemma of ")
    assert (tmp_path / "figure8.svg").exists()


def test_the_defaults_in_the_help_are_those_of_training():
    hints = get_type_hints(train, include_extras=True)
    shape = hints["shape"].__metadata__[0].help.partition("Default: ")[2].rstrip(".")
    assert config.parse_shape(shape) == config.Shape()
    assert shape.count("=") == len(fields(config.Shape))
    default = config.Training(attention="softmax")
    for name in ("steps", "batch", "micro", "learning_rate", "growing", "optimiser", "vocabulary"):
        text = re.search(r"Default: (\S+)\.$", hints[name].__metadata__[0].help)[1]
        assert type(getattr(default, name))(text) == getattr(default, name), name
