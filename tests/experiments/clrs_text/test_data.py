"""Reading: generated folders, the published datasets, and what is refused."""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter

import datasets
import pytest
from clrs_text.small import SAMPLE

from sharpmax import UserError
from sharpmax.experiments.clrs_text.data import (
    MANIFEST,
    PUBLISHED,
    Sample,
    load_manifest,
    load_samples,
)

SEEDS = (3, 14, 35, 81, 94)


@pytest.fixture
def copy(tmp_path):
    return shutil.copytree(SAMPLE / "test", tmp_path / "test")


def test_the_sample_is_read_as_it_was_written():
    source = load_samples(SAMPLE / "test", "test")
    assert len(source.samples) == 16
    assert {sample[:3] for sample in source.samples} == {
        (name, size, seed)
        for name, sizes in (("minimum", (4, 8)), ("bfs", (4, 6)))
        for size in sizes
        for seed in (3, 14)
    }
    question = "minimum:\nkey: [0.55 0.708 0.29 0.51]\nmin:\n"
    assert source.samples[0] == Sample("minimum", 4, 3, question, "2\n\n")
    assert source.about["sha256"] == load_manifest(SAMPLE / "test").sha256
    assert source.about["versions"]["dm-clrs"] == "2.0.3"


def test_algorithms_sizes_and_a_limit_select_samples():
    source = load_samples(SAMPLE / "test", "test", algorithms=["bfs"], sizes=[6, 64], limit=1)
    assert [sample[:3] for sample in source.samples] == [("bfs", 6, 3), ("bfs", 6, 14)]


def test_single_algorithms_have_their_own_limit():
    source = load_samples(SAMPLE / "train", "train", limit=1, limits={"bfs": 2})
    counts = Counter(sample[:2] for sample in source.samples)
    assert {count for (name, _), count in counts.items() if name == "bfs"} == {2}
    assert {count for (name, _), count in counts.items() if name != "bfs"} == {1}
    assert source.about != load_samples(SAMPLE / "train", "train", limit=1).about
    with pytest.raises(UserError, match="has no samples of heapsort"):
        load_samples(SAMPLE / "train", "train", algorithms=["bfs"], limits={"heapsort": 1})


def test_damaged_and_wrong_folders_are_refused_in_one_sentence(copy):
    for arguments, message in (
        ((copy, "train"), "holds the test split, expected train"),
        ((copy / "bfs.jsonl", "test"), "is a file: give the folder"),
        (
            (copy / "nowhere", "test"),
            "is not a folder of CLRS-Text: create one with sharpmax clrs gen",
        ),
    ):
        with pytest.raises(UserError, match=message):
            load_samples(*arguments)
    with pytest.raises(UserError, match="unknown algorithm 'sort'"):
        load_samples(copy, "test", algorithms=["sort"])
    with pytest.raises(UserError, match="has no samples of kmp_matcher at these sizes"):
        load_samples(copy, "test", algorithms=["bfs", "kmp_matcher"])
    with pytest.raises(UserError, match="has no samples of the requested algorithms"):
        load_samples(copy, "test", sizes=[63])
    path = copy / "bfs.jsonl"
    path.write_bytes(path.read_bytes().replace(b"[0 ", b"[1 ", 1))
    with pytest.raises(UserError, match=r"bfs\.jsonl is damaged: its hash is not the one"):
        load_samples(copy, "test")
    path.unlink()
    with pytest.raises(UserError, match=r"bfs\.jsonl is missing"):
        load_samples(copy, "test")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content.pop("seeds"), "is damaged"),
        (lambda content: content.update(format="poem"), "is not a manifest of CLRS-Text"),
        (lambda content: content.update(sha256="0"), "its hash is not that of its files"),
        (lambda content: content["files"].pop("bfs"), "lacks bfs: repeat sharpmax clrs generate"),
    ],
)
def test_a_damaged_manifest_is_refused(copy, change, message):
    path = copy / MANIFEST
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=message):
        load_samples(copy, "test")


@pytest.fixture
def published(tmp_path, monkeypatch):
    """A folder as `hf download tomg-group-umd/CLRS-Text-test` leaves it."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    folder = tmp_path / "CLRS-Text-test"
    (folder / "data").mkdir(parents=True)
    for place, seed in enumerate(SEEDS):
        rows = {
            "question": [f"minimum:\nkey: [0.{seed} 0.99]\nmin:\n"],
            "answer": ["0\n\n"],
            "algo_name": ["minimum"],
            "length": [2],
            "use_hints": [False],
        }
        name = f"test_{place + 1}-00000-of-00001.parquet"
        datasets.Dataset.from_dict(rows).to_parquet(folder / "data" / name)
    return folder


def test_the_published_test_sets_have_the_seeds_in_order(published):
    source = load_samples(published, "test")
    expected = [
        Sample("minimum", 2, seed, f"minimum:\nkey: [0.{seed} 0.99]\nmin:\n", "0\n\n")
        for seed in SEEDS
    ]
    assert source.samples == expected
    assert source.about["published"] == PUBLISHED["test"]


def test_a_folder_that_is_not_the_dataset_is_refused(published):
    with pytest.raises(UserError, match=r"cannot be read .*: expected the splits train"):
        load_samples(published, "train")
    (published / "data" / "test_1-00000-of-00001.parquet").unlink()
    rows = datasets.Dataset.from_dict({"question": ["?"], "answer": ["!"]})
    rows.to_parquet(published / "data" / "test_1-00000-of-00001.parquet")
    with pytest.raises(UserError, match=r"cannot be read|no column algo_name, length"):
        load_samples(published, "test")


def test_the_hub_s_datasets_need_their_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"needs datasets.*pip install 'sharpmax\[clrs\]'"):
        load_samples(PUBLISHED["train"], "train")
