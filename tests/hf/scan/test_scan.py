"""scan: what it measures is what eager attention's matrices say, and it holds none itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from transformers import (
    BertConfig,
    BertModel,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GptOssConfig,
    GptOssForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    T5Config,
    T5Model,
    ViTConfig,
    ViTModel,
)

import sharpmax as sx
import sharpmax.hf as shf
from hf.small import VOCABULARY, assert_nothing_is_patched, count_passes, llama, tokenizer
from sharpmax import UserError
from sharpmax.hf.bos import prepare_tokenizer
from sharpmax.hf.patch import masks
from sharpmax.hf.scan import forward
from sharpmax.hf.scan.scan import entropy_slopes, label_head, measure_growth
from sharpmax.results import Result
from sharpmax.theory import name_law
from sharpmax.theory.growth import GAPS

TOKENIZER = tokenizer()
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": VOCABULARY,
    "initializer_range": 0.3,
}
FAMILIES = {
    "llama": lambda: llama(),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(n_embd=32, n_layer=3, n_head=4, vocab_size=VOCABULARY, initializer_range=0.3)
    ),
    "gemma2": lambda: Gemma2ForCausalLM(
        Gemma2Config(**SIZES, head_dim=8, sliding_window=21, attn_logit_softcapping=3.0)
    ),
    "mistral": lambda: MistralForCausalLM(
        MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=21)
    ),
    "bert": lambda: BertModel(BertConfig(**SIZES)),
}


def build(name):
    torch.manual_seed(3)
    return FAMILIES[name]().eval()


def from_matrices(model, tokens):
    """Statistics of each layer and head from the matrices that eager attention returns."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        found = model(torch.tensor([tokens]), output_attentions=True).attentions
    weights = np.stack([matrix[0].double().numpy() for matrix in found])  # [layer head query key]
    seen = weights > 0
    entropy = -np.where(seen, weights * np.log(np.where(seen, weights, 1.0)), 0.0).sum(-1)
    count = seen.sum(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        normalised = np.where(count > 1, entropy / np.log(count), np.nan)
    lowest = np.where(seen, weights, np.inf).min(-1)
    return {
        "entropy": entropy,
        "normalised_entropy": normalised,
        "effective_tokens": np.exp(entropy),
        "max_weight": weights.max(-1),
        "sink": weights[..., 0],
        "spread": np.log(weights.max(-1)) - np.log(lowest),
    }


@pytest.mark.parametrize("name", FAMILIES)
def test_equals_the_statistics_of_eager_matrices(name):
    model = build(name)
    found = shf.scan(model, TOKENIZER, [5, 11], "max")
    for place, tokens in enumerate(found.tokens):
        prompt = _prompt(found.lengths[place])
        assert len(prompt) == tokens
        for name_, values in from_matrices(model, prompt).items():
            last, mean = found.arrays[f"last_{name_}"], found.arrays[f"mean_{name_}"]
            # float32 matrices: weights of 1e-30 have few digits left, and so has a spread.
            tolerance = 1e-4 if name_ != "spread" else 2e-3
            scale = tokens if name_ == "effective_tokens" else 1
            np.testing.assert_allclose(last[place], values[..., -1], atol=tolerance * scale, rtol=0)
            np.testing.assert_allclose(
                mean[place], np.nanmean(values, -1), atol=tolerance * scale, rtol=0
            )


@pytest.mark.parametrize("name", FAMILIES)
def test_the_strongest_tokens_are_those_of_eager_matrices(name):
    """With windows, softcaps, several query heads per key head, and without a causal mask."""
    model = build(name)
    found = shf.scan(model, TOKENIZER, [5, 11], "max")
    assert found.measurements["texts"][0]["pieces"][:4] == list("What")
    model.set_attn_implementation("eager")
    for place, length in enumerate(found.lengths):
        prompt = _prompt(length)
        with torch.no_grad():
            matrices = model(torch.tensor([prompt]), output_attentions=True).attentions
        weights = np.stack([matrix[0, :, -1].double().numpy() for matrix in matrices])
        index = found.arrays["strongest"][place]
        kept = found.arrays["strongest_weight"][place]
        assert index.shape == (3, 4, 8)
        np.testing.assert_allclose(kept, -np.sort(-weights, -1)[..., :8], atol=1e-4)
        np.testing.assert_allclose(np.take_along_axis(weights, index, -1), kept, atol=1e-4)


def test_a_policy_shows_in_the_strongest_tokens():
    plain = shf.scan(build("llama"), TOKENIZER, [11], "max")
    sharp = shf.scan(build("llama"), TOKENIZER, [11], "max", layers=[0], policy=sx.Constant(2.0))
    weights, sharper = (
        plain.arrays["strongest_weight"][0, 0],
        sharp.arrays["strongest_weight"][0, 0],
    )
    assert (sharper[:, 0] > weights[:, 0]).all()
    np.testing.assert_array_equal(
        sharp.arrays["strongest"][0, 0, :, 0], plain.arrays["strongest"][0, 0, :, 0]
    )


def test_a_head_that_sees_few_tokens_has_few_strongest():
    """A window of three tokens: the rest is -1 with weight 0."""
    model = MistralForCausalLM(MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=3))
    found = shf.scan(model.eval(), TOKENIZER, [5], "max")
    index, weights = found.arrays["strongest"][0], found.arrays["strongest_weight"][0]
    tokens = found.tokens[0]
    assert (index[..., :3] >= tokens - 3).all()
    assert (index[..., 3:] == -1).all()
    assert (weights[..., 3:] == 0).all()
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)


