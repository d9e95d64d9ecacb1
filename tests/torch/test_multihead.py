"""The module: torch's own where nothing is sharpened, and torch's weights sharpened elsewhere."""

from __future__ import annotations

import copy
import inspect
import itertools
import pickle
import warnings
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import sharpmax as sx
from attention_cases import Largest
from sharpmax.torch import blockwise
from sharpmax.torch.multihead import MultiheadAttention

BATCH, HEADS, QUERIES, KEYS, EMBED = 2, 3, 4, 7, 12
PLAIN = sx.Constant(1.0)
IMPLEMENTATIONS = ("reference", "streaming", "fused")
LAYOUTS = ("batch first", "sequence first", "unbatched", "unbatched, batch first")
ALL_OPTIONS = {"add_bias_kv": True, "add_zero_attn": True, "kdim": 7, "bias": False}


@dataclass(frozen=True)
class Case:
    """One of torch's modules, what it is called with, and ours that shares its parameters."""

    stock: nn.MultiheadAttention
    inputs: list[Tensor]
    layout: str = "batch first"

    def ours(self, policy: Any = PLAIN, impl: str = "auto") -> MultiheadAttention:
        return MultiheadAttention.of(self.stock, policy=policy, impl=impl)

    def masks(self, attn: str | None, padding: str | None, dtype=torch.float64) -> dict[str, Any]:
        """Masks of these kinds that leave every query key 0."""
        generator = torch.Generator().manual_seed(5)
        unbatched = self.layout.startswith("unbatched")

        def mask(kind: str, shape: tuple[int, ...]) -> Tensor:
            hidden = torch.rand(shape, generator=generator) < 0.4
            hidden[..., 0] = False
            if kind.startswith("bool"):
                return hidden
            added = torch.randn(shape, generator=generator, dtype=dtype)
            return added.masked_fill(hidden, -torch.inf)

        given = {}
        if attn is not None:
            lead = ((1 if unbatched else BATCH) * HEADS,) if attn.endswith("heads") else ()
            given["attn_mask"] = mask(attn, (*lead, QUERIES, KEYS))
        if padding is not None:
            given["key_padding_mask"] = mask(padding, (KEYS,) if unbatched else (BATCH, KEYS))
        return given


def make(layout: str = "batch first", dtype=torch.float64, **options: Any) -> Case:
    torch.manual_seed(3)
    batch_first = layout.endswith("batch first")
    stock = nn.MultiheadAttention(EMBED, HEADS, batch_first=batch_first, dtype=dtype, **options)
    for parameter in stock.parameters():  # biases begin at zero, where a lost one is not missed
        nn.init.normal_(parameter, std=0.3)
    inputs = []
    for length, width in ((QUERIES, EMBED), (KEYS, stock.kdim), (KEYS, stock.vdim)):
        shape = (BATCH, length, width) if layout == "batch first" else (length, BATCH, width)
        shape = (length, width) if layout.startswith("unbatched") else shape
        inputs.append(torch.randn(shape, dtype=dtype))
    return Case(stock, inputs, layout)


OPTIONS = st.fixed_dictionaries(
    {"bias": st.booleans(), "add_bias_kv": st.booleans(), "add_zero_attn": st.booleans()},
    optional={"kdim": st.just(7), "vdim": st.just(10)},
)
CASES = st.builds(
    lambda layout, options: make(layout, **options), st.sampled_from(LAYOUTS), OPTIONS
)
ATTN = st.sampled_from([None, "bool", "float", "bool heads", "float heads"])
PADDING = st.sampled_from([None, "bool", "float"])


