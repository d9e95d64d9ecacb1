"""The names that others build on: a change here is a change of the contract."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import jax
import torch.nn.functional as F  # noqa: N812

import sharpmax as sx
import sharpmax.hf
import sharpmax.jax
import sharpmax.torch
from sharpmax import normalisers, ops, policies, theory

SIGNATURES = {
    "softmax": "(logits, *, temperature=1.0, where=None, axis=-1)",
    "entropy": "(logits, *, temperature=1.0, where=None, axis=-1)",
    "adaptive_temperature_softmax": f"(logits, *, policy={sx.PAPER!r}, where=None, axis=-1)",
    "SoftmaxState.of": "(logits, where=None, axis=-1)",
    "SoftmaxState.merge": "(self, other)",
    "fit_polynomial": "(entropies, inverse_temperatures, degree=4, *, threshold=0.5)",
    "inverse_temperature_for_entropy": "(logits, target, *, where=None, axis=-1)",
    "Polynomial": "(coefficients, threshold=0.5)",
    "Constant": "(inverse_temperature)",
    "LogLength": "(reference)",
    "Saturating": "(policy)",
    "TargetEntropy": "(nats, largest=8.0, exact=False)",
    "policies.InfoScale": "(reference, head_size=None)",
    "policies.InfoScale.with_head_size": "(self, head_size)",
    "policies.YarnScale": "(reference, slope=0.1)",
    "policies.Llama4Scale": "(step=8192, slope=0.1)",
    "policies.GrokScale": "(reference=1024)",
    "policies.CriticalScale": "(gamma)",
    "policies.traits": "(policy)",
    "policies.Traits": "(needs_entropy=True, by_head=False, learned=True, any_library=False, "
    "plain_up_to=0, "
    "needs_varentropy=False, needs_rows=False)",
    "policies.LengthLaw.factor": "(self, items, xp)",
    "normalisers.finite_values": "(rows)",
    "normalisers.parameter": "(name, value, rows)",
    "normalisers.Softmax": "(temperature=1.0)",
    "normalisers.AdaptiveTemperature": f"(policy={sx.PAPER!r})",
    "normalisers.ScalableSoftmax": "(scale=0.43, bias=0.0)",
    "normalisers.SoftmaxPlusOne": "(sink=0.0)",
    "normalisers.Sparsemax": "()",
    "normalisers.Entmax": "(alpha=1.5)",
    "normalisers.AdaptiveScalableEntmax": "(alpha=1.5, offset=1.0, scale=1.0, exponent=1.0)",
    "normalisers.TopK": "(k=8)",
    "normalisers.Hard": "()",
    "normalisers.Local": "(window=8)",
    "normalisers.Sigmoid": "(bias=0.0)",
    "normalisers.Relu": "(power=1.0)",
    "normalisers.Linear": "()",
    "normalisers.PositiveLinear": "()",
    "normalisers.StickBreaking": "()",
    "normalisers.Stieltjes": "(power=1.0, scale=0.0, bias=1.0)",
    "normalisers.ThresholdRelative": "(slope=0.0)",
    "normalisers.Selective": "(query_axis=-2)",
    "normalisers.Differential": "(second_weight=0.8)",
    "theory.weight_bounds": "(count, spread, temperature=1.0)",
    "theory.paper_weight_bounds": "(count, spread, temperature=1.0)",
    "theory.items_until_dispersed": "(spread, epsilon, temperature=1.0)",
    "theory.minimum_entropy": "(count, spread, temperature=1.0)",
    "theory.spread_bound": "(query_weight, key_weight, query_norm, key_norm, *, scale=1.0)",
}


SDPA = "attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False"
MORE = f"softcap=None, sinks=None, window=None, policy={sx.PAPER!r}, normaliser=None, impl='auto'"
NN = (
    "scale=None, is_causal=False, query_seq_lengths=None, key_value_seq_lengths=None, "
    "local_window_size=None"
)
ATTENTION = {
    "torch.scaled_dot_product_attention": f"(query, key, value, {SDPA}, *, {MORE})",
    "torch.attention": f"(query, key, value, *, {SDPA}, {MORE})",
    "torch.attention_stats": "(query, key, *, attn_mask=None, is_causal=False, scale=None, "
    f"enable_gqa=False, softcap=None, window=None, policy={sx.PAPER!r}, impl='auto')",
    "torch.sharded_attention": "(query, key, value, *, group=None, attn_mask=None, "
    f"is_causal=False, scale=None, enable_gqa=False, softcap=None, policy={sx.PAPER!r})",
    "jax.dot_product_attention": f"(query, key, value, bias=None, mask=None, *, {NN}, "
    f"implementation=None, return_residual=False, policy={sx.PAPER!r})",
    "jax.attention": f"(query, key, value, bias=None, mask=None, *, {NN}, policy={sx.PAPER!r})",
    "jax.attention_stats": f"(query, key, bias=None, mask=None, *, {NN}, policy={sx.PAPER!r})",
    "jax.attention_fn": f"(policy={sx.PAPER!r})",
    "jax.sharded_attention": "(query, key, value, bias=None, mask=None, *, axis_name, scale=None, "
    f"is_causal=False, policy={sx.PAPER!r})",
}


HF = {
    "sharpen": "(model, policy='tuned', *, layers=None, heads=None)",
    "scan": "(model, tokenizer, lengths=None, prompt='max', *, text=None, layers=None, heads=None, "
    "policy=None, seed=0, name=None, notes=(), resume=None, progress=None)",
    "certify": "(model, *, scan=None, name=None, notes=())",
    "diagnose": "(model, tokenizer, task='lookup', *, lengths=None, prompts=None, questions=None, "
    "policy=None, seed=0, name=None, notes=(), resume=None, progress=None)",
    "evaluate": "(model, tokenizer, task='lookup', policies=None, *, lengths=None, prompts=None, "
    "questions=None, seed=0, name=None, notes=(), resume=None, progress=None, "
    "processes=None)",
    "calibrate": "(model, tokenizer, task='lookup', *, choose='answers', short=None, long=None, "
    "prompts=16, questions=None, seed=1, name=None, resume=None, progress=None)",
    "Condition": "(policy, layers=None, heads=None)",
    "register": "(policy='beside')",
    "load": "(name='smollm2', *, device='auto', device_map=None, max_memory=None, "
    "tensor_parallel=False, dtype='auto', allow_pickle=False, trust_remote_code=False, "
    "report=None)",
    "AdaptiveTemperatureLogitsProcessor": f"(policy={sx.PAPER!r})",
}


def plain_signature(function: object) -> str:
    signature = inspect.signature(function)
    bare = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
    ]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def test_signatures():
    for path, expected in SIGNATURES.items():
        found: object = sx
        for name in path.split("."):
            found = getattr(found, name)
        assert plain_signature(found) == expected, path


CALL = "(logits, *, where=None, axis=-1)"
OWN_CALLS = {
    "selective": "(logits, *, selection=None, where=None, axis=-1)",
    "differential": "(logits, second=None, *, where=None, axis=-1)",
    "thresholded-differential": "(logits, second=None, *, where=None, axis=-1)",
}


def test_normalisers_are_called_alike():
    assert list(sx.NORMALISERS) == [
        *("softmax", "adaptive-temperature", "scalable-softmax", "query-aware-scalable-softmax"),
        *("softmax-plus-one", "softpick", "sparsemax", "entmax", "adaptive-scalable-entmax"),
        *("top-k", "hard", "local", "scale-invariant", "sigmoid", "relu", "linear"),
        *("positive-linear", "stick-breaking", "stieltjes", "threshold-relative", "selective"),
        *("differential", "thresholded-differential"),
    ]
    for name, normaliser in sx.NORMALISERS.items():
        assert plain_signature(normaliser) == OWN_CALLS.get(name, CALL), name
        assert type(normaliser)() == normaliser, name


def test_attention_signatures():
    modules = {"torch": sharpmax.torch, "jax": sharpmax.jax, "hf": sharpmax.hf}
    for path, expected in (ATTENTION | {f"hf.{name}": text for name, text in HF.items()}).items():
        module, _, name = path.partition(".")
        assert plain_signature(getattr(modules[module], name)) == expected, path


def test_drop_ins_begin_with_their_framework_s_own_arguments():
    """Names, order and defaults; ours come after."""
    theirs = inspect.signature(jax.nn.dot_product_attention).parameters
    ours = list(inspect.signature(sharpmax.jax.dot_product_attention).parameters.values())
    for mine, its in zip(ours, theirs.values(), strict=False):
        assert (mine.name, mine.kind, mine.default) == (its.name, its.kind, its.default)
    # torch's has no signature to ask; its documentation begins with one.
    documented = re.match(r"\w+\((.*?)\)", F.scaled_dot_product_attention.__doc__, re.S)[1]
    assert " ".join(documented.split()) == f"query, key, value, {SDPA}"


def test_the_paper_s_policy_is_spelled_out():
    assert sx.Polynomial((-0.037, 0.481, -2.3, 4.917, -1.791), threshold=0.5) == sx.PAPER


def test_the_citation_has_the_version():
    citation = (Path(__file__).parents[1] / "CITATION.cff").read_text("utf-8")
    assert f"\nversion: {sx.__version__}\n" in citation


def test_all_names_exist_and_are_few():
    for module in (
        sx,
        normalisers,
        ops,
        policies,
        theory,
        sharpmax.torch,
        sharpmax.jax,
        sharpmax.hf,
    ):
        assert sorted(module.__all__) == sorted(set(module.__all__))
        for name in module.__all__:
            assert getattr(module, name).__doc__, name
    assert len(sx.__all__) <= 25
