"""Figures 2 and 7: the weights of the largest items, with the maximum last."""

from __future__ import annotations

import numpy as np

from sharpmax.experiments.max_retrieval import attention_maps


def test_maps_show_the_largest_items_with_the_maximum_last():
    methods = ("baseline", "adaptive")
    result = attention_maps.run(attention_maps.Config(methods=methods, sizes=(16, 512), sets=20))
    assert result.kind == "figure7"
    for name in methods:
        weights = np.asarray(result.measurements["weights"][name])
        assert weights.shape == (2, 20, 16)
        np.testing.assert_allclose(weights[0].sum(1), 1, atol=1e-5)  # sixteen of sixteen
        assert (weights[1].sum(1) <= 1 + 1e-5).all()
        assert weights[0, :, -1].mean() > 0.9
        assert weights[:, :, :8].max() < weights[:, :, -1].mean()
    plain, sharp = result.measurements["weight_of_maximum"].values()
    assert sharp[1] > plain[1]


def test_the_baseline_alone_is_figure_2():
    result = attention_maps.run(attention_maps.Config(sizes=(16,), sets=2, items=3))
    assert result.kind == "figure2"
    assert np.shape(result.measurements["weights"]["baseline"]) == (1, 2, 3)
