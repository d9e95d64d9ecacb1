"""Compare vLLM and llama.cpp with `shf.sharpen`, and write what was found as a result.

    python tools/serving/run.py results/serving.json [PART ...]

Each part is saved when it is finished. Parts that the file has are not repeated unless they are
named. `throughput` runs only if it is named: it needs a machine that does nothing else.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import models
import numpy as np
import reference
import transformers
from throughput import throughput
from workers import Worker, run_vllm

import sharpmax.hf as shf
from sharpmax.hf.evaluate.scoring import score_answers
from sharpmax.hf.loading.catalogue import CATALOGUE
from sharpmax.hf.loading.loader import Loaded, load
from sharpmax.results import Result, Stopwatch

NAMES = (64, 4, 40, 24, 8)
"""Of the prompts whose log-probabilities are compared: about 60 to 820 tokens."""

NEW = 8
"""Tokens that are generated after each prompt."""

LOOKUP_NAMES, LOOKUP_PROMPTS, LOOKUP_QUESTIONS = 40, 6, 8

Part = dict[str, Any]


class Failed(SystemExit):
    """A comparison that does not hold; nothing of its part is saved."""


def require(holds: bool, message: str) -> None:
    if not holds:
        raise Failed(f"serving: {message}")


def texts_of(prompts: list[list[int]], answers: list[Part]) -> list[list[int]]:
    return [[*prompt, *row["tokens"]] for prompt, row in zip(prompts, answers, strict=True)]


def compare_vllm(
    model: Any,
    prompts: list[list[int]],
    answers: list[Part],
    sharpened: Callable[[Any], AbstractContextManager[Any]],
) -> Part:
    """Compare an engine's log-probabilities with those of transformers inside `sharpened(model)`.

    `rounding` is the error of transformers in float32. `effect` says how far the engine is from
    the plain model, so that equality means something.
    """
    exact = reference.in_float64(model)
    differences, errors, effects = [], [], []
    for text, row in zip(texts_of(prompts, answers), answers, strict=True):
        found = np.array([*row.get("prompt_logprobs", []), *row["logprobs"]])
        first = len(text) - len(found)
        with sharpened(model):
            expected = reference.of_tokens(model, text, first)
        with sharpened(exact):
            errors.append(expected - reference.of_tokens(exact, text, first))
        differences.append(found - expected)
        effects.append(found - reference.of_tokens(model, text, first))
    rounding = reference.largest(errors)
    return {
        "tokens": [len(prompt) for prompt in prompts],
        "compared": sum(map(len, differences)),
        "largest_difference": reference.largest(differences),
        "rounding": rounding,
        "tolerance": reference.ERRORS * rounding,
        "effect": reference.largest(effects),
    }


def require_equal(name: str, part: Part) -> None:
    print(f"{name}: {part}", flush=True)
    difference, tolerance = part["largest_difference"], part["tolerance"]
    require(
        difference <= tolerance < part["effect"] / 100,
        f"{name} is off by {difference:.3g}; at most {tolerance:.3g} is rounding, and the "
        f"calibration changes {part['effect']:.3g}",
    )


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


def export(loaded: Loaded) -> Part:
    """A folder that `sharpmax export` writes equals constant factors, in both engines."""
    model = loaded.model
    folder = models.exported("smollm2", "smollm2-at-512")
    prompts = [
        reference.whole(prompt) for prompt in reference.lookup_prompts(loaded.tokenizer, NAMES)
    ]

    def constants(some_model: Any) -> AbstractContextManager[Any]:
        calibration = models.shipped_calibration()
        return reference.constant_factors(some_model, calibration, models.AT_LENGTH)

    written = shf.load(str(folder)).model
    own = [
        {"tokens": [], "logprobs": reference.of_tokens(written, prompt).tolist()}
        for prompt in prompts
    ]
    engines = {"transformers": compare_vllm(model, prompts, own, constants)}
    options = {"model": str(folder), "enforce_eager": True, "max_model_len": 1024}
    with Worker("vllm", "export", **options) as worker:
        answers = worker.ask(prompts, NEW, "all")["answers"]
        versions = worker.versions
    engines["vLLM"] = compare_vllm(model, prompts, answers, constants)
    for name, part in engines.items():
        require_equal(f"export in {name}", part)
    versions["transformers"] = transformers.__version__
    return {"versions": versions, "at_length": models.AT_LENGTH, "engines": engines}


def compare_llamacpp(
    model: Any,
    prompts: list[list[int]],
    answers: list[Part],
    context: Callable[[], AbstractContextManager[Any]],
) -> list[np.ndarray]:
    """Return differences of the most probable tokens' log-probabilities, for each prompt."""
    differences = []
    for text, prompt, row in zip(texts_of(prompts, answers), prompts, answers, strict=True):
        with context():
            rows = reference.log_probabilities(model, text, len(prompt) - 1)
        differences.append(
            np.array(
                [
                    found - float(rows[place, token])
                    for place, top in enumerate(row["top"])
                    for token, found in top
                ]
            )
        )
    return differences