def _prompt(length, seed=0):
    numbers = np.random.default_rng(seed).integers(0, 1000, size=length)
    text = ", ".join(map(str, numbers))
    text = f"What is the maximum in the following sequence: {text}? The maximum is:"
    return [ord(character) for character in text]


def test_a_learned_sink_is_reported_beside():
    torch.manual_seed(0)
    sizes = SIZES | {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 600}
    model = GptOssForCausalLM(
        GptOssConfig(**sizes, num_local_experts=2, num_experts_per_tok=1)
    ).eval()
    for layer in model.model.layers:
        torch.nn.init.normal_(layer.self_attn.sinks)
    found = shf.scan(model, TOKENIZER, [6])
    some = shf.scan(model, TOKENIZER, [6], heads=[1, 3])
    np.testing.assert_allclose(
        some.arrays["last_learned_sink"], found.arrays["last_learned_sink"][..., [1, 3]], atol=1e-6
    )
    model.set_attn_implementation("eager")
    with torch.no_grad():
        matrices = model(torch.tensor([_prompt(6)]), output_attentions=True).attentions
    kept = np.stack([matrix[0, :, -1].sum(-1).numpy() for matrix in matrices])
    np.testing.assert_allclose(found.arrays["last_learned_sink"][0], 1 - kept, atol=1e-5)
    weights = matrices[0][0, :, -1].double() / matrices[0][0, :, -1].double().sum(-1, keepdim=True)
    entropy = torch.special.entr(weights).sum(-1)
    np.testing.assert_allclose(found.entropy[0, 0], entropy, atol=1e-4)


def test_some_layers_and_heads_are_the_same_numbers_and_the_pass_ends_early():
    model = llama().double()
    whole = shf.scan(model, TOKENIZER, [5, 9])
    calls = []
    for index, layer in enumerate(model.model.layers):
        layer.self_attn.register_forward_pre_hook(lambda *_, index=index: calls.append(index))
    some = shf.scan(model, TOKENIZER, [5, 9], layers=[1], heads=[0, 3])
    assert calls == [0, 1, 0, 1]  # for each of two lengths; layer 2 is not reached
    assert some.entropy.shape == (2, 1, 2)
    for name, array in some.arrays.items():
        if name not in ("slopes", "growth_power"):  # [layer, head]
            np.testing.assert_allclose(array, whole.arrays[name][:, [1]][:, :, [0, 3]], atol=1e-9)
    np.testing.assert_allclose(some.slopes, whole.slopes[[1]][:, [0, 3]], atol=1e-9)
    assert some.measurements["heads"] == [0, 3]
    assert some.measurements["layers"][0]["name"] == "model.layers.1.self_attn"


def test_a_sharpened_model_is_measured_as_sharpened():
    model = llama()
    plain = shf.scan(model, TOKENIZER, [20], layers=[0])
    sharp = shf.scan(model, TOKENIZER, [20], layers=[0], policy=sx.Constant(2.0))
    some = shf.scan(model, TOKENIZER, [20], layers=[0], heads=[1], policy=sx.Constant(2.0))
    np.testing.assert_allclose(sharp.spread, 2 * plain.spread, rtol=1e-5)
    assert (sharp.entropy < plain.entropy).all()
    np.testing.assert_allclose(some.entropy, sharp.entropy[:, :, [1]], rtol=1e-5)
    assert "Constant" in sharp.config["policy"]
    with pytest.raises(NotImplementedError, match="softcap or a bias: scan it without a policy"):
        shf.scan(build("gemma2"), TOKENIZER, [5], policy=sx.PAPER)


