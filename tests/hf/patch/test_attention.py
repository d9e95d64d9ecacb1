"""The attention function does not silently lose a part of a model's attention.

Each section is one way to lose it. The tests show that it does not happen, and that they would
notice.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    DynamicCache,
    PreTrainedModel,
    StaticCache,
)

import sharpmax as sx
import sharpmax.hf as shf
from hf.families import (
    FAMILIES,
    HEADS,
    KV_HEADS,
    TOKENS,
    VARIANTS,
    WINDOW,
    Family,
    assert_close,
    assert_far,
    family_model,
    is_real,
    run,
    variant,
)
from sharpmax.hf.patch import attention
from sharpmax.hf.patch.attention import (
    IMPLEMENTATION,
    attend_patched,
    original_name,
    patched_name,
)
from sharpmax.hf.patch.layers import attention_implementation, attention_layers
from sharpmax.hf.patch.masks import WindowMask, make_mask
from sharpmax.hf.patch.parity import find_difference
from sharpmax.hf.patch.registered import attend
from sharpmax.hf.patch.scope import PLAIN, Rule, combine_rules
from sharpmax.hf.tune.calibration import ByRate
from sharpmax.policies import traits

TOKEN_FAMILIES = [name for name, family in FAMILIES.items() if family.inputs == "tokens"]
SLIDING_FAMILIES = [
    name
    for name, family in FAMILIES.items()
    if {"sliding_window", "local_attention"} & family.options.keys()
]


@contextmanager
def use_attention(
    model: PreTrainedModel, function: Callable[..., Any], masks: bool = True
) -> Iterator[None]:
    """Let the model use this attention function inside the block."""
    AttentionInterface.register("changed", function)
    if masks:
        AttentionMaskInterface.register("changed", make_mask)
    try:
        with attention_implementation(model, "changed"):
            yield
    finally:
        AttentionInterface._global_mapping.pop("changed")
        AttentionMaskInterface._global_mapping.pop("changed", None)


class Spy:
    """Plain sharpmax attention that records its calls and may change their options."""

    def __init__(self, **changes: Any) -> None:
        self.changes = changes
        self.calls: list[dict[str, Any]] = []

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **options: Any,
    ) -> Any:
        options["attention_mask"] = attention_mask
        self.calls.append({"module": module, "query": query, "key": key, **options})
        return attend(PLAIN, module, query, key, value, **{**options, **self.changes})


# 1. An attention function without a mask function gets no masks.


@pytest.mark.slow
def test_nothing_is_registered_by_importing():
    program = """
import sharpmax.hf
from transformers import AttentionInterface, AttentionMaskInterface

interfaces = AttentionInterface(), AttentionMaskInterface()
assert not [name for interface in interfaces for name in interface if "sharpmax" in name]
sharpmax.hf.register(sharpmax.PAPER)
assert [[name for name in interface if "sharpmax" in name] for interface in interfaces] == [
    ["sharpmax"],
    ["sharpmax"],
]
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("original", ["sharpmax", "sdpa", "eager", "flash_attention_2"])
def test_attention_and_masks_are_registered_together(original):
    name = IMPLEMENTATION if original == "sharpmax" else patched_name(original)
    AttentionInterface._global_mapping.pop(name, None)
    AttentionMaskInterface._global_mapping.pop(name, None)
    shf.register(sx.PAPER) if original == "sharpmax" else patched_name(original)
    assert AttentionInterface()[name].func in (attend, attend_patched)
    assert name in AttentionMaskInterface()
    assert original_name(name) == original


@pytest.mark.parametrize("name", TOKEN_FAMILIES)
def test_without_masks_padding_would_be_lost(name):
    model, inputs = family_model(name), FAMILIES[name].example("left")
    expected = run(model, inputs)
    with use_attention(model, Spy()):
        assert_close(run(model, inputs), expected)
    with use_attention(model, Spy(), masks=False):
        if name in SLIDING_FAMILIES:
            with pytest.raises(
                NotImplementedError, match=r"sliding window of \d tokens, but .* no mask"
            ):
                run(model, inputs)
        else:
            assert_far(run(model, inputs), expected)