def ask(stock: nn.MultiheadAttention, *inputs: Tensor, **given: Any) -> Any:
    """What torch answers; it warns of masks of different types, which it still serves."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Support for mismatched")
        return stock(*inputs, **given)


def implementations(given: dict[str, Tensor]) -> tuple[str, ...]:
    """Those that take these masks."""
    boolean = all(mask.dtype == torch.bool for mask in given.values())
    return IMPLEMENTATIONS if boolean else IMPLEMENTATIONS[:2]


def assert_close(ours: Tensor, theirs: Tensor, **tolerance: float) -> None:
    tolerance = tolerance or {"rtol": 1e-10, "atol": 1e-12}
    torch.testing.assert_close(ours, theirs, **tolerance)


def sharpened(weights: Tensor, policy: Any) -> Tensor:
    """softmax(b * logits) from p = softmax(logits): p ** b, normalised."""
    entropy = -torch.special.xlogy(weights, weights).sum(-1)
    factor = policy(entropy, (weights > 0).sum(-1))
    powers = weights ** factor[..., None]
    return powers / powers.sum(-1, keepdim=True)


@given(case=CASES, attn=ATTN, padding=PADDING, average=st.booleans())
@torch.no_grad()
def test_a_constant_of_one_is_torch_s(case, attn, padding, average):
    given = case.masks(attn, padding)
    theirs = ask(case.stock, *case.inputs, **given, average_attn_weights=average)
    ours = case.ours()(*case.inputs, **given, average_attn_weights=average)
    for answer, expected in zip(ours, theirs, strict=True):
        assert_close(answer, expected)
    for impl in implementations(given):
        output, weights = case.ours(impl=impl)(*case.inputs, **given, need_weights=False)
        assert_close(output, theirs[0])
        assert output.is_contiguous()
        assert weights is None
    if "fused" not in implementations(given):
        with pytest.raises(NotImplementedError, match="additive attn_mask"):
            case.ours(impl="fused")(*case.inputs, **given, need_weights=False)


@settings(max_examples=40)
@given(
    options=OPTIONS,
    attn=ATTN,
    padding=PADDING,
    policy=st.sampled_from([sx.PAPER, sx.LogLength(2), sx.Constant(3.0)]),
)
@torch.no_grad()
def test_weights_are_torch_s_sharpened(options, attn, padding, policy):
    case = make(**options)
    given = case.masks(attn, padding)
    plain = ask(case.stock, *case.inputs, **given, average_attn_weights=False)[1]
    expected = sharpened(plain, policy)
    assert not torch.allclose(expected, plain)
    output, weights = case.ours(policy)(*case.inputs, **given, average_attn_weights=False)
    assert_close(weights, expected)
    assert_close(case.ours(policy)(*case.inputs, **given)[1], expected.mean(1))
    for impl in implementations(given):
        assert_close(case.ours(policy, impl)(*case.inputs, **given, need_weights=False)[0], output)


def test_the_output_is_weights_times_projected_values():
    case = make()
    output, weights = case.ours(sx.PAPER)(*case.inputs, average_attn_weights=False)
    packed, bias = case.stock.in_proj_weight[2 * EMBED :], case.stock.in_proj_bias[2 * EMBED :]
    heads = nn.functional.linear(case.inputs[2], packed, bias).unflatten(-1, (HEADS, -1))
    joined = (weights @ heads.transpose(1, 2)).transpose(1, 2).flatten(2)
    assert_close(output, case.stock.out_proj(joined))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("same", ["qqq", "qqk", "qkk", "qkq", "qkv"])
def test_self_attention_is_one_projection_and_the_same(same, layout):
    """What is one tensor is projected once; nothing else is."""
    case = make(layout)
    query = case.inputs[0]
    tensors = {"q": query, "k": query.flip(-1), "v": query.flip(-2)}
    inputs = [tensors[name] for name in same]
    for need_weights in (True, False):
        output = case.ours()(*inputs, need_weights=need_weights)[0]
        assert_close(output, case.stock(*inputs)[0])


CAUSAL = torch.ones(QUERIES, KEYS, dtype=torch.bool).triu(1)


@given(options=OPTIONS, true=st.booleans(), padded=st.booleans(), need_weights=st.booleans())
def test_the_causal_hint_is_taken_when_torch_takes_it(options, true, padded, need_weights):
    """A promise that is not true shows which of the two, flag or mask, was read."""
    case = make(**options)
    mask = CAUSAL if true else ~torch.ones_like(CAUSAL).triu(0)
    given: dict[str, Any] = {"attn_mask": mask, "is_causal": True, "need_weights": need_weights}
    if padded:
        given["key_padding_mask"] = torch.zeros(BATCH, KEYS, dtype=torch.bool)
        given["key_padding_mask"][0, 4] = True
    assert_close(case.ours()(*case.inputs, **given)[0], case.stock(*case.inputs, **given)[0])


def test_the_causal_hint_alone_is_an_error_as_in_torch():
    case = make()
    for module in (case.stock, case.ours()):
        with pytest.raises(RuntimeError, match=r"attn_mask.*generate_square_subsequent_mask"):
            module(*case.inputs, is_causal=True)


@pytest.mark.parametrize("impl", ["streaming", "fused"])
def test_the_matrix_is_held_only_for_weights(impl, monkeypatch):
    monkeypatch.setattr(blockwise, "MAX_LOGITS", 1 << 12)
    torch.manual_seed(0)
    batch, heads, length = 2, 8, 64
    ours = MultiheadAttention(16, heads, batch_first=True, impl=impl).eval()
    x = torch.randn(batch, length, 16)
    padding = torch.zeros(batch, length, dtype=torch.bool)
    causal = torch.ones(length, length, dtype=torch.bool).triu(1)
    projected = 3 * batch * length * 16
    square, matrix = length * length, batch * heads * length * length
    for masks, allowed in (
        ({}, 0),
        ({"key_padding_mask": padding}, 0),
        ({"attn_mask": causal}, square),
        ({"attn_mask": causal, "is_causal": True}, 0),
        ({"attn_mask": causal, "key_padding_mask": padding}, batch * square),
    ):
        with torch.no_grad(), Largest() as largest:
            ours(x, x, x, **masks, need_weights=False)
        assert largest.made <= max(allowed, projected), masks
    with torch.no_grad(), Largest() as largest:
        ours(x, x, x)
    assert largest.made >= matrix > max(batch * square, projected)


def test_dropout_is_torch_s():
    """With weights the numbers drawn are the same, so the answers are."""
    case = make(dropout=0.5)
    answers = []
    for module in (case.stock, case.ours()):
        torch.manual_seed(11)
        answers.append(module(*case.inputs, average_attn_weights=False))
    for ours, theirs in zip(*answers, strict=True):
        assert_close(ours, theirs)
    assert (answers[0][1] == 0).any()


@pytest.mark.parametrize("need_weights", [True, False])
def test_dropout_is_for_training(need_weights):
    case = make(dropout=1.0)
    ours, kept = case.ours(sx.PAPER), make().ours(sx.PAPER)
    output, weights = ours(*case.inputs, need_weights=need_weights)
    assert_close(output, ours.out_proj.bias.expand_as(output))
    assert weights is None or not weights.any()
    evaluated = ours.eval()(*case.inputs, need_weights=need_weights)[0]
    assert_close(evaluated, kept(*case.inputs)[0])


@pytest.mark.parametrize(
    ("attn", "padding"), [(None, None), ("bool", "bool"), ("float", None), ("float", "bool")]
)
@pytest.mark.parametrize("options", [{}, ALL_OPTIONS], ids=["default", "all"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_half_precision(options, attn, padding, dtype):
    """With a float mask of this type."""
    case, exact = make(dtype=torch.bfloat16, **options), make(**options)
    exact.stock.load_state_dict(case.stock.state_dict())
    given = case.masks(attn, padding, dtype)
    wide = {
        name: mask if mask.dtype == torch.bool else mask.double() for name, mask in given.items()
    }
    theirs = ask(exact.stock, *(tensor.double() for tensor in case.inputs), **wide)
    output, weights = case.ours()(*case.inputs, **given)
    assert output.dtype == weights.dtype == torch.bfloat16
    assert_close(weights.double(), theirs[1], rtol=0, atol=0.01)
    # Sums of products of about 1 in size, each rounded to 1/256.
    assert_close(output.double(), theirs[0], rtol=0, atol=0.03)
    for impl in implementations(given):
        alone = case.ours(impl=impl)(*case.inputs, **given, need_weights=False)[0]
        assert alone.dtype == torch.bfloat16
        assert_close(alone.double(), theirs[0], rtol=0, atol=0.03)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_autocast(impl, need_weights):
    """Appended keys are parameters in single precision, beside projections in half."""
    case = make(dtype=torch.float32, **ALL_OPTIONS)
    with torch.autocast("cpu", torch.bfloat16):
        output = case.ours(impl=impl)(*case.inputs, need_weights=need_weights)[0]
    assert output.dtype == torch.bfloat16
    assert_close(output.float(), case.stock(*case.inputs)[0], rtol=0.05, atol=0.05)


@settings(max_examples=25)
@given(
    options=OPTIONS,
    attn=st.sampled_from([None, "bool", "float heads"]),
    impl=st.sampled_from(["weights", *IMPLEMENTATIONS]),
    policy=st.sampled_from([PLAIN, sx.PAPER]),
)
def test_gradients(options, attn, impl, policy):
    """Torch's where nothing is sharpened; through the temperature, those of the weights."""
    case = make(**options)
    given = case.masks(attn, "bool" if attn == "bool" else None)
    if impl == "fused" and impl not in implementations(given):
        impl = "streaming"
    leaves = [mask.requires_grad_() for mask in given.values() if mask.is_floating_point()]

    def gradients(module: nn.Module, **how: Any) -> tuple[Tensor, ...]:
        output = ask(module, *case.inputs, **given, **how)[0]
        tensors = [*module.parameters(), *leaves]
        return torch.autograd.grad(output.square().sum(), tensors)

    ours = case.ours(policy, "auto" if impl == "weights" else impl)
    found = gradients(ours, need_weights=impl == "weights")
    expected = gradients(case.stock if policy is PLAIN else case.ours(policy))
    for mine, theirs in zip(found, expected, strict=True):
        assert_close(mine, theirs, rtol=1e-8, atol=1e-9)


