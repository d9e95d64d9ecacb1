"""In a training of several processes statistics are combined, and all clip the same heads."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import sharpmax.hf as shf
from hf.patch.test_parallel import run_processes
from hf.train import worker
from sharpmax.hf.train.rows import MEANS


@pytest.mark.slow
def test_two_processes(tmp_path):
    first, second = run_processes(tmp_path, 2, worker)
    assert first["world"] == 2
    for name in ("plain", "watched", "clipped"):
        for key, value in first[name].items():
            assert torch.equal(value, second[name][key]), (name, key)
    for key, value in first["plain"].items():
        assert torch.equal(value, first["watched"][key]), key

    assert [first["writes"], second["writes"]] == [True, False]
    result = shf.read_statistics(tmp_path / "statistics.jsonl")
    assert result.measurements["steps"] == [1, 3, 5]
    sums = np.stack([first["own"], second["own"]])  # process, sample, layer, head, sum
    assert not np.array_equal(sums[0], sums[1])  # each has texts of its own
    total = sums.sum(0)
    for name in ("entropy", "varentropy", "max_weight", "first_share"):
        expected = total[..., MEANS.index(name)] / total[..., len(MEANS)]
        np.testing.assert_allclose(result.arrays[name], expected, rtol=1e-6)
    np.testing.assert_allclose(result.arrays["max_logit"], sums[..., -1].max(0), rtol=1e-6)

    assert first["clips"] == second["clips"]
    assert first["clips"]
