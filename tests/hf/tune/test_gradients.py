"""Models through whose quantised layers no gradient flows are refused before any work."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import sharpmax.hf as shf
from hf.patch.parallel_worker import short_task
from hf.quantised_weights import Int8Weight, quantise
from hf.small import llama, tokenizer
from sharpmax import UserError
from sharpmax.hf.tune.gradients import require_gradients


def test_plain_and_weight_only_models_pass():
    require_gradients(llama(), "tune")
    require_gradients(quantise(llama()), "tune")
    require_gradients(quantise(llama().bfloat16()), "tune")


def tune(model):
    shf.tune(model, tokenizer(), {short_task: [10]}, from_tokens=8, steps=1)


def calibrate(model):
    shf.calibrate(model, tokenizer(), short_task, short=[4], long=[30], prompts=4)


@pytest.mark.parametrize("job", [tune, calibrate])
def test_a_layer_that_cuts_the_gradient_is_named(job):
    message = rf"^{job.__name__}.* needs gradients, and model.layers.0.self_attn.q_proj, a quantised Linear \(Int8Weight\), gives none"
    with pytest.raises(UserError, match=message):
        job(quantise(llama(context=700), cut=True))


def test_a_calibration_by_entropy_needs_no_gradients():
    model = quantise(llama(context=700), cut=True)
    options = {"choose": "entropy", "short": [4], "long": [30], "prompts": 4}
    calibration = shf.calibrate(model, tokenizer(), short_task, **options)
    assert calibration.heads


class Quantised(nn.Module):
    """A quantised layer with some product."""

    def __init__(self, product) -> None:
        super().__init__()
        self.in_features, self.product = 32, product
        self.weight = quantise(nn.Sequential(nn.Linear(32, 48)))[0].weight
        assert isinstance(self.weight, Int8Weight)

    def forward(self, vectors):
        return self.product(vectors, self.weight.dequantise())


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(_, values):
        return values.clone()

    @staticmethod
    def backward(_, slope):
        return 2 * slope


def fails(vectors, _):
    raise RuntimeError("derivative for aten::_weight_int4pack_mm_for_cpu is not implemented")


@pytest.mark.parametrize(
    ("product", "message"),
    [
        (lambda vectors, weight: functional.linear(Twice.apply(vectors), weight), "gives a wrong one"),
        (lambda vectors, weight: functional.linear(vectors.detach(), weight), "gives none"),
        (lambda vectors, weight: functional.linear(vectors.detach(), weight) + 0 * vectors.sum(), "gives a wrong one"),
        (fails, r"has no backward pass \(RuntimeError\)"),
    ],
)  # fmt: skip
def test_wrong_gradients_are_named(product, message):
    model = llama()
    model.model.layers[1].mlp.up_proj = Quantised(product)
    with pytest.raises(UserError, match=rf"model.layers.1.mlp.up_proj, .*{message}"):
        require_gradients(model, "tune")


def test_a_layer_of_another_kind_is_named():
    model = llama()
    model.model.layers[1].mlp.up_proj = layer = Quantised(functional.linear)
    layer.in_features = None
    with pytest.raises(UserError, match="of a kind whose gradient sharpmax cannot check"):
        require_gradients(model, "tune")
