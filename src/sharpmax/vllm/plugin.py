"""Decide whether a calibration can be applied inside this vLLM, to this model, and install it."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

from sharpmax._errors import UserError
from sharpmax.results.calibration import EXPORT_MARK, Architecture, Calibration
from sharpmax.vllm import VARIABLE, stop

SUPPORTED_VERSIONS = ("0.32",)
"""The minor versions of vLLM whose attention backends the plugin is tested with."""

CHECKED = "_sharpmax_checked"
"""Marks the function that checks configs, so that it is not wrapped twice."""


def install(path: str) -> None:
    """Let all attention layers that vLLM makes in this process follow a calibration.

    Args:
        path: The file of the calibration.

    Raises:
        UserError: The file or the version of vLLM cannot be used.
    """
    calibration = load_calibration(path)
    from vllm.version import __version__

    require_version(__version__)
    from sharpmax.vllm import backends

    backends.install(calibration)
    _check_each_config(calibration, path)


def load_calibration(path: str) -> Calibration:
    """Read the calibration that the environment names.

    Raises:
        UserError: There is no such file, or it is not a calibration.
    """
    if not Path(path).is_file():
        raise UserError(
            f"{VARIABLE}={path}: no such file; give the path of a calibration, as sharpmax tune "
            "writes it"
        )
    return Calibration.load(path)


def require_version(version: str) -> None:
    """Refuse a version of vLLM that the plugin is not tested with.

    Args:
        version: The version that runs.

    Raises:
        UserError: It is not supported.
    """
    minor = re.match(r"\d+\.\d+", version)
    if minor is None or minor[0] not in SUPPORTED_VERSIONS:
        raise UserError(
            f"vLLM {version}: the plugin supports {' and '.join(SUPPORTED_VERSIONS)}; install one "
            f"of these, or unset {VARIABLE} and serve a folder that sharpmax export writes"
        )


def require_config(calibration: Calibration, config: Any) -> None:
    """Refuse a model, or a way of serving it, for which the calibration would not be exact.

    Args:
        calibration: The calibration.
        config: The `VllmConfig` of the engine.

    Raises:
        UserError: The architecture is another one, or an option is not supported.
    """
    model, parallel = config.model_config, config.parallel_config
    hf_config, text = model.hf_config, model.hf_text_config
    layers = int(getattr(text, "num_hidden_layers", 0))
    heads = int(getattr(text, "num_attention_heads", 0))
    given = Architecture(
        model_type=str(hf_config.model_type), layers=max(layers, 1), heads=(heads,) * layers
    )
    calibration.architecture.require(given, calibration.model, model.model)
    if hasattr(hf_config, EXPORT_MARK):
        raise UserError(
            f"{model.model} was written by sharpmax export, and a calibration is in its weights "
            f"already: unset {VARIABLE}, or serve the original model"
        )
    unsupported = {
        "speculative decoding": config.speculative_config is not None,
        "context parallelism": parallel.decode_context_parallel_size > 1
        or parallel.prefill_context_parallel_size > 1,
        # The variable might not reach the other machines, whose heads would stay as they are.
        "serving on several machines": parallel.nnodes > 1
        or parallel.distributed_executor_backend == "ray",
        "a softcap on the attention's logits": bool(getattr(text, "attn_logit_softcapping", None)),
        "chunked local attention": bool(getattr(text, "attention_chunk_size", None)),
        "a prefix that is attended to in both directions": model.is_mm_prefix_lm,
        "reference sliding windows": model.rswa_window is not None,
        "fast prefill with shared keys": config.cache_config.kv_sharing_fast_prefill,
    }
    for what, present in unsupported.items():
        if present:
            raise UserError(
                f"{VARIABLE}: {what} is not supported with a calibration; switch it off, or unset "
                f"{VARIABLE} and serve a folder that sharpmax export writes"
            )


def _check_each_config(calibration: Calibration, path: str) -> None:
    """Check each engine's config where it is made: before any weights are loaded.

    The process that makes it is the one that the user started. Later, in an engine's own process,
    the reason would be a line among hundreds.
    """
    from vllm.engine.arg_utils import EngineArgs
    from vllm.logger import init_logger

    make_config = EngineArgs.create_engine_config
    if getattr(make_config, CHECKED, False):
        return
    changed = [head for head in calibration.heads if head.rate]

    @functools.wraps(make_config)
    def make_and_check_config(*arguments: Any, **options: Any) -> Any:
        config = make_config(*arguments, **options)
        try:
            require_config(calibration, config)
        except UserError as error:
            stop(error)
        # Not earlier: vLLM configures its log while it makes a config.
        init_logger("vllm.sharpmax").info(
            "sharpmax applies %s: %d heads in %d layers change in inputs of more than %d tokens",
            path,
            len(changed),
            len({head.layer for head in changed}),
            calibration.from_tokens,
        )
        return config

    setattr(make_and_check_config, CHECKED, True)
    EngineArgs.create_engine_config = make_and_check_config
