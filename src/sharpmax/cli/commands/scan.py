"""`sharpmax scan`: measure how far each head of a model spreads as its input grows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from sharpmax._errors import UserError
from sharpmax.cli.options import (
    AllowPickle,
    Device,
    DeviceMap,
    Dtype,
    MaxMemory,
    Model,
    Out,
    Overwrite,
    TensorParallel,
    TrustRemoteCode,
    load_model,
    parse_condition,
    parse_length_option,
    parse_range_option,
)
from sharpmax.cli.output import claim_files, print_written, result_files, save_result
from sharpmax.cli.processes import is_first_process
from sharpmax.cli.progress import print_status, progress_bar
from sharpmax.policy_names import POLICY_HELP

if TYPE_CHECKING:
    from sharpmax.hf import Calibration, Scan
    from sharpmax.hf.loading.loader import Loaded
    from sharpmax.policies import Policy

CHECKPOINT = "scan.part.json"
"""File in the output folder that an interrupted scan resumes from."""


def scan(
    model: Model = "smollm2",
    prompt: Annotated[
        str,
        typer.Option(
            help="max: the prompt of the paper's Figure 3, a list of numbers. text: the beginning "
            "of the file --text. passkey: a number hidden in filler text.",
            metavar="NAME",
        ),
    ] = "max",
    text: Annotated[
        Path | None, typer.Option(help="Text file for --prompt text.", metavar="FILE")
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            help="Input lengths, such as 64,128,256: numbers for --prompt max, tokens otherwise. "
            "Default: 8 to 512 numbers or 64 to 4096 tokens, as far as they fit the model.",
            metavar="LIST",
        ),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(help="Layers to measure, such as 0,4-7. Default: all.", metavar="LIST"),
    ] = None,
    heads: Annotated[
        str | None,
        typer.Option(
            help="Heads to measure in each layer, such as 0-3. Default: all.", metavar="LIST"
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="Measure the model while this sharpens it: tuned (the calibration that comes with "
            f"sharpmax for this model), a calibration file, {POLICY_HELP}.",
            metavar="POLICY",
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Seed for the random numbers in the prompt.", metavar="N", min=0)
    ] = 0,
    device: Device = "auto",
    device_map: DeviceMap = None,
    max_memory: MaxMemory = None,
    tensor_parallel: TensorParallel = False,
    dtype: Dtype = "auto",
    out: Out = Path("scan"),
    overwrite: Overwrite = False,
    allow_pickle: AllowPickle = False,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Find the heads of a model that spread as inputs grow.

    Runs the model on prompts of growing length and measures every attention head. Prints two
    tables and writes scan.json, a picture and an HTML report. Interrupted scans resume when you
    run the same command again.
    """
    with claim_files(scan_files(out), overwrite) as claim:
        selection = {
            "lengths": parse_length_option("--lengths", lengths),
            "layers": parse_range_option("--layers", layers),
            "heads": parse_range_option("--heads", heads),
            "policy": None if policy is None else parse_scanned_policy(policy),
        }
        loaded = load_model(
            model,
            device=device,
            device_map=device_map,
            max_memory=max_memory,
            tensor_parallel=tensor_parallel,
            dtype=dtype,
            allow_pickle=allow_pickle,
            trust_remote_code=trust_remote_code,
        )
        # Imported late so that `sharpmax --help` does not wait for it.
        from sharpmax import report

        result = run_scan(loaded, out, prompt, text=text, seed=seed, **selection)
        if not is_first_process():
            return
        with claim.writing():
            written = save_scan(result, out, claim.overwrite)
        report.show(result)
        print_written(written)


def parse_scanned_policy(text: str) -> Policy | Calibration | str:
    """Return the policy, or the calibration, that `--policy` names."""
    name, condition = parse_condition(text)
    if condition.layers is not None:
        raise UserError(f"--policy {name}: a scan measures a policy in all layers, without @")
    return cast("Policy | Calibration | str", condition.policy)


def scan_files(out: Path) -> list[Path]:
    """Return the files that a scan writes into a folder."""
    return [*result_files(out / "scan"), out / "scan.html"]


def run_scan(loaded: Loaded, out: Path, prompt: str, **options: object) -> Scan:
    """Scan a model with a progress bar, resuming from a checkpoint in the output folder.

    `options` are passed to `sharpmax.hf.scan`.
    """
    from sharpmax import hf
    from sharpmax.hf.model_info import is_encoder_decoder

    model = loaded.model
    if is_encoder_decoder(model):
        print_status(f"{loaded.name} is an encoder-decoder: scanning its encoder")
        model = model.get_encoder()
    with progress_bar("scanning") as progress:
        return hf.scan(
            model,
            loaded.tokenizer,
            prompt=prompt,
            name=loaded.name,
            notes=loaded.notes,
            resume=out / CHECKPOINT,
            progress=progress,
            **options,  # type: ignore[arg-type]
        )


def save_scan(result: Scan, out: Path, overwrite: bool) -> list[Path]:
    """Write the result, its picture and its report, then delete the checkpoint."""
    from sharpmax import hf, report

    written = save_result(result, out / "scan", overwrite)
    written.append(report.write([result], out / "scan.html", overwrite=overwrite))
    hf.forget(out / CHECKPOINT)
    return written