# 2. No mask with more keys than queries: the queries stand at the beginning of the keys.


class Module(nn.Module):
    def __init__(self, is_causal: bool | None = None) -> None:
        super().__init__()
        if is_causal is not None:
            self.is_causal = is_causal


def qkv(queries: int, keys: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    sizes = ((HEADS, queries), (KV_HEADS, keys), (KV_HEADS, keys))
    query, key, value = (
        torch.randn(2, *size, 8, generator=generator, dtype=torch.float64) for size in sizes
    )
    return query, key, value


@pytest.mark.parametrize("is_causal", [True, None])
def test_several_queries_without_a_mask_stand_at_the_beginning_of_the_keys(is_causal):
    query, key, value = qkv(4, 9)
    found, weights = attend(PLAIN, Module(is_causal), query, key, value, None)
    expected, _ = attend(PLAIN, Module(True), query, key[:, :, :4], value[:, :, :4], None)
    assert weights is None
    assert found.shape == (2, 4, HEADS, 8)  # as transformers wants it
    assert found.is_contiguous()
    assert_close(found, expected)
    at_the_end = torch.ones(4, 9, dtype=torch.bool).tril(5)
    assert_far(attend(PLAIN, Module(True), query, key, value, at_the_end)[0], expected)


def test_one_query_without_a_mask_sees_all_keys():
    query, key, value = qkv(1, 9)
    found, _ = attend(PLAIN, Module(True), query, key, value, None)
    assert_close(found, attend(PLAIN, Module(False), query, key, value, None)[0])


def test_causality_of_the_call_overrides_that_of_the_module():
    query, key, value = qkv(4, 4)
    causal, both_ways = (
        attend(PLAIN, Module(is_causal), query, key, value, None)[0] for is_causal in (True, False)
    )
    assert_far(causal, both_ways)
    for module in (Module(True), Module(False)):
        assert_close(attend(PLAIN, module, query, key, value, None, is_causal=True)[0], causal)
        assert_close(attend(PLAIN, module, query, key, value, None, is_causal=False)[0], both_ways)


@pytest.mark.parametrize("name", ["Llama", "Qwen 3", "GPT-2", "GPT-NeoX"])
def test_a_static_cache_is_filled_without_a_mask(name):
    model = family_model(name)
    ids = FAMILIES[name].example()["input_ids"][:, :4]

    def answer() -> Tensor:
        cache = StaticCache(config=model.config, max_cache_len=9)
        return run(model, {"input_ids": ids}, past_key_values=cache)

    expected, spy = answer(), Spy()
    with use_attention(model, spy):
        found = answer()
    assert_close(found, expected)
    for call in spy.calls:
        assert call["attention_mask"] is None
        assert (call["query"].shape[2], call["key"].shape[2]) == (4, 9)
    with use_attention(model, Spy(attention_mask=torch.ones(4, 9, dtype=torch.bool).tril(5))):
        assert_far(answer(), expected)


# 3. transformers looks for these in the name of an implementation.


@pytest.mark.parametrize(
    "name",
    [IMPLEMENTATION, *map(patched_name, (None, "sdpa", "eager", "flash_attention_2", "a/b"))],
)
def test_names_contain_no_word_that_transformers_searches_for(name):
    words = ("sdpa", "flash", "flex_attention", "/", "eager", "paged")
    assert not [word for word in words if word in name]


# 4. A query at padding sees nothing.


@pytest.mark.parametrize("policy", [PLAIN, sx.PAPER], ids=repr)
@pytest.mark.parametrize("hidden", [None, -torch.inf, torch.finfo(torch.float64).min])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_query_that_sees_nothing_gives_zeros(policy, hidden, with_bias):
    query, key, value = (tensor.requires_grad_() for tensor in qkv(3, 5))
    mask = torch.ones(2, 1, 3, 5, dtype=torch.bool)
    mask[1, :, 1] = False
    options: dict[str, Any] = {}
    if hidden is not None:
        mask = torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, hidden)
    if with_bias:
        options["position_bias"] = torch.randn(1, HEADS, 3, 5, dtype=torch.float64)
    output, _ = attend(policy, Module(False), query, key, value, mask, **options)
    assert not output[1, 1].any()
    assert output[1, 0].all()
    for gradient in torch.autograd.grad(output.square().sum(), (query, key, value)):
        assert gradient.isfinite().all()


