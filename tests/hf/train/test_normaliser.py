"""A normaliser in a model: equal to its formula with gradients, in caches, saved and loaded."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys

import pytest
import torch
from torch.nn import functional
from transformers import AttentionInterface, AutoModelForCausalLM, DynamicCache, StaticCache

import sharpmax as sx
import sharpmax.hf as shf
from hf.families import FAMILIES, assert_close, assert_far, is_real, run
from hf.small import llama, random_tokens, tokenizer
from hf.train.literal import eager_logits
from hf.train.tiny import make_trainer, weights
from sharpmax import UserError
from sharpmax.hf.patch.layers import attention_layers
from sharpmax.hf.train.head_normaliser import LOWER_BOUNDS, HeadNormaliser
from sharpmax.hf.train.normaliser import normaliser_of

FACTORS = ("softmax", "scalable-softmax", "query-aware-scalable-softmax")
"""Those that are a factor on the query."""
FIT = [name for name, normaliser in sx.NORMALISERS.items() if normaliser.needs is None]
LEARNED = ("scalable-softmax", "softmax-plus-one", "sigmoid", "stieltjes", "adaptive-temperature")
FACTOR = 512
"""As `families.FACTOR`; the literal weights are computed in another order, and a learned factor
multiplies the rounding errors of logits."""


def heads_of(model) -> list[HeadNormaliser]:
    return [layer.module.normaliser for layer in attention_layers(model)]


def give_each_head_values(model):
    """Change the learned parameters, so that a lost or swapped one is noticed."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for head in heads_of(model):
            for parameter in head.parameters():
                parameter.add_(0.3 * torch.rand(parameter.shape, generator=generator))
    return model


def weigh_literally(module, logits, visible):
    """Apply the normaliser of a layer to its logits, with the fields of each head."""
    head = module.normaliser
    fields = {}
    for name in head.learned:
        raw = getattr(head, name).double()
        fields[name] = (LOWER_BOUNDS[name] + raw.exp() if name in LOWER_BOUNDS else raw)[
            :, None, None
        ]
    known = logits.double().masked_fill(~visible, 0.0)
    return dataclasses.replace(head.normaliser, **fields)(known, where=visible)


def literal_twin(model, make):
    """Return a model with eager attention and the same weights and normalisers."""
    twin = make("eager")
    for layer, own in zip(attention_layers(twin), attention_layers(model), strict=True):
        layer.module.normaliser = own.module.normaliser
    return twin


def make_llama(implementation="sdpa", **options):
    return llama(layers=2, attn_implementation=implementation, **options)


@pytest.mark.parametrize("padded", [None, "left"])
@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "gpt-oss"])
@pytest.mark.parametrize("normaliser", ["scalable-softmax", "sigmoid"])
def test_families(name, normaliser, padded):
    family = FAMILIES[name]
    inputs = family.example(padded if family.pads else None)
    plain = family.make()
    model = give_each_head_values(shf.with_normaliser(family.make(), normaliser))
    twin = literal_twin(model, family.make)
    with eager_logits(twin, weigh_literally):
        expected = run(twin, inputs)
    assert_close(run(model, inputs), expected, FACTOR)
    assert_far(expected, run(plain, inputs))


def gradients(model, tokens):
    """Return the loss and all gradients, by name."""
    model.zero_grad()
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    named = {name: value.grad for name, value in model.named_parameters()}
    return {"loss": loss.detach()} | {
        name: grad for name, grad in named.items() if grad is not None
    }


@pytest.mark.parametrize("name", FIT)
def test_gradients_are_those_of_the_formula(name):
    tokens = random_tokens(2, 13)
    model = shf.with_normaliser(make_llama().double(), name)
    model = give_each_head_values(model).train()
    twin = literal_twin(model, lambda kind: make_llama(kind).double()).train()
    found = gradients(model, tokens)
    found = {key: value.clone() for key, value in found.items()}
    with eager_logits(twin, weigh_literally):
        expected = gradients(twin, tokens)
    assert set(found) == set(expected)
    for head in heads_of(model):
        assert set(head.learned) == set(dict(head.named_parameters()))
    for key, value in expected.items():
        scale = float(value.abs().max()) or 1.0
        # Rotary embeddings are in float32 whatever the type of the model.
        assert float((found[key] - value).abs().max()) <= 2e-5 * scale, key
    if heads_of(model)[0].learned:
        assert any("normaliser" in key and value.abs().max() > 0 for key, value in found.items())


@pytest.mark.parametrize("name", FACTORS)
def test_a_factor_on_the_query_runs_sdpa(name, monkeypatch):
    calls, run_sdpa = [], AttentionInterface._global_mapping["sdpa"]

    def sdpa(module, query, *arguments, **options):
        calls.append(query.shape)
        return run_sdpa(module, query, *arguments, **options)

    monkeypatch.setitem(AttentionInterface._global_mapping, "sdpa", sdpa)
    model = shf.with_normaliser(make_llama(), name)
    run(model, {"input_ids": random_tokens(2, 13)})
    assert len(calls) == 2
    run(shf.with_normaliser(model, "entmax"), {"input_ids": random_tokens(2, 13)})
    assert len(calls) == 2


