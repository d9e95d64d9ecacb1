"""Scan a model from the page, and show the report that `sharpmax scan` writes."""

from __future__ import annotations

import shlex
from pathlib import Path
from tempfile import TemporaryDirectory

from markupsafe import Markup

from sharpmax import report
from sharpmax._errors import UserError
from sharpmax.app import views
from sharpmax.app.background_jobs import Report
from sharpmax.app.input_parsing import MAX_ITEMS, check_choice, check_text, parse_selection
from sharpmax.app.model.model_cache import ModelCache
from sharpmax.hf import Scan, scan
from sharpmax.hf.model_info import is_encoder_decoder
from sharpmax.hf.tune.calibration import Calibration
from sharpmax.policies import Policy

PROMPTS = {
    "max": "the largest number",
    "passkey": "hidden in filler",
    "text": "your own text",
}
"""Labels of the prompts, short enough for a phone."""


MAX_LENGTHS = 32
"""Lengths in one scan."""


def scan_model(
    cache: ModelCache,
    name: object,
    prompt: object,
    text: object,
    lengths: object,
    policy: Policy | Calibration | str | None,
    policy_label: str | None,
    report_progress: Report,
) -> list[Scan]:
    """Measure every head of a model on one input per length, also sharpened if asked to.

    All but the first and the last three arguments come from the browser, and may be anything.

    Args:
        cache: Where the model is loaded.
        name: Name of the model.
        prompt: One of `PROMPTS`.
        text: The user's own text, for the prompt "text".
        lengths: Lengths as typed; empty for the defaults.
        policy: What to compare with the plain model; None for nothing.
        policy_label: How the command line calls it.
        report_progress: Called with the share that is done.

    Returns:
        The scan of the plain model, and that of the sharpened one.
    """
    selected_lengths = parse_selection("lengths", lengths, MAX_LENGTHS, MAX_ITEMS)
    prompt = check_choice("the prompt", prompt, PROMPTS)
    text = check_text("your text", text)
    if prompt == "text" and not text.strip():
        raise UserError("paste a text to scan, or choose another prompt")
    with cache.borrow(name, report_progress) as lent, TemporaryDirectory() as folder:
        file = None
        if prompt == "text":
            file = Path(folder) / "pasted.txt"
            file.write_text(text, "utf-8")
        loaded = lent.loaded
        model = loaded.model
        policies = [None] if policy is None else [None, policy]

        def part(number: int) -> Report:
            return lambda share: lent.report((number + share) / len(policies))

        results = [
            scan(
                model.get_encoder() if is_encoder_decoder(model) else model,
                loaded.tokenizer,
                selected_lengths,
                prompt,
                text=file,
                policy=one,
                name=loaded.name,
                notes=loaded.notes,
                progress=part(number),
            )
            for number, one in enumerate(policies)
        ]
    return [
        _with_command(result, _command(name, prompt, result, label))
        for result, label in zip(results, (None, policy_label), strict=False)
    ]


def _command(name: object, prompt: str, result: Scan, policy: str | None) -> str:
    """Return the command that makes the same scan without the explorer."""
    words = ["sharpmax", "scan", str(name).strip(), "--prompt", prompt]
    if prompt == "text":
        words += ["--text", "FILE"]
    words += ["--lengths", ",".join(map(str, result.lengths))]
    return shlex.join(words + (["--policy", policy] if policy else []))


def _with_command(result: Scan, command: str) -> Scan:
    provenance = result.provenance.model_copy(update={"command": command})
    copy = result.model_copy(update={"provenance": provenance})
    return copy.with_arrays(**result.arrays)


def render_scans(results: list[Scan]) -> Markup:
    """Return the report of a scan, or of two with their comparison, in a frame."""
    return views.iframe(report.render(results), f"Scan of {results[0].config['model']}")
