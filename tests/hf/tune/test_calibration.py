"""Calibrations: readable files that sharpen the heads they name and nothing else."""

from __future__ import annotations

import json
import math
from importlib import import_module

import pytest
import torch

import sharpmax.hf as shf
from hf.families import FAMILIES
from hf.small import llama, random_tokens
from sharpmax import Constant
from sharpmax._errors import UserError
from sharpmax.hf.loading.catalogue import CATALOGUE
from sharpmax.hf.model_info import weights_fingerprint
from sharpmax.hf.tune.calibration import ByRate, architecture_of
from sharpmax.results.calibration import Architecture, Head

module = import_module("sharpmax.hf.tune.calibration")


def make_calibration(model, *heads, start=8):
    """Return a calibration of these (layer, head, rate)."""
    return shf.Calibration(
        model="tiny",
        weights=weights_fingerprint(model),
        architecture=architecture_of(model),
        method={"choose": "by hand"},
        from_tokens=start,
        heads=tuple(
            Head(layer=layer, head=head, rate=rate, short_entropy=1.0, long_entropy=2.0)
            for layer, head, rate in heads
        ),
    )


@torch.no_grad()
def logits(model, tokens):
    return model(input_ids=tokens).logits


def test_the_file_has_one_line_per_head_and_is_read_back(tmp_path):
    calibration = make_calibration(llama(), (0, 1, 0.25), (2, 3, 0.5))
    path = calibration.save(tmp_path / "some.json")
    assert shf.Calibration.load(path) == calibration
    lines = path.read_text().splitlines()
    assert [line for line in lines if '"rate": 0.5' in line and '"layer": 2' in line]
    assert len(lines) < 20
    with pytest.raises(UserError, match=r"some\.json exists already"):
        calibration.save(path)
    calibration.save(path, overwrite=True)


def test_rows_are_sharpened_by_the_logarithm_of_their_visible_tokens():
    entropy = torch.zeros(1, 2, 2, 5)
    count = torch.tensor([1.0, 8.0, 16.0, 64.0, 1e9]).expand_as(entropy)
    found = ByRate((0.0, 0.1, 0.2, 0.3), 8)(entropy, count)
    expected = [
        [1 + rate * math.log(max(1, n / 8)) for n in (1, 8, 16, 64)] for rate in (0, 0.1, 0.2, 0.3)
    ]
    torch.testing.assert_close(found[0, ..., :4].reshape(4, 4), torch.tensor(expected))
    assert found[0, 1, 1, 4] == 2


def test_at_one_length_it_equals_a_constant_in_that_head():
    """In a model of one layer the logits of the last token depend on one row only."""
    model, tokens = llama(layers=1), random_tokens(1, 20)
    rate = 0.7
    with shf.sharpen(model, make_calibration(model, (0, 2, rate))):
        found = logits(model, tokens)[:, -1]
    with shf.sharpen(model, Constant(1 + rate * math.log(20 / 8)), heads=[2]):
        expected = logits(model, tokens)[:, -1]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert (found - logits(model, tokens)[:, -1]).abs().max() > 1e-2


def test_inputs_as_short_as_those_it_was_made_from_are_answered_as_before():
    model, tokens = llama(), random_tokens(2, 12)
    with shf.sharpen(model, make_calibration(model, (0, 0, 1.0), (1, 3, 0.5), start=12)):
        short = logits(model, tokens)
        longer = logits(model, random_tokens(2, 30))
    with shf.sharpen(model, Constant(1.0)):
        torch.testing.assert_close(short, logits(model, tokens), rtol=0, atol=0)
    assert (longer - logits(model, random_tokens(2, 30))).abs().max() > 1e-2


def test_generating_with_a_cache_equals_reading_at_once():
    model, tokens = llama(), random_tokens(1, 30)
    with torch.no_grad(), shf.sharpen(model, make_calibration(model, (0, 1, 0.6), (2, 2, 0.9))):
        whole = logits(model, tokens)
        first = model(input_ids=tokens[:, :20], use_cache=True)
        rest = model(input_ids=tokens[:, 20:], past_key_values=first.past_key_values)
    torch.testing.assert_close(rest.logits, whole[:, 20:], rtol=1e-4, atol=1e-4)


def test_sharpen_takes_the_path_and_outer_policies_keep_the_other_heads(tmp_path):
    model, tokens = llama(), random_tokens(1, 25)
    calibration = make_calibration(model, (1, 2, 0.8))
    path = calibration.save(tmp_path / "c.json")
    with shf.sharpen(model, path):
        by_path = logits(model, tokens)
    with shf.sharpen(model, calibration):
        torch.testing.assert_close(logits(model, tokens), by_path, rtol=0, atol=0)
    with shf.sharpen(model, Constant(1.5), layers=[1]), shf.sharpen(model, calibration):
        both = logits(model, tokens)
    with (
        shf.sharpen(model, Constant(1.5), layers=[1], heads=[0, 1, 3]),
        shf.sharpen(model, calibration),
    ):
        torch.testing.assert_close(logits(model, tokens), both, rtol=1e-5, atol=1e-5)