def test_softmax_is_the_plain_model_bit_for_bit():
    tokens = {"input_ids": random_tokens(2, 13)}
    expected = run(make_llama(), tokens)
    assert torch.equal(run(shf.with_normaliser(make_llama(), "softmax"), tokens), expected)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("normaliser", [*LEARNED, "entmax", "local", "stick-breaking"])
@pytest.mark.parametrize("name", ["Llama", "Mistral"])
def test_a_cache_gives_the_logits_of_one_pass(name, normaliser, cache):
    model = give_each_head_values(shf.with_normaliser(FAMILIES[name].make(), normaliser))
    inputs = FAMILIES[name].example("left")
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    expected = run(model, inputs)
    past = (
        DynamicCache(config=model.config)
        if cache == "dynamic"
        else StaticCache(config=model.config, max_cache_len=20)
    )
    answers = []
    with torch.no_grad():
        for start, stop in ((0, 5), (5, 8), (8, 9), (9, 10), (10, 11)):
            part = {"input_ids": ids[:, start:stop], "attention_mask": mask[:, :stop]}
            answers.append(model(**part, past_key_values=past, use_cache=True).logits)
    assert_close(torch.cat(answers, 1)[is_real(inputs)], expected, FACTOR)


@pytest.mark.parametrize("normaliser", ["scalable-softmax", "entmax"])
def test_generate_needs_no_cache_for_the_same_text(normaliser):
    model = give_each_head_values(shf.with_normaliser(make_llama(), normaliser))
    options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
    tokens = random_tokens(2, 9)
    prompt = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    texts = [model.generate(**prompt, use_cache=cached, **options) for cached in (True, False)]
    assert torch.equal(*texts)


IN_A_NEW_PROCESS = """
import sys
import torch
from transformers import AutoModelForCausalLM

folder = sys.argv[1]
try:
    AutoModelForCausalLM.from_pretrained(folder)
    print("loaded as if nothing were missing")
except Exception as error:
    print("refused:", error)
assert "sharpmax" not in sys.modules
import sharpmax.hf as shf
from transformers import LlamaForCausalLM

model = shf.load_with_normaliser(folder).eval()
assert type(model) is LlamaForCausalLM
with torch.no_grad():
    torch.save(model(torch.load(folder + "/tokens.pt")).logits, folder + "/logits.pt")
"""


@pytest.mark.slow
def test_a_saved_model_is_the_same_in_a_new_process_and_refused_without_sharpmax(tmp_path):
    model = give_each_head_values(shf.with_normaliser(make_llama(), "scalable-softmax"))
    model.save_pretrained(tmp_path)
    tokens = random_tokens(2, 13)
    torch.save(tokens, tmp_path / "tokens.pt")
    done = subprocess.run(
        [sys.executable, "-c", IN_A_NEW_PROCESS, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr[-3000:]
    assert done.stdout.startswith("refused:")
    assert "sharpmax.hf.load_with_normaliser" in done.stdout
    found = torch.load(tmp_path / "logits.pt")
    with torch.no_grad():
        assert torch.equal(found, model(tokens).logits)


CHANGED = {"scalable-softmax": {"scale": 0.7, "bias": 0.2}, "stieltjes": {"power": 2.0}}


@pytest.mark.parametrize("normaliser", LEARNED)
def test_saved_and_loaded(tmp_path, normaliser):
    instance = dataclasses.replace(sx.NORMALISERS[normaliser], **CHANGED.get(normaliser, {}))
    model = give_each_head_values(shf.with_normaliser(make_llama(), instance))
    model.save_pretrained(tmp_path)
    loaded = shf.load_with_normaliser(tmp_path)
    tokens = {"input_ids": random_tokens(2, 13)}
    assert torch.equal(run(loaded.eval(), tokens), run(model, tokens))
    assert normaliser_of(loaded) == normaliser_of(model) == normaliser
    assert [head.normaliser for head in heads_of(loaded)] == [instance] * 2
    half = shf.load_with_normaliser(tmp_path, dtype="bfloat16")
    assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16}
    # Again, from a loaded model.
    loaded.save_pretrained(tmp_path / "again")
    again = shf.load_with_normaliser(tmp_path / "again").eval()
    assert torch.equal(run(again, tokens), run(model, tokens))
    assert normaliser_of(make_llama()) is None


def test_load_finds_the_normaliser_and_a_scan_refuses_it(tmp_path):
    model = give_each_head_values(shf.with_normaliser(make_llama(), "scalable-softmax"))
    model.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    loaded, tokens = shf.load(str(tmp_path)), {"input_ids": random_tokens(2, 13)}
    assert torch.equal(run(loaded.model, tokens), run(model, tokens))
    for verb in (lambda: shf.scan(loaded.model, loaded.tokenizer, [8]), lambda: shf.certify(model)):
        with pytest.raises(UserError, match=r"has a normaliser of its own .* defined for softmax"):
            verb()


def test_from_pretrained_beside_sharpmax_does_not_run_softmax(tmp_path):
    """sharpmax has registered its name in this process, so that transformers finds the function."""
    shf.with_normaliser(make_llama(), "scalable-softmax").save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"load it with sharpmax\.hf\.load_with_normaliser"):
        model(random_tokens(1, 5))


