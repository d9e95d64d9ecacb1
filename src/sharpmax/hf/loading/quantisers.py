"""Refuse a quantised model that transformers cannot read, before it starts to load it."""

from __future__ import annotations

import importlib.util
from typing import Any

import transformers
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

from sharpmax._errors import UserError

PACKAGES: dict[str, dict[str, str]] = {
    "aqlm": {"aqlm": "aqlm[cpu,gpu]"},
    "auto-round": {"auto_round": "auto-round"},
    "awq": {"gptqmodel": "gptqmodel"},
    "bitsandbytes": {"bitsandbytes": "bitsandbytes"},
    "compressed-tensors": {"compressed_tensors": "compressed-tensors"},
    "eetq": {"kernels": "kernels"},
    "fbgemm_fp8": {"fbgemm_gpu": "fbgemm-gpu"},
    "fouroversix": {"fouroversix": "fouroversix"},
    "fp_quant": {"fp_quant": "fp_quant"},
    "gptq": {"optimum": "optimum", "gptqmodel": "gptqmodel"},
    "higgs": {"flute": "flute-kernel", "fast_hadamard_transform": "fast_hadamard_transform"},
    "hqq": {"hqq": "hqq"},
    "metal": {"kernels": "kernels"},
    "nvfp4": {"kernels": "kernels"},
    "quanto": {"optimum": "optimum", "optimum.quanto": "optimum-quanto"},
    "quark": {"quark": "amd-quark"},
    "sinq": {"sinq": "sinq"},
    "spqr": {"spqr_quant": "spqr_quant[gpu]"},
    "torchao": {"torchao": "torchao"},
    "vptq": {"vptq": "vptq"},
}
"""By quantisation method: the modules that transformers needs, and how pip knows them. Methods
that need none, such as fp8, are left out."""


def require_quantiser(name: str, config: Any) -> None:
    """Refuse a model whose config names a quantisation that is unknown or not installed.

    Args:
        name: What the user has typed.
        config: The config of the model.

    Raises:
        UserError: The method is unknown, or a package is missing. The message names it.
    """
    method = quantisation_method(config)
    known = {*AUTO_QUANTIZATION_CONFIG_MAPPING, "bitsandbytes"}
    if method is not None and method not in known:
        # transformers would load the weights as if they were not quantised.
        raise UserError(
            f"{name} is quantised by {method!r}, unknown to this transformers "
            f"({transformers.__version__}): "
            "upgrade it, or give the model without quantisation"
        )
    missing = [
        package for module, package in PACKAGES.get(str(method), {}).items() if _is_missing(module)
    ]
    if missing:
        packages = " ".join(f"'{package}'" if "[" in package else package for package in missing)
        raise UserError(
            f"{name} is quantised ({method}), which needs {' and '.join(missing)}: pip install "
            f"{packages}"
        )


def quantisation_method(config: Any) -> str | None:
    """Return the `quant_method` of a model's config, such as "torchao"; None if there is none."""
    for part in (config, config.get_text_config()):
        given = getattr(part, "quantization_config", None)
        if given is not None:
            method = given.get("quant_method") if isinstance(given, dict) else given.quant_method
            return None if method is None else str(getattr(method, "value", method))
    return None


def _is_missing(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is None
    except ModuleNotFoundError:  # a package that the module is in
        return True
