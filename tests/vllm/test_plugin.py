"""What the plugin refuses, in one line; and that it is not there unless it is asked for."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from sharpmax._errors import UserError
from sharpmax.results.calibration import Architecture, Calibration, Head
from sharpmax.vllm import VARIABLE, register
from sharpmax.vllm.plugin import load_calibration, require_config, require_version

CALIBRATION = Calibration(
    model="tiny",
    weights="",
    architecture=Architecture(model_type="llama", layers=3, heads=(4, 4, 4)),
    method={},
    from_tokens=8,
    heads=(Head(layer=1, head=2, rate=0.5),),
)


def engine_config(**changes):
    """Return the parts of a VllmConfig that are looked at, for a model that fits."""
    hf = SimpleNamespace(model_type="llama", num_hidden_layers=3, num_attention_heads=4)
    config = SimpleNamespace(
        model_config=SimpleNamespace(
            model="models/tiny",
            hf_config=hf,
            hf_text_config=hf,
            is_mm_prefix_lm=False,
            rswa_window=None,
        ),
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            distributed_executor_backend="mp",
            nnodes=1,
        ),
        cache_config=SimpleNamespace(kv_sharing_fast_prefill=False),
        speculative_config=None,
    )
    for path, value in changes.items():
        *parents, name = path.split("__")
        holder = config
        for parent in parents:
            holder = getattr(holder, parent)
        setattr(holder, name, value)
    return config


def run_register(**environment):
    source = "import sys; from sharpmax.vllm import register; register(); print(*sys.modules)"
    return subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "", "PYTHONPATH": ":".join(sys.path), **environment},
    )


@pytest.mark.parametrize("environment", [{}, {VARIABLE: ""}])
def test_without_the_variable_nothing_happens(environment):
    done = run_register(**environment)
    assert (done.returncode, done.stderr) == (0, "")
    loaded = set(done.stdout.split())
    assert not {"torch", "transformers", "pydantic", "vllm", "sharpmax.vllm.plugin"} & loaded


def test_importing_the_plugin_needs_neither_vllm_nor_transformers():
    source = (
        "import sys; sys.modules.update(dict.fromkeys(['vllm', 'transformers', 'jax']))\n"
        "import sharpmax.vllm.plugin, sharpmax.vllm.backends"
    )
    environment = {"PATH": "", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", source], env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr


def test_vllm_finds_the_plugin():
    """By the entry point that an installed package has."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
    (entry,) = project["project"]["entry-points"]["vllm.general_plugins"].items()
    assert metadata.EntryPoint(*entry, "vllm.general_plugins").load() is register


def error_line(monkeypatch, capsys, path) -> str:
    monkeypatch.setenv(VARIABLE, str(path))
    with pytest.raises(SystemExit) as stopped:
        register()
    assert stopped.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    return printed.err


def test_a_missing_file_is_one_line(monkeypatch, capsys, tmp_path):
    path = tmp_path / "tuned.json"
    line = error_line(monkeypatch, capsys, path)
    assert line.startswith(f"sharpmax: {VARIABLE}={path}: no such file")


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", '{"format": "sharpmax-result"}'])
def test_a_file_that_is_no_calibration_is_one_line(monkeypatch, capsys, tmp_path, text):
    path = tmp_path / "tuned.json"
    path.write_text(text)
    assert str(path) in error_line(monkeypatch, capsys, path)


def test_a_calibration_is_read_as_it_was_saved(tmp_path):
    assert load_calibration(str(CALIBRATION.save(tmp_path / "tuned.json"))) == CALIBRATION


@pytest.mark.parametrize("version", ["0.32", "0.32.0", "0.32.1", "0.32.0+cpu", "0.32.1rc1"])
def test_supported_versions(version):
    require_version(version)


@pytest.mark.parametrize("version", ["0.31.9", "0.33.0", "1.32.0", "0.320.0", "0.3", "dev", ""])
def test_other_versions_are_refused_by_name(version):
    with pytest.raises(UserError, match=rf"vLLM {version}: the plugin supports 0\.32;"):
        require_version(version)


def test_a_model_that_fits():
    require_config(CALIBRATION, engine_config())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_config__hf_config__model_type": "qwen2"}, "model type 'llama', .* has 'qwen2'"),
        ({"model_config__hf_config__num_hidden_layers": 2}, "attention layers 3, .* has 2"),
        ({"model_config__hf_config__num_attention_heads": 8}, "heads 4 a layer, .* has 8 a layer"),
        ({"model_config__hf_config__sharpmax_export": {}}, "written by sharpmax export"),
        ({"model_config__hf_config__attn_logit_softcapping": 50.0}, "softcap"),
        ({"model_config__hf_config__attention_chunk_size": 8192}, "chunked local attention"),
        ({"model_config__is_mm_prefix_lm": True}, "both directions"),
        ({"model_config__rswa_window": 64}, "reference sliding windows"),
        ({"parallel_config__decode_context_parallel_size": 2}, "context parallelism"),
        ({"parallel_config__prefill_context_parallel_size": 2}, "context parallelism"),
        ({"parallel_config__nnodes": 2}, "several machines"),
        ({"parallel_config__distributed_executor_backend": "ray"}, "several machines"),
        ({"cache_config__kv_sharing_fast_prefill": True}, "fast prefill"),
        ({"speculative_config": object()}, "speculative decoding"),
    ],
)
def test_other_models_and_unsupported_options_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        require_config(CALIBRATION, engine_config(**changes))