@settings(max_examples=15)
@given(options=OPTIONS)
def test_state_dicts_go_both_ways(options):
    case, other = make(**options), make(**options)
    ours = MultiheadAttention(
        EMBED, HEADS, batch_first=True, dtype=torch.float64, policy=PLAIN, **options
    )
    expected = case.stock(*case.inputs)[0]
    assert ours.state_dict().keys() == case.stock.state_dict().keys()
    assert not torch.allclose(ours(*case.inputs)[0], expected)
    ours.load_state_dict(case.stock.state_dict(), strict=True)
    assert_close(ours(*case.inputs)[0], expected)
    nn.init.zeros_(other.stock.out_proj.weight)
    other.stock.load_state_dict(ours.state_dict(), strict=True)
    assert_close(other.stock(*case.inputs)[0], expected)


@settings(max_examples=15)
@given(options=OPTIONS)
def test_it_begins_and_begins_again_as_torch_s(options):
    modules = []
    for kind in (nn.MultiheadAttention, MultiheadAttention):
        torch.manual_seed(4)
        module = kind(EMBED, HEADS, **options)
        modules.append((module, copy.deepcopy(module.state_dict())))
        torch.manual_seed(9)
        module._reset_parameters()
    (stock, first), (ours, second) = modules
    for name, theirs in first.items():
        assert torch.equal(second[name], theirs), name
        assert torch.equal(ours.state_dict()[name], stock.state_dict()[name]), name
    assert not ours._qkv_same_embed_dim


