"""Models inside what other packages wrap around them, with the real packages."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from accelerate import cpu_offload, dispatch_model
from accelerate.utils import send_to_device
from peft import LoraConfig, PrefixTuningConfig, get_peft_model
from torch.nn.parallel import DataParallel, DistributedDataParallel
from transformers import pipeline

import sharpmax as sx
import sharpmax.hf as shf
from hf.small import assert_nothing_is_patched, llama, random_tokens, tokenizer
from sharpmax import UserError
from sharpmax.hf.patch.wrappers import unwrap_model
from sharpmax.hf.tune.calibration import ByRate
from sharpmax.hf.tune.head_profiles import _HeadTemperatures
from sharpmax.results.calibration import Law

TOKENS = random_tokens(2, 17)
HARD = sx.Constant(3.0)


@torch.no_grad()
def answer(model):
    return model(TOKENS).logits


@pytest.fixture
def group(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def with_lora(model):
    torch.manual_seed(0)
    config = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    return get_peft_model(model, config).eval()


WRAPPERS = {
    "peft": with_lora,
    "compile": lambda model: torch.compile(model, backend="eager"),
    "ddp": DistributedDataParallel,
    "ddp around peft": lambda model: DistributedDataParallel(with_lora(model)),
    "compile around peft": lambda model: torch.compile(with_lora(model), backend="eager"),
    "offloaded": cpu_offload,
    "dispatched": lambda model: dispatch_model(model, {"": "cpu"}, force_hooks=True),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_sharpen_reaches_the_model_inside(name, group):
    model = llama()
    wrapped = WRAPPERS[name](model)
    plain = answer(wrapped)
    with shf.sharpen(wrapped, HARD, heads=[1]) as given:
        assert given is wrapped
        sharp = answer(wrapped)
    inner = unwrap_model(wrapped)
    with shf.sharpen(inner, HARD, heads=[1]):
        torch.testing.assert_close(sharp, answer(inner), rtol=0, atol=1e-4)
    assert (sharp - plain).abs().max() > 0.1
    torch.testing.assert_close(answer(wrapped), plain, rtol=0, atol=1e-4)
    handle = shf.apply(wrapped, HARD, heads=[1])
    torch.testing.assert_close(answer(wrapped), sharp, rtol=0, atol=1e-4)
    handle.remove()
    assert_nothing_is_patched()
    torch.compiler.reset()


@pytest.mark.parametrize("name", ["peft", "compile", "ddp"])
def test_other_functions_run_the_model_inside(name, group):
    wrapped = WRAPPERS[name](llama(context=700))
    inner = unwrap_model(wrapped)
    one, other = (shf.scan(model, tokenizer(), [5, 9]) for model in (wrapped, inner))
    assert torch.equal(torch.tensor(one.entropy), torch.tensor(other.entropy))
    options = {"lengths": [2], "prompts": 6, "questions": 1}
    one, other = (
        shf.evaluate(model, tokenizer(), "lookup", {"hard": HARD}, **options)
        for model in (wrapped, inner)
    )
    assert (one.log_probability == other.log_probability).all()
    torch.compiler.reset()


def test_the_adapter_takes_part():
    model = llama()
    plain = answer(model)
    with shf.sharpen(with_lora(model), sx.Constant(1.0)) as wrapped:
        assert (answer(wrapped) - plain).abs().max() > 1e-3


def prefix_tuned():
    config = PrefixTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM")
    return get_peft_model(llama(), config)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DataParallel(llama()), "DataParallel runs copies .* use DistributedDataParallel"),
        (lambda: pipeline("text-generation", model=llama(), tokenizer=tokenizer()), r"pipeline\.model"),
        (prefix_tuned, "PREFIX_TUNING adds tokens outside the model"),
        (lambda: torch.nn.ReLU(), r"expected a transformers model \(PreTrainedModel\), got ReLU"),
        (lambda: None, "got NoneType"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_without_its_wrapper_is_refused(make, message):
    model = make()
    with pytest.raises(UserError, match=message):
        shf.scan(model, tokenizer(), [5])


def test_prompt_learning_may_be_sharpened_from_outside():
    model = prefix_tuned()
    plain = answer(model)
    with shf.sharpen(model, HARD):
        assert (answer(model) - plain).abs().max() > 0.1


def on_two_devices():
    """Put the last layer on the device meta: it computes nothing, but refuses tensors of others."""
    model = llama(layers=2)
    for part in (model.model.layers[1], model.model.norm, model.lm_head):
        part.to("meta")
        part.register_forward_pre_hook(
            lambda _, inputs, options: (send_to_device(inputs, "meta"), send_to_device(options, "meta", skip_keys="past_key_values")),
            with_kwargs=True,
        )  # fmt: skip
    return model


RATES = [torch.full((4,), 0.5, requires_grad=True) for _ in range(2)]
POLICIES = {
    "constant": sx.Constant(3.0),
    "by length": sx.LogLength(4),
    "by entropy": sx.PAPER,
    "rates": ByRate(RATES[0], 4, Law(low=0.3, high=3.0)),
    "factors": _HeadTemperatures(RATES[1]),
}


@pytest.mark.parametrize("heads", [None, [1]])
@pytest.mark.parametrize("name", POLICIES)
def test_no_policy_mixes_the_devices_of_layers(name, heads):
    model = on_two_devices()
    with shf.sharpen(model, POLICIES[name], heads=heads):
        logits = model(TOKENS).logits
    assert logits.device.type == "meta"
    with shf.sharpen(model, POLICIES[name], heads=heads), torch.no_grad():
        cache = model(TOKENS[:, :-1], use_cache=True).past_key_values
        assert model(TOKENS[:, -1:], past_key_values=cache).logits.device.type == "meta"
