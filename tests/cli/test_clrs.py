"""`sharpmax clrs`: three steps from nothing to a figure, and mistakes in one line."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import pytest
from clrs_text.small import SAMPLE, gemma_folder

from sharpmax.cli import clrs_train, main
from sharpmax.experiments.clrs_text import config, generate
from sharpmax.results import Result

TRAIN, TEST = str(SAMPLE / "train"), str(SAMPLE / "test")
TINY = ("--shape", "width=32,layers=1,heads=2,head_size=16,inner=48")
SHORT = ("--steps", "2", "--batch", "4", "--micro", "2", "--threads", "1")


def test_three_steps_make_a_figure(tmp_path, capsys):
    data, models = str(tmp_path / "data"), str(tmp_path / "models")
    some = ("--algorithm", "minimum=4,6", "--algorithm", "bfs", "--largest", "5")
    assert main(["clrs", "generate", data, *some, "--samples", "2", "--processes", "1"]) == 0
    made = json.loads((tmp_path / "data" / "manifest.json").read_text())
    assert made["sizes"] == {"minimum": [4, 6], "bfs": [4, 5]}
    assert made["sha256"] in capsys.readouterr().out
    assert main(["clrs", "train", data, "--out", models, *TINY, *SHORT]) == 0
    said = capsys.readouterr()
    assert f"{models}/softmax-seed0: loss" in said.out
    assert f"{models}/adaptive-seed0: loss" in said.out
    assert "softmax, seed 0: step 2 of 2, loss" in said.err
    evaluate = [
        "clrs",
        "evaluate",
        TEST,
        "--trained",
        models,
        "--out",
        str(tmp_path),
        "--samples",
        "1",
    ]
    assert main([*evaluate, "--device", "cpu", "--threads", "1"]) == 0
    found = Result.load(tmp_path / "figure8.json")
    assert list(found.measurements["algorithms"]) == ["minimum", "bfs"]
    assert (tmp_path / "figure8.png").read_bytes().startswith(b"\x89PNG")
    assert main(evaluate) == 2
    assert "exists already" in capsys.readouterr().err


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
        (("generate", "x", "--algorithm", "minimum=a"), "expected whole numbers such as 0,4-7"),
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
        (("evaluate", TEST, "--arm", "sharp"), "unknown condition 'sharp'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["clrs", *arguments]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("sharpmax: ")
    assert said.err.count("\n") == 1
    assert message in said.err
    assert said.out == ""
    left = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"]
    assert left == []


def test_without_dm_clrs_the_install_is_named(monkeypatch, tmp_path, capsys):
    real = importlib.util.find_spec
    monkeypatch.setattr(generate, "find_spec", lambda name: None if name == "clrs" else real(name))
    generate.load_official_generator.cache_clear()
    assert main(["clrs", "generate", str(tmp_path / "data")]) == 2
    assert "pip install --no-deps dm-clrs==2.0.3" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_a_folder_of_gemma_2b_goes_through_train_and_evaluate(tmp_path, capsys):
    folder = gemma_folder(tmp_path / "gemma-2b")
    common = ("--algorithm", "minimum", "--samples", "1")
    out = str(tmp_path / "models")
    train = [
        "clrs",
        "train",
        TRAIN,
        "--out",
        out,
        "--model",
        str(folder),
        "--attention",
        "adaptive",
    ]
    assert main([*train, "--saving-memory", *SHORT, *common]) == 0
    evaluate = ["clrs", "evaluate", TEST, "--trained", out, "--arm", "adaptive", "--device", "cpu"]
    assert main([*evaluate, "--out", str(tmp_path), *common]) == 0
    found = Result.load(tmp_path / "figure8.json").measurements
    assert found["model"].startswith("Gemma of ")
    assert Path(tmp_path / "figure8.svg").exists()


def test_the_shape_that_help_names_is_the_default():
    (option,) = get_type_hints(clrs_train.train, include_extras=True)["shape"].__metadata__
    said = option.help.partition("differs from ")[2].rstrip(".")
    assert config.parse_shape(said) == config.Shape()
    assert said.count("=") == len(fields(config.Shape))
