"""`sharpmax export`: write a checkpoint with sharpened heads that any engine runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sharpmax._errors import UserError
from sharpmax.cli.options import (
    AllowPickle,
    Device,
    Dtype,
    Model,
    Overwrite,
    Task,
    TrustRemoteCode,
    load_model,
    parse_condition,
    parse_length_option,
)
from sharpmax.cli.output import print_written
from sharpmax.cli.progress import print_status, progress_bar
from sharpmax.policy_names import POLICY_HELP

if TYPE_CHECKING:
    from sharpmax.hf import Condition
    from sharpmax.hf.loading.loader import Loaded


def export(
    model: Model = "smollm2",
    calibration: Annotated[
        str,
        typer.Option(
            help="A calibration file, tuned (the one that comes with sharpmax for this model), or "
            f"a policy of the length alone: {POLICY_HELP}.",
            metavar="FILE",
        ),
    ] = "tuned",
    at_length: Annotated[
        str | None,
        typer.Option(
            help="Number of tokens to export for: the checkpoint does at every length what the "
            "calibration does there. auto asks questions (--task, --lengths) and takes the number "
            "with the most probable answers.",
            metavar="N",
        ),
    ] = None,
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="The folder, or .gguf file, to write.", metavar="PATH"),
    ] = Path("exported"),
    task: Task = "lookup",
    lengths: Annotated[
        str | None,
        typer.Option(help="Prompt lengths for --at-length auto, such as 16,32,64.", metavar="LIST"),
    ] = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    overwrite: Overwrite = False,
    allow_pickle: AllowPickle = False,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Fold a calibration into an ordinary checkpoint.

    Writes a folder with safetensors, tokenizer and model card, which transformers, vLLM and others
    run as it is. If the model comes from a GGUF file and PATH ends with .gguf, writes a GGUF file
    whose weights are not quantised again. The source is never changed.
    """
    # Imported late so that `sharpmax --help` does not wait for a framework.
    from sharpmax.hf import export as write_checkpoint
    from sharpmax.hf import export_gguf

    automatic = at_length == "auto"
    length = None if automatic or at_length is None else _parse_length(at_length)
    selected_lengths = parse_length_option("--lengths", lengths)
    _, condition = parse_condition(calibration)
    if out.exists() and not overwrite:
        raise UserError(f"{out} exists already: choose another --out, or add --overwrite")
    loaded = load_model(
        model,
        device=device,
        dtype=dtype,
        allow_pickle=allow_pickle,
        trust_remote_code=trust_remote_code,
    )
    if out.suffix == ".gguf" and loaded.gguf is None:
        raise UserError(f"--out {out}: {model} is not a GGUF file; give a folder to write")
    if automatic:
        length = _choose_length(loaded, condition, task, selected_lengths)
    assert condition.policy is not None
    options: dict[str, Any] = {"layers": condition.layers, "overwrite": overwrite}
    if out.suffix == ".gguf" and loaded.gguf is not None:
        export_gguf(loaded.gguf, out, loaded.model, condition.policy, length, **options)
    else:
        write_checkpoint(
            loaded.model,
            condition.policy,
            out,
            length,
            tokenizer=loaded.tokenizer,
            name=loaded.name,
            **options,
        )
    if length is not None:
        print_status(
            f"exact for inputs of {length:,} tokens; shorter ones are changed more than the "
            "calibration asks for, longer ones less"
        )
    print_written([out])


def _parse_length(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:10]) < 10**9:
        raise UserError(f"--at-length {text}: expected a number of tokens, such as 4096, or auto")
    return int(text)


def _choose_length(
    loaded: Loaded, condition: Condition, task: str, lengths: list[int] | None
) -> int:
    """Return the number of tokens whose factors answer a task best."""
    from sharpmax.hf.export.choose_length import choose_length

    with progress_bar("evaluating") as progress:
        chosen, gains = choose_length(
            loaded.model,
            loaded.tokenizer,
            condition,
            task,
            lengths=lengths,
            progress=progress,
        )
    for tokens, nats in gains.items():
        print_status(f"exported for {tokens:,} tokens: log p of an answer {nats:+.2f}")
    return chosen
