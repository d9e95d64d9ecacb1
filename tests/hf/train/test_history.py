"""The file of statistics: read back as written, and refused if it is damaged or another's."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import sharpmax.hf as shf
from hf.small import llama, random_tokens
from sharpmax import UserError
from sharpmax.hf.train.rows import STATISTICS

HEAD = '{"format": "sharpmax-training-statistics", "max_logit": 9.0, "min_entropy": 0.1}\n'


def sample(**changed):
    """Return a line of one layer with two heads."""
    values = {"step": 1, **{name: [[1.0, 2.0]] for name in STATISTICS}}
    return json.dumps({**values, **changed}) + "\n"


@pytest.fixture(scope="module")
def statistics():
    model = llama(layers=2)
    with torch.no_grad(), shf.attention_statistics(model) as found:
        model(random_tokens(2, 12))
    return found


def test_what_was_added_is_read_back(tmp_path, statistics):
    log = shf.StatisticsLog(tmp_path / "s.jsonl", {"model": "small"}, max_logit=0.1)
    alarms = log.add(3, statistics)
    assert {alarm.kind for alarm in alarms} == {"logits"}
    assert log.add(8, statistics) == []
    read, own = shf.read_statistics(tmp_path / "s.jsonl"), log.result()
    assert read.measurements == own.measurements
    assert read.config == own.config == {"model": "small", "max_logit": 0.1, "min_entropy": 0.1}
    assert read.measurements["steps"] == [3, 8]
    for name in STATISTICS:
        np.testing.assert_array_equal(read.arrays[name], own.arrays[name])
        np.testing.assert_allclose(read.arrays[name][1], statistics.array(name), rtol=1e-6)


def test_a_line_that_a_kill_has_cut_is_left_out(tmp_path, statistics):
    path = tmp_path / "s.jsonl"
    log = shf.StatisticsLog(path)
    for step in (1, 2, 3):
        log.add(step, statistics)
    whole = path.read_text()
    path.write_text(whole[:-20])
    assert shf.read_statistics(path).measurements["steps"] == [1, 2]
    again = shf.StatisticsLog(path, resume_step=1)
    again.add(2, statistics)
    again.add(3, statistics)
    assert path.read_text() == whole


def test_what_is_no_number_is_stored_as_json(tmp_path, statistics):
    class Odd:
        def array(self, name):
            values = statistics.array(name).copy()
            values[0, :2] = np.nan, np.inf
            return values

    log = shf.StatisticsLog(tmp_path / "s.jsonl")
    log.add(1, Odd())
    line = json.loads((tmp_path / "s.jsonl").read_text().splitlines()[1])
    assert line["entropy"][0][0] is None
    assert line["entropy"][0][1] > 1e38
    assert np.isnan(shf.read_statistics(tmp_path / "s.jsonl").arrays["entropy"][0, 0, 0])


def test_steps_must_increase(tmp_path, statistics):
    log = shf.StatisticsLog(tmp_path / "s.jsonl")
    log.add(5, statistics)
    with pytest.raises(UserError, match="step 5 comes after step 5: steps must increase"):
        log.add(5, statistics)


def test_an_empty_log_has_no_result(tmp_path):
    log = shf.StatisticsLog(tmp_path / "s.jsonl")
    for make in (log.result, lambda: shf.read_statistics(tmp_path / "s.jsonl")):
        with pytest.raises(UserError, match="no statistics were recorded yet: train for at least"):
            make()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read .*No such file"),
        ("", "is damaged or holds no attention statistics"),
        ("[1]\n", "is damaged or holds no attention statistics"),
        ('{"format": "other"}\n', "is damaged or holds no attention statistics"),
        ('{"format": "sharpmax-training-statistics"}\n{"step": 1}\n', "is damaged or holds no"),
        (f"{HEAD}{sample()}{sample(entropy=[[1.0]])}", "its samples do not fit together"),
        (f"{HEAD}{sample(entropy=[['high', 1.0]])}", "is damaged or holds no attention"),
        (f"{HEAD}{sample(step='first')}", "its samples do not fit together"),
        ('{"format": "sharpmax-training-statistics"}\n', "not what StatisticsLog writes"),
        ("{half a line\n", "is damaged or holds no attention statistics"),
    ],
)
def test_damaged_files_are_refused(tmp_path, content, message):
    path = tmp_path / "s.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=message):
        shf.read_statistics(path)


def test_a_file_of_another_training_is_not_continued(tmp_path, statistics):
    path = tmp_path / "s.jsonl"
    shf.StatisticsLog(path, {"model": "a"}).add(1, statistics)
    with pytest.raises(UserError, match=r"s\.jsonl exists already"):
        shf.StatisticsLog(path)
    with pytest.raises(UserError, match="was recorded with another model: give another path"):
        shf.StatisticsLog(path, {"model": "b"}, resume_step=1)
    with pytest.raises(UserError, match="was recorded with another max_logit: give another path"):
        shf.StatisticsLog(path, {"model": "a"}, max_logit=3.0, resume_step=1)
