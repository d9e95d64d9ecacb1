"""`sharpmax evaluate`: does sharpening help this model on this task?"""

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
    AllowPickle,
    Device,
    Dtype,
    Model,
    Out,
    Overwrite,
    TrustRemoteCode,
    numbers,
)
from sharpmax.cli.policies import ARMS, arm_named
from sharpmax.cli.progress import bar
from sharpmax.cli.scan import say

if TYPE_CHECKING:
    from sharpmax.hf import Evaluation

TASK_HELP = (
    "lookup: the code of one name among many; passkey: a number hidden in filler; max: the largest "
    "of some numbers, the paper's prompt."
)


def evaluate(
    model: Model = "smollm2",
    task: Annotated[str, typer.Option(help=TASK_HELP, metavar="lookup|passkey|max")] = "lookup",
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help=f"What to compare with plain attention; may be repeated. {ARMS}. Default: paper.",
            show_default=False,
        ),
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            help="Such as 16,32,64: names, numbers, or for passkey tokens. Default: the task's.",
            show_default=False,
        ),
    ] = None,
    prompts: Annotated[
        int | None, typer.Option(help="Texts of each length. Default: the task's.", min=1)
    ] = None,
    questions: Annotated[
        int | None,
        typer.Option(help="Questions about each text, for lookup. Default: 8.", min=1),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the texts.", min=0)] = 0,
    device: Device = "auto",
    dtype: Dtype = "auto",
    out: Out = Path("evaluate"),
    overwrite: Overwrite = False,
    allow_pickle: AllowPickle = False,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Ask a model questions with known answers, as it is and sharpened, the same ones each time:
    a table with paired tests, a result and a picture. An evaluation that was stopped goes on where
    it was if the command is repeated.
    """
    # Imported late: `sharpmax --help` should not wait for a framework.
    from sharpmax.hf import evaluate, forget, load
    from sharpmax.hf.evaluate.tasks import resolve_task

    resolve_task(task)
    refuse_overwriting(files_of(out, task), overwrite)
    asked = None if lengths is None else numbers("--lengths", lengths)
    arms = dict(arm_named(text) for text in policy or ["paper"])
    if len(arms) < len(policy or [""]):
        raise UserError(f"--policy: two of {', '.join(policy or [])} have the same name")
    loaded = load(
        model,
        device=device,
        dtype=dtype,
        allow_pickle=allow_pickle,
        trust_remote_code=trust_remote_code,
        report=say,
    )
    part = out / f"evaluate_{task}.part.json"
    with bar("asking") as progress:
        result = evaluate(
            loaded.model,
            loaded.tokenizer,
            task,
            arms,
            lengths=asked,
            prompts=prompts,
            questions=questions,
            seed=seed,
            name=loaded.name,
            notes=loaded.notes,
            resume=part,
            progress=progress,
        )
    written = write_all(result, out, overwrite)
    forget(part)
    print_tables(result)
    typer.echo("Written: " + ", ".join(map(str, written)))


def files_of(out: Path, task: str) -> list[Path]:
    """What it writes."""
    return [out / f"evaluate_{task}.{suffix}" for suffix in ("json", "png", "svg")]


def write_all(result: Evaluation, out: Path, overwrite: bool) -> list[Path]:
    """The result and its picture."""
    from sharpmax import plot
    from sharpmax.plot import style

    json_file, *_ = files_of(out, result.config["task"])
    written = result.save(json_file, overwrite=overwrite)
    return [written, *style.save(plot.draw(result), json_file.with_suffix(""), overwrite=overwrite)]


def print_tables(result: Evaluation) -> None:
    console = Console(highlight=False)
    console.print(table(result))
    for line in notes(result):
        console.print(line)


def table(result: Evaluation) -> Table:
    """A line for each length and way of sharpening; 80 columns."""
    config = result.config
    each = "1 question" if config["questions"] == 1 else f"{config['questions']} questions"
    asked = f"{config['task']}: {config['prompts']} texts of each length, {each} each"
    made = new_table(f"{config['model']}\n{asked}")
    for heading in (config["unit"], "", "right %", "change", "95 %", "p", "log p"):
        made.add_column(heading, justify="left" if heading == "" else "right", no_wrap=True)
    for row in result.measurements["rows"]:
        cells = [f"{row['length']:,}" if row["arm"] == result.conditions[0] else "", row["arm"]]
        cells.append(percent(row["accuracy"]["mean"]))
        if "compared" not in row:
            made.add_row(*cells, "", "", "", f"{row['log_probability']:.2f}")
            continue
        share, score = row["compared"], row["log_probability_compared"]
        made.add_row(
            *cells,
            f"{100 * share['difference']:+.1f}",
            f"{100 * share['low']:+.1f} to {100 * share['high']:+.1f}",
            chance(share["p_adjusted"], 1),
            f"{score['difference']:+.2f}",
        )
    return made


def notes(result: Evaluation) -> list[str]:
    """What the test is, and how small a difference it would have seen."""
    seen = [
        row["compared"]["detectable"]
        for row in result.measurements["rows"][1:]
        if "compared" in row
    ]
    return [
        "Changes are against plain attention, on the same questions. p: exact sign-flip test over "
        "texts (McNemar's if there is one question each), by Holm's method over all lines. log p: "
        "of the right answer, in nats.",
        f"With 80 % power a difference of {percent(min(seen))} to {percent(max(seen))} points is "
        "seen, by how often the two disagreed.",
    ]