def gguf(loaded: Loaded) -> Part:
    """A GGUF file that `sharpmax export` writes equals constant factors, in llama.cpp.

    llama.cpp approximates some functions, and rounds activations to 8 bits where weights are
    quantised. How far that moves the plain model is measured first. The exported model may be off
    by the largest factor of the calibration times that: it multiplies the errors of the logits.
    """
    model, calibration = loaded.model, shf.Calibration.load(models.shipped_calibration())
    prompts = [
        reference.whole(prompt) for prompt in reference.lookup_prompts(loaded.tokenizer, NAMES)
    ]

    def constants() -> AbstractContextManager[Any]:
        return reference.constant_factors(model, calibration, models.AT_LENGTH)

    found = {}
    for name, source in (("F32", models.float32_gguf()), ("Q4_1", models.plain_gguf())):
        target = models.exported(str(source), f"smollm2-{name}-at-512.gguf")
        differences = {}
        for what, file, context in (
            ("plain", source, nullcontext),
            ("exported", target, constants),
        ):
            with Worker("llamacpp", f"{name}-{what}", model=str(file)) as worker:
                answers = worker.ask(prompts, NEW)["answers"]
                versions = worker.versions
            differences[what] = compare_llamacpp(model, prompts, answers, context)
        effect = compare_llamacpp(model, prompts, answers, nullcontext)
        found[name] = part = {
            "compared": sum(map(len, differences["plain"])),
            "plain_difference": reference.largest(differences["plain"]),
            "largest_difference": reference.largest(differences["exported"]),
            "mean_difference": float(np.abs(np.concatenate(differences["exported"])).mean()),
            "mean_effect": float(np.abs(np.concatenate(effect)).mean()),
            "tolerance": calibration.law.high * reference.largest(differences["plain"]),
            "effect": reference.largest(effect),
        }
        print(f"llama.cpp {name}: {part}", flush=True)
        require(
            part["largest_difference"] <= part["tolerance"],
            f"the exported {name} file is off by {part['largest_difference']:.3g} in llama.cpp, "
            f"and the plain one by {part['plain_difference']:.3g}",
        )
        require(
            4 * part["mean_difference"] < part["mean_effect"],
            f"the exported {name} file is not closer to the sharpened model than to the plain one",
        )
    return {"versions": versions, "at_length": models.AT_LENGTH, "files": found}