def test_no_matrix_of_tokens_by_tokens(monkeypatch, tmp_path):
    """Neither weights nor masks, also with a window: the largest tensor made by attention grows with
    n, not with its square.
    """
    model = build("mistral")
    file = tmp_path / "text.txt"
    file.write_text("x" * 4000)
    monkeypatch.setattr(masks, "sdpa_mask", lambda *a, **b: pytest.fail("made a matrix"))
    sizes = {}
    for tokens in (1000, 4000):
        tracker = _Largest()
        with tracker:
            shf.scan(model, TOKENIZER, [tokens], "text", text=file)
        sizes[tokens] = tracker.numbers
    assert sizes[4000] <= 4.5 * sizes[1000]
    assert sizes[4000] < 4000 * 4000 / 4


class _Largest(torch.utils._python_dispatch.TorchDispatchMode):
    """The largest tensor that any operation makes."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        made = function(*arguments, **(options or {}))
        if isinstance(made, torch.Tensor):
            self.numbers = max(self.numbers, made.untyped_storage().nbytes() // 4)
        return made


def test_the_output_layer_is_not_computed():
    """Its logits would take tokens times vocabulary numbers."""
    model, computed = llama(), []
    prepare_tokenizer(model, TOKENIZER)  # which asks the model what it predicts
    model.lm_head.register_forward_hook(lambda *_: computed.append(1))
    shf.scan(model, TOKENIZER, [5])
    assert computed == []
    model(torch.tensor([[5]]))
    assert computed == [1]


def test_windows_are_called_local():
    found = shf.scan(build("mistral"), TOKENIZER, [5, 20])
    assert {name for row in found.labels for name in row} == {"local"}
    assert [layer["window"] for layer in found.measurements["layers"]] == [21, 21, 21]
    assert found.heads("local") == [(layer, head) for layer in range(3) for head in range(4)]


def test_full_attention_is_not_called_local():
    found = shf.scan(llama(), TOKENIZER, [5, 20])
    assert not found.heads("local")
    assert [layer["window"] for layer in found.measurements["layers"]] == [None, None, None]


def test_lengths_are_sorted_and_may_fill_the_context():
    found = shf.scan(
        llama(context=9), TOKENIZER, [9, 5, 5], prompt=lambda length: [7] * length, layers=[0]
    )
    assert found.lengths == found.tokens == [5, 9]


def test_the_model_is_as_it_was():
    model = llama().train()
    before = model.config._attn_implementation
    shf.scan(model, TOKENIZER, [5])
    assert model.training
    assert model.config._attn_implementation == before
    assert_nothing_is_patched()


def test_saved_and_loaded(tmp_path):
    found = shf.scan(llama(), TOKENIZER, [5, 9], seed=4, name="<b>", notes=["a note"])
    found.save(tmp_path / "scan.json")
    again = shf.Scan.load(tmp_path / "scan.json")
    assert again.measurements == found.measurements
    for name, array in found.arrays.items():
        np.testing.assert_array_equal(again.arrays[name], array)
    np.testing.assert_array_equal(np.array(again.measurements["slopes"]), found.slopes)
    assert again.config["model"] == "<b>"
    assert again.seeds == (4,)
    assert again.config["notes"] == ["a note"]
    assert isinstance(Result.load(tmp_path / "scan.json"), Result)
    assert set(again.measurements["rules"]) >= {name for row in again.labels for name in row}


class Killed(BaseException):
    pass


def test_a_killed_scan_goes_on_to_the_same_numbers(tmp_path, monkeypatch):
    model, resume = llama(), tmp_path / "part.json"
    whole = shf.scan(model, TOKENIZER, [4, 6, 9])
    passed = count_passes(monkeypatch, stop_after=2, error=Killed)
    with pytest.raises(Killed):
        shf.scan(model, TOKENIZER, [4, 6, 9], resume=resume)
    left = Result.load(resume)
    assert list(left.measurements["seconds"]) == ["4", "6"]
    passed.stop_after = None
    with pytest.raises(UserError, match=r"checkpoint of another scan \(.*seed differ"):
        shf.scan(model, TOKENIZER, [4, 6, 9], resume=resume, prompt=lambda n: [5] * n, seed=1)
    other = llama(seed=1)
    with pytest.raises(UserError, match="weights_sha256 differ"):
        shf.scan(other, TOKENIZER, [4, 6, 9], resume=resume)
    resumed = shf.scan(model, TOKENIZER, [4, 6, 9], resume=resume)
    assert passed.number == 3
    for name, array in whole.arrays.items():
        np.testing.assert_array_equal(resumed.arrays[name], array)
    assert resume.exists()  # nobody has saved the result yet
    shf.forget(resume)
    assert list(tmp_path.iterdir()) == []
    shf.forget(resume)


def test_a_text_that_changed_meanwhile_is_another_scan(tmp_path, monkeypatch):
    file, resume, run = tmp_path / "a.txt", tmp_path / "part.json", forward.measure_forward_pass
    options = {"prompt": "text", "text": file, "resume": resume}

    def dies(model, plan, tokens, *others):
        if len(tokens) > 9:
            raise Killed
        return run(model, plan, tokens, *others)

    monkeypatch.setattr(forward, "measure_forward_pass", dies)
    file.write_text("abcdefghijklmnop")
    with pytest.raises(Killed):
        shf.scan(llama(), TOKENIZER, [8, 16], **options)
    file.write_text("ABCDEFGHIJKLMNOP")
    with pytest.raises(UserError, match=r"another scan \(inputs_sha256 differ"):
        shf.scan(llama(), TOKENIZER, [8, 16], **options)


def test_progress_rises_to_one():
    shares = []
    shf.scan(llama(), TOKENIZER, [4, 30], progress=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)
    assert len(shares) == 2 * (1 + 3 + 1)  # for each input, its layers and its end


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lengths": [5, 500]}, "500 numbers are 2,"),
        ({"lengths": []}, "lengths is empty"),
        ({"lengths": [0]}, "whole numbers from 1 up, got 0"),
        ({"lengths": [2.5]}, "whole numbers from 1 up, got 2.5"),
        ({"prompt": "poem"}, "unknown prompt 'poem': expected one of max, text, passkey"),
        ({"prompt": "text"}, 'prompt="text" needs a file'),
        ({"prompt": "text", "text": "no/such/file"}, "no/such/file does not exist"),
        ({"text": "a.txt"}, "goes with prompt=\"text\", not with 'max'"),
        ({"prompt": "passkey", "lengths": [20]}, "a passkey prompt has at least"),
        ({"layers": [7]}, "layers: no 7 among 3"),
        ({"heads": [4]}, "heads: no 4 among 4"),
    ],
)
def test_mistakes_are_named_before_any_work(options, message, monkeypatch):
    monkeypatch.setattr(forward, "measure_forward_pass", None)
    with pytest.raises(UserError) as caught:
        shf.scan(llama(), TOKENIZER, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_too_long_for_the_context_says_what_fits():
    with pytest.raises(UserError) as caught:
        shf.scan(llama(context=100), TOKENIZER, [2, 4, 40, 80])
    assert str(caught.value).startswith("40 numbers are 2")
    assert "the context of this model is 100: give lengths up to 4, of those" in str(caught.value)
    usual = shf.scan(llama(context=200), TOKENIZER)
    assert usual.lengths == [8, 16]  # the usual lengths stop where the context does


def test_a_text_that_is_too_short(tmp_path):
    file = tmp_path / "short.txt"
    file.write_text("x" * 150)
    usual = shf.scan(llama(), TOKENIZER, prompt="text", text=file)
    assert usual.lengths == [64, 128]
    with pytest.raises(UserError, match=r"length 151: text short\.txt has 150 tokens only; give"):
        shf.scan(llama(), TOKENIZER, [64, 151], prompt="text", text=file)
    file.write_text("x" * 9)
    with pytest.raises(UserError, match=r"none of the usual lengths of prompt 'text short.* fits"):
        shf.scan(llama(), TOKENIZER, prompt="text", text=file)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: T5Model(T5Config(vocab_size=9, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)), "model.get_encoder()"),
        (lambda: ViTModel(ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, image_size=8, patch_size=4)), "reads pixel_values and not tokens"),
    ],
    ids=["t5", "vit"],
)  # fmt: skip
def test_models_that_do_not_read_a_text_are_refused(model, message):
    with pytest.raises(UserError, match=message.replace("(", r"\(").replace(")", r"\)")):
        shf.scan(model(), TOKENIZER)


def test_the_encoder_of_an_encoder_decoder():
    torch.manual_seed(0)
    config = T5Config(vocab_size=VOCABULARY, d_model=16, d_kv=4, d_ff=8, num_layers=2, num_heads=4)
    encoder = T5Model(config).eval().get_encoder()
    found = shf.scan(encoder, TOKENIZER, [5, 9])
    assert found.entropy.shape == (2, 2, 4)
    some = shf.scan(encoder, TOKENIZER, [9], heads=[1, 2])  # its bias has heads too
    for name, values in from_matrices(encoder, _prompt(9)).items():
        tolerance = 1e-2 if name == "effective_tokens" else 1e-4
        last = found.arrays[f"last_{name}"]
        np.testing.assert_allclose(last[1], values[..., -1], atol=tolerance)
        np.testing.assert_allclose(
            some.arrays[f"last_{name}"][0], last[1][:, [1, 2]], atol=tolerance
        )


def test_a_layer_that_is_never_reached_is_named(monkeypatch):
    model = llama()
    monkeypatch.setattr(
        type(model.model.layers[0]), "forward", lambda self, hidden, **options: hidden
    )
    with pytest.raises(UserError, match="none of its attention layers called"):
        shf.scan(model, TOKENIZER, [5])


def test_slopes_and_labels():
    counts = np.array([10, 100, 1000])[:, None, None] * np.ones((1, 1, 2), int)
    entropy = np.log(counts) * np.array([1.0, 0.25]) + 0.5
    np.testing.assert_allclose(entropy_slopes(entropy, counts), [[1.0, 0.25]])
    assert np.isnan(entropy_slopes(entropy, counts * 0 + 7)).all()
    flat, none = np.array([0.5, 0.6]), np.zeros(2)
    assert label_head(flat, none, 0.9, local=False) == "disperses"
    assert label_head(flat, none, 0.1, local=False) == "stays sharp"
    assert label_head(np.array([0.95, 0.97]), none, 1.0, local=False) == "uniform"
    assert label_head(np.array([0.5, 0.97]), none, 1.0, local=False) == "disperses"
    assert label_head(flat, np.array([0.0, 0.7]), 0.9, local=False) == "sink"
    assert label_head(flat, np.array([0.7, 0.1]), 0.9, local=False) == "disperses"
    assert label_head(flat, none, math.nan, local=False) == "unknown"
    assert label_head(flat, none, 0.9, local=True) == "local"


def test_half_precision_weights_give_statistics_in_full():
    model = llama()
    exact = shf.scan(model, TOKENIZER, [20])
    half = shf.scan(model.bfloat16(), TOKENIZER, [20])
    assert half.config["dtype"] == "bfloat16"
    assert np.isfinite(half.entropy).all()
    # The model itself computes with 8 bits; the first layer has seen little of that yet.
    np.testing.assert_allclose(half.entropy[:, 0], exact.entropy[:, 0], atol=0.15)


def test_competitors_are_counted_without_the_first_token_and_give_a_law():
    model = llama()

    def numbers(length):
        return [(7 * place) % 50 + 3 for place in range(length)]

    scan = shf.scan(model, TOKENIZER, lengths=[8, 16, 32], prompt=numbers)
    counts = scan.arrays["competitors"]
    assert counts.shape == (3, len(scan.measurements["layers"]), 4, len(GAPS))
    assert (np.diff(counts, axis=-1) >= 0).all()
    assert (counts[..., 0] >= 1).all()
    assert (counts <= np.array(scan.tokens)[:, None, None, None] - 1).all()
    assert scan.growth_power.shape == counts.shape[1:3]
    for power, law in zip(scan.growth_power.ravel(), np.ravel(scan.laws), strict=True):
        assert law == name_law(float(power))
    single = shf.scan(model, TOKENIZER, lengths=[8], prompt=numbers)
    assert np.isnan(single.growth_power).all()


def test_the_law_of_known_counts():
    """A head one of whose tokens stands a fixed distance above all others: log n."""
    tokens = [65, 257, 1025, 4097]
    counts = np.ones((4, 1, 2, len(GAPS)), int)
    counts[:, 0, 0, -9:] = np.array(tokens)[:, None] - 1
    seen = np.broadcast_to(np.array(tokens)[:, None, None], (4, 1, 2)).copy()
    power = measure_growth(counts, seen, tokens)
    assert name_law(float(power[0, 0])) == "log n"
    assert np.isnan(power[0, 1])  # nothing competes
    seen[-1] = 1000  # a window
    assert np.isnan(measure_growth(counts, seen, tokens)).all()
