"""Training: adaptive attention has the reference's gradients, an interrupted training resumes to
the same losses, and several processes find the same ones.
"""

from __future__ import annotations

import functools
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from clrs_text.small import SHRUNK, TINY, gemma_folder, job, train_data
from filelock import FileLock
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from sharpmax import UserError
from sharpmax.experiments.clrs_text import checkpoint, train
from sharpmax.experiments.clrs_text.batches import collate
from sharpmax.experiments.clrs_text.conditions import training_context
from sharpmax.experiments.clrs_text.config import Shape, parse_shape
from sharpmax.experiments.clrs_text.data import Sample
from sharpmax.experiments.clrs_text.model import initial_decoder
from sharpmax.hf.patch import attention
from sharpmax.results import Result
from sharpmax.torch import scaled_dot_product_attention

CPU = torch.device("cpu")


def gradients(model, batch):
    model.zero_grad()
    loss = train.answer_loss(model, batch, CPU)
    loss.backward()
    return loss.detach(), {name: one.grad.clone() for name, one in model.named_parameters()}


def test_adaptive_attention_trains_with_the_gradients_of_the_reference(monkeypatch):
    """Compare loss and every gradient of the small Gemma in float64; plain attention differs."""
    decoder = initial_decoder(TINY, seed=0)
    model = decoder.model.double().train()
    for name, parameter in model.named_parameters():
        if "q_proj" in name or "k_proj" in name:
            parameter.data *= 12.0  # rows between sharp and flat, where the policy has a slope
    batch = collate(decoder.tokenizer.encode(train_data().samples)[:6], decoder.tokenizer.pad_id)
    with training_context(model, "adaptive"):
        loss, found = gradients(model, batch)
        monkeypatch.setattr(
            attention,
            "scaled_dot_product_attention",
            functools.partial(scaled_dot_product_attention, impl="reference"),
        )
        expected_loss, expected = gradients(model, batch)
    with training_context(model, "softmax"):
        plain_loss, plain = gradients(model, batch)
    torch.testing.assert_close(loss, expected_loss, rtol=1e-10, atol=0)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-7, atol=1e-9)
    assert abs(plain_loss - loss) > 1e-3
    assert max((plain[name] - found[name]).abs().max() for name in found) > 1e-3


def test_the_loss_is_that_of_the_answer_alone():
    decoder = initial_decoder(TINY, seed=0)
    samples = [Sample("minimum", 4, 0, "minimum:\nkey: [0.1 0.2]\nmin:\n", "0\n\n")]
    (one,) = decoder.tokenizer.encode(samples)
    whole = torch.tensor([one.question + one.answer])
    logits = decoder.model(whole).logits[0].log_softmax(-1)
    places = range(len(one.question) - 1, whole.shape[1] - 1)
    expected = -sum(logits[place, whole[0, place + 1]] for place in places) / len(one.answer)
    found = train.answer_loss(decoder.model, collate([one], decoder.tokenizer.pad_id), CPU)
    torch.testing.assert_close(found, expected)


