"""The statistics callback: the same training, a file that survives stops, alarms and a report."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from transformers import AttentionInterface, Trainer, TrainerCallback

import sharpmax.hf as shf
from hf.small import llama
from hf.train.tiny import make_trainer, weights
from sharpmax import UserError, report
from sharpmax.hf.train.rows import STATISTICS
from sharpmax.results import Result

CASES = {
    "plain": {},
    "autocast": {"bf16": True},
    "gradient checkpointing": {"gradient_checkpointing": True},
    "gradient accumulation": {"gradient_accumulation_steps": 2},
}


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("case", CASES)
def test_training_is_the_same_bit_for_bit(tmp_path, case):
    plain = make_trainer(tmp_path, **CASES[case])
    plain.train()
    before = dict(AttentionInterface._global_mapping)
    callback = shf.StatisticsCallback(tmp_path / "a.jsonl", every=2)
    watched = make_trainer(tmp_path, callbacks=[callback], **CASES[case])
    watched.add_callback(
        shf.StatisticsCallback(tmp_path / "b.jsonl", every=1, rows=3, log=watched.log)
    )
    watched.train()
    expected = weights(plain)
    assert all(torch.equal(value, expected[name]) for name, value in weights(watched).items())
    assert before == AttentionInterface._global_mapping
    assert [line["step"] for line in lines(tmp_path / "a.jsonl")[1:]] == [1, 3, 5]
    assert callback.history.steps == [1, 3, 5]
    assert [line["step"] for line in lines(tmp_path / "b.jsonl")[1:]] == [1, 2, 3, 4, 5, 6]


class Measured(TrainerCallback):
    """Measure the batch of a step again, with the block for own loops."""

    def __init__(self):
        self.found = []

    def on_step_begin(self, args, state, control, **kwargs):
        self.block = shf.attention_statistics(kwargs["model"])
        self.statistics = self.block.__enter__()

    def on_step_end(self, args, state, control, **kwargs):
        self.block.__exit__(None, None, None)
        self.found.append({name: self.statistics.array(name) for name in STATISTICS})


def test_the_file_the_result_and_the_report_hold_what_was_measured(tmp_path):
    path, own = tmp_path / "statistics.jsonl", Measured()
    make_trainer(tmp_path, callbacks=[shf.StatisticsCallback(path, every=3), own]).train()
    first, *samples = lines(path)
    assert first["heads"] == [4, 4]
    assert first["layers"] == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
    assert [first["every"], first["rows"], first["sequences"]] == [3, 32, 4]
    result = Result.load(tmp_path / "statistics.json")
    assert result.kind == "training-statistics"
    assert result.measurements["steps"] == [sample["step"] for sample in samples] == [1, 4]
    for name in STATISTICS:
        expected = np.stack([own.found[0][name], own.found[3][name]])
        np.testing.assert_allclose(result.arrays[name], expected, rtol=1e-6, err_msg=name)
        np.testing.assert_allclose([sample[name] for sample in samples], expected, rtol=1e-6)
        np.testing.assert_array_equal(
            shf.read_statistics(path).arrays[name], result.arrays[name], err_msg=name
        )
    page = report.render([result], names=["statistics.json"])
    assert "Entropy of every head" in page
    report.draw(result)


def test_a_resumed_training_continues_the_file(tmp_path):
    def train(folder, steps, resume=None):
        options = {"max_steps": steps, "save_strategy": "steps", "save_steps": 4}
        callback = shf.StatisticsCallback(folder / "s.jsonl", every=2)
        make_trainer(folder / "out", callbacks=[callback], **options).train(
            resume_from_checkpoint=resume
        )
        return lines(folder / "s.jsonl")

    whole = train(tmp_path / "whole", 8)
    # Killed after step 7, of which the last checkpoint knows nothing, in the middle of a line.
    stopped = tmp_path / "stopped"
    train(stopped, 7)
    with (stopped / "s.jsonl").open("a") as stream:
        stream.write('{"step": 9, "entr')
    resumed = train(stopped, 8, stopped / "out" / "checkpoint-4")
    assert resumed == whole
    assert [line["step"] for line in resumed[1:]] == [1, 3, 5, 7]
    results = [Result.load(tmp_path / part / "s.json") for part in ("whole", "stopped")]
    assert results[0].measurements == results[1].measurements


def test_another_setting_cannot_continue_a_file(tmp_path):
    options = {"save_strategy": "steps", "save_steps": 3}
    path = tmp_path / "s.jsonl"
    make_trainer(tmp_path / "out", callbacks=[shf.StatisticsCallback(path)], **options).train()
    again = make_trainer(tmp_path / "out", callbacks=[shf.StatisticsCallback(path, rows=3)])
    with pytest.raises(UserError, match="was recorded with another rows: give another path, or"):
        again.train(resume_from_checkpoint=tmp_path / "out" / "checkpoint-3")


def test_loggers_get_a_few_numbers_and_keep_their_own(tmp_path):
    trainer = make_trainer(tmp_path, logging_steps=2)
    trainer.add_callback(shf.StatisticsCallback(tmp_path / "s.jsonl", every=3, log=trainer.log))
    trainer.train()
    ours = [entry for entry in trainer.state.log_history if "attention/entropy" in entry]
    assert [entry["step"] for entry in ours] == [1, 4]
    samples = lines(tmp_path / "s.jsonl")[1:]
    for entry, sample in zip(ours, samples, strict=True):
        for name in ("entropy", "varentropy", "max_weight", "first_share"):
            assert entry[f"attention/{name}"] == pytest.approx(np.mean(sample[name]), rel=1e-5)
        assert entry["attention/lowest_entropy"] == pytest.approx(np.min(sample["entropy"]))
        assert entry["attention/max_logit"] == pytest.approx(np.max(sample["max_logit"]))
        assert entry["attention/new_alarms"] == len(sample["alarms"])
    losses = [entry["step"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses == [2, 4, 6]


def test_alarms_are_warnings_once_per_head(tmp_path):
    callback = shf.StatisticsCallback(tmp_path / "s.jsonl", every=1, max_logit=1e-3)
    trainer = make_trainer(tmp_path, llama(layers=1), [callback], max_steps=3)
    with pytest.warns(
        shf.AttentionAlarmWarning,
        match=r"^step 1: 4 heads have logits above the limit: layer 0 head 0 \(.*\), layer 0 head "
        r"1 \(.*\), layer 0 head 2 \(.*\) and 1 more$",
    ) as caught:
        trainer.train()
    assert len([entry for entry in caught if entry.category is shf.AttentionAlarmWarning]) == 1
    result = Result.load(tmp_path / "s.json")
    assert [alarm["head"] for alarm in result.measurements["alarms"]] == [0, 1, 2, 3]
    assert {alarm["step"] for alarm in result.measurements["alarms"]} == {1}


def test_one_head_is_one_head(tmp_path):
    callback = shf.StatisticsCallback(tmp_path / "s.jsonl", every=1, max_logit=1e-3)
    model = llama(layers=1)
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight[8:] = 0
    trainer = make_trainer(tmp_path, model, [callback], max_steps=1)
    with pytest.warns(shf.AttentionAlarmWarning, match="1 head has logits above the limit: layer"):
        trainer.train()


def test_files_that_exist_are_kept(tmp_path):
    path = tmp_path / "s.jsonl"
    path.write_text("mine")
    callback = shf.StatisticsCallback(path)
    with pytest.raises(UserError, match=r"s\.jsonl exists already"):
        make_trainer(tmp_path, callbacks=[callback]).train()
    assert path.read_text() == "mine"
    callback = shf.StatisticsCallback(path, overwrite=True)
    make_trainer(tmp_path, callbacks=[callback]).train()
    assert len(lines(path)) == 2
    path.unlink()
    with pytest.raises(UserError, match=r"s\.json exists already"):
        make_trainer(tmp_path, callbacks=[shf.StatisticsCallback(path)]).train()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "every=0: give a whole number of at least 1"),
        ({"every": 2.0}, r"every=2\.0: give a whole number"),
        ({"rows": 0}, "rows=0: give a whole number"),
        ({"sequences": -1}, "sequences=-1: give a whole number"),
        ({"max_logit": 0}, "max_logit=0: give a positive number"),
        ({"min_entropy": "low"}, "min_entropy='low': give a positive number"),
    ],
)
def test_bad_settings_are_refused_at_once(options, message):
    with pytest.raises(UserError, match=message):
        shf.StatisticsCallback(**options)


def test_a_training_that_compiles_is_refused(tmp_path):
    trainer = make_trainer(tmp_path, callbacks=[shf.StatisticsCallback(tmp_path / "s.jsonl")])
    trainer.args.torch_compile = True
    with pytest.raises(UserError, match=r"train without torch\.compile, or without statistics"):
        trainer.train()
    assert not (tmp_path / "s.jsonl").exists()


def test_a_model_that_is_not_the_one_that_runs_is_refused(tmp_path):
    class Other(Trainer):
        def compute_loss(self, model, inputs, **options):
            return super().compute_loss(other, inputs, **options)

    other = llama(layers=2)
    plain = make_trainer(tmp_path)
    trainer = Other(plain.model, plain.args, train_dataset=plain.train_dataset)
    trainer.add_callback(shf.StatisticsCallback(tmp_path / "s.jsonl"))
    with pytest.raises(UserError, match="no attention of the model was seen in step 1: train"):
        trainer.train()
