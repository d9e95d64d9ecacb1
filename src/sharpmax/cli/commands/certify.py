"""`sharpmax certify`: bound from the weights how sharp each head of a model can be."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sharpmax._errors import UserError
from sharpmax.cli.options import AllowPickle, Model, Out, Overwrite, TrustRemoteCode, load_model
from sharpmax.cli.output import claim_files, print_written, result_files, save_result
from sharpmax.cli.progress import print_status
from sharpmax.results import Result

if TYPE_CHECKING:
    from sharpmax.hf import Scan


def certify(
    model: Model = "smollm2",
    scan: Annotated[
        Path | None,
        typer.Option(
            help="A scan.json of the same model, to show the measured spread beside the bound.",
            metavar="FILE",
        ),
    ] = None,
    out: Out = Path("certify"),
    overwrite: Overwrite = False,
    allow_pickle: AllowPickle = False,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Compute from the weights when each head must disperse.

    Bounds the spread of every head's logits for all inputs. Prints from how many tokens on no
    weight can reach 10 % or more, and writes certify.json and a picture.
    """
    stem = out / "certify"
    with claim_files(result_files(stem), overwrite) as claim:
        # Imported late so that `sharpmax --help` does not wait for a framework.
        from sharpmax import hf, report
        from sharpmax.hf.model_info import is_encoder_decoder

        measured = None if scan is None else _load_scan(scan)
        loaded = load_model(
            model, device="cpu", allow_pickle=allow_pickle, trust_remote_code=trust_remote_code
        )
        certified = loaded.model
        if is_encoder_decoder(certified):
            print_status(f"{loaded.name} is an encoder-decoder: certifying its encoder")
            certified = certified.get_encoder()
        result = hf.certify(certified, scan=measured, name=loaded.name, notes=loaded.notes)
        with claim.writing():
            written = save_result(result, stem, claim.overwrite)
        report.show(result)
        print_written(written)


def _load_scan(path: Path) -> Scan:
    """Load a scan, and refuse results of any other kind."""
    from sharpmax.hf import Scan

    kind = Result.load(path).kind
    if kind != "scan":
        raise UserError(f"--scan {path} is a result of kind {kind!r}: expected a scan")
    return Scan.load(path)
