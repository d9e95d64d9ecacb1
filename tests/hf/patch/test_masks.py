"""Masks of sliding windows, stored as two numbers: they stand for transformers' matrix."""

from __future__ import annotations

import copy
import pickle
import tracemalloc
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import masking_utils
from transformers.masking_utils import (
    and_masks,
    bidirectional_mask_function,
    causal_mask_function,
    chunked_causal_mask_function,
    or_masks,
    sdpa_mask,
    sliding_window_bidirectional_mask_function,
    sliding_window_causal_mask_function,
    sliding_window_overlay,
)

import sharpmax as sx
import sharpmax.hf as shf
from hf.families import FAMILIES, SLIDING, assert_close, assert_far
from sharpmax.hf.patch import attention, masks
from sharpmax.hf.patch.masks import WindowMask, make_mask
from sharpmax.hf.patch.registered import attend

BATCH, SIZE = 2, 11
PLAIN = sx.Constant(1.0)
KINDS: dict[str, tuple[Any, dict[str, bool]]] = {
    "causal": (sliding_window_causal_mask_function, {}),
    "bidirectional": (
        sliding_window_bidirectional_mask_function,
        {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": True},
    ),
}


def mask_arguments(kind: str, size: int, *lengths: int, **changes: Any) -> dict[str, Any]:
    """What transformers calls a mask function with, for a window of this size."""
    function, skips = KINDS[kind]
    queries, keys = lengths or (SIZE, SIZE)
    return {
        "batch_size": BATCH,
        "q_length": queries,
        "kv_length": keys,
        "mask_function": function(size),
        "local_size": size,
        "dtype": torch.float32,
        "config": None,
        "use_vmap": False,
        **skips,
        **changes,
    }


def matrix(arguments: dict[str, Any]) -> Tensor:
    """What transformers makes of it if nothing may be left out."""
    kept = {**arguments, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    return sdpa_mask(**kept)


@given(data=st.data(), kind=st.sampled_from(list(KINDS)), length=st.integers(2, 20))
def test_a_window_stands_for_transformers_matrix(data, kind, length):
    size = data.draw(st.integers(1, length), label="size")
    arguments = mask_arguments(kind, size, length, length)
    window = make_mask(**arguments)
    assert isinstance(window, WindowMask)
    dense = window.dense()
    assert type(dense) is Tensor
    assert torch.equal(dense, matrix(arguments))
    position = torch.arange(length)
    distance = position[:, None] - position
    by_its_numbers = distance.abs() < window.window
    if window.causal:
        by_its_numbers &= distance >= 0
    assert window.causal == (kind == "causal")
    assert torch.equal(by_its_numbers.expand(BATCH, 1, length, length), dense)
    counts = dense.sum(-1)
    fewest, most = masks.bound_visible(window, True, length, length)
    assert fewest <= counts.min()
    assert most == counts.max() or length < 2 * window.window - 1  # no query in the middle
    assert most >= counts.max()


@pytest.mark.parametrize("kind", KINDS)
def test_attention_reads_the_numbers(kind):
    generator = torch.Generator().manual_seed(0)
    shape = (BATCH, 2, SIZE, 4)
    query, key, value = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3)
    )
    window = make_mask(**mask_arguments(kind, 3))
    # The mask speaks of causality, whatever the module says.
    for is_causal in (True, False):
        module = torch.nn.Module()
        module.is_causal = is_causal
        found, _ = attend(PLAIN, module, query, key, value, window)
        assert_close(found, attend(PLAIN, module, query, key, value, window.dense())[0])
        other = make_mask(**mask_arguments(kind, 4)).dense()
        assert_far(found, attend(PLAIN, module, query, key, value, other)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_window_that_covers_everything_is_no_mask(kind):
    assert make_mask(**mask_arguments(kind, SIZE + 1)) is None
    assert make_mask(**mask_arguments(kind, 5, 1, 1)) is None


def left_padded(size: int = SIZE) -> Tensor:
    padding = torch.ones(BATCH, size, dtype=torch.bool)
    padding[1, :3] = False
    return padding


def second_window(size: int) -> Any:
    """Causal and of a local size, but another window at each end."""
    return or_masks(
        sliding_window_causal_mask_function(size),
        and_masks(lambda *at: at[3] == 0, causal_mask_function),
    )


MATRICES: dict[str, dict[str, Any]] = {
    "chunked": mask_arguments("causal", 5, mask_function=chunked_causal_mask_function(5, torch.zeros(BATCH, dtype=torch.int64))),
    "chunked, padded": mask_arguments("causal", 5, mask_function=chunked_causal_mask_function(5, torch.tensor([0, 3])), attention_mask=left_padded()),
    "padded": mask_arguments("causal", 5, attention_mask=left_padded()),
    "padded, bidirectional": mask_arguments("bidirectional", 5, attention_mask=left_padded()),
    "fewer tokens in the padding mask than keys": mask_arguments("causal", 5, attention_mask=torch.ones(BATCH, SIZE - 1, dtype=torch.bool)),
    "decoding": mask_arguments("causal", 5, 1, SIZE, q_offset=SIZE - 1),
    "decoding by several": mask_arguments("causal", 5, 3, SIZE, q_offset=SIZE - 3),
    "queries of later": mask_arguments("causal", 5, q_offset=2),
    "keys of later": mask_arguments("causal", 5, kv_offset=2),
    "a tensor as offset": mask_arguments("causal", 5, q_offset=torch.tensor(2)),
    "no skips allowed": mask_arguments("causal", 5, allow_is_causal_skip=False),
    "half a window": mask_arguments("causal", 5, mask_function=sliding_window_overlay(5)),
    "another window": mask_arguments("causal", 5, mask_function=sliding_window_causal_mask_function(4)),
    "one key more": mask_arguments("causal", 5, mask_function=second_window(5)),
    "of each text": mask_arguments("causal", 5, mask_function=and_masks(sliding_window_causal_mask_function(5), lambda *at: (at[0] == 0) | (at[3] > 2))),
    "all, with a local size": mask_arguments("bidirectional", 5, mask_function=bidirectional_mask_function),
}  # fmt: skip


@pytest.mark.parametrize("name", MATRICES)
def test_what_is_no_plain_window_is_a_matrix(name):
    arguments = MATRICES[name]
    mask = make_mask(**arguments)
    assert type(mask) is Tensor
    assert torch.equal(mask, matrix(arguments))
    counts = mask.sum(-1)
    assert mask.visible == (counts.min(), counts.max())


@pytest.mark.parametrize("offset", [0, torch.tensor(0)], ids=repr)
def test_padding_that_hides_nothing(offset):
    padding = torch.ones(BATCH, SIZE, dtype=torch.bool)
    arguments = mask_arguments("causal", 5, attention_mask=padding, q_offset=offset)
    mask = make_mask(**arguments)
    assert isinstance(mask, WindowMask)
    assert torch.equal(mask.dense(), matrix(arguments))


@pytest.mark.parametrize(
    "options",
    [
        {"mask_function": causal_mask_function},
        {"mask_function": causal_mask_function, "attention_mask": left_padded()},
        {"mask_function": bidirectional_mask_function, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": True},
        {"mask_function": bidirectional_mask_function, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": True, "attention_mask": left_padded()},
        {},
    ],
)  # fmt: skip
def test_without_a_window_it_is_transformers_mask(options):
    sizes = {"batch_size": BATCH, "q_length": SIZE, "kv_length": SIZE}
    mask, expected = make_mask(**sizes, **options), sdpa_mask(**sizes, **options)
    assert (mask is None) == (expected is None) == ("attention_mask" not in options)
    assert mask is None or torch.equal(mask, expected)


# Whoever else does something with a window gets the matrix.


OTHER = torch.rand(BATCH, 1, SIZE, SIZE, generator=torch.Generator().manual_seed(2)) < 0.5
OPERATIONS: dict[str, Any] = {
    "slice": lambda mask: mask[:, :, 2:5, :-1],
    "index": lambda mask: mask[0, 0, 3],
    "not": lambda mask: ~mask,
    "and": lambda mask: mask & OTHER,
    "and, from the other side": lambda mask: OTHER & mask,
    "with itself": lambda mask: mask | mask,
    "to another type": lambda mask: mask.to(torch.float32),
    "float": lambda mask: mask.float(),
    "where": lambda mask: torch.where(mask, 0.0, -1.0),
    "masked_fill": lambda mask: torch.zeros(mask.shape).masked_fill(mask, 1.0),
    "contiguous": lambda mask: mask.contiguous(),
    "clone": lambda mask: mask.clone(),
    "detach": lambda mask: mask.detach(),
    "expand": lambda mask: mask.expand(-1, 3, -1, -1),
    "cat": lambda mask: torch.cat([mask, OTHER]),
    "stack": lambda mask: torch.stack([mask, mask]),
    "pad": lambda mask: torch.nn.functional.pad(mask, (0, 2)),
    "sum": lambda mask: mask.sum(),
    "all": lambda mask: mask.all(),
    "logical_not": lambda mask: torch.logical_not(mask),
    "equality": lambda mask: mask == OTHER,
    "transpose": lambda mask: mask.mT,
    "list": lambda mask: torch.tensor(mask.tolist()),
    "numpy": lambda mask: torch.from_numpy(mask.numpy()),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda mask: pickle.loads(pickle.dumps(mask)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_acts_on_the_matrix(name):
    for kind in KINDS:
        arguments = mask_arguments(kind, 4)
        answer = OPERATIONS[name](make_mask(**arguments))
        expected = OPERATIONS[name](matrix(arguments))
        answer = answer.dense() if isinstance(answer, WindowMask) else answer
        assert type(answer) is Tensor
        assert answer.dtype == expected.dtype
        assert torch.equal(answer, expected)


def refuse(*_: Any, **__: Any) -> None:
    raise AssertionError("a matrix was made")


def test_what_can_be_asked_without_a_matrix():
    window = make_mask(**mask_arguments("causal", 4))
    window.dense = refuse
    assert tuple(window.shape) == tuple(window.size()) == (BATCH, 1, SIZE, SIZE)
    assert (window.size(-1), window.ndim, window.dim(), len(window.shape)) == (SIZE, 4, 4, 4)
    assert (window.dtype, window.device.type, window.layout) == (torch.bool, "cpu", torch.strided)
    assert isinstance(window, Tensor)
    assert window is not None
    with pytest.raises(AssertionError, match="a matrix was made"):
        window.sum()


class Largest(TorchDispatchMode):
    """The size of the largest tensor that is made."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = func(*args, **(kwargs or {}))
        if isinstance(answer, Tensor):
            self.bytes = max(self.bytes, answer.untyped_storage().nbytes())
        return answer


def test_a_window_over_20000_tokens_takes_no_matrix(monkeypatch):
    tokens = 20_000
    monkeypatch.setattr(masks, "sdpa_mask", refuse)
    tracemalloc.start()
    try:
        with Largest() as largest:
            mask = make_mask(**mask_arguments("causal", 512, tokens, tokens, batch_size=1))
        python = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(mask, WindowMask)
    assert mask.shape == (1, 1, tokens, tokens)
    assert max(largest.bytes, python) < tokens * tokens / 8  # of which booleans take eight times


# In models.


LONG = ["Mistral", "Gemma 2", "Gemma 3", "gpt-oss", "ModernBERT"]


@pytest.mark.parametrize("name", LONG)
@torch.no_grad()
def test_a_model_with_a_window_makes_no_matrix_for_it(name, monkeypatch):
    model = FAMILIES[name].make()
    ids = torch.randint(3, 60, (2, 40), generator=torch.Generator().manual_seed(3))
    expected = model(input_ids=ids)[0]
    dense_masks, seen = [], []

    def spy(*args: Any, **options: Any) -> Tensor | None:
        mask = sdpa_mask(*args, **options)
        dense_masks.append(mask)
        return mask

    def watch(*args: Any, **options: Any) -> Any:
        seen.append(args[6])
        return compute(*args, **options)

    monkeypatch.setattr(masks, "sdpa_mask", spy)
    compute = attention.attend_by
    monkeypatch.setattr(attention, "attend_by", watch)
    with shf.sharpen(model, PLAIN):
        assert_close(model(input_ids=ids)[0], expected)
    assert all(mask is None for mask in dense_masks)
    kinds = getattr(model.config, "layer_types", [SLIDING] * model.config.num_hidden_layers)
    assert [isinstance(mask, WindowMask) for mask in seen] == [kind == SLIDING for kind in kinds]
    assert SLIDING in kinds


@pytest.mark.parametrize("name", LONG)
@torch.no_grad()
def test_with_padding_it_is_a_matrix(name, monkeypatch):
    model = FAMILIES[name].make()
    ids = torch.randint(3, 60, (2, 40), generator=torch.Generator().manual_seed(3))
    padding = left_padded(40).long()
    expected = model(input_ids=ids, attention_mask=padding)[0][padding.bool()]
    made = []

    def spy(*args: Any, **options: Any) -> Tensor | None:
        made.append(sdpa_mask(*args, **options))
        return made[-1]

    monkeypatch.setattr(masks, "sdpa_mask", spy)
    with shf.sharpen(model, PLAIN):
        found = model(input_ids=ids, attention_mask=padding)[0][padding.bool()]
    assert_close(found, expected)
    assert made
    assert all(type(mask) is Tensor for mask in made)


def test_the_names_that_are_replaced_above_are_used():
    assert masks.sdpa_mask is masking_utils.sdpa_mask
