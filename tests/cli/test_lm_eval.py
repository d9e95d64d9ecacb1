"""`sharpmax lm-eval`: the real harness, on a small model in a folder and a task in a file."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM, MambaConfig, MambaForCausalLM

import sharpmax as sx
import sharpmax.hf as shf
from hf.small import llama, tokenizer
from sharpmax import cli
from sharpmax.cli.lm_eval import harness_arguments
from sharpmax.hf.loading import catalogue

ROOT = Path(__file__).parents[2]
TASKS = ROOT / "examples" / "lm_eval"
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


@pytest.fixture(autouse=True)
def quiet_at_the_root(monkeypatch, tmp_path):
    """Where the example finds its file; and nothing of the harness is left behind."""
    import datasets

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setenv("LMEVAL_LOG_LEVEL", "ERROR")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture
def in_words(tmp_path):
    """The same questions, answered by generating: batches that are padded on the left."""
    path = tmp_path / "in_words.yaml"
    path.write_text(GENERATE)
    return path


def read(out):
    """The answers of the model by task, in order; and the results file."""
    answers = {}
    for path in out.rglob("samples_*.jsonl"):
        samples = sorted(
            map(json.loads, path.read_text().splitlines()), key=lambda one: one["doc_id"]
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
    """[item, choice]; written as text to the file, numbers in memory."""
    items = answers["samples_sharpmax_lookup"]
    return np.array([[float(choice[0][0]) for choice in item] for item in items])


def test_the_policy_reaches_every_head_in_padded_batches(folder, in_words, tmp_path):
    """Eight at a time by the command is one at a time by `sharpen`: for likelihoods the harness
    pads on the right, for generation on the left."""
    out = tmp_path / "out"
    code = cli.main(
        [
            *("lm-eval", "run", "--model", "hf", "--model_args"),
            f"pretrained={folder},attn_implementation=sharpmax",
            *("--tasks", f"sharpmax_lookup,{in_words}", "--include_path", str(TASKS)),
            *("--batch_size", "8", "--output_path", str(out), "--log_samples"),
            *("--metadata", "mine=3"),
        ]
    )
    assert code == 0
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


def test_the_documented_command(folder, tmp_path, monkeypatch, capsys):
    """As it stands on the page, but for a smaller model; with constant:1 it is plain attention."""
    (line,) = re.findall(r"^sharpmax (lm-eval .*)$", (ROOT / "docs/lm_eval.md").read_text(), re.M)
    monkeypatch.setattr(catalogue, "model_folder", lambda key, report: folder)
    before, out = sys.argv, tmp_path / "out"
    more = ["--policy", "constant:1", "--output_path", str(out), "--log_samples"]
    assert cli.main([*shlex.split(line), *more]) == 0
    assert re.search(r"\|sharpmax_lookup\|.*\|acc ", capsys.readouterr().out)
    assert sys.argv is before
    answers, written = read(out)
    plain = by_python(folder, llama(), ["sharpmax_lookup"], 1)
    np.testing.assert_allclose(likelihoods(answers), likelihoods(plain), atol=1e-3)
    assert written["configs"]["sharpmax_lookup"]["metadata"]["sharpmax_policy"] == "constant:1"


def test_a_model_without_such_attention_is_not_passed_off_as_sharpened(monkeypatch, capsys):
    """Mamba takes any name of an attention, and calls none."""

    def harness():
        name, shape = "sharpmax", {"hidden_size": 16, "num_hidden_layers": 1, "vocab_size": 32}
        kind, config = MambaForCausalLM, MambaConfig(**shape)
        if sys.argv[-3] == "llama":
            kind, config = LlamaForCausalLM, llama().config
        model = kind._from_config(config, attn_implementation=name).eval()
        model(torch.arange(8)[None])

    monkeypatch.setattr("lm_eval.__main__.cli_evaluate", harness)
    asked = ["lm-eval", "--model_args", "attn_implementation=sharpmax"]
    assert cli.main([*asked, "llama"]) == 0
    assert cli.main([*asked, "mamba"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert "the model never asked sharpmax for attention" in errors[-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "sharper"], "unknown policy 'sharper': expected one of paper: "),
        (["--policy", "constant:x"], "policy 'constant:x' needs a number"),
        (
            ["--model_args", "pretrained=gpt2"],
            "nothing would be sharpened: add attn_implementation",
        ),
        (["--model_args", "attn_implementation=sdpa"], "nothing would be sharpened: add attn_impl"),
        ([], "nothing would be sharpened: add attn_implementation=sharpmax to --model_args"),
    ],
)
def test_a_mistake_is_one_line(arguments, message, capsys):
    assert cli.main(["lm-eval", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"sharpmax: {message}")
    assert printed.err.count("\n") == 1


def test_without_the_harness_the_extra_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.delitem(sys.modules, "lm_eval.__main__", raising=False)
    assert cli.main(["lm-eval", "--model_args", "attn_implementation=sharpmax"]) == 2
    said = "sharpmax lm-eval needs lm_eval, which is not installed: pip install 'sharpmax[lm-eval]'"
    assert capsys.readouterr().err.splitlines() == [f"sharpmax: {said}"]


def test_what_the_harness_is_given():
    typed = ["run", "--model_args", '{"attn_implementation": "sharpmax"}', "-b", "8"]
    given = [*typed, "--metadata", "sharpmax_policy=constant:1.2"]
    assert harness_arguments(typed, "constant:1.2") == given
    for from_file in (["--config", "mine.yaml"], ["--config=mine.yaml"], ["-C", "mine.yaml"]):
        assert harness_arguments(from_file, "paper") == from_file


def test_the_items_are_what_their_script_makes():
    script = runpy.run_path(str(TASKS / "make_lookup.py"))
    assert (TASKS / "lookup.jsonl").read_text("utf-8") == script["lines"]()
    for item in script["items"]():
        person = item["text"].splitlines()[-1]
        assert f"{person} {item['choices'][item['answer']]}\n" in item["text"]