@pytest.mark.parametrize("name", TOKEN_FAMILIES)
def test_padding_does_not_spread_nan(name):
    """A batch may have a row that is nothing but padding."""
    model, inputs = family_model(name), FAMILIES[name].example("left")
    more = {key: torch.cat([value, value[:1]]) for key, value in inputs.items()}
    more["attention_mask"][2] = 0
    for policy in (PLAIN, sx.PAPER):
        with shf.sharpen(model, policy):
            expected = run(model, inputs)
            answer = model(**more)[0]
            assert answer.isfinite().all()
            assert_close(answer[:2][is_real(inputs)].detach(), expected)
            model.zero_grad()
            answer[:2][is_real(inputs)].square().sum().backward()
        for parameter in model.parameters():
            assert parameter.grad is None or parameter.grad.isfinite().all()
        model.zero_grad()


# 5. Keywords that change the logits.


DROPPED_KEYWORDS: list[tuple[str, str | None, dict[str, Any]]] = [
    ("Gemma 2", "left", {"softcap": None}),
    ("gpt-oss", "left", {"s_aux": None}),
    ("T5", "left", {"position_bias": None}),
    ("T5", "left", {"scaling": None}),
    ("GPT-2, unscaled", "left", {"scaling": None}),
    ("T5", None, {"is_causal": True}),
    ("T5", None, {"is_causal": False}),
    ("Whisper", None, {"is_causal": True}),
    ("Whisper", None, {"is_causal": False}),
    ("BERT", None, {"is_causal": True}),
    ("ViT", None, {"is_causal": True}),
    ("Llama", None, {"is_causal": False}),
]


@pytest.mark.parametrize(("name", "padded", "changes"), DROPPED_KEYWORDS, ids=str)
def test_every_keyword_is_used(name, padded, changes):
    """With it the model agrees with eager attention, and without it does not."""
    family: Family = {**FAMILIES, **VARIANTS}[name]
    model, inputs = family_model(name), family.example(padded)
    expected, spy = run(model, inputs), Spy()
    with use_attention(model, spy):
        assert_close(run(model, inputs), expected)
    (keyword,) = changes
    if keyword != "is_causal":
        assert all(call[keyword] is not None for call in spy.calls)
    with use_attention(model, Spy(**changes)):
        assert_far(run(model, inputs), expected)


@pytest.mark.parametrize(
    ("name", "option"), [("Llama", "attention_dropout"), ("GPT-2", "attn_pdrop")]
)
@torch.no_grad()
def test_dropout_of_weights_is_used(name, option):
    model, inputs = variant(name, **{option: 0.5}).make(), FAMILIES[name].example()
    with shf.sharpen(model, PLAIN):
        assert torch.equal(run(model, inputs), run(model, inputs))
        model.train()
        assert_far(run(model, inputs), run(model, inputs))


