"""The commands, in the order in which a new user needs them."""

from __future__ import annotations

from typing import Annotated

import typer

from sharpmax import __version__
from sharpmax.cli import (
    calibrate,
    certify,
    clrs,
    demo,
    doctor,
    evaluate,
    explorer,
    leaderboard,
    lm_eval,
    report,
    reproduce,
    scan,
)

app = typer.Typer(
    help="Keep attention sharp as inputs grow: measure, bound and undo the dispersion of softmax.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo.demo)
app.command()(scan.scan)
app.command()(certify.certify)
app.command()(evaluate.evaluate)
app.command()(calibrate.calibrate)
app.command(context_settings=lm_eval.CONTEXT)(lm_eval.lm_eval)
app.command(help=reproduce.HELP)(reproduce.reproduce)
app.command()(leaderboard.leaderboard)
app.add_typer(clrs.clrs, name="clrs")
app.command()(report.report)
app.command()(explorer.app)
app.command()(doctor.doctor)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"sharpmax {__version__}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
