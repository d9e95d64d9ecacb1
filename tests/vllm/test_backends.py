"""The backends that take the place of vLLM's, on a vLLM of a few lines."""

from __future__ import annotations

import enum
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from sharpmax._errors import UserError
from sharpmax.results.calibration import Architecture, Calibration, Head
from sharpmax.vllm import backends
from sharpmax.vllm.backends import refuse_batch, refuse_layer, sharpen_implementation

CALIBRATION = Calibration(
    model="tiny",
    weights="",
    architecture=Architecture(model_type="llama", layers=2, heads=(4, 4)),
    method={},
    from_tokens=8,
    heads=(Head(layer=1, head=0, rate=0.5), Head(layer=1, head=3, rate=-0.5)),
)


class Implementation:
    supports_quant_query_input = True

    def __init__(self, *arguments, **options):
        self.options = options

    def forward(
        self,
        layer,
        query,
        key,
        value,
        kv_cache,
        attn_metadata,
        output,
        output_scale=None,
        output_block_scale=None,
    ):
        return query


class Backend:
    @staticmethod
    def get_impl_cls():
        return Implementation


class Registry(enum.Enum):
    CPU_ATTN = "fake.Backend"
    FLASHINFER = "fake.FlashInfer"
    TORCH_SDPA = ""
    CUSTOM = None

    def is_overridden(self):
        return self in replaced

    def get_path(self):
        return replaced[self]


replaced: dict[Registry, str] = {}


@pytest.fixture(autouse=True)
def parallel(monkeypatch):
    """Stand in for vLLM; return the rank and the number of processes."""
    processes = SimpleNamespace(rank=0, ranks=1)
    modules = {
        "vllm.v1.attention.backends.registry": {
            "AttentionBackendEnum": Registry,
            "register_backend": replaced.__setitem__,
        },
        "vllm.utils.import_utils": {"resolve_obj_by_qualname": {"fake.Backend": Backend}.get},
        "vllm.distributed": {
            "get_tensor_model_parallel_rank": lambda: processes.rank,
            "get_tensor_model_parallel_world_size": lambda: processes.ranks,
        },
        "vllm.model_executor.models.utils": {
            "extract_layer_index": lambda name: int(name.split(".")[1])
        },
    }
    for name, content in modules.items():
        for end in range(1, name.count(".") + 2):
            part = ".".join(name.split(".")[:end])
            if end <= name.count(".") and part in sys.modules:
                continue
            monkeypatch.setitem(sys.modules, part, ModuleType(part))
        vars(sys.modules[name]).update(content)
    replaced.clear()
    backends._sharpened_backend.cache_clear()
    monkeypatch.setattr(backends, "_installed", [])
    return processes


def make_implementation(base=Implementation, **options):
    arguments = {"alibi_slopes": None, "sliding_window": None, "kv_cache_dtype": "auto"} | options
    implementation = sharpen_implementation(base, "CPU_ATTN")
    return implementation(num_heads=4, head_size=2, scale=1.0, num_kv_heads=4, **arguments)


def run(implementation, name="layers.1", heads=4, metadata=None):
    query = torch.ones(1, heads, 2)
    layer = SimpleNamespace(layer_name=name, num_heads=heads)
    return query, implementation.forward(layer, query, query, query, query, metadata, query)


def batch(length=8 * 20, causal=True):
    """Return the metadata of one token that is generated after `length` - 1 others."""
    starts, lengths = torch.tensor([0, 1]), torch.tensor([length])
    return SimpleNamespace(query_start_loc=starts, seq_lens=lengths, causal=causal)


def test_every_decoder_backend_is_replaced():
    backends.install(CALIBRATION)
    names = {backend.name for backend in replaced}
    assert names == {"CPU_ATTN", "FLASHINFER", "CUSTOM"}
    assert replaced[Registry.CPU_ATTN] == "sharpmax.vllm.backends.CPU_ATTN"
    backends.install(CALIBRATION)  # vLLM may load plugins twice


