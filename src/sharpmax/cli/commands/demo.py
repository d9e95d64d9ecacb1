"""`sharpmax demo`: see a model lose focus on long prompts, and get its answers back."""

from __future__ import annotations

from pathlib import Path

import typer

from sharpmax.cli.commands import scan
from sharpmax.cli.options import Out, Overwrite, load_model
from sharpmax.cli.output import claim_files, print_written, result_files, save_result
from sharpmax.cli.progress import print_status, progress_bar

LENGTHS = (16, 32, 64)
PROMPTS, QUESTIONS = 8, 6  # with fewer prompts no difference at three lengths could be significant


def demo(out: Out = Path("demo"), overwrite: Overwrite = False) -> None:
    """Watch a small model lose facts in long lists, and fix it.

    Measures which heads of SmolLM2 spread over more tokens as the prompt grows. Then asks for one
    code among 16, 32 and 64 names, plain and with the calibration that `sharpmax tune` learned for
    this model. Writes an HTML report that leads with the answers.
    """
    page = out / "demo.html"
    evaluation_files = result_files(out / "evaluate_lookup")
    with claim_files([*scan.scan_files(out), *evaluation_files, page], overwrite) as claim:
        # Imported late so that `sharpmax --help` does not wait for a framework.
        from sharpmax import hf, report

        loaded = load_model("smollm2")
        scanned = scan.run_scan(loaded, out, "max")
        with claim.writing():
            written = scan.save_scan(scanned, out, claim.overwrite)
            print_status(
                f"asking {PROMPTS * QUESTIONS} questions at each of {len(LENGTHS)} lengths, twice"
            )
            checkpoint = out / "evaluate_lookup.part.json"
            with progress_bar("evaluating") as progress:
                evaluation = hf.evaluate(
                    loaded.model,
                    loaded.tokenizer,
                    "lookup",
                    {"tuned": "smollm2"},
                    lengths=LENGTHS,
                    prompts=PROMPTS,
                    questions=QUESTIONS,
                    name=loaded.name,
                    notes=loaded.notes,
                    resume=checkpoint,
                    progress=progress,
                )
            written += save_result(evaluation, out / "evaluate_lookup", claim.overwrite)
            hf.forget(checkpoint)
            written.append(report.write([evaluation, scanned], page, overwrite=claim.overwrite))
        report.show(scanned)
        report.show(evaluation)
        print_written(written)
        typer.echo(f"Open {page} in a browser. Next, your own model: sharpmax tune MODEL")