def test_a_bias_and_a_window():
    """No model of the table has both."""
    query, key, value = qkv(6, 6)
    bias = torch.randn(1, HEADS, 6, 6, dtype=torch.float64)
    window = make_mask(
        2,
        6,
        6,
        mask_function=transformers.masking_utils.sliding_window_causal_mask_function(3),
        local_size=3,
    )
    expected, _ = attend(PLAIN, Module(True), query, key, value, window.dense(), position_bias=bias)
    found, _ = attend(PLAIN, Module(True), query, key, value, window, position_bias=bias)
    assert_close(found, expected)
    assert_far(attend(PLAIN, Module(True), query, key, value, window)[0], expected)


@pytest.mark.parametrize("hidden", [-torch.inf, torch.finfo(torch.float64).min / 2])
def test_a_bias_and_an_additive_mask(hidden):
    query, key, value = qkv(6, 6)
    bias = torch.randn(1, HEADS, 6, 6, dtype=torch.float64)
    visible = torch.ones(6, 6, dtype=torch.bool).tril().expand(2, 1, 6, 6)
    additive = torch.zeros(visible.shape, dtype=torch.float64).masked_fill(~visible, hidden)
    expected, _ = attend(PLAIN, Module(True), query, key, value, visible, position_bias=bias)
    found, _ = attend(PLAIN, Module(True), query, key, value, additive, position_bias=bias)
    assert_close(found, expected)
    assert_far(attend(PLAIN, Module(True), query, key, value, additive)[0], expected)


# Masks that the user gives.


@pytest.mark.parametrize("name", ["Llama", "Gemma 2", "BERT", "gpt-oss"])
@pytest.mark.parametrize("hidden", ["lowest", "inf", "bool"])
def test_a_mask_matrix_of_the_user(name, hidden):
    model, inputs = family_model(name), FAMILIES[name].example()
    ids = inputs["input_ids"]
    size = ids.shape[1]
    seen = torch.rand(len(ids), 1, size, size, generator=torch.Generator().manual_seed(6)) < 0.5
    seen |= torch.eye(size, dtype=torch.bool)
    lowest = torch.finfo(model.dtype).min
    eager = torch.zeros(seen.shape, dtype=model.dtype).masked_fill(~seen, lowest)
    masks = {"lowest": eager, "inf": eager.masked_fill(~seen, -torch.inf), "bool": seen}
    expected = run_all(model, ids, eager)
    assert_far(run_all(model, ids, None), expected)
    with shf.sharpen(model, PLAIN):
        assert_close(run_all(model, ids, masks[hidden]), expected)


def run_all(model: PreTrainedModel, ids: Tensor, mask: Tensor | None, **options: Any) -> Tensor:
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=mask, **options)[0]


@pytest.mark.parametrize("name", ["Llama", "Mistral", "Gemma 3", "OLMo 2"])
def test_several_texts_packed_into_one_row(name):
    """Positions that begin again keep them apart, where there is no cache and no mask."""
    model, ids = family_model(name), FAMILIES[name].example()["input_ids"]
    first = 7
    position_ids = torch.cat([torch.arange(first), torch.arange(ids.shape[1] - first)])[None]
    options = {"position_ids": position_ids, "use_cache": False}
    expected = run_all(model, ids, None, **options)
    with shf.sharpen(model, PLAIN):
        assert_close(run_all(model, ids, None, **options), expected)
        assert_close(expected[:, first:], run_all(model, ids[:, first:], None))
        assert_far(run_all(model, ids, None, use_cache=False), expected)


# 6. Options that are not supported.


@pytest.mark.parametrize("name", FAMILIES)
def test_an_unknown_keyword_is_named(name):
    model, inputs = family_model(name), FAMILIES[name].example()
    match = r"Attention passes made_up_option to its attention, which sharpmax does not support"
    with pytest.raises(NotImplementedError, match=match), shf.sharpen(model, PLAIN):
        run(model, inputs, made_up_option=1)
    with shf.sharpen(model, PLAIN):  # said to be off
        run(model, inputs, made_up_option=None)


