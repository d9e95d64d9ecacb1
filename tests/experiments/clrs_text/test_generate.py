"""Generating: byte for byte the official samples, without TensorFlow, resumable."""

from __future__ import annotations

import contextlib
import importlib
import json
import subprocess
import sys
from dataclasses import replace
from importlib import metadata

import pytest
from clrs_text.small import SAMPLE

from sharpmax import UserError
from sharpmax.experiments.clrs_text import generate
from sharpmax.experiments.clrs_text.algorithms import ALGORITHMS
from sharpmax.experiments.clrs_text.data import MANIFEST, load_manifest
from sharpmax.experiments.clrs_text.generate import Config, FileJob

TWO = {"minimum": (4, 6), "kmp_matcher": (5,)}


@pytest.mark.parametrize(
    "names",
    [
        ("minimum", "bfs", "graham_scan", "kmp_matcher"),
        pytest.param(ALGORITHMS, marks=pytest.mark.slow),
    ],
    ids=["some", "all thirty"],
)
def test_samples_are_those_of_the_committed_sample(names, tmp_path):
    stored = load_manifest(SAMPLE / "train")
    assert set(stored.files) == set(ALGORITHMS)
    for name in names:
        file = stored.files[name]
        job = FileJob(name, file.sizes, stored.seeds, stored.samples, tmp_path / name)
        shares = []
        assert replace(generate.write_file(job, shares.append), name=file.name) == file, name
        assert shares[-1] == 1.0


@pytest.mark.parametrize("algorithm", ["minimum", "lcs_length"])
def test_questions_and_answers_are_those_of_the_official_generator(algorithm):
    """The official loop, written for Hugging Face, against ours."""
    with generate.replace_packages(generate.find_dm_clrs()):
        theirs = importlib.import_module("clrs._src.clrs_text.huggingface_generators")
    rows = theirs.clrs_generator({algorithm: [7]}, num_samples=5, seed=14)
    with generate._silence():
        expected = [(row["question"], row["answer"]) for row in rows]
    assert list(generate.generate_examples(algorithm, 7, 14, 5)) == expected
    assert list(generate.generate_examples(algorithm, 7, 3, 5)) != expected


ALONE = """
import sys
from sharpmax.experiments.clrs_text.generate import generate_examples
print(repr(next(generate_examples("minimum", 5, 0, 1))))
print([name for name in sys.modules if name.partition(".")[0] in ("clrs", "tensorflow")])
"""


@pytest.mark.slow
def test_no_module_of_dm_clrs_or_tensorflow_stays_imported():
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=True)
    first = json.loads((SAMPLE / "train" / "minimum.jsonl").read_text().splitlines()[2])
    sample, left = done.stdout.splitlines()
    assert sample == repr((first["question"], first["answer"]))
    assert left == "[]"
    assert done.stderr == ""


def test_modules_that_were_imported_before_stay(monkeypatch, tmp_path):
    """A user's own TensorFlow and dm-clrs are not touched."""
    theirs = {name: object() for name in ("tensorflow", "clrs", "clrs._src.samplers")}
    for name, module in theirs.items():
        monkeypatch.setitem(sys.modules, name, module)
    with contextlib.suppress(RuntimeError), generate.replace_packages(tmp_path):
        assert sys.modules["tensorflow"] is not theirs["tensorflow"]
        assert sys.modules["clrs._src"].__path__ == [str(tmp_path / "_src")]
        raise RuntimeError
    assert {name: sys.modules[name] for name in theirs} == theirs
    assert "clrs._src" not in sys.modules


def test_without_dm_clrs_one_line_says_what_to_install(monkeypatch, tmp_path):
    def version(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(generate.metadata, "version", version)
    generate.load_official_generator.cache_clear()
    advice = r"needs dm-clrs, which is not installed: pip install --no-deps dm-clrs==2\.0\.3"
    with pytest.raises(UserError, match=advice):
        generate.generate_dataset(Config("train", TWO, samples=1), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_generation_resumes_and_a_finished_one_is_kept(inline_jobs, tmp_path):
    config, at_once, stopped = Config("train", TWO, samples=2), tmp_path / "a", tmp_path / "b"
    whole = generate.generate_dataset(config, at_once)
    stopped.mkdir()
    # What a kill after the first file leaves.
    replace(whole, files={"minimum": whole.files["minimum"]}).save(stopped)
    (stopped / "minimum.jsonl").write_bytes((at_once / "minimum.jsonl").read_bytes())
    assert json.loads((stopped / MANIFEST).read_text())["sha256"] is None
    calls = []
    resumed = generate.generate_dataset(config, stopped, progress=lambda *call: calls.append(call))
    assert {call[:2] for call in calls} == {("generating", 1)}  # one algorithm was left
    assert resumed == whole
    for name in ("minimum.jsonl", "kmp_matcher.jsonl", MANIFEST):
        assert (stopped / name).read_bytes() == (at_once / name).read_bytes()
    with pytest.raises(UserError, match=r"manifest\.json exists already"):
        generate.generate_dataset(config, at_once)
    with pytest.raises(UserError, match="holds CLRS-Text with other settings"):
        generate.generate_dataset(Config("train", TWO, samples=3), at_once)
    again = generate.generate_dataset(Config("train", TWO, samples=1), at_once, overwrite=True)
    assert again.samples == 1


def test_settings_out_of_range_are_refused():
    for config, message in (
        (Config("validation"), "unknown split 'validation': expected one of train, test"),
        (Config("test", {"sorting": (4,)}), "unknown algorithm 'sorting'"),
        (Config("test", {"minimum": (4, 5000)}), "size 5000 of minimum is out of range"),
        (Config("test", samples=0), "samples must be at least 1, got 0"),
    ):
        with pytest.raises(UserError, match=message):
            config.to_manifest()
    defaults = Config("test").to_manifest()
    assert (defaults.seeds, defaults.samples) == ((3, 14, 35, 81, 94), 125)
    assert len(defaults.sizes) == 30
