"""`sharpmax evaluate`: compare a model with and without sharpening on a task."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from sharpmax._errors import UserError
from sharpmax._files import refuse_overwriting
from sharpmax.cli.formats import chance, new_table, percent
from sharpmax.cli.options import (
    CONDITION_HELP,
    AllowPickle,
    Device,
    Dtype,
    Model,
    Out,
    Overwrite,
    Task,
    TrustRemoteCode,
    load_model,
    parse_condition,
    parse_range_option,
)
from sharpmax.cli.output import print_written, result_files, save_result
from sharpmax.cli.progress import progress_bar

if TYPE_CHECKING:
    from sharpmax.hf import Evaluation


def evaluate(
    model: Model = "smollm2",
    task: Task = "lookup",
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help=f"What to compare with plain attention: {CONDITION_HELP} Repeat for several. "
            "Default: paper.",
            metavar="POLICY",
        ),
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            help="Prompt lengths, such as 16,32,64: names for lookup, tokens for passkey, numbers "
            "for max. Default: depends on the task.",
            metavar="LIST",
        ),
    ] = None,
    prompts: Annotated[
        int | None,
        typer.Option(
            help="Number of prompts per length. Default: depends on the task.", metavar="N", min=1
        ),
    ] = None,
    questions: Annotated[
        int | None,
        typer.Option(
            help="Number of questions per prompt, for lookup. Default: 8.", metavar="N", min=1
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed for the prompts.", metavar="N", min=0)] = 0,
    device: Device = "auto",
    dtype: Dtype = "auto",
    out: Out = Path("evaluate"),
    overwrite: Overwrite = False,
    allow_pickle: AllowPickle = False,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Test whether sharpening improves a model's answers.

    Asks questions with known answers, the same ones with plain attention and with each policy.
    Prints a table with paired tests and writes the result and a picture. Interrupted evaluations
    resume when you run the same command again.
    """
    # Imported late so that `sharpmax --help` does not wait for a framework.
    from sharpmax.hf import evaluate, forget
    from sharpmax.hf.evaluate.tasks import resolve_task

    resolve_task(task)
    stem = out / f"evaluate_{task}"
    refuse_overwriting(result_files(stem), overwrite)
    selected_lengths = parse_range_option("--lengths", lengths)
    conditions = dict(parse_condition(text) for text in policy or ["paper"])
    if policy is not None and len(conditions) < len(policy):
        raise UserError(f"--policy: two of {', '.join(policy)} have the same name")
    loaded = load_model(
        model,
        device=device,
        dtype=dtype,
        allow_pickle=allow_pickle,
        trust_remote_code=trust_remote_code,
    )
    checkpoint = stem.with_suffix(".part.json")
    with progress_bar("evaluating") as progress:
        result = evaluate(
            loaded.model,
            loaded.tokenizer,
            task,
            conditions,
            lengths=selected_lengths,
            prompts=prompts,
            questions=questions,
            seed=seed,
            name=loaded.name,
            notes=loaded.notes,
            resume=checkpoint,
            progress=progress,
        )
    written = save_result(result, stem, overwrite)
    forget(checkpoint)
    print_tables(result)
    print_written(written)


def print_tables(result: Evaluation) -> None:
    """Print the table of an evaluation and how to read it."""
    console = Console(highlight=False)
    console.print(table(result))
    for line in notes(result):
        console.print(line)


def table(result: Evaluation) -> Table:
    """Return a table with one row per length and condition, at most 80 columns wide."""
    config = result.config
    questions = "1 question" if config["questions"] == 1 else f"{config['questions']} questions"
    size = f"{config['prompts']} prompts per length, {questions} each"
    comparison = new_table(f"{config['model']}\n{config['task']}: {size}")
    for heading in (config["unit"], "", "right %", "change", "95 %", "p", "log p"):
        comparison.add_column(heading, justify="left" if heading == "" else "right", no_wrap=True)
    for row in result.measurements["rows"]:
        length = f"{row['length']:,}" if row["arm"] == result.conditions[0] else ""
        cells = [length, row["arm"], percent(row["accuracy"]["mean"])]
        if "compared" not in row:
            comparison.add_row(*cells, "", "", "", f"{row['log_probability']:.2f}")
            continue
        accuracy, log_probability = row["compared"], row["log_probability_compared"]
        comparison.add_row(
            *cells,
            f"{100 * accuracy['difference']:+.1f}",
            f"{100 * accuracy['low']:+.1f} to {100 * accuracy['high']:+.1f}",
            chance(accuracy["p_adjusted"], 1),
            f"{log_probability['difference']:+.2f}",
        )
    return comparison


def notes(result: Evaluation) -> list[str]:
    """Return sentences on the test and on the smallest difference that it can detect."""
    detectable = [
        row["compared"]["detectable"]
        for row in result.measurements["rows"][1:]
        if "compared" in row
    ]
    return [
        "change: against plain attention, on the same questions. p: exact sign-flip test over "
        "prompts (McNemar's test with one question per prompt), adjusted by Holm's method. log p: "
        "log-probability of the right answer, in nats.",
        f"The smallest change that this test detects with 80 % power is {percent(min(detectable))} "
        f"to {percent(max(detectable))} points.",
    ]
