"""The typer program: all commands, grouped in the order in which a user needs them.

To add a command, write `commands/NAME.py` with a function (or a `typer.Typer`) called NAME, and add
NAME to `COMMANDS`. The first line of its docstring appears in `sharpmax --help`. If the module has
`SETTINGS`, they are passed to `typer.Typer.command`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

import typer

from sharpmax import __version__
from sharpmax.cli.help_format import Command, Group
from sharpmax.cli.processes import refuse_processes

COMMANDS = {
    "Measure": ("demo", "scan", "diagnose", "certify"),
    "Improve": ("tune", "evaluate", "calibrate", "lm_eval", "grid"),
    "Ship": ("export",),
    "Share": ("report", "app"),
    "Reproduce": ("reproduce", "leaderboard", "clrs"),
    "Help": ("doctor", "models"),
}
"""Names of the modules in `sharpmax.cli.commands`, by heading of the help text."""

SHARED = ("scan", "diagnose", "tune", "evaluate", "calibrate")
"""Commands that several processes can run together. Some do so only with --tensor-parallel, see
`sharpmax.cli.options.load_model`."""

program = typer.Typer(
    cls=Group,
    help="Find attention heads that lose focus as inputs grow, and sharpen them.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="markdown",  # joins the lines of a paragraph, and knows lists
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"sharpmax {__version__}")
        raise typer.Exit


@program.callback()
def root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
    elif context.invoked_subcommand not in SHARED:
        refuse_processes(f"sharpmax {context.invoked_subcommand}")


for heading, names in COMMANDS.items():
    for name in names:
        module = import_module(f"sharpmax.cli.commands.{name}")
        command = getattr(module, name)
        if isinstance(command, typer.Typer):
            program.add_typer(command, name=name, rich_help_panel=heading)
        else:
            settings = getattr(module, "SETTINGS", {})
            program.command(cls=Command, rich_help_panel=heading, **settings)(command)