def test_padding_and_neighbours_change_nothing():
    decoder = initial_decoder(TINY, seed=0)
    examples = decoder.tokenizer.encode(train_data().samples)[:5]
    assert len({one.length for one in examples}) > 1
    alone = sum(train.answer_loss(decoder.model, collate([one], 0), CPU) for one in examples)
    torch.testing.assert_close(train.answer_loss(decoder.model, collate(examples, 0), CPU), alone)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A training that was not interrupted."""
    one = job(tmp_path_factory.mktemp("whole"), attention="adaptive")
    return one, train.run(one)


def test_a_training_learns_and_leaves_a_model(whole):
    one, result = whole
    losses = result.arrays["losses"]
    assert len(losses) == TINY.steps
    assert losses[-1] < 0.8 * losses[0]
    assert result.measurements["sizes"] == {"bfs": [4, 5], "minimum": [4, 5]}
    assert result.config["data"]["samples"] == 8
    model = AutoModelForCausalLM.from_pretrained(one.folder / "model")
    with safe_open(one.folder / "checkpoint.safetensors", "pt") as stored:
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, stored.get_tensor(f"weights.{name}")), name
    again = train.run(one)  # found, and not trained again
    assert again.provenance == result.provenance


def test_attentions_and_seeds_have_different_losses(whole, tmp_path):
    for other in (job(tmp_path, attention="softmax"), job(tmp_path, 1, attention="adaptive")):
        assert not np.array_equal(train.run(other).arrays["losses"], whole[1].arrays["losses"])


class Stop(BaseException):
    pass


@pytest.mark.parametrize("after", [3, 4])
def test_an_interrupted_training_resumes_to_the_same_losses(whole, tmp_path, after):
    """Interrupted at a checkpoint, and a step after it."""

    def stop(step, loss):
        if step == after:
            raise Stop

    one = job(tmp_path, attention="adaptive")
    with pytest.raises(Stop):
        train.run(one, progress=stop, checkpoint_every=3)
    assert not one.record.exists()
    steps = []
    result = train.run(one, progress=lambda step, loss: steps.append(step), checkpoint_every=3)
    assert steps == [4, 5, 6]
    np.testing.assert_array_equal(result.arrays["losses"], whole[1].arrays["losses"])


def test_an_interrupted_training_with_muon_resumes_to_the_same_losses(tmp_path):
    def stop(step, loss):
        if step == 4:
            raise Stop

    expected = train.run(job(tmp_path / "whole", optimiser="muon")).arrays["losses"]
    one = job(tmp_path / "stopped", optimiser="muon")
    with pytest.raises(Stop):
        train.run(one, progress=stop, checkpoint_every=3)
    result = train.run(one, checkpoint_every=3)
    np.testing.assert_array_equal(result.arrays["losses"], expected)
    assert expected[-1] < expected[0] - 0.5


KILLED = """
import sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
from accelerate import PartialState
from clrs_text.small import job
from sharpmax.experiments.clrs_text import checkpoint, train
def wait(step, loss):
    if step == 5:
        time.sleep(600)
