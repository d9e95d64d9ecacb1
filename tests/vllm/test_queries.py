"""The queries of a packed batch are scaled as a loop over its requests, tokens and heads says."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sharpmax._errors import UserError
from sharpmax.hf.tune.calibration import ByRate
from sharpmax.results.calibration import Architecture, Calibration, Head, Law
from sharpmax.vllm import queries
from sharpmax.vllm.queries import QueryScaling, local_rates, visible_lengths

CPU = torch.device("cpu")
RATES = (0.5, 0.0, -0.4)

REQUESTS = st.lists(
    # How many tokens of a request are cached or were computed before, and how many are new: a
    # prompt, a piece of one, a generated token, or nothing.
    st.tuples(st.integers(0, 40), st.sampled_from([0, 1, 1, 2, 7, 30])),
    min_size=1,
    max_size=6,
).filter(lambda requests: any(new for _, new in requests))


@dataclass
class Batch:
    """What an attention backend knows about a batch."""

    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor


def pack(requests) -> Batch:
    starts = [0]
    for _, new in requests:
        starts.append(starts[-1] + new)
    lengths = [before + new for before, new in requests]
    return Batch(torch.tensor(starts, dtype=torch.int32), torch.tensor(lengths, dtype=torch.int32))


def literal_lengths(requests, window=None) -> list[int]:
    return [
        min(before + place + 1, window or math.inf)
        for before, new in requests
        for place in range(new)
    ]


def calibration(from_tokens=8, low=0.3, high=3.0, rates=RATES) -> Calibration:
    return Calibration(
        model="tiny",
        weights="",
        architecture=Architecture(model_type="llama", layers=1, heads=(len(rates),)),
        method={},
        from_tokens=from_tokens,
        law=Law(low=low, high=high),
        heads=tuple(Head(layer=0, head=head, rate=rate) for head, rate in enumerate(rates)),
    )


def random_query(tokens, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(tokens, len(RATES), 4, generator=generator).to(dtype)


@given(requests=REQUESTS, window=st.none() | st.integers(1, 50))
def test_visible_lengths_are_those_of_a_loop(requests, window):
    expected = literal_lengths(requests, window)
    batch = pack(requests)
    found = visible_lengths(batch.query_start_loc, batch.seq_lens, len(expected), window)
    assert found.tolist() == expected


@given(requests=REQUESTS, padding=st.integers(1, 9), empty=st.integers(0, 3))
def test_padding_changes_no_token_and_is_finite(requests, padding, empty):
    """CUDA graphs run with rows behind the last token, and with requests that do not exist."""
    expected = literal_lengths(requests)
    batch = pack([*requests, *[(0, 0)] * empty])
    found = visible_lengths(batch.query_start_loc, batch.seq_lens, len(expected) + padding)
    assert found[: len(expected)].tolist() == expected
    assert (found >= 1).all()


@given(requests=REQUESTS, window=st.none() | st.integers(1, 50))
def test_queries_are_scaled_by_a_literal_formula(requests, window):
    lengths = literal_lengths(requests, window)
    query = random_query(len(lengths))
    scaling = QueryScaling(RATES, calibration(), window, CPU)
    found = scaling(query, pack(requests))
    for row, length in enumerate(lengths):
        for head, rate in enumerate(RATES):
            factor = 1 + rate * math.log(length / 8) if length > 8 else 1.0
            expected = query[row, head].double() * min(max(factor, 0.3), 3.0)
            # The factor is rounded a few times and the product once, to a relative 2**-24 each.
            assert torch.allclose(found[row, head].double(), expected, rtol=2**-21, atol=0)


def test_the_same_numbers_as_in_transformers():
    """`sharpen` multiplies the query by the answer of `ByRate`."""
    requests, cal = [(0, 30), (400, 1), (3000, 7)], calibration(from_tokens=16)
    lengths = torch.tensor(literal_lengths(requests))
    query = random_query(len(lengths))
    count = lengths.expand(1, 1, len(RATES), -1)
    policy = ByRate(RATES, cal.from_tokens, cal.law)
    factor = policy(torch.zeros(count.shape), count)[0, 0].T
    found = QueryScaling(RATES, cal, None, CPU)(query, pack(requests))
    assert torch.equal(found, query * factor[..., None])


@given(requests=REQUESTS)
def test_short_inputs_stay_the_same_bit_for_bit(requests):
    query = random_query(len(literal_lengths(requests)))
    scaling = QueryScaling(RATES, calibration(from_tokens=70), None, CPU)
    assert torch.equal(scaling(query, pack(requests)), query)


def test_a_layer_with_rates_of_zero_is_not_touched():
    query = random_query(30)
    found = QueryScaling((0.0, -0.0, 0.0), calibration(), None, CPU)(query, pack([(100, 30)]))
    assert found is query


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once(dtype):
    query, batch = random_query(30, dtype=dtype), pack([(100, 30)])
    found = QueryScaling(RATES, calibration(), None, CPU)(query, batch)
    exact = QueryScaling(RATES, calibration(), None, CPU)(query.float(), batch)
    assert found.dtype == dtype
    assert torch.equal(found, exact.to(dtype))


def test_the_query_that_was_given_is_not_written_to():
    query = random_query(30)
    before = query.clone()
    QueryScaling(RATES, calibration(), None, CPU)(query, pack([(100, 30)]))
    assert torch.equal(query, before)


def test_lengths_are_computed_once_per_batch(monkeypatch):
    calls = []
    count = queries.visible_lengths
    monkeypatch.setattr(queries, "visible_lengths", lambda *a: calls.append(a) or count(*a))
    batch, query = pack([(100, 30)]), random_query(30)
    for window in (None, None, 5, None, 5):
        QueryScaling(RATES, calibration(), window, CPU)(query, batch)
    assert len(calls) == 2  # one per window


def test_nothing_is_read_back_to_the_host():
    """Tensors on this device have no numbers, so that reading one raises."""
    meta = torch.device("meta")
    batch = Batch(torch.empty(4, device=meta).int(), torch.empty(3, device=meta).int())
    scaling = QueryScaling(RATES, calibration(), 5, meta)
    assert scaling(torch.empty(7, len(RATES), 4, device=meta), batch).shape == (7, 3, 4)


def test_what_is_kept_is_not_used_for_other_lengths():
    """vLLM makes the metadata of one group of layers from a copy of another's."""
    query, first = random_query(30), pack([(100, 30)])
    scaling = QueryScaling(RATES, calibration(), None, CPU)
    scaling(query, first)
    second = copy.copy(first)
    second.seq_lens = torch.tensor([2030], dtype=torch.int32)
    assert torch.equal(scaling(query, second), scaling(query, pack([(2000, 30)])))


@given(ranks=st.sampled_from([1, 2, 3, 4, 6, 12]))
def test_processes_together_have_the_rates_of_all_heads(ranks):
    rates = tuple(0.1 * head for head in range(12))
    local = [local_rates(rates, 12 // ranks, rank, ranks, "layer") for rank in range(ranks)]
    assert sum(local, ()) == rates
    assert len({len(part) for part in local}) == 1


def test_heads_that_are_not_shared_evenly_are_refused():
    with pytest.raises(
        UserError, match=r"layers\.3 computes 2 heads in each of 4 processes.*9 for"
    ):
        local_rates((0.1,) * 9, 2, 0, 4, "layers.3")