def test_the_constructor_is_torch_s_and_two_more():
    theirs = [*inspect.signature(nn.MultiheadAttention).parameters.values()]
    ours = [*inspect.signature(MultiheadAttention).parameters.values()]
    for mine, its in itertools.zip_longest(ours[:-2], theirs):
        assert (mine.name, mine.default, mine.kind) == (its.name, its.default, its.kind)
    assert [(mine.name, mine.default) for mine in ours[-2:]] == [
        ("policy", sx.PAPER),
        ("impl", "auto"),
    ]
    assert all(mine.kind is inspect.Parameter.KEYWORD_ONLY for mine in ours[-2:])
    forward = inspect.signature(MultiheadAttention.forward).parameters.values()
    stock = inspect.signature(nn.MultiheadAttention.forward).parameters.values()
    assert [(x.name, x.default) for x in forward] == [(x.name, x.default) for x in stock]


@pytest.mark.parametrize("options", [{}, ALL_OPTIONS], ids=["default", "all"])
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))]
)
def test_copies_are_the_same(options, copied):
    case = make(**options)
    ours = case.ours(sx.Saturating(sx.PAPER), "streaming").eval()
    again = copied(ours)
    assert (again.policy, again.impl, again.training) == (ours.policy, "streaming", False)
    assert not again._qkv_same_embed_dim
    assert_close(again(*case.inputs)[0], ours(*case.inputs)[0])
    assert again.out_proj.weight is not ours.out_proj.weight


