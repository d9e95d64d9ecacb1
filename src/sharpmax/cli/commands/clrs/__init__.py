"""`sharpmax clrs`: CLRS-Text, the paper's language-model experiment, in three commands."""

from __future__ import annotations

import typer

from sharpmax.cli.commands.clrs.evaluate import evaluate
from sharpmax.cli.commands.clrs.generate import generate
from sharpmax.cli.commands.clrs.train import train
from sharpmax.cli.help_format import Command, Group

clrs = typer.Typer(
    cls=Group,
    help="Train on algorithms, test at larger sizes (CLRS-Text).\n\n"
    "The paper's language-model experiment, Figure 8, in three steps.",
)
clrs.command(cls=Command)(generate)
clrs.command(cls=Command)(train)
clrs.command(cls=Command)(evaluate)
