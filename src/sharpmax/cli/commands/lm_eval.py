"""`sharpmax lm-eval`: run the lm-evaluation-harness on a sharpened model.

The harness loads models itself, by the name of an attention implementation that transformers must
know. This command registers `attn_implementation=sharpmax` with transformers, then runs the
harness's own command.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sharpmax._errors import MissingExtraError, UserError
from sharpmax.cli.progress import print_status
from sharpmax.policy_names import POLICY_HELP, parse_policy

if TYPE_CHECKING:
    from sharpmax.hf.tune.calibration import Calibration
    from sharpmax.policies import Policy

SETTINGS: dict[str, Any] = {
    # Options that this command does not know belong to the harness.
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True}
}

PRETRAINED = re.compile(r"(?<=\bpretrained=)[^,]+")
SHARPMAX = re.compile(r"attn_implementation\W+sharpmax\b")
CONFIG_FILE = re.compile(r"--config\b|-C")


def lm_eval(
    context: typer.Context,
    policy: Annotated[
        str,
        typer.Option(
            help="A calibration file, tuned (the one that comes with sharpmax for this model), "
            f"or a policy that sharpens all heads: {POLICY_HELP}.",
            metavar="POLICY",
        ),
    ] = "tuned",
) -> None:
    """Run the lm-evaluation-harness on a sharpened model.

    Takes all options of `lm_eval`. Add `attn_implementation=sharpmax` to its model arguments:

    `sharpmax lm-eval --model hf --model_args pretrained=MODEL,attn_implementation=sharpmax --tasks
    TASK`

    MODEL may be smollm2 or another name that `sharpmax models` lists, as in the other commands.
    """
    given = None if policy == "tuned" else _read_policy(policy)
    arguments = harness_arguments(context.args, policy)
    chosen_policy = given or _find_tuned(arguments)
    try:
        from lm_eval.__main__ import cli_evaluate
    except ModuleNotFoundError as error:
        package = (error.name or "lm_eval").partition(".")[0]
        raise MissingExtraError(package, "lm-eval", "sharpmax lm-eval") from error
    from sharpmax.hf.loading.convert import model_folder
    from sharpmax.hf.patch.registered import detect_use, register

    if (name := _find_catalogue_name(arguments)) is not None:
        folder = str(model_folder(name, print_status))
        arguments = [PRETRAINED.sub(lambda _: folder, argument) for argument in arguments]
    register(chosen_policy)
    was_called = detect_use()
    own_arguments = sys.argv
    try:
        sys.argv = ["lm_eval", *arguments]
        cli_evaluate()
    finally:
        sys.argv = own_arguments
    if not was_called():
        raise UserError(
            "the model never called sharpmax for attention, so it was evaluated without "
            "sharpening: give attn_implementation=sharpmax, and a model whose attention goes "
            "through transformers' AttentionInterface"
        )


def _read_policy(text: str) -> Policy | Calibration:
    from sharpmax.hf.tune.calibration import Calibration

    return Calibration.load(text) if text.endswith(".json") else parse_policy(text)


def _find_catalogue_name(arguments: list[str]) -> str | None:
    """Return the model of the catalogue that the arguments name, or None."""
    from sharpmax.hf.loading.catalogue import CATALOGUE

    named = [match[0] for match in map(PRETRAINED.search, arguments) if match is not None]
    return next((name for name in named if name in CATALOGUE), None)


def _find_tuned(arguments: list[str]) -> Calibration:
    """Return the calibration that comes with sharpmax for the model in the arguments.

    Raises:
        UserError: There is none for this model.
    """
    from sharpmax.hf.tune.calibration import shipped_calibrations

    shipped, name = shipped_calibrations(), _find_catalogue_name(arguments)
    if name not in shipped:
        raise UserError(
            f"--policy tuned is a calibration of {' or '.join(shipped)}: for another model give "
            "the file that `sharpmax tune` writes, or a policy such as log-length:512"
        )
    return shipped[name]


def harness_arguments(typed: list[str], policy: str) -> list[str]:
    """Return the arguments for the harness: those typed, and the policy as metadata.

    The harness writes metadata into its results, beside the arguments of the model.

    Raises:
        UserError: No argument asks for sharpmax's attention.
    """
    if any(map(CONFIG_FILE.match, typed)):
        # The file may ask for sharpmax itself, and --metadata would replace the file's metadata.
        return typed
    if not any(map(SHARPMAX.search, typed)):
        raise UserError(
            "nothing would be sharpened: add attn_implementation=sharpmax to --model_args, or run "
            "lm_eval itself to evaluate the model as it is"
        )
    return [*typed, "--metadata", f"sharpmax_policy={policy}"]