@pytest.mark.parametrize("options", [{}, {"bf16": True}, {"gradient_checkpointing": True}])
@pytest.mark.parametrize("name", ["scalable-softmax", "adaptive-temperature", "entmax"])
def test_the_trainer_trains_and_saves_what_is_learned(tmp_path, name, options):
    model = shf.with_normaliser(make_llama(), name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    trainer = make_trainer(tmp_path / "out", model, max_steps=2, **options)
    trainer.train()
    after = weights(trainer)
    assert all(not torch.equal(before[key], after[key]) for key in before if "normaliser" in key)
    trainer.save_model(tmp_path / "saved")
    loaded = shf.load_with_normaliser(tmp_path / "saved")
    assert all(torch.equal(value, after[key]) for key, value in loaded.state_dict().items())


def test_what_is_learned_can_be_chosen():
    model = shf.with_normaliser(make_llama(), "scalable-softmax", learn=["bias"])
    assert [head.learned for head in heads_of(model)] == [("bias",)] * 2
    assert "learned: bias" in repr(heads_of(model)[0])
    model = shf.with_normaliser(model, "entmax")
    assert [head.learned for head in heads_of(model)] == [()] * 2
    model = shf.with_normaliser(model, "entmax", learn=["alpha"])
    assert heads_of(model)[0].fields()["alpha"].tolist() == pytest.approx([1.5] * 4)
    model = shf.with_normaliser(model, "softmax", learn={"temperature"})
    assert heads_of(model)[0].fields()["temperature"].tolist() == pytest.approx([1.0] * 4)


@pytest.mark.parametrize(
    ("normaliser", "learn", "message"),
    [
        ("softermax", None, "unknown normaliser 'softermax': expected one of softmax, "),
        (functional.softmax, None, "must be a name or an instance of a class in"),
        ("differential", None, "needs a second set of logits, which an attention layer does not"),
        ("selective", None, "needs the logits of all queries"),
        ("entmax", ["scale"], r"learn=\['scale'\]: entmax has alpha to learn"),
        ("scalable-softmax", "scale", "learn='scale': scalable-softmax has scale, bias to learn"),
        ("sparsemax", ["alpha"], "sparsemax has nothing to learn"),
        (sx.normalisers.Entmax(alpha=1.0), ["alpha"], "a learned one must begin above 1"),
        (
            sx.normalisers.AdaptiveTemperature(policy=sx.LogLength(64)),
            None,
            "policy=.* of adaptive-temperature cannot be stored in config.json: give a number",
        ),
    ],
)
def test_bad_normalisers_are_refused(normaliser, learn, message):
    model = make_llama()
    with pytest.raises(UserError, match=message):
        shf.with_normaliser(model, normaliser, learn=learn)
    assert normaliser_of(model) is None


def test_bad_models_are_refused():
    with pytest.raises(UserError, match="expected a transformers model, got Linear"):
        shf.with_normaliser(torch.nn.Linear(2, 2), "entmax")
    with pytest.raises(UserError, match="GptOssForCausalLM has attention sinks, which are part"):
        shf.with_normaliser(FAMILIES["gpt-oss"].make(), "entmax")
    model = shf.with_normaliser(make_llama(), "entmax")
    with pytest.raises(UserError, match="normaliser"), shf.sharpen(model, sx.PAPER):
        pass


def test_bad_folders_are_refused(tmp_path):
    make_llama().save_pretrained(tmp_path / "plain")
    with pytest.raises(UserError, match="was saved without a normaliser of sharpmax: load it with"):
        shf.load_with_normaliser(tmp_path / "plain")

    model = shf.with_normaliser(make_llama(), "scalable-softmax")
    saved = {
        key: value for key, value in model.state_dict().items() if "0.self_attn.norm" not in key
    }
    model.save_pretrained(tmp_path / "part", state_dict=saved)
    with pytest.raises(UserError, match=r"lacks model\.layers\.0\.self_attn\.normaliser\.bias"):
        shf.load_with_normaliser(tmp_path / "part")

    model.save_pretrained(tmp_path / "new")
    file = tmp_path / "new" / "config.json"
    config = json.loads(file.read_text())
    for record in ({"name": "future", "fields": {}, "learned": []}, {"name": "entmax"}, "entmax"):
        file.write_text(json.dumps(config | {"sharpmax_normaliser": record}))
        with pytest.raises(UserError, match="which this version of sharpmax cannot read"):
            shf.load_with_normaliser(tmp_path / "new")
    file.write_text(json.dumps(config | {"architectures": ["Nothing"]}))
    with pytest.raises(UserError, match=r"names the architectures \['Nothing'\]: expected one"):
        shf.load_with_normaliser(tmp_path / "new")