@pytest.mark.parametrize("name", FAMILIES)
def test_matrices_of_weights_are_refused(name):
    """Also where the model does not pass the option on, as GPT-2."""
    model, inputs = family_model(name), FAMILIES[name].example()
    match = r'output_attentions=True; use attn_implementation="eager" .* or sharpmax.hf.scan'
    with pytest.raises(NotImplementedError, match=match), shf.sharpen(model, PLAIN):
        run(model, inputs, output_attentions=True)
    with shf.sharpen(model, PLAIN):  # and nothing of it is left
        run(model, inputs, output_attentions=False, output_hidden_states=True)


def test_a_call_that_asks_for_a_matrix_of_weights_is_refused():
    """Outside of transformers' own models."""
    with pytest.raises(NotImplementedError, match=r"^Module: sharpmax holds no matrix of weights"):
        attend(PLAIN, Module(True), *qkv(2, 2), None, output_attentions=True)


@pytest.mark.parametrize("name", ["Llama", "GPT-2", "BERT", "Whisper"])
def test_matrices_of_weights_that_a_config_asks_for_are_refused(name):
    model, inputs = family_model(name), FAMILIES[name].example()
    model.config.output_attentions = True
    try:
        with (
            pytest.raises(NotImplementedError, match="output_attentions"),
            shf.sharpen(model, PLAIN),
        ):
            run(model, inputs)
    finally:
        model.config.output_attentions = False


def test_generate_refuses_them_too():
    model, prompt = family_model("GPT-2"), FAMILIES["GPT-2"].prompt()
    generate = functools.partial(model.generate, **prompt, max_new_tokens=2)
    with shf.sharpen(model, PLAIN), pytest.raises(NotImplementedError, match="output_attentions"):
        generate(output_attentions=True, return_dict_in_generate=True)


# 7. Where no row is sharpened, a model that used SDPA gives the same output bit for bit.


SDPA_FAMILIES = [
    name
    for name, family in {**FAMILIES, **VARIANTS}.items()
    if family.model_type not in ("gemma2", "gpt_oss", "t5")  # a softcap, sinks, a bias
]
RATES = (0.7, -0.3, 0.0, 1.0)
SEEN = {"Llama": TOKENS, "Qwen 3": TOKENS, "Gemma 3": TOKENS, "Mistral": WINDOW}
"""The largest number of keys that a query of the example sees."""


@functools.cache
def sdpa_model(name: str) -> PreTrainedModel:
    """A model that uses SDPA, as models do that are loaded without saying otherwise."""
    return {**FAMILIES, **VARIANTS}[name].make("sdpa")


@torch.no_grad()
def run_with_padding(model: PreTrainedModel, inputs: dict[str, Tensor], **options: Any) -> Tensor:
    answer: Tensor = model(**inputs, **options)[0]
    return answer


