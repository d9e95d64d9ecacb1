"""The parts of the result about the vLLM plugin."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import models
import numpy as np
import reference
from comparison import NAMES, NEW, Part, compare_vllm, require, require_equal
from engines import Worker, run_vllm

import sharpmax.hf as shf
from sharpmax.hf.loading.loader import Loaded


def parity(loaded: Loaded) -> Part:
    """The plugin equals `shf.sharpen`, however vLLM cuts the batch."""
    model, calibration = loaded.model, models.shipped_calibration()
    folder = str(models.plain_folder())
    prompts = [
        reference.whole(prompt) for prompt in reference.lookup_prompts(loaded.tokenizer, NAMES)
    ]

    sharpened = partial(shf.sharpen, policy=calibration)
    ways: dict[str, Part] = {}
    options = {"model": folder, "enforce_eager": True, "max_model_len": 1024}
    for name, more in (
        ("one batch of different lengths", {}),
        ("chunked prefill, 96 tokens at a time", {"max_num_batched_tokens": 96, "max_num_seqs": 8}),
        ("compiled by vLLM", {"enforce_eager": False}),
    ):
        label = name.split(",")[0].replace(" ", "-")
        with Worker("vllm", label, calibration=calibration, **(options | more)) as worker:
            answers = worker.ask(prompts, NEW, "all")["answers"]
            versions = worker.versions
        ways[name] = compare_vllm(model, prompts, answers, sharpened)
        require_equal(name, ways[name])
    ways["prefix caching"] = cached_prefixes(loaded, calibration, options, sharpened)
    require_equal("prefix caching", ways["prefix caching"])
    return {"versions": versions, "ways": ways}


def cached_prefixes(
    loaded: Loaded,
    calibration: Path,
    options: Part,
    sharpened: Callable[[Any], AbstractContextManager[Any]],
) -> Part:
    """Ask a second question about texts whose keys vLLM has kept."""
    asked = reference.lookup_prompts(loaded.tokenizer, (64, 40), 2)
    first, second = (
        [[*prompt.context, *prompt.questions[number]] for prompt in asked] for number in range(2)
    )
    name = "prefix-caching"
    with Worker(
        "vllm", name, calibration=calibration, enable_prefix_caching=True, **options
    ) as worker:
        worker.ask(first, NEW)
        answers = worker.ask(second, NEW)["answers"]
    cached = [row["cached"] for row in answers]
    require(min(cached) > 0, f"vLLM read no keys from its cache ({cached})")
    return compare_vllm(loaded.model, second, answers, sharpened) | {"cached": cached}


def zero_rates(loaded: Loaded) -> Part:
    """Rates of 0 change no bit, and neither does a calibration in short inputs."""
    prompts = [
        reference.whole(prompt) for prompt in reference.lookup_prompts(loaded.tokenizer, NAMES)
    ]
    calibration = models.shipped_calibration()
    options = {"model": str(models.plain_folder()), "enforce_eager": True, "max_model_len": 1024}
    answers = {}
    for name, file in (("stock", None), ("zero", models.zero_calibration()), ("all", calibration)):
        with Worker("vllm", name, calibration=file, **options) as worker:
            answers[name] = worker.ask(prompts, NEW, "all")["answers"]
            versions = worker.versions
    start = shf.Calibration.load(calibration).from_tokens
    short = [place for place, prompt in enumerate(prompts) if len(prompt) + NEW <= start]
    same = answers["zero"] == answers["stock"]
    same_short = all(answers["all"][place] == answers["stock"][place] for place in short)
    print(f"zero rates: same bits {same}; short inputs: same bits {same_short}", flush=True)
    require(same, "rates of 0 change vLLM's log-probabilities")
    require(bool(short) and same_short, f"inputs of up to {start} tokens change in vLLM")
    require(answers["all"] != answers["stock"], "the calibration changes nothing in vLLM")
    return {"versions": versions, "prompts": len(prompts), "short": len(short), "same_bits": True}


def architectures(_: Loaded) -> Part:
    """Windows bound the visible length, and head numbers are the model's on two processes."""
    generator = np.random.default_rng(0)
    prompts = [generator.integers(3, 128, size=size).tolist() for size in (300, 9, 150, 70, 64)]
    found = {}
    for architecture, ranks in (("mistral", 1), ("gemma3", 1), ("llama", 1), ("llama", 2)):
        model, folder, calibration = models.tiny(architecture)
        name = f"tiny {architecture}" + (" on 2 processes" if ranks == 2 else "")
        options: Part = {"model": str(folder), "enforce_eager": True, "max_model_len": 512}
        if ranks == 2:
            options |= {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}
        label = name.replace(" ", "-")
        with Worker("vllm", label, calibration=calibration, apart=ranks > 1, **options) as worker:
            answers = worker.ask(prompts, NEW, "all")["answers"]
            versions = worker.versions
        sharpened = partial(shf.sharpen, policy=calibration)
        found[name] = compare_vllm(model, prompts, answers, sharpened)
        require_equal(name, found[name])
    return {"versions": versions, "models": found}


def refusals(_: Loaded) -> Part:
    """What cannot be exact is refused in one line, in the real vLLM."""
    _, folder, calibration = models.tiny("mistral")
    lines = {
        "another architecture": (str(models.plain_folder()), str(calibration)),
        "a missing file": (str(folder), "missing.json"),
    }
    for name, (model, file) in lines.items():
        code, line = run_vllm("vllm_worker.py", json.dumps({"model": model}), file)
        require(
            code == 2 and line.startswith("sharpmax: "),
            f"{name} ends vLLM with code {code} and {line!r}",
        )
        lines[name] = line
    code, line = run_vllm("vllm_interfaces.py", "", "")
    require(code == 0, f"the interfaces of vLLM's backends have changed: {line}")
    backends = json.loads(line)
    made = [name for name, what in backends.items() if what.startswith("Sharpened")]
    require(
        sorted(made) == ["CPU_ATTN", "FLASH_ATTN", "TRITON_ATTN"]
        and all(name in made or f" {name}:" in what for name, what in backends.items()),
        f"the plugin makes {backends} of vLLM's backends",
    )
    print(f"refused: {lines}; supported backends: {made} of {len(backends)}", flush=True)
    return {"lines": len(lines), "backends": made, "refused": len(backends) - len(made)}
