"""The parts of the result about exported models, and about answers before and after."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import models
import numpy as np
import reference
import transformers
from comparison import NAMES, NEW, Part, compare_vllm, require, require_equal, texts_of
from engines import Worker

import sharpmax.hf as shf
from sharpmax.hf.evaluate.scoring import score_answers
from sharpmax.hf.loading.loader import Loaded

LOOKUP_NAMES, LOOKUP_PROMPTS, LOOKUP_QUESTIONS = 40, 6, 8


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