class Calls:
    """Count how often attention is computed by transformers and by sharpmax."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sdpa: list[tuple[int, int]] = []
        self.ours: list[tuple[int, int]] = []
        for module, name, calls in (
            (nn.functional, "scaled_dot_product_attention", self.sdpa),
            (attention, "scaled_dot_product_attention", self.ours),
        ):
            monkeypatch.setattr(module, name, self.counting(getattr(module, name), calls))

    @staticmethod
    def counting(function: Callable[..., Tensor], calls: list[tuple[int, int]]) -> Any:
        def count(*arguments: Tensor, **options: Any) -> Tensor:
            query, key = (*arguments, options.get("query"), options.get("key"))[:2]
            calls.append((query.shape[2], key.shape[2]))
            return function(*arguments, **options)

        return count


@pytest.mark.parametrize("name", SDPA_FAMILIES)
@pytest.mark.parametrize("padded", [None, "left", "right"])
def test_short_inputs_give_the_same_bits(name, padded):
    family = {**FAMILIES, **VARIANTS}[name]
    if padded and not family.pads:
        pytest.skip("images have no padding")
    model, inputs = sdpa_model(name), family.example(padded)
    plain = run_with_padding(model, inputs)
    with shf.sharpen(model, ByRate(RATES, from_tokens=17)):  # as many as ViT has
        assert torch.equal(run_with_padding(model, inputs), plain)


@pytest.mark.parametrize("name", SEEN)
@pytest.mark.parametrize("padded", [None, "left"])
def test_one_token_more_changes_the_output(name, padded):
    model, inputs = sdpa_model(name), FAMILIES[name].example(padded)
    plain = run_with_padding(model, inputs)
    with shf.sharpen(model, ByRate(RATES, from_tokens=SEEN[name])):
        assert torch.equal(run_with_padding(model, inputs), plain)
    with shf.sharpen(model, ByRate(RATES, from_tokens=SEEN[name] - 1)):
        longer = run_with_padding(model, inputs)
    # Rows that see fewer are the same up to rounding.
    first = SEEN[name] - 1
    assert_close(longer[0, :first], plain[0, :first])
    assert (longer[0, first:] - plain[0, first:]).abs().amax(-1).min() > 0.01


@pytest.mark.parametrize("name", SEEN)
@pytest.mark.parametrize("padded", [None, "left"])
@pytest.mark.parametrize("cache", ["dynamic", "static", "static, too large", "none"])
def test_generating_gives_the_same_bits_as_long_as_nothing_is_sharpened(name, padded, cache):
    model, prompt = sdpa_model(name), FAMILIES[name].prompt(padded)

    def generate() -> tuple[Tensor, ...]:
        options: dict[str, Any] = {"static": {"cache_implementation": "static"}}.get(cache, {})
        if cache == "static, too large":
            options = {"past_key_values": StaticCache(config=model.config, max_cache_len=40)}
        answer = model.generate(
            **prompt,
            **options,
            max_new_tokens=6,
            do_sample=False,
            use_cache=cache != "none",
            output_logits=True,
            return_dict_in_generate=True,
            disable_compile=True,
        )
        return answer.logits

    plain = generate()
    with shf.sharpen(model, ByRate(RATES, from_tokens=TOKENS + 5)):
        assert all(map(torch.equal, generate(), plain))
    with shf.sharpen(model, ByRate(RATES, from_tokens=min(SEEN[name] - 1, TOKENS + 2))):
        assert not torch.equal(generate()[-1], plain[-1])


@pytest.mark.parametrize("name", SEEN)
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("lengths", [3, 64])
def test_decoding_scales_the_query_and_equals_one_pass(name, cache, lengths, monkeypatch):
    """Of one query whose factor depends on its length alone, SDPA computes the attention."""
    monkeypatch.setattr(attention, "LENGTHS_AT_ONCE", lengths)
    model, ids = sdpa_model(name), FAMILIES[name].example()["input_ids"]
    with shf.sharpen(model, ByRate(RATES, from_tokens=2)):
        expected = run_all(model, ids, None)
        make = {"dynamic": DynamicCache, "static": functools.partial(StaticCache, max_cache_len=20)}
        past = make[cache](config=model.config)
        answers = [run_all(model, ids[:, :3], None, past_key_values=past)]
        calls = Calls(monkeypatch)
        answers += [
            run_all(model, ids[:, place : place + 1], None, past_key_values=past)
            for place in range(3, TOKENS)
        ]
    assert not calls.ours
    assert len(calls.sdpa) == (TOKENS - 3) * len(attention_layers(model))
    assert_close(torch.cat(answers, 1), expected)
    assert_far(run_all(model, ids, None), expected)


def test_decoding_with_padding_has_a_factor_for_each_sequence():
    model, inputs = sdpa_model("Llama"), FAMILIES["Llama"].example("left")
    with shf.sharpen(model, ByRate(RATES, from_tokens=2)):
        expected = run_with_padding(model, inputs, use_cache=False)[:, -1:]
        past = DynamicCache(config=model.config)
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        run_all(model, ids[:, :-1], mask[:, :-1], past_key_values=past)
        assert_close(run_all(model, ids[:, -1:], mask, past_key_values=past), expected)


@pytest.mark.parametrize(
    "policy",
    [
        sx.PAPER,
        lambda entropy, count: entropy * 0 + 1.5,
        pytest.param(sx.Saturating(sx.PAPER), id="saturating"),
    ],
)
def test_other_policies_are_left_to_our_attention(policy, monkeypatch):
    model, inputs = sdpa_model("Llama"), FAMILIES["Llama"].example()
    calls = Calls(monkeypatch)
    with shf.sharpen(model, policy, layers=[1]):
        run(model, inputs)
    assert (len(calls.sdpa), len(calls.ours)) == (1, 1)  # the other layer is as it was


@pytest.mark.parametrize("cached", [False, True])
def test_half_precision_is_plain_below_and_close_above(cached, monkeypatch):
    """A scaled query in bfloat16 has one more rounding error."""
    exact = FAMILIES["Llama"].make("sdpa").double()
    model = FAMILIES["Llama"].make("sdpa").bfloat16()
    exact.load_state_dict({name: weight.double() for name, weight in model.state_dict().items()})
    ids = FAMILIES["Llama"].example()["input_ids"]

    def answer(model: PreTrainedModel) -> Tensor:
        if not cached:
            return run_all(model, ids, None)
        past = DynamicCache(config=model.config)
        run_all(model, ids[:, :-1], None, past_key_values=past)
        return run_all(model, ids[:, -1:], None, past_key_values=past)

    plain, plain_error = answer(model), (answer(model) - answer(exact)).abs().max()
    with shf.sharpen(model, ByRate(RATES, from_tokens=TOKENS)):
        assert torch.equal(answer(model), plain)
    with shf.sharpen(model, ByRate(RATES, from_tokens=2)), shf.sharpen(exact, ByRate(RATES, 2)):
        calls = Calls(monkeypatch)
        error = (answer(model) - answer(exact)).abs().max()
        assert not calls.ours
    assert error <= 3 * plain_error


def test_autocast_runs_sdpa(monkeypatch):
    model, ids = sdpa_model("Llama"), FAMILIES["Llama"].example()["input_ids"][:, :1]
    calls = Calls(monkeypatch)
    with torch.autocast("cpu", torch.bfloat16):
        plain = run_all(model, ids, None)
        with shf.sharpen(model, sx.LogLength(2)):
            assert torch.equal(run_all(model, ids, None), plain)
        with shf.sharpen(model, sx.Constant(1.5)):
            run_all(model, ids, None)
    assert not calls.ours


@pytest.mark.parametrize("use_cache", [False, True])
@pytest.mark.parametrize("policy", [sx.PAPER, PLAIN], ids=["paper", "plain"])
def test_autocast_and_our_attention(policy, use_cache):
    """Rotary embeddings return float32 and values are in half precision, unless a cache joins them."""
    model, inputs = family_model("Llama"), FAMILIES["Llama"].example()
    with shf.sharpen(model, policy):
        exact = run(model, inputs, use_cache=use_cache)
        with torch.autocast("cpu", torch.bfloat16):
            rounded = run(model, inputs, use_cache=use_cache)
    assert rounded.dtype == torch.bfloat16
    error = (rounded - exact).abs().max() / exact.abs().max()
    assert 0 < error < 16 * torch.finfo(torch.bfloat16).eps


def test_a_model_with_eager_attention_is_left_to_our_attention(monkeypatch):
    model, inputs = family_model("Llama"), FAMILIES["Llama"].example()
    calls = Calls(monkeypatch)
    with shf.sharpen(model, PLAIN):
        run(model, inputs)
    assert len(calls.ours) == 2


def test_an_additive_mask_is_left_to_our_attention():
    """SDPA gives the mean of all values for a row that sees nothing, and we give zeros."""
    model, ids = sdpa_model("Llama"), FAMILIES["Llama"].example()["input_ids"]
    visible = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril().repeat(2, 1, 1, 1)
    visible[1, :, 4] = False
    lowest = torch.finfo(model.dtype).min
    additive = torch.zeros(visible.shape, dtype=model.dtype).masked_fill(~visible, lowest)
    with shf.sharpen(model, PLAIN):
        assert_close(run_all(model, ids, additive), run_all(model, ids, visible))
    assert_far(run_all(model, ids, additive), run_all(model, ids, visible))


def test_the_check_of_an_unknown_model_runs_our_attention(monkeypatch):
    model = sdpa_model("Llama")
    calls = Calls(monkeypatch)
    with shf.sharpen(model, ByRate(RATES, from_tokens=99)):
        assert find_difference(model) is None
        assert len(calls.ours) == 4  # two layers, with and without padding
        run(model, FAMILIES["Llama"].example())
        assert len(calls.ours) == 4  # and nothing of it is left


def test_a_window_becomes_a_matrix_once_unless_it_is_large(monkeypatch):
    model, inputs = sdpa_model("Gemma 3"), FAMILIES["Gemma 3"].example()
    made: list[WindowMask] = []
    create = WindowMask.create

    def create_and_count(shape: Any, device: Any, window: int, causal: bool, dense: Any) -> Any:
        def count() -> Tensor:
            made.append(mask)
            return dense()

        mask = create(shape, device, window, causal, count)
        return mask

    monkeypatch.setattr(WindowMask, "create", create_and_count)
    calls = Calls(monkeypatch)
    with shf.sharpen(model, PLAIN):
        found = run(model, inputs)
        assert (len(made), len(calls.ours)) == (1, 0)  # for two layers with windows
        monkeypatch.setattr(attention, "MAX_WINDOW_MATRIX", 2 * TOKENS * TOKENS - 1)
        assert_close(run(model, inputs), found)
    assert (len(made), len(calls.ours)) == (1, 2)


def test_what_inference_mode_computed_can_be_used_in_training():
    model, ids = sdpa_model("Llama"), FAMILIES["Llama"].example()["input_ids"][:, :1]
    with shf.sharpen(model, sx.Constant(1.5)):
        with torch.inference_mode():
            model(ids)
        model(ids).logits.square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    model.zero_grad()


def test_the_traits_of_rules():
    law, early = ByRate(RATES, 9), ByRate(RATES, 5)
    some, others, every = frozenset([0, 1]), frozenset([2]), None
    for rules, plain_up_to in (
        ((), traits(PLAIN).plain_up_to),
        ((Rule(law, some),), 9),
        ((Rule(law, some), Rule(early, others)), 5),
        ((Rule(law, some), Rule(sx.PAPER, others)), 0),
        ((Rule(sx.PAPER, some), Rule(law, every)), 9),  # the later rule replaces the first
        ((Rule(law, every), Rule(PLAIN, some)), 9),
    ):
        assert traits(combine_rules(rules)).plain_up_to == plain_up_to
    assert not traits(combine_rules((Rule(law, some),))).learned
    assert traits(combine_rules((Rule(law, some), Rule(lambda *_: 1.0, others)))).learned


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Llama", "Mistral"])
@pytest.mark.parametrize("padded", [None, "left"])
def test_compiled_models(name, padded):
    model, inputs = sdpa_model(name), FAMILIES[name].example(padded)
    plain = run_with_padding(model, inputs)
    for tokens in (TOKENS, 3):
        with shf.sharpen(model, ByRate(RATES, from_tokens=tokens)):
            expected = run_with_padding(model, inputs)
            compiled = torch.compile(model, backend="eager", fullgraph=True)
            found = run_with_padding(compiled, inputs)
        torch.compiler.reset()
        assert_close(found, expected)
        assert torch.equal(found, plain) == (tokens == TOKENS)
