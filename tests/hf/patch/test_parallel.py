"""Processes that share a model's heads (tensor parallelism) or weights (FSDP) give what one gives."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from hf.families import variant
from hf.patch import parallel_worker, sharded_worker
from hf.patch.parallel_worker import HARD, SHARPENED
from hf.small import VOCABULARY, llama, random_tokens, tokenizer
from sharpmax.hf import sharpen
from sharpmax.hf.model_info import describe_model, weights_fingerprint

TOLERANCE = 1e-5
"""Of logits and statistics. Some norms are computed in float32, whatever the type of the model."""


def run_processes(folder, processes, worker=parallel_worker):
    """Run a worker in several processes, and return what each wrote."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    finished = subprocess.run(
        [*launcher, "--nproc-per-node", str(processes), worker.__file__, str(folder)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert not finished.returncode, finished.stderr[-3000:]
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(processes)]


def run_alone(folder, **options):
    """Return what one process gives, its checkpoints in a folder of their own."""
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float64).eval()
    own = folder / "alone"
    own.mkdir()
    return parallel_worker.run(model, own, **options)


def make_folder(folder, name, key_heads):
    """Write a model with 4 heads, and a tokenizer of characters."""
    sizes = {"vocab_size": VOCABULARY, "max_position_embeddings": 700}
    model = (
        llama(context=700)
        if name == "tunable Llama"
        else variant(name, num_key_value_heads=key_heads, **sizes).make()
    )
    model.save_pretrained(folder / "model")
    tokenizer().save_pretrained(folder / "model")


def assert_same_arrays(found, expected):
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("name", "processes", "key_heads"),
    [
        ("tunable Llama", 2, 2),
        pytest.param("Llama", 4, 4, marks=pytest.mark.slow),
        pytest.param("Qwen 3", 2, 2, marks=pytest.mark.slow),
        pytest.param("Qwen 3", 4, 4, marks=pytest.mark.slow),
        pytest.param("Gemma 3", 2, 2, marks=pytest.mark.slow),
        pytest.param("Gemma 3", 4, 4, marks=pytest.mark.slow),
    ],
)
def test_every_process_returns_what_one_process_gives(tmp_path, name, processes, key_heads):
    make_folder(tmp_path, name, key_heads)
    together, alone = run_processes(tmp_path, processes), run_alone(tmp_path)
    logits = alone.pop("logits")
    for own in together:
        refused = own.pop("refused")
        for verb in ("export", "certify"):
            assert f"{verb} reads whole weights, and " in refused[verb]
        for case, answer in own.pop("logits").items():
            torch.testing.assert_close(answer, logits[case], rtol=0, atol=TOLERANCE)
        assert own.keys() == alone.keys()
        for case, result in alone.items():
            if isinstance(result, dict) and "arrays" in result:
                assert_same_arrays(own[case].pop("arrays"), result["arrays"])
                result = {key: value for key, value in result.items() if key != "arrays"}
            assert own[case] == result, case
    for case in SHARPENED:
        assert (logits[case] - logits["plain"]).abs().max() > 100 * TOLERANCE
    if name == "tunable Llama":  # else there may be nothing to gain, for the same reason
        for verb in ("calibrate, answers", "calibrate, entropy", "tune"):
            assert isinstance(alone[verb], dict), alone[verb]


@pytest.mark.parametrize(
    ("processes", "message"),
    [
        (3, "its 4 heads cannot be split evenly"),
        (4, "has 2 key heads, which cannot be split evenly among 4 processes"),
    ],
)
@pytest.mark.slow
def test_heads_that_cannot_be_split_evenly_are_refused(tmp_path, processes, message):
    make_folder(tmp_path, "Llama", 2)
    for own in run_processes(tmp_path, processes):
        assert message in own["error"]


@pytest.mark.slow
def test_processes_that_share_the_weights_return_what_one_process_gives(tmp_path):
    make_folder(tmp_path, "tunable Llama", 2)
    together = run_processes(tmp_path, 2, sharded_worker)
    alone = run_alone(tmp_path, gradients=False)
    logits = alone.pop("logits")
    model = sharded_worker.load(tmp_path)
    with torch.no_grad(), sharpen(model, HARD, heads=[1]):
        sharpened = model(random_tokens(2, 17)).logits
    description = describe_model(model, None, [])
    for own in together:
        assert own.pop("fingerprint") == weights_fingerprint(model)
        (note,) = own["description"]["notes"]
        assert note == "the weights were split among 2 processes (fully_shard)"
        assert own.pop("description") == description | {"notes": [note]}
        for verb, message in own.pop("refused").items():
            needs = "reads whole weights" if verb in ("export", "certify") else "needs gradients"
            assert f"{needs}" in message, verb
        assert own.pop("checkpoint") == (own is together[0])  # only one process writes it
        old = own.pop("fsdp1")
        torch.testing.assert_close(old.pop("logits"), sharpened, rtol=0, atol=TOLERANCE)
        for message in old.values():
            assert "FullyShardedDataParallel cannot be run without its wrapper" in message
        for case, answer in own.pop("logits").items():
            assert torch.equal(answer, logits[case])
        assert own.keys() == alone.keys()
        for case, result in own.items():
            if isinstance(result, dict) and "arrays" in result:
                for name, values in result.pop("arrays").items():
                    np.testing.assert_array_equal(values, alone[case]["arrays"][name])
                assert result == {key: alone[case][key] for key in result}
            else:
                assert result == alone[case]