def lookup(loaded: Loaded) -> Part:
    """The same questions in each engine, before and after."""
    tokenizer = loaded.tokenizer
    names = (LOOKUP_NAMES,) * LOOKUP_PROMPTS
    prompts = reference.lookup_prompts(tokenizer, names, LOOKUP_QUESTIONS)
    pairs = [
        ([*prompt.context, *question], answer)
        for prompt in prompts
        for question, answer in zip(prompt.questions, prompt.answers, strict=True)
    ]
    new = max(len(answer) for _, answer in pairs) + 1

    def right(tokens: list[int], answer: tuple[int, ...]) -> bool:
        after = tokenizer.decode(tokens[len(answer) : len(answer) + 1])
        return tuple(tokens[: len(answer)]) == answer and not after[:1].isdigit()

    def asked(worker: Worker) -> list[bool]:
        with worker:
            answers = worker.ask([prompt for prompt, _ in pairs], new, "")["answers"]
        return [
            right(row["tokens"], answer) for row, (_, answer) in zip(answers, pairs, strict=True)
        ]

    def transformers_answers() -> list[bool]:
        scores = [score_answers(loaded.model, tokenizer, prompt) for prompt in prompts]
        return [bool(value) for score in scores for value in score.right]

    calibration = models.shipped_calibration()
    options = {"model": str(models.plain_folder()), "enforce_eager": True, "max_model_len": 1024}
    given: dict[str, list[bool]] = {"transformers, plain": transformers_answers()}
    with shf.sharpen(loaded.model, calibration):
        given["transformers, sharpen"] = transformers_answers()
    with reference.constant_factors(loaded.model, calibration, models.AT_LENGTH):
        given["transformers, constant factors"] = transformers_answers()
    for name, more in (
        ("vLLM, plain", {}),
        ("vLLM, plugin", {"calibration": calibration}),
        ("vLLM, exported", {"model": str(models.exported("smollm2", "smollm2-at-512"))}),
    ):
        worker = Worker("vllm", name.replace(", ", "-"), **(options | more))
        given[name] = asked(worker)
    gguf_file = models.exported("smollm2", "smollm2-Q4_1-at-512.gguf")
    for name, file in (("plain", models.plain_gguf()), ("exported", gguf_file)):
        worker = Worker("llamacpp", f"lookup-{name}", model=str(file))
        given[f"llama.cpp, {name}"] = asked(worker)
    counts = {name: sum(values) for name, values in given.items()}
    print(f"lookup among {LOOKUP_NAMES} names, right of {len(pairs)}: {counts}", flush=True)
    for one, other in (
        ("transformers, plain", "vLLM, plain"),
        ("transformers, sharpen", "vLLM, plugin"),
        ("transformers, constant factors", "vLLM, exported"),
    ):
        require(given[one] == given[other], f"{one} and {other} answer questions differently")
    return {"questions": len(pairs), "names": LOOKUP_NAMES, "right": counts}


PARTS: dict[str, Callable[[Loaded], Part]] = {
    "parity": parity,
    "zero_rates": zero_rates,
    "architectures": architectures,
    "refusals": refusals,
    "export": export,
    "gguf": gguf,
    "lookup": lookup,
    "throughput": throughput,
}
"""The parts by name, in the order in which they run."""


def make_config() -> Part:
    """Return what the numbers of all parts depend on."""
    text = shf.shipped_calibrations()["smollm2"].text()
    return {
        "model": CATALOGUE["smollm2"].title,
        "calibration": "smollm2",
        "calibration_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "dtype": "float32",
    }


def main() -> None:
    path, names = Path(sys.argv[1]), sys.argv[2:]
    unknown = set(names) - set(PARTS)
    if unknown:
        sys.exit(f"unknown part {', '.join(sorted(unknown))}: expected {', '.join(PARTS)}")
    config = make_config()
    before = Result.load(path) if path.exists() else None
    # What was measured with another calibration does not belong to this one.
    done = dict(before.measurements) if before and before.config == config else {}
    missing = [name for name in PARTS if name not in done and name != "throughput"]
    todo = [name for name in PARTS if name in (names or missing)]
    if not todo:
        print(f"{path} has all parts; name those to repeat: {', '.join(PARTS)}")
        return
    models.MODELS.mkdir(parents=True, exist_ok=True)
    loaded = load()
    for name in todo:
        watch, begin = Stopwatch(), time.perf_counter()
        print(f"{name} ...", flush=True)
        done[name] = PARTS[name](loaded)
        provenance = watch.provenance()
        done[name] |= {"commit": provenance.commit, "seconds": time.perf_counter() - begin}
        Result(
            kind="serving",
            config=config,
            seeds=(7,),
            measurements={part: done[part] for part in PARTS if part in done},
            provenance=provenance,
        ).save(path, overwrite=True)
        print(f"wrote {name} to {path}", flush=True)


if __name__ == "__main__":
    main()