train.run(job(Path(sys.argv[1]), attention="adaptive"), progress=wait, checkpoint_every=2)
"""


@pytest.mark.slow
def test_a_training_resumes_after_its_process_was_killed(whole, tmp_path):
    tests = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        env={"PYTHONPATH": f"{tests}:{tests / 'experiments'}", "OMP_NUM_THREADS": "1"},
    )
    one = job(tmp_path, attention="adaptive")
    path = one.folder / "checkpoint.safetensors"

    def step() -> int:
        if not path.exists():
            return 0
        with safe_open(path, "pt") as stored:
            return len(stored.get_tensor("losses"))

    deadline = time.monotonic() + 300
    while step() < 4 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert step() == 4
    result = train.run(one)
    np.testing.assert_array_equal(result.arrays["losses"], whole[1].arrays["losses"])


@pytest.mark.parametrize("after", [3, 6])
def test_a_kill_inside_a_save_leaves_nothing_after_the_next_run(tmp_path, monkeypatch, after):
    """safetensors writes to a file with a random name of its own, which the kill leaves."""

    def stop(step, loss):
        if step == after:
            raise Stop

    def write_and_keep_temporary_file(tensors, file, metadata):
        save_file(tensors, file, metadata)
        file.with_name(".tmpN0dEdS").touch()

    one = job(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "save_file", write_and_keep_temporary_file)
        patch.setattr("shutil.rmtree", lambda *_, **__: None)  # as if killed before it
        with pytest.raises(Stop):
            train.run(one, progress=stop, checkpoint_every=after)
    assert list(one.folder.rglob(".tmp*"))
    train.run(one, checkpoint_every=3)
    names = {path.name for path in one.folder.iterdir()}
    arrays = {name for name in names if name.endswith(".npz")}
    assert names - arrays - {"training.lock"} == {
        "checkpoint.safetensors",
        "model",
        "training.json",
    }


def test_a_training_is_not_resumed_with_other_settings(whole, tmp_path):
    one, _ = whole
    with pytest.raises(UserError, match="holds a training with other settings or data"):
        train.run(replace(one, training=replace(one.training, steps=7)))
    other = job(tmp_path)
    with pytest.raises(Stop):
        train.run(other, progress=_stop_at_once, checkpoint_every=1)
    changed = replace(other, training=replace(other.training, learning_rate=0.5))
    with pytest.raises(
        UserError, match=r"learning_rate: 0.01 and not 0.5\): choose another folder"
    ):
        train.run(changed)
    path = other.folder / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match=r"checkpoint\.safetensors is damaged"):
        train.run(other)
    with FileLock(other.folder / "training.lock"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "LOCK_SECONDS", 0.1)
        with pytest.raises(UserError, match="is being trained by another process"):
            train.run(other)


def _stop_at_once(step, loss):
    raise Stop


def test_a_training_that_diverges_stops(tmp_path):
    with pytest.raises(UserError, match=r"training diverged: the loss of step \d+ is"):
        train.run(job(tmp_path, learning_rate=1e30, clip=1e30))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention": "sharp"}, "unknown attention 'sharp': expected one of softmax, adaptive"),
        (
            {"precision": "int4"},
            "unknown precision 'int4': expected one of auto, float32, bfloat16",
        ),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"growing": 1.0}, "growing must be at least 0 and below 1, got 1.0"),
        ({"learning_rate": 0.0}, "the learning rate must be above 0"),
        ({"shape": Shape(heads=6)}, "6 heads cannot share 4 key heads evenly"),
    ],
)
def test_settings_out_of_range_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        replace(TINY, **changes).check()


def test_a_shape_is_parsed_from_text():
    assert parse_shape("width=64, layers=2") == replace(parse_shape("width=64"), layers=2)
    assert parse_shape("heads=8").key_heads == 8
    assert parse_shape("heads=8,key_heads=2").key_heads == 2
    with pytest.raises(UserError, match=r"shape 'depth=2': expected one of width, layers"):
        parse_shape("depth=2")


def test_processes_must_share_a_step_evenly():
    replace(TINY, batch=4, micro=2).check_processes(2)
    for changes in ({"micro": 3}, {"batch": 5}):
        with pytest.raises(UserError, match=r"samples, . at a time, on 2 devices: both must be"):
            replace(TINY, **changes).check_processes(2)


def test_gemma_2b_in_small_is_fine_tuned_with_its_own_tokenizer(tmp_path):
    """The path of `--model google/gemma-2b`: a folder with its config, weights and tokenizer."""
    folder = gemma_folder(tmp_path / "gemma-2b")
    one = job(tmp_path, attention="adaptive", model=str(folder), saving_memory=True)
    result = train.run(one)
    losses = result.arrays["losses"]
    assert losses[0] == pytest.approx(np.log(SHRUNK["vocab_size"]), rel=0.05)
    assert losses[-1] < losses[0]
    assert result.config["training"]["model"] == str(folder)
    assert "shape" not in result.config["training"]
    trained = AutoModelForCausalLM.from_pretrained(one.folder / "model")
    assert trained.config.num_key_value_heads == 1
    assert result.measurements["model"] == f"Gemma of {trained.num_parameters():,} parameters"
    before = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    changed = {
        name for name, one in trained.state_dict().items() if not torch.equal(one, before[name])
    }
    assert changed == set(before)


def test_a_sample_that_is_longer_than_the_context_is_named(tmp_path):
    narrow = replace(TINY, shape=replace(TINY.shape, context=16))
    with pytest.raises(UserError, match=r"has \d+ tokens, and the model's context has room for 16"):
        train.run(replace(job(tmp_path), training=narrow))


PROCESSES = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from accelerate import PartialState
from clrs_text.small import job
from sharpmax.experiments.clrs_text import checkpoint, train
train.run(job(Path(sys.argv[1]), attention="adaptive"), checkpoint_every=2)
train.run(job(Path(sys.argv[1]), optimiser="muon"))
state = PartialState()
(Path(sys.argv[1]) / f"{state.process_index} of {state.num_processes}").touch()
"""


@pytest.mark.slow
def test_two_processes_find_the_same_losses(whole, tmp_path):
    """Each process computes half of the samples of every step."""
    tests = Path(__file__).parents[2]
    script = tmp_path / "script.py"
    script.write_text(PROCESSES)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run"),
            *("--standalone", "--nproc_per_node", "2", script, tmp_path),
        ],
        env={
            "PATH": str(Path(sys.executable).parent),
            "HOME": str(tmp_path),
            "PYTHONPATH": f"{tests}:{tests / 'experiments'}",
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert {path.name for path in tmp_path.glob("* of *")} == {"0 of 2", "1 of 2"}
    result = Result.load(job(tmp_path, attention="adaptive").record)
    np.testing.assert_allclose(result.arrays["losses"], whole[1].arrays["losses"], rtol=1e-4)
    muon = Result.load(job(tmp_path).record)
    alone = train.run(job(tmp_path / "alone", optimiser="muon"))
    np.testing.assert_allclose(muon.arrays["losses"], alone.arrays["losses"], rtol=1e-4)
