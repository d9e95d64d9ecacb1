"""Every verb on every kind of model: the plain model's numbers, or a refusal that says why.

Processes that share a model are in test_parallel.py; here one process is the whole group.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from accelerate import cpu_offload, disk_offload, dispatch_model
from peft import LoraConfig, get_peft_model
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DataParallel, DistributedDataParallel

import sharpmax as sx
import sharpmax.hf as shf
from hf.patch.parallel_worker import GUARD, make_calibration, short_task
from hf.quantised_weights import dequantise, quantise
from hf.small import assert_nothing_is_patched, llama, random_tokens, tokenizer
from sharpmax import UserError

TOKENS = random_tokens(2, 17)
SAME = 0.0
ROUNDED = 1e-4
"""Of what computes a product in another order."""


def plain() -> Any:
    return llama(context=700)


# The verbs. Each returns numbers by name, or raises.


@torch.no_grad()
def sharpen(model: Any, folder: Path) -> dict[str, Any]:
    with shf.sharpen(model, sx.PAPER, heads=[1]):
        return {"logits": model(TOKENS).logits}


@torch.no_grad()
def apply(model: Any, folder: Path) -> dict[str, Any]:
    handle = shf.apply(model, make_calibration(plain()))
    try:
        return {"logits": model(TOKENS).logits}
    finally:
        handle.remove()


def scan(model: Any, folder: Path) -> dict[str, Any]:
    result = shf.scan(model, tokenizer(), [5, 9], layers=[0, 1], resume=folder / "part.json")
    return result.arrays | {"parameters": result.config["parameters"]}


def evaluate(model: Any, folder: Path) -> dict[str, Any]:
    conditions = {"hard": sx.Constant(3.0)}
    options = {"lengths": [2], "prompts": 6, "questions": 1, "resume": folder / "part.json"}
    return shf.evaluate(model, tokenizer(), "lookup", conditions, **options).arrays


def diagnose(model: Any, folder: Path) -> dict[str, Any]:
    options = {"lengths": [2, 4], "prompts": 1, "questions": 2, "policy": sx.Constant(1.5)}
    return shf.diagnose(model, tokenizer(), "lookup", **options).arrays


def rates_of(job: Callable[[], shf.Calibration]) -> dict[str, Any]:
    """Return the rates by layer, or what says that there is nothing to gain."""
    try:
        return {str(layer): rates for layer, rates in job().rates().items()}
    except shf.NothingToGain as error:
        return {"nothing": str(error)}


def calibrate_by_entropy(model: Any, folder: Path) -> dict[str, Any]:
    options = {"choose": "entropy", "short": [4], "long": [30], "prompts": 4}
    return rates_of(lambda: shf.calibrate(model, tokenizer(), short_task, **options))


def calibrate(model: Any, folder: Path) -> dict[str, Any]:
    options = {"short": [4, 6], "long": [30], "prompts": 6}
    return rates_of(lambda: shf.calibrate(model, tokenizer(), short_task, **options))


def tune(model: Any, folder: Path) -> dict[str, Any]:
    options = {"guard": GUARD, "guard_weight": 0.1, "max_text_cost": None, "from_tokens": 8}
    tasks = {short_task: [10, 20]}
    return rates_of(
        lambda: shf.tune(model, tokenizer(), tasks, steps=4, check_prompts=0, **options)
    )


def export(model: Any, folder: Path) -> dict[str, Any]:
    shf.export(model, sx.Constant(1.5), folder / "exported", heads=[1])
    exported = type(plain()).from_pretrained(folder / "exported")
    with torch.no_grad():
        return {"logits": exported(TOKENS).logits}


def certify(model: Any, folder: Path) -> dict[str, Any]:
    return shf.certify(model).arrays


VERBS: dict[str, Callable[[Any, Path], dict[str, Any]]] = {
    function.__name__: function
    for function in (sharpen, apply, scan, evaluate, diagnose, calibrate_by_entropy, calibrate, tune, export, certify)
}  # fmt: skip


# The models, each with the plain model whose numbers it must give.


def shard(model: Any) -> Any:
    for layer in model.model.layers:
        fully_shard(layer)
    return fully_shard(model)


def shard_by_wrapper(model: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one process has nothing to share
        return FullyShardedDataParallel(model, device_id=torch.device("cpu"))


def with_lora(model: Any) -> Any:
    torch.manual_seed(0)
    config = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    return get_peft_model(model, config).eval()


def merged() -> Any:
    return with_lora(plain()).merge_and_unload()


def on_disk(folder: Path) -> Any:
    plain().save_pretrained(folder / "model")
    tokenizer().save_pretrained(folder / "model")
    options = {"device_map": "auto", "max_memory": {"cpu": "60KB"}}
    return shf.load(str(folder / "model"), **options).model


MODELS: dict[str, Callable[[Path], Any]] = {
    "plain": lambda _: plain(),
    "compiled": lambda _: torch.compile(plain(), backend="eager"),
    "data parallel": lambda _: DataParallel(plain()),
    "distributed data parallel": lambda _: DistributedDataParallel(plain()),
    "device map": lambda _: dispatch_model(plain(), {"": "cpu"}, force_hooks=True),
    "partly on disk": on_disk,
    "offloaded to memory": lambda _: cpu_offload(plain()),
    "offloaded to disk": lambda folder: disk_offload(plain(), str(folder / "offloaded")),
    "fsdp 1": lambda _: shard_by_wrapper(plain()),
    "fsdp 2": lambda _: shard(plain()),
    "peft": lambda _: with_lora(plain()),
    "quantised": lambda _: quantise(plain()),
    "quantised inputs": lambda _: quantise(plain(), cut=True),
}
EQUALS: dict[str, Callable[[], Any]] = {
    "peft": merged,
    "quantised": lambda: dequantise(quantise(plain())),
    "quantised inputs": lambda: dequantise(quantise(plain())),
}
"""The plain model that a model equals, if it is not `plain()`."""

REPLICAS = "DataParallel runs copies of a model, which sharpmax does not reach"
OLD_WRAPPER = "FullyShardedDataParallel cannot be run without its wrapper"
OFFLOADED = "reads whole weights, and .* is offloaded to CPU memory or disk"
SPLIT = "reads whole weights, and .* is split among processes"
FEW_BITS = r"reads whole weights, and .*q_proj.weight is quantised \(Int8Weight\)"
OTHER_WEIGHTS = "this calibration was made for other weights"

EXPECTED: dict[str, dict[str, float | str]] = {
    # The CPU kernel is not part of a compiled graph; what replaces it adds in another order.
    "compiled": dict.fromkeys(VERBS, SAME) | {"sharpen": ROUNDED},
    "data parallel": dict.fromkeys(VERBS, REPLICAS),
    "distributed data parallel": dict.fromkeys(VERBS, SAME),
    "device map": dict.fromkeys(VERBS, SAME),
    **dict.fromkeys(
        ("partly on disk", "offloaded to memory", "offloaded to disk"),
        dict.fromkeys(VERBS, SAME) | {"export": OFFLOADED, "certify": OFFLOADED},
    ),
    "fsdp 1": dict.fromkeys(VERBS, OLD_WRAPPER) | {"sharpen": SAME, "apply": OTHER_WEIGHTS},
    "fsdp 2": dict.fromkeys(VERBS, SAME)
    | {
        "calibrate": "calibrate .* needs gradients through two passes at once",
        "tune": "tune needs gradients through two passes at once",
        "export": SPLIT,
        "certify": SPLIT,
    },
    "peft": dict.fromkeys(VERBS, ROUNDED)
    | {"apply": OTHER_WEIGHTS, "export": "not a plain Linear", "certify": "not a plain Linear"},
    "quantised": dict.fromkeys(VERBS, SAME)
    | {"apply": OTHER_WEIGHTS, "export": FEW_BITS, "certify": FEW_BITS},
    "quantised inputs": dict.fromkeys(VERBS, SAME)
    | {
        "apply": OTHER_WEIGHTS,
        "calibrate": r"calibrate .* needs gradients, and .*q_proj, a quantised Linear \(Int8Weight\)",
        "tune": r"tune needs gradients, and .*q_proj, a quantised Linear \(Int8Weight\)",
        "export": FEW_BITS,
        "certify": FEW_BITS,
    },
}  # fmt: skip
"""The largest difference to the plain model's numbers, or what the refusal says."""


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory):
    store = tmp_path_factory.mktemp("group") / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """Return what a verb gives for the plain model that another one equals."""

    @cache
    def run(wrapper: str, verb: str) -> dict[str, Any]:
        model = EQUALS.get(wrapper, plain)()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", shf.OtherWeightsWarning)
            return VERBS[verb](model, tmp_path_factory.mktemp("reference"))

    return lambda wrapper, verb: run(wrapper if wrapper in EQUALS else "plain", verb)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("wrapper", EXPECTED)
