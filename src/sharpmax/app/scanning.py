"""A scan of a model from the page, shown as the report that the command writes."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from markupsafe import Markup

from sharpmax import report
from sharpmax._errors import UserError
from sharpmax.app import typed, views
from sharpmax.app.runs import Tell
from sharpmax.app.shelf import Shelf
from sharpmax.hf import Scan, scan
from sharpmax.hf.model_info import is_encoder_decoder

PROMPTS = {
    "max": "the largest of numbers",
    "passkey": "hidden in filler",
    "text": "one of yours",
}
"""By name: what it is, in words that fit a phone."""


def run(shelf: Shelf, name: str, prompt: str, text: str, lengths: str, tell: Tell) -> Scan:
    """Measure every head on one input of each length."""
    sizes = typed.whole_numbers("lengths", lengths)
    if prompt == "text" and not text.strip():
        raise UserError("paste a text to be scanned, or choose another prompt")
    with shelf.taken(name, tell) as loaded, TemporaryDirectory() as folder:
        file = None
        if prompt == "text":
            file = Path(folder) / "pasted.txt"
            file.write_text(text, "utf-8")
        model = loaded.model
        return scan(
            model.get_encoder() if is_encoder_decoder(model) else model,
            loaded.tokenizer,
            sizes,
            prompt,
            text=file,
            name=loaded.name,
            notes=loaded.notes,
            progress=tell,
        )


def html(result: Scan) -> Markup:
    return views.sheet(report.render([result]), f"Scan of {result.config['model']}")