def test_a_backend_of_another_plugin_is_not_replaced():
    replaced[Registry.CPU_ATTN] = "other.Backend"
    with pytest.raises(UserError, match=r"replaced vLLM's backend CPU_ATTN by other\.Backend"):
        backends.install(CALIBRATION)


def test_a_supported_backend_is_a_subclass():
    backend = backends.CPU_ATTN
    assert issubclass(backend, Backend)
    assert issubclass(backend.get_impl_cls(), Implementation)
    assert backend.get_impl_cls() is not Implementation


@pytest.mark.parametrize("name", ["FLASHINFER", "CUSTOM", "CPU_MLA"])
def test_other_backends_are_refused_by_name(name):
    with pytest.raises(ImportError, match=f"vLLM's backend {name}: use one of CPU_ATTN, FLASH"):
        getattr(backends, name)


def test_names_that_are_no_backends():
    assert not hasattr(backends, "something")


def test_another_interface_is_refused():
    class Other(Implementation):
        def forward(self, layer, query, positions):
            return query

    with pytest.raises(ImportError, match="backend CPU_ATTN, which takes self, layer, query, pos"):
        sharpen_implementation(Other, "CPU_ATTN")


def test_queries_reach_the_kernel_scaled():
    backends.install(CALIBRATION)
    _, found = run(make_implementation(), metadata=batch())
    expected = torch.tensor([2.0, 1.0, 1.0, 0.0]) + 0.0
    expected[0] = min(1 + 0.5 * torch.tensor(20.0).log().item(), 2.0)
    assert torch.allclose(found, expected[:, None].expand(1, 4, 2))


def test_windows_bound_the_visible_length():
    backends.install(CALIBRATION)
    query, found = run(make_implementation(sliding_window=8), metadata=batch())
    assert torch.equal(found, query)
    _, found = run(make_implementation(sliding_window=9), metadata=batch())
    assert not torch.equal(found, query)


def test_layers_without_rates_and_the_first_call_are_plain():
    backends.install(CALIBRATION)
    for arguments in ({"name": "layers.0", "metadata": batch()}, {"metadata": None}):
        query, found = run(make_implementation(), **arguments)
        assert found is query


def test_each_process_scales_its_own_heads(parallel):
    backends.install(CALIBRATION)
    _, whole = run(make_implementation(), metadata=batch())
    parallel.ranks, parts = 2, []
    for parallel.rank in range(2):
        _, part = run(make_implementation(), heads=2, metadata=batch())
        parts.append(part)
    assert torch.equal(torch.cat(parts, 1), whole)


def test_a_layer_that_the_calibration_does_not_have():
    backends.install(CALIBRATION)
    with pytest.raises(UserError, match=r"has 2 attention layers, and vLLM makes layers\.2"):
        run(make_implementation(), name="layers.2")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alibi_slopes": [0.5, 0.25]}, "alibi_slopes"),
        ({"logits_soft_cap": 50.0}, "logits_soft_cap"),
        ({"attn_type": "encoder_only"}, "encoder_only"),
        ({"kv_cache_dtype": "fp8_e4m3"}, "quantized_query"),
        ({"chunk_lookback": 1}, "chunk_lookback"),
    ],
)
def test_layers_that_are_more_than_products_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        make_implementation(**options)


def test_what_changes_no_product_is_supported():
    sinks = torch.ones(4)
    options = {"logits_soft_cap": 0, "chunk_lookback": -1, "use_alibi_sqrt": False}
    implementation = make_implementation(sinks=sinks, **options)
    assert implementation.options["sinks"] is sinks
    refuse_layer(attn_type=SimpleNamespace(value="decoder"))


@pytest.mark.parametrize("causal", [False, None, torch.tensor([True, False])])
def test_attention_in_both_directions_is_refused(causal):
    with pytest.raises(UserError, match="both directions"):
        refuse_batch(batch(causal=causal))


def test_each_batch_is_checked():
    backends.install(CALIBRATION)
    with pytest.raises(UserError, match="both directions"):
        run(make_implementation(), metadata=batch(causal=False))
