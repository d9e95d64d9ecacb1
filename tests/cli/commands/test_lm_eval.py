"""`sharpmax lm-eval`: the harness on a small model in a folder and a task in a file."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
)

import sharpmax as sx
import sharpmax.hf as shf
from hf.small import llama, tokenizer
from sharpmax.cli.commands.lm_eval import harness_arguments
from sharpmax.hf.loading import convert

ROOT = Path(__file__).parents[3]
TASKS = ROOT / "examples" / "lm_eval"
TOKENS = torch.arange(8)[None]
GENERATE = """
task: lookup_in_words
dataset_path: json
dataset_kwargs: {data_files: {test: examples/lm_eval/lookup.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{{text}}"
doc_to_target: "{{choices[answer]}}"
generation_kwargs: {until: ["~"], max_gen_toks: 6}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny"
    llama().save_pretrained(path)
    words = tokenizer()
    words.pad_token, words.bos_token, words.eos_token = map(chr, range(3))
    words.save_pretrained(path)
    return path


@pytest.fixture
def harness_at_root(monkeypatch, tmp_path):
    """Run at the root, where the example finds its file; keep the harness's cache elsewhere."""
    import datasets

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setenv("LMEVAL_LOG_LEVEL", "ERROR")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture
def fake_harness(monkeypatch):
    """Replace the harness, which takes seconds to import, by `cli_evaluate` of these modules."""
    package, module = ModuleType("lm_eval"), ModuleType("lm_eval.__main__")
    monkeypatch.setitem(sys.modules, "lm_eval", package)
    monkeypatch.setitem(sys.modules, "lm_eval.__main__", module)
    return module


@pytest.fixture
def in_words(tmp_path):
    """Return a task with the same questions, answered by generation."""
    path = tmp_path / "in_words.yaml"
    path.write_text(GENERATE)
    return path


def read(out):
    """Return the answers of the model by task, in order, and the results file."""
    answers = {}
    for path in out.rglob("samples_*.jsonl"):
        samples = sorted(
            map(json.loads, path.read_text().splitlines()), key=lambda sample: sample["doc_id"]
        )
        answers[path.name.split("_20")[0]] = [sample["resps"] for sample in samples]
    (file,) = out.rglob("results_*.json")
    return answers, json.loads(file.read_text())


def by_python(folder, model, tasks, batch_size):
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    words = AutoTokenizer.from_pretrained(folder)
    found = simple_evaluate(
        model=HFLM(pretrained=model, tokenizer=words, batch_size=batch_size),
        tasks=[str(task) for task in tasks],
        task_manager=TaskManager(include_path=str(TASKS), include_defaults=False),
    )
    return {
        f"samples_{task}": [sample["resps"] for sample in samples]
        for task, samples in found["samples"].items()
    }


def likelihoods(answers):
    """Return [item, choice]; the file has text, the memory numbers."""
    items = answers["samples_sharpmax_lookup"]
    return np.array([[float(choice[0][0]) for choice in item] for item in items])


@pytest.mark.slow
@pytest.mark.usefixtures("harness_at_root")
def test_the_policy_reaches_every_head_in_padded_batches(folder, in_words, tmp_path, succeed):
    """Batches of eight equal single prompts with `sharpen`.

    The harness pads on the right for likelihoods, and on the left for generation.
    """
    out = tmp_path / "out"
    succeed(
        *("lm-eval", "run", "--model", "hf", "--model_args"),
        f"pretrained={folder},attn_implementation=sharpmax",
        *("--tasks", f"sharpmax_lookup,{in_words}", "--include_path", TASKS),
        *("--batch_size", "8", "--output_path", out, "--log_samples", "--metadata", "mine=3"),
        *("--policy", "paper"),
    )
    sharp, written = read(out)
    tasks = ["sharpmax_lookup", in_words]
    with shf.sharpen(model := llama(), sx.PAPER):
        alone = by_python(folder, model, tasks, 1)
    plain = by_python(folder, model, tasks, 8)

    assert likelihoods(sharp).shape == (30, 4)
    np.testing.assert_allclose(likelihoods(sharp), likelihoods(alone), atol=1e-3)
    assert np.abs(likelihoods(sharp) - likelihoods(plain)).max(1).min() > 0.01
    name = "samples_lookup_in_words"
    assert len(sharp[name]) == 30
    assert sharp[name] == alone[name] != plain[name]

    recorded = written["configs"]["sharpmax_lookup"]["metadata"]
    assert (recorded["sharpmax_policy"], recorded["mine"]) == ("paper", 3)
    assert written["config"]["model_args"]["attn_implementation"] == "sharpmax"


@pytest.mark.slow
@pytest.mark.usefixtures("harness_at_root")
def test_the_documented_command(folder, tmp_path, monkeypatch, succeed):
    """The command of the page, with a smaller model and with a policy that is plain attention."""
    (line,) = re.findall(r"^sharpmax (lm-eval .*)$", (ROOT / "docs/lm_eval.md").read_text(), re.M)
    monkeypatch.setattr(convert, "model_folder", lambda key, report: folder)
    before, out = sys.argv, tmp_path / "out"
    more = ["--policy", "constant:1", "--output_path", str(out), "--log_samples"]
    assert re.search(r"\|sharpmax_lookup\|.*\|acc ", succeed(*shlex.split(line), *more).out)
    assert sys.argv is before
    answers, written = read(out)
    plain = by_python(folder, llama(), ["sharpmax_lookup"], 1)
    np.testing.assert_allclose(likelihoods(answers), likelihoods(plain), atol=1e-3)
    assert written["configs"]["sharpmax_lookup"]["metadata"]["sharpmax_policy"] == "constant:1"


def test_the_harness_gets_the_arguments_and_the_policy_is_registered(
    fake_harness, folder, monkeypatch, succeed
):
    received = []

    def cli_evaluate():
        received.extend(sys.argv)
        model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sharpmax")
        received.append(model(TOKENS).logits)

    fake_harness.cli_evaluate = cli_evaluate
    monkeypatch.setattr(convert, "model_folder", lambda key, report: folder)
    before = sys.argv
    words = ["--model_args", "pretrained=smollm2,attn_implementation=sharpmax", "-b", "8"]
    succeed("lm-eval", "--policy", "constant:2", *words)
    assert sys.argv is before
    *words, logits = received
    arguments = f"pretrained={folder},attn_implementation=sharpmax"
    metadata = ["--metadata", "sharpmax_policy=constant:2"]
    assert words == ["lm_eval", "--model_args", arguments, "-b", "8", *metadata]
    with shf.sharpen(model := llama(), sx.Constant(2.0)):
        torch.testing.assert_close(logits, model(TOKENS).logits, atol=1e-4, rtol=0)


def test_a_model_that_ignores_attention_is_refused(fake_harness, succeed, fail):
    """Mamba accepts the name of any attention, and calls none."""

    def cli_evaluate():
        kind, config = LlamaForCausalLM, llama().config
        if "mamba" in sys.argv:
            shape = {"hidden_size": 16, "num_hidden_layers": 1, "vocab_size": 32}
            kind, config = MambaForCausalLM, MambaConfig(**shape)
        model = kind._from_config(config, attn_implementation="sharpmax").eval()
        model(TOKENS)

    fake_harness.cli_evaluate = cli_evaluate
    words = ["lm-eval", "--policy", "paper", "--model_args", "attn_implementation=sharpmax"]
    succeed(*words, "llama")
    # transformers prints a line about a missing kernel before ours.
    error = fail(*words, "mamba", last_line_only=True)
    assert "the model never called sharpmax for attention" in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "sharper"], "unknown policy 'sharper': expected one of paper ("),
        (["--policy", "constant:x"], "policy 'constant:x' needs a number"),
        (
            ["--model_args", "pretrained=gpt2"],
            "nothing would be sharpened: add attn_implementation",
        ),
        (["--model_args", "attn_implementation=sdpa"], "nothing would be sharpened: add attn_impl"),
        ([], "nothing would be sharpened: add attn_implementation=sharpmax to --model_args"),
        (
            ["--model_args", "pretrained=gpt2,attn_implementation=sharpmax"],
            "--policy tuned is a calibration of smollm2: for another model give the file",
        ),
        (["--policy", "no.json"], "no.json"),
    ],
)
def test_errors(arguments, message, fail):
    assert fail("lm-eval", *arguments).startswith(f"sharpmax: {message}")


def test_without_the_harness(monkeypatch, fail):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.delitem(sys.modules, "lm_eval.__main__", raising=False)
    error = fail("lm-eval", "--policy", "paper", "--model_args", "attn_implementation=sharpmax")
    expected = (
        "sharpmax lm-eval needs lm_eval, which is not installed: pip install 'sharpmax[lm-eval]'"
    )
    assert error == f"sharpmax: {expected}\n"


def test_the_policy_is_recorded_as_metadata():
    typed = ["run", "--model_args", '{"attn_implementation": "sharpmax"}', "-b", "8"]
    metadata = ["--metadata", "sharpmax_policy=constant:1.2"]
    assert harness_arguments(typed, "constant:1.2") == [*typed, *metadata]
    for from_file in (["--config", "mine.yaml"], ["--config=mine.yaml"], ["-C", "mine.yaml"]):
        assert harness_arguments(from_file, "paper") == from_file


def test_the_example_items_match_their_script():
    script = runpy.run_path(str(TASKS / "make_lookup.py"))
    assert (TASKS / "lookup.jsonl").read_text("utf-8") == script["lines"]()
    for item in script["items"]():
        person = item["text"].splitlines()[-1]
        assert f"{person} {item['choices'][item['answer']]}\n" in item["text"]