def test_its_text_shows_the_policy():
    text = repr(MultiheadAttention(EMBED, HEADS, policy=sx.LogLength(64), impl="fused"))
    assert "policy=LogLength(reference=64), impl='fused'" in text
    assert "(out_proj)" in text


@settings(max_examples=15)
@given(options=OPTIONS, training=st.booleans())
def test_one_made_of_another_shares_its_parameters(options, training):
    case = make(dropout=0.25, **options)
    case.stock.train(training)
    ours = case.ours(sx.PAPER, "streaming")
    theirs = dict(case.stock.named_parameters())
    assert ours.state_dict().keys() == case.stock.state_dict().keys()
    for name, parameter in ours.named_parameters():
        assert parameter is theirs.pop(name)
    assert not theirs
    assert (ours.training, ours.dropout) == (training, 0.25)
    assert (ours.policy, ours.impl) == (sx.PAPER, "streaming")
    again = MultiheadAttention.of(ours, policy=PLAIN).eval()
    assert_close(again(*case.inputs)[0], case.stock.eval()(*case.inputs)[0])


@pytest.mark.parametrize("policy", [PLAIN, sx.PAPER], ids=["plain", "paper"])
def test_a_query_that_sees_nothing(policy):
    """Torch gives NaN."""
    case = make()
    hidden = torch.zeros(QUERIES, KEYS, dtype=torch.bool)
    hidden[2] = True
    added = torch.zeros(QUERIES, KEYS, dtype=torch.float64).masked_fill(hidden, -torch.inf)
    for mask, need_weights in itertools.product((hidden, added), (True, False)):
        for impl in implementations({"attn_mask": mask}):
            ours = case.ours(policy, impl)
            output, weights = ours(*case.inputs, attn_mask=mask, need_weights=need_weights)
            assert_close(output[:, 2], ours.out_proj.bias.expand(BATCH, -1))
            assert weights is None or not weights[:, 2].any()
            for gradient in torch.autograd.grad(output.sum(), list(ours.parameters())):
                assert gradient.isfinite().all()


@pytest.mark.parametrize("sizes", [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
@pytest.mark.parametrize("need_weights", [True, False])
def test_nothing_to_do(sizes, need_weights):
    batch, queries, keys = sizes
    ours = MultiheadAttention(EMBED, HEADS, batch_first=True)
    query, key = torch.randn(batch, queries, EMBED), torch.randn(batch, keys, EMBED)
    given = {
        "attn_mask": torch.zeros(batch * HEADS, queries, keys, dtype=torch.bool),
        "key_padding_mask": torch.zeros(batch, keys, dtype=torch.bool),
    }
    output, weights = ours(query, key, key, **given, need_weights=need_weights)
    assert_close(output, torch.zeros_like(query) if keys == 0 else output)
    assert output.shape == query.shape
    assert weights is None or weights.shape == sizes


# What torch's fused paths would do to the policy.


def encoder_layer(policy: Any = None, **options: Any) -> nn.TransformerEncoderLayer:
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0, batch_first=True, **options).double()
    if policy is not None:
        layer.self_attn = MultiheadAttention.of(layer.self_attn, policy=policy)
    return layer


def left_aligned(x: Tensor) -> Tensor:
    padding = torch.zeros(x.shape[:2], dtype=torch.bool)
    padding[1, -3:] = True
    return padding


X = torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
LAYER_MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "padding": {"src_key_padding_mask": left_aligned(X)},
    "causal": {"src_mask": torch.ones(9, 9, dtype=torch.bool).triu(1), "is_causal": True},
    "both": {
        "src_mask": torch.ones(9, 9, dtype=torch.bool).triu(1),
        "src_key_padding_mask": left_aligned(X),
    },
}


