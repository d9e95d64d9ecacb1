"""The names that others build on: a change here is a change of the contract."""

from __future__ import annotations

import inspect
from pathlib import Path

import sharpmax as sx
from sharpmax import ops, theory

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
    "theory.weight_bounds": "(count, spread, temperature=1.0)",
    "theory.paper_weight_bounds": "(count, spread, temperature=1.0)",
    "theory.items_until_dispersed": "(spread, epsilon, temperature=1.0)",
    "theory.minimum_entropy": "(count, spread, temperature=1.0)",
    "theory.spread_bound": "(query_weight, key_weight, query_norm, key_norm, *, scale=1.0)",
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


def test_the_paper_s_policy_is_spelled_out():
    assert sx.Polynomial((-0.037, 0.481, -2.3, 4.917, -1.791), threshold=0.5) == sx.PAPER


def test_the_citation_has_the_version():
    citation = (Path(__file__).parents[1] / "CITATION.cff").read_text("utf-8")
    assert f"\nversion: {sx.__version__}\n" in citation


def test_all_names_exist_and_are_few():
    for module in (sx, ops, theory):
        assert sorted(module.__all__, key=str.lower) == sorted(set(module.__all__), key=str.lower)
        for name in module.__all__:
            assert getattr(module, name).__doc__, name
    assert len(sx.__all__) <= 25
