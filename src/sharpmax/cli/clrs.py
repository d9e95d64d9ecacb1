"""`sharpmax clrs`: CLRS-Text, the paper's language-model experiment, in three steps."""

from __future__ import annotations

import typer

from sharpmax.cli.clrs_evaluate import evaluate
from sharpmax.cli.clrs_generate import generate
from sharpmax.cli.clrs_train import train

clrs = typer.Typer(
    help="CLRS-Text: teach a language model thirty algorithms, and test it at larger sizes."
)
clrs.command()(generate)
clrs.command()(train)
clrs.command()(evaluate)
