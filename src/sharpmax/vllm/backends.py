"""Attention backends that scale queries and then run vLLM's own.

vLLM finds a backend by the path of its class. `install` replaces the paths of all backends by names
in this module, which `__getattr__` resolves: a subclass for those whose interface is known, and an
error that names the backend for all others. Where vLLM chooses among several backends, it skips
those with an error.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
from torch import Tensor

from sharpmax._errors import UserError
from sharpmax.results.calibration import Calibration
from sharpmax.vllm import VARIABLE
from sharpmax.vllm.queries import QueryScaling, local_rates

TESTED = ("CPU_ATTN",)
SAME_INTERFACE = ("FLASH_ATTN", "TRITON_ATTN")
"""Backends with the same interface as the tested one. They need a GPU, and have not been run."""

NO_DECODERS = ("NO_ATTENTION", "TORCH_SDPA")
"""Backends that never compute a decoder's attention. They stay as they are."""

FORWARD = (
    *("self", "layer", "query", "key", "value", "kv_cache", "attn_metadata", "output"),
    *("output_scale", "output_block_scale"),
)
"""The arguments of an implementation's `forward`."""

_installed: list[Calibration] = []


def install(calibration: Calibration) -> None:
    """Replace all attention backends of vLLM in this process.

    Args:
        calibration: The calibration that their layers follow.

    Raises:
        UserError: Another plugin has replaced a backend.
    """
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    for backend in AttentionBackendEnum:
        path = f"{__name__}.{backend.name}"
        if backend.name in NO_DECODERS:
            continue
        if backend.is_overridden() and backend.get_path() != path:
            raise UserError(
                f"another plugin has replaced vLLM's backend {backend.name} by "
                f"{backend.get_path()}: disable it with VLLM_PLUGINS, or unset {VARIABLE}"
            )
        register_backend(backend, path)
    _installed[:] = [calibration]


def __getattr__(name: str) -> Any:
    if not name.isupper():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _sharpened_backend(name)


@functools.cache
def _sharpened_backend(name: str) -> type:
    """Return the subclass of one of vLLM's backends.

    Raises:
        ImportError: It is not supported. vLLM takes this error as a reason to skip a backend.
    """
    supported = (*TESTED, *SAME_INTERFACE)
    if name not in supported:
        raise ImportError(
            f"sharpmax cannot scale the queries of vLLM's backend {name}: use one of "
            f"{', '.join(supported)}, or unset {VARIABLE}"
        )
    from vllm.utils.import_utils import resolve_obj_by_qualname
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    backend = resolve_obj_by_qualname(AttentionBackendEnum[name].value)
    implementation = sharpen_implementation(backend.get_impl_cls(), name)
    return type(
        name,
        (backend,),
        {
            "__doc__": f"vLLM's {backend.__name__} with scaled queries.",
            "__module__": __name__,
            "get_impl_cls": staticmethod(lambda: implementation),
        },
    )


