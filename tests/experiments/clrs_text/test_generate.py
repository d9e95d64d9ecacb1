"""Generating: byte for byte the official samples, without TensorFlow, to the same files after a
kill.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import subprocess
import sys
from importlib import metadata

import pytest
from clrs_text.small import SAMPLE

from sharpmax import UserError
from sharpmax.experiments.clrs_text import generate, generator, manifest
from sharpmax.experiments.clrs_text.algorithms import ALGORITHMS
from sharpmax.experiments.clrs_text.generate import Config, Job

TWO = {"minimum": (4, 6), "kmp_matcher": (5,)}


def test_all_thirty_are_what_they_were_when_the_sample_was_committed(tmp_path):
    stored = manifest.load(SAMPLE / "train")
    assert set(stored.files) == set(ALGORITHMS)
    for name, file in stored.files.items():
        made = generate.write(Job(name, file.sizes, stored.seeds, stored.samples, tmp_path / name))
        assert made.sha256 == file.sha256, name


@pytest.mark.parametrize("algorithm", ["minimum", "bfs", "graham_scan", "lcs_length"])
def test_questions_and_answers_are_those_of_the_official_generator(algorithm):
    """Its own loop, written for Hugging Face, against ours."""
    with generator._stand_ins(generator._folder()):
        theirs = importlib.import_module("clrs._src.clrs_text.huggingface_generators")
    rows = theirs.clrs_generator({algorithm: [7]}, num_samples=5, seed=14)
    with generator._silent():
        expected = [(row["question"], row["answer"]) for row in rows]
    assert list(generator.examples(algorithm, 7, 14, 5)) == expected
    assert list(generator.examples(algorithm, 7, 3, 5)) != expected


ALONE = """
import sys
before = set(sys.modules)
from sharpmax.experiments.clrs_text.generator import examples
print(repr(next(examples("minimum", 5, 0, 1))))
left = [name for name in sys.modules if name.partition(".")[0] in ("clrs", "tensorflow")]
print(left)
"""


def test_nothing_of_dm_clrs_or_tensorflow_is_left_behind():
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=True)
    first = json.loads((SAMPLE / "train" / "minimum.jsonl").read_text().splitlines()[2])
    sample, left = done.stdout.splitlines()
    assert sample == repr((first["question"], first["answer"]))
    assert left == "[]"
    assert done.stderr == ""


def test_what_was_loaded_before_stays(monkeypatch, tmp_path):
    """A user's own TensorFlow and dm-clrs are not touched."""
    theirs = {name: object() for name in ("tensorflow", "clrs", "clrs._src.samplers")}
    for name, module in theirs.items():
        monkeypatch.setitem(sys.modules, name, module)
    with contextlib.suppress(RuntimeError), generator._stand_ins(tmp_path):
        assert sys.modules["tensorflow"] is not theirs["tensorflow"]
        assert sys.modules["clrs._src"].__path__ == [str(tmp_path / "_src")]
        raise RuntimeError
    assert {name: sys.modules[name] for name in theirs} == theirs
    assert "clrs._src" not in sys.modules


def test_without_dm_clrs_one_line_says_what_to_install(monkeypatch, tmp_path):
    def version(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(generator.metadata, "version", version)
    generator.official.cache_clear()
    advice = r"needs dm-clrs, which is not installed: pip install --no-deps dm-clrs==2\.0\.3"
    with pytest.raises(UserError, match=advice):
        generate.run(Config("train", TWO, samples=1), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_stopped_generation_goes_on_and_a_finished_one_is_kept(tmp_path, monkeypatch):
    config, at_once, stopped = Config("train", TWO, samples=2), tmp_path / "a", tmp_path / "b"
    whole = generate.run(config, at_once, processes=1)
    (stopped).mkdir()
    # What a kill after the first file leaves.
    half = manifest.Manifest(**{**vars(whole), "files": {"minimum": whole.files["minimum"]}})
    half.save(stopped)
    (stopped / "minimum.jsonl").write_bytes((at_once / "minimum.jsonl").read_bytes())
    assert json.loads((stopped / manifest.NAME).read_text())["sha256"] is None
    told = []
    made = generate.run(config, stopped, processes=1, progress=lambda *one: told.append(one))
    assert {one[1] for one in told} == {1}  # one algorithm was left to do
    assert made == whole
    for name in ("minimum.jsonl", "kmp_matcher.jsonl", manifest.NAME):
        assert (stopped / name).read_bytes() == (at_once / name).read_bytes()
    with pytest.raises(UserError, match=r"manifest\.json exists already"):
        generate.run(config, at_once)
    with pytest.raises(UserError, match="holds CLRS-Text with other settings"):
        generate.run(Config("train", TWO, samples=3), at_once)


def test_what_cannot_be_generated_is_refused():
    for config, message in (
        (Config("validation"), "unknown split 'validation': expected one of train, test"),
        (Config("test", {"sorting": (4,)}), "unknown algorithm 'sorting'"),
        (Config("test", {"minimum": (4, 5000)}), "size 5000 of minimum is out of range"),
        (Config("test", samples=0), "the number of samples is at least 1, got 0"),
    ):
        with pytest.raises(UserError, match=message):
            config.manifest()
    usual = Config("test").manifest()
    assert (usual.seeds, usual.samples, len(usual.sizes)) == ((3, 14, 35, 81, 94), 125, 30)
