"""`sharpmax lm-eval`: the lm-evaluation-harness with `attn_implementation=sharpmax`.

The harness loads models itself, by names that transformers must know by then. This command tells
transformers, and then is the harness's own command.
"""

from __future__ import annotations

import re
import sys
from typing import Annotated

import typer

from sharpmax._errors import MissingExtraError, UserError
from sharpmax.cli.policies import LISTING, policy_named

CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Whatever is not an option here belongs to the harness."""


def lm_eval(
    context: typer.Context,
    policy: Annotated[str, typer.Option(help=f"How much to sharpen all heads. {LISTING}.")] = (
        "paper"
    ),
) -> None:
    """Run the lm-evaluation-harness on a sharpened model: --model hf --model_args
    pretrained=MODEL,attn_implementation=sharpmax --tasks TASK, and all else that `lm_eval --help`
    lists. MODEL may be smollm2, as in the other commands.
    """
    chosen = policy_named(policy)
    arguments = harness_arguments(context.args, policy)
    try:
        from lm_eval.__main__ import cli_evaluate
    except ModuleNotFoundError as error:
        package = (error.name or "lm_eval").partition(".")[0]
        raise MissingExtraError(package, "lm-eval", "sharpmax lm-eval") from error
    from sharpmax.hf.loading.catalogue import model_folder
    from sharpmax.hf.patch.attention import detect_use, register

    if any(SMOLLM2.search(one) for one in arguments):
        folder = model_folder("smollm2", lambda line: typer.echo(line, err=True))
        arguments = [SMOLLM2.sub(lambda _: str(folder), one) for one in arguments]
    register(chosen)
    asked = detect_use()
    before = sys.argv
    try:
        sys.argv = ["lm_eval", *arguments]
        cli_evaluate()
    finally:
        sys.argv = before
    if not asked():
        raise UserError(
            "the model never asked sharpmax for attention, so what was evaluated is not sharpened: "
            "give attn_implementation=sharpmax, and a model whose attention goes through "
            "transformers' AttentionInterface"
        )


SMOLLM2 = re.compile(r"(?<=\bpretrained=)smollm2(?=,|$)")
SHARPMAX = re.compile(r"attn_implementation\W+sharpmax\b")
FROM_FILE = re.compile(r"--config\b|-C")


def harness_arguments(typed: list[str], policy: str) -> list[str]:
    """What the harness is given: what was typed, and the policy as metadata, which it writes into
    its results beside the model's arguments.
    """
    if any(map(FROM_FILE.match, typed)):
        # The file may hold all of it, and an argument here would replace the file's metadata.
        return typed
    if not any(map(SHARPMAX.search, typed)):
        raise UserError(
            "nothing would be sharpened: add attn_implementation=sharpmax to --model_args, or run "
            "lm_eval itself for the model as it is"
        )
    return [*typed, "--metadata", f"sharpmax_policy={policy}"]