def test_another_architecture_is_refused_with_the_reason():
    calibration = make_calibration(llama(layers=3), (0, 1, 0.5))
    for other, reason in (
        (llama(layers=2), "attention layers 3, and LlamaForCausalLM has 2"),
        (FAMILIES["GPT-2"].make(), "model type 'llama', and GPT2LMHeadModel has 'gpt2'"),
    ):
        with pytest.raises(UserError, match=reason), shf.sharpen(other, calibration):
            pass
    fewer = calibration.model_copy(
        update={"architecture": Architecture(model_type="llama", layers=3, heads=(4, 4, 2))}
    )
    with (
        pytest.raises(UserError, match=r"heads \[4, 4, 2\], and LlamaForCausalLM has 4 a layer"),
        shf.sharpen(llama(layers=3), fewer),
    ):
        pass


def test_other_weights_give_a_warning():
    calibration = make_calibration(llama(), (0, 1, 0.5))
    with (
        pytest.warns(shf.OtherWeightsWarning, match="other weights, of tiny"),
        shf.sharpen(llama(seed=1), calibration),
    ):
        pass


def test_layers_and_heads_cannot_be_given_as_well():
    model = llama()
    with (
        pytest.raises(UserError, match="cannot be combined with a calibration"),
        shf.sharpen(model, make_calibration(model, (0, 1, 0.5)), layers=[0]),
    ):
        pass


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "poem"}, 'is not a calibration: it has no "format"'),
        ({"version": 3}, "has version 3, this sharpmax reads up to 2: upgrade it"),
        ({"heads": [{"layer": 0}]}, r"is damaged: heads\.0\.head"),
        ({"from_tokens": 0}, "is damaged: from_tokens"),
        ({"surprise": 1}, "is damaged: surprise"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, change, message):
    path = make_calibration(llama(), (0, 1, 0.5)).save(tmp_path / "c.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match=message):
        shf.Calibration.load(path)


def test_heads_and_files_that_do_not_exist_are_refused(tmp_path):
    path = make_calibration(llama(), (0, 1, 0.5)).save(tmp_path / "c.json")
    content = json.loads(path.read_text())
    content["heads"][0]["head"] = 4
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match="layer 0, head 4 is not in its architecture"):
        shf.Calibration.load(path)
    path.write_text("{")
    with pytest.raises(UserError, match="not JSON"):
        shf.Calibration.load(path)
    with pytest.raises(UserError, match="does not exist"):
        shf.Calibration.load(tmp_path / "none.json")
    with pytest.raises(UserError, match="is a folder"):
        shf.Calibration.load(tmp_path)


def test_scaled_multiplies_the_rates():
    calibration = make_calibration(llama(), (0, 1, 0.5), (1, 0, 0.1))
    assert [one.rate for one in calibration.scaled(2).heads] == [1.0, 0.2]
    with pytest.raises(ValueError, match="factor must be a positive number, got 0"):
        calibration.scaled(0)


# Calibrations that come with the package.


def test_shipped_calibrations_are_small_and_of_models_in_the_catalogue():
    shipped = shf.shipped_calibrations()
    assert "smollm2" in shipped
    assert set(shipped) <= set(CATALOGUE)
    for name, calibration in shipped.items():
        assert calibration.model == CATALOGUE[name].title
        assert len(calibration.text()) < 20_000
        assert calibration.gains
        assert calibration.text_cost is not None


def test_a_shipped_calibration_is_found_by_name_and_by_weights(monkeypatch):
    model = llama()
    calibration = make_calibration(model, (0, 1, 0.5), (1, 2, -0.5))
    monkeypatch.setattr(module, "shipped_calibrations", lambda: {"tiny": calibration})
    tokens = random_tokens(1, 20)
    with shf.sharpen(model, calibration):
        expected = logits(model, tokens)
    for name in ("tiny", "tuned"):
        with shf.sharpen(model, name):
            assert torch.equal(logits(model, tokens), expected)
    assert not torch.equal(logits(model, tokens), expected)


def test_a_shipped_calibration_is_refused_for_other_weights():
    for name, message in (
        ("tuned", "no tuned calibration comes with sharpmax for these weights"),
        ("smollm2", "'smollm2' was made for SmolLM2.* this model has other weights"),
        ("gpt-7", "unknown calibration 'gpt-7': expected the path"),
    ):
        with pytest.raises(UserError, match=message), shf.sharpen(llama(), name):
            pass


@pytest.mark.slow
def test_the_shipped_calibration_of_smollm2_fits_its_weights():
    model = shf.load("smollm2").model
    assert shf.shipped_calibrations()["smollm2"].weights == weights_fingerprint(model)
    tokens = torch.arange(100, 228)[None]
    plain, beyond = logits(model, tokens), logits(model, tokens.repeat(1, 2))
    with shf.sharpen(model, "tuned"):
        # Bit for bit up to 128 tokens, and something else beyond.
        assert torch.equal(logits(model, tokens), plain)
        assert not torch.equal(logits(model, tokens.repeat(1, 2))[:, 128:], beyond[:, 128:])