@pytest.mark.parametrize("given", LAYER_MASKS)
@pytest.mark.parametrize("options", [{}, {"norm_first": True, "activation": "gelu"}], ids=str)
def test_an_encoder_layer_keeps_the_policy_in_eval_mode(options, given, monkeypatch):
    given = LAYER_MASKS[given]
    with torch.no_grad():
        plain = encoder_layer(**options).eval()(X, **given)
        assert_close(encoder_layer(PLAIN, **options).eval()(X, **given), plain)
        ours = encoder_layer(sx.PAPER, **options)
        training = ours.train()(X, **given)
        assert_close(ours.eval()(X, **given), training)
        assert not torch.allclose(training, plain, atol=1e-3)

        def taken(*_: Any) -> None:
            raise RuntimeError("the fused path")

        monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", taken)
        ours.eval()(X, **given)
        with pytest.raises(RuntimeError, match="the fused path"):  # so it was there to be taken
            encoder_layer(**options).eval()(X, **given)


def test_no_fused_path_is_taken_without_a_word():
    """The flag that keeps torch off it is private: whoever turns it on is told."""
    layer = encoder_layer(sx.PAPER).eval()
    layer.self_attn._qkv_same_embed_dim = True
    with (
        torch.no_grad(),
        pytest.raises(RuntimeError, match="plain attention in place of policy=Polynomial"),
    ):
        layer(X)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("given", LAYER_MASKS)
def test_an_encoder_keeps_the_policy_in_eval_mode(given):
    given = {name.replace("src_mask", "mask"): value for name, value in LAYER_MASKS[given].items()}
    stock = nn.TransformerEncoder(encoder_layer(), 2).eval()
    with pytest.warns(UserWarning, match="_qkv_same_embed_dim was not True"):
        nn.TransformerEncoder(encoder_layer(PLAIN), 2)
    visible = ~given.get("src_key_padding_mask", torch.zeros(2, 9, dtype=torch.bool))
    with torch.no_grad():
        plain = stock(X, **given)
        same = nn.TransformerEncoder(encoder_layer(PLAIN), 2, enable_nested_tensor=False).eval()
        # Torch's nested tensors lose what is computed at padding.
        assert_close(same(X, **given)[visible], plain[visible])
        ours = nn.TransformerEncoder(encoder_layer(sx.PAPER), 2, enable_nested_tensor=False)
        training = ours.train()(X, **given)
        assert_close(ours.eval()(X, **given), training)
        assert not torch.allclose(training[visible], plain[visible], atol=1e-3)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_an_encoder_whose_layers_are_replaced_later():
    """It has made up its mind about nested tensors: an error says so, and how to change it."""
    encoder = nn.TransformerEncoder(encoder_layer(), 2).eval()
    for layer in encoder.layers:
        layer.self_attn = MultiheadAttention.of(layer.self_attn)
    with torch.no_grad():
        encoder(X)
        with pytest.raises(TypeError, match=r"query is a nested tensor.*use_nested_tensor = False"):
            encoder(X, src_key_padding_mask=left_aligned(X))
        encoder.use_nested_tensor = False
        ours = encoder(X, src_key_padding_mask=left_aligned(X))
        assert_close(ours, encoder.train()(X, src_key_padding_mask=left_aligned(X)))