def sharpen_implementation(base: Any, name: str) -> type:
    """Return a subclass of an implementation that scales the queries before it attends.

    Args:
        base: The class of vLLM.
        name: The name of its backend.

    Returns:
        The subclass. Its layers follow the calibration that is installed.

    Raises:
        ImportError: `forward` takes other arguments than are known.
    """
    arguments = tuple(inspect.signature(base.forward).parameters)
    if arguments != FORWARD:
        raise ImportError(
            f"sharpmax expects {', '.join(FORWARD)} as arguments of vLLM's backend {name}, which "
            f"takes {', '.join(arguments)}: use another backend, or unset {VARIABLE}"
        )

    class SharpenedImplementation(base):  # type: ignore[misc]
        def __init__(
            self,
            num_heads: int,
            head_size: int,
            scale: float,
            num_kv_heads: int,
            alibi_slopes: list[float] | None,
            sliding_window: int | None,
            kv_cache_dtype: str,
            logits_soft_cap: float | None = None,
            attn_type: str = "decoder",
            kv_sharing_target_layer_name: str | None = None,
            **more: Any,
        ) -> None:
            refuse_layer(
                alibi_slopes=alibi_slopes,
                logits_soft_cap=logits_soft_cap,
                attn_type=attn_type,
                # A query in 8 bits has its own scale, and no room for another factor.
                quantized_query=base.supports_quant_query_input
                and kv_cache_dtype.startswith(("fp8", "nvfp4")),
                **more,
            )
            super().__init__(
                num_heads,
                head_size,
                scale,
                num_kv_heads,
                alibi_slopes,
                sliding_window,
                kv_cache_dtype,
                logits_soft_cap,
                attn_type,
                kv_sharing_target_layer_name,
                **more,
            )
            self._window = sliding_window
            self._scaling: QueryScaling | None = None

        def forward(
            self,
            layer: Any,
            query: Tensor,
            key: Tensor,
            value: Tensor,
            kv_cache: Tensor,
            attn_metadata: Any,
            output: Tensor,
            output_scale: Tensor | None = None,
            output_block_scale: Tensor | None = None,
        ) -> Tensor:
            # The first call, which measures memory, has no metadata: what is wrong is said then.
            if self._scaling is None:
                self._scaling = scaling_of_layer(layer, self._window, query.device)
            if attn_metadata is not None:
                refuse_batch(attn_metadata)
                query = self._scaling(query, attn_metadata)
            return super().forward(
                layer,
                query,
                key,
                value,
                kv_cache,
                attn_metadata,
                output,
                output_scale,
                output_block_scale,
            )

    SharpenedImplementation.__name__ = f"Sharpened{base.__name__}"
    return SharpenedImplementation


def refuse_layer(*, attn_type: str, sinks: Any = None, **options: Any) -> None:
    """Refuse an attention layer whose logits are more than products of queries and keys.

    Args:
        attn_type: vLLM's name for the kind of attention.
        sinks: The sinks of the layer, which are supported: no factor belongs to them.
        options: Everything else that a layer may ask for.

    Raises:
        UserError: It is not a decoder's attention, or an option is set.
    """
    if getattr(attn_type, "value", attn_type) != "decoder":
        raise UserError(
            f"{VARIABLE}: attention of the kind {attn_type} is not supported with a calibration; "
            "only decoders are"
        )
    for name, value in options.items():
        if value not in (None, False, 0, -1):
            raise UserError(
                f"{VARIABLE}: a layer has {name}, which is not supported with a calibration; unset "
                f"{VARIABLE} and serve a folder that sharpmax export writes"
            )


def refuse_batch(metadata: Any) -> None:
    """Refuse a batch in which a token sees later ones.

    Raises:
        UserError: The batch is not causal.
    """
    if metadata.causal is not True:
        raise UserError(
            f"{VARIABLE}: attention in both directions is not supported with a calibration"
        )


def scaling_of_layer(layer: Any, window: int | None, device: torch.device) -> QueryScaling:
    """Return how the queries of a layer are scaled.

    Args:
        layer: vLLM's attention layer.
        window: Its sliding window.
        device: Where its queries are.

    Raises:
        UserError: The calibration has no such layer, or another number of heads for it.
    """
    from vllm.distributed import (
        get_tensor_model_parallel_rank,
        get_tensor_model_parallel_world_size,
    )
    from vllm.model_executor.models.utils import extract_layer_index

    (calibration,) = _installed
    name, number = layer.layer_name, extract_layer_index(layer.layer_name)
    sizes = calibration.architecture.heads
    if number >= len(sizes):
        raise UserError(
            f"the calibration has {len(sizes)} attention layers, and vLLM makes {name}: calibrate "
            "this model itself"
        )
    rates = calibration.rates().get(number, (0.0,) * sizes[number])
    rank, ranks = get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size()
    mine = local_rates(rates, layer.num_heads, rank, ranks, name)
    return QueryScaling(mine, calibration, window, device)
