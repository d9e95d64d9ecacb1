"""Arguments are checked in one place, and mistakes are explained in one sentence."""

from __future__ import annotations

import math
import re

import pytest
import torch

from sharpmax.torch import scaled_dot_product_attention

QUERY = torch.ones(2, 4, 5, 8)
KEY = torch.ones(2, 4, 7, 8)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"key": KEY[..., :6]}, ValueError, "the last axes of query and key must be equal"),
        ({"value": KEY[:, :, :6]}, ValueError, "there must be as many values as keys"),
        ({"key": KEY[:, :2], "value": KEY[:, :2]}, ValueError, "pass enable_gqa=True"),
        (
            {"key": KEY[:, :3], "value": KEY[:, :3], "enable_gqa": True},
            ValueError,
            "4 query heads cannot share 3 key heads evenly",
        ),
        ({"value": KEY[:, :2]}, ValueError, "the same number of heads"),
        ({"key": KEY[0], "value": KEY[0]}, ValueError, "the same number of axes"),
        (
            {"key": KEY[:1].expand(3, -1, -1, -1), "value": KEY[:1].expand(3, -1, -1, -1)},
            ValueError,
            "the batch axes (2,) and (3,) and (3,) of query, key and value do not broadcast",
        ),
        (
            {"attn_mask": torch.ones(5, 6, dtype=torch.bool)},
            ValueError,
            "attn_mask of shape (5, 6) does not fit the logits, (2, 4, 5, 7)",
        ),
        ({"attn_mask": torch.ones(5, 7, dtype=torch.int64)}, TypeError, "got torch.int64"),
        ({"key": KEY.double()}, TypeError, "key is torch.float64 and query is torch.float32"),
        (
            {"query": QUERY.long(), "key": KEY.long(), "value": KEY.long()},
            TypeError,
            "query must have a floating type",
        ),
        ({"query": QUERY.numpy()}, TypeError, "query must be a torch tensor, got ndarray"),
        ({"query": QUERY[0, 0, 0]}, ValueError, "query of shape (8,) must have at least 2 axes"),
        ({"scale": math.nan}, ValueError, "scale must be a finite number, got nan"),
        ({"window": 0}, ValueError, "window must be a whole number, 1 or more, got 0"),
        ({"window": 2.5}, ValueError, "window must be a whole number, 1 or more, got 2.5"),
        ({"softcap": 0.0}, ValueError, "softcap must be a positive finite number, got 0.0"),
        ({"dropout_p": 1.5}, ValueError, "dropout_p must be a probability from 0 to 1, got 1.5"),
        (
            {"sinks": torch.zeros(3)},
            ValueError,
            "sinks of shape (3,) must hold one logit per query head",
        ),
    ],
)
def test_mistakes_are_explained_in_one_sentence(options, error, message):
    call = {"query": QUERY, "key": KEY, "value": KEY} | options
    with pytest.raises(error, match=re.escape(message)) as caught:
        scaled_dot_product_attention(**call)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("layout", [torch.jagged, torch.sparse_coo], ids=str)
def test_only_dense_tensors_are_taken(layout):
    if layout == torch.jagged:
        other = torch.nested.nested_tensor([torch.ones(3, 8), torch.ones(5, 8)], layout=layout)
    else:
        other = QUERY.to_sparse()
    with pytest.raises(TypeError, match="query must be a dense tensor"):
        scaled_dot_product_attention(other, KEY, KEY)