def test_a_decoder_layer():
    torch.manual_seed(1)
    stock = nn.TransformerDecoderLayer(16, 2, 24, dropout=0.0, batch_first=True).double().eval()
    given = {
        "tgt_mask": torch.ones(9, 9, dtype=torch.bool).triu(1),
        "tgt_is_causal": True,
        "memory_key_padding_mask": left_aligned(X),
    }
    answers = []
    for policy in (PLAIN, sx.PAPER):
        ours = copy.deepcopy(stock)
        for name in ("self_attn", "multihead_attn"):
            setattr(ours, name, MultiheadAttention.of(getattr(ours, name), policy=policy))
        answers.append(ours(X.flip(1), X, **given))
    assert_close(answers[0], stock(X.flip(1), X, **given))
    assert not torch.allclose(*answers, atol=1e-3)


def called(**changes: Any) -> Any:
    options = {"batch_first": True, **changes.pop("options", {})}
    inputs = {name: torch.randn(2, 5, EMBED) for name in ("query", "key", "value")}
    return lambda: MultiheadAttention(EMBED, HEADS, **options)(**{**inputs, **changes})


def sized(*shape: int, dtype=torch.float32) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


NESTED = [torch.randn(2, EMBED), torch.randn(3, EMBED)]
BAD = [
    (called(query=sized(2, 4, 9)), ValueError, r"query \(2, 4, 9\), key \(2, 5, 12\).* expected \[batch, length, width\].* widths \(12, 12, 12\)"),
    (called(key=sized(2, 6, EMBED)), ValueError, "as many values as keys"),
    (called(query=sized(3, 5, EMBED)), ValueError, "one batch size"),
    (called(query=sized(1, 5, EMBED)), ValueError, "one batch size"),
    (called(query=sized(5, 3, EMBED), options={"batch_first": False}), ValueError, r"\[length, batch, width\]"),
    (called(query=sized(5, EMBED)), ValueError, r"or \[length, width\]"),
    (called(query=sized(EMBED)), ValueError, r"query \(12,\)"),
    (called(query=sized(1, 2, 5, EMBED)), ValueError, r"query \(1, 2, 5, 12\)"),
    (called(value=sized(5, EMBED)), ValueError, r"value \(5, 12\)"),
    (called(options={"kdim": 7}), ValueError, r"the widths \(12, 7, 12\)"),
    (called(attn_mask=sized(5, 6)), ValueError, r"attn_mask of shape \(5, 6\) must have the shape \(5, 5\) or \(6, 5, 5\)"),
    (called(attn_mask=sized(2, 5, 5)), ValueError, r"attn_mask of shape \(2, 5, 5\)"),
    (called(attn_mask=sized(5, 6), is_causal=True, need_weights=False), ValueError, r"attn_mask of shape \(5, 6\)"),
    (called(attn_mask=sized(5, 5, dtype=torch.uint8)), TypeError, r"attn_mask must be boolean \(True = hidden\).*uint8"),
    (called(key_padding_mask=sized(5)), ValueError, r"key_padding_mask of shape \(5,\) must have the shape \(2, 5\)"),
    (called(key_padding_mask=sized(2, 5, dtype=torch.int64)), TypeError, "key_padding_mask must be boolean.*int64"),
    (called(options={"policy": 1.0}), TypeError, r"policy must be a function of \(entropy, count\), got 1.0"),
    (called(options={"impl": "flash"}), ValueError, "impl must be one of .*'streaming'.* got 'flash'"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "message"), BAD, ids=range(len(BAD)))
def test_bad_input_gets_one_clear_sentence(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", ["query", "key", "value"])
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided], ids=str)
def test_nested_tensors_are_refused(name, layout):
    nested = torch.nested.nested_tensor(NESTED, layout=layout)
    with pytest.raises(TypeError, match=f"{name} is a nested tensor, expected a dense one: pad it"):
        called(**{name: nested})()