def test_a_cell_is_right_or_refused_by_name(wrapper, verb, tmp_path, reference):
    expected = EXPECTED[wrapper][verb]
    model = MODELS[wrapper](tmp_path)
    before = sorted(tmp_path.iterdir())
    if isinstance(expected, str):
        with pytest.raises((UserError, shf.OtherWeightsWarning)) as caught:
            VERBS[verb](model, tmp_path)
        assert re.search(expected, str(caught.value)), caught.value
        assert sorted(tmp_path.iterdir()) == before
    else:
        answers, numbers = reference(wrapper, verb), VERBS[verb](model, tmp_path)
        if wrapper == "peft":  # which has the adapter's besides
            numbers.pop("parameters", None)
            answers = {name: value for name, value in answers.items() if name != "parameters"}
        assert numbers.keys() == answers.keys()
        for name, answer in answers.items():
            if name == "nothing":
                assert numbers[name] == answer
            else:
                found, wanted = np.asarray(numbers[name], float), np.asarray(answer, float)
                np.testing.assert_allclose(found, wanted, rtol=expected, atol=expected)
    torch.compiler.reset()
    assert_nothing_is_patched()


def test_the_cells_compare_something(reference):
    assert EXPECTED.keys() == MODELS.keys() - {"plain"}
    with torch.no_grad():
        logits = plain()(TOKENS).logits
        for changed in (merged(), dequantise(quantise(plain()))):
            assert (changed(TOKENS).logits - logits).abs().max() > 0.01
    for verb in ("sharpen", "apply", "export"):
        assert (reference("plain", verb)["logits"] - logits).abs().max() > 0.01
    for verb in ("calibrate_by_entropy", "calibrate", "tune"):
        assert "nothing" not in reference("plain", verb)
