"""`sharpmax certify`: how sharp can each head of this model ever be, by its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sharpmax._errors import UserError
from sharpmax._files import refuse_overwriting
from sharpmax.cli.options import AllowPickle, Model, Out, Overwrite, TrustRemoteCode
from sharpmax.cli.scan import say


def certify(
    model: Model = "smollm2",
    scan: Annotated[
        Path | None,
        typer.Option(
            help="A scan.json of the same model: its spread beside the bound.", show_default=False
        ),
    ] = None,
    out: Out = Path("certify"),
    overwrite: Overwrite = False,
    allow_pickle: AllowPickle = False,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Bound the spread of every head's logits for all inputs, from the weights alone, and say from
    how many tokens on it must disperse: a table, certify.json and a picture.
    """
    refuse_overwriting(files_of(out), overwrite)
    # Imported late: `sharpmax --help` should not wait for a framework.
    from sharpmax import hf, report
    from sharpmax.hf.model_info import is_encoder_decoder

    measured = None if scan is None else _scan_in(scan)
    loaded = hf.load(
        model,
        device="cpu",
        allow_pickle=allow_pickle,
        trust_remote_code=trust_remote_code,
        report=say,
    )
    subject = loaded.model
    if is_encoder_decoder(subject):
        say(f"{loaded.name} is an encoder-decoder: its encoder is certified")
        subject = subject.get_encoder()
    result = hf.certify(subject, scan=measured, name=loaded.name, notes=loaded.notes)
    written = [result.save(files_of(out)[0], overwrite=overwrite)]
    written += report.save_picture(report.draw(result), out / "certify", overwrite=overwrite)
    report.show(result)
    typer.echo("Written: " + ", ".join(map(str, written)))


def files_of(out: Path) -> list[Path]:
    """What it writes."""
    return [out / f"certify.{suffix}" for suffix in ("json", "png", "svg")]


def _scan_in(path: Path) -> Any:
    """The scan in a file; another kind of result is refused."""
    from sharpmax.hf import Scan
    from sharpmax.results import Result

    kind = Result.load(path).kind
    if kind != "scan":
        raise UserError(f"--scan {path} is a result of kind {kind!r}, not a scan")
    return Scan.load(path)
