"""The `sharpmax` command.

Every error that a user can fix is printed as one line on standard error, with exit code 2. This
module handles errors for all commands; the commands themselves raise `UserError`.
"""

from __future__ import annotations

import sys
from typing import Any

from sharpmax._errors import MissingExtraError, UserError
from sharpmax.cli.processes import NeedsProcesses, launch, tell_launcher

USER_ERROR = 2
INTERRUPTED = 130
BROKEN_PIPE = 141


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        arguments: Words after `sharpmax`; None takes them from `sys.argv`.

    Returns:
        0 on success, 2 for an error of the user, 130 after Ctrl-C, 141 if the reader of the output
        has gone.

    Examples:
        >>> from sharpmax.cli import main
        >>> main(["reproduce", "figure1", "--out", "results"])
    """
    try:
        return _run_anywhere(sys.argv[1:] if arguments is None else arguments)
    except (UserError, NotImplementedError) as error:  # the latter: unsupported models
        return USER_ERROR if tell_launcher(error) else _print_error(str(error))
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has closed it
        sys.stderr.close()
        return BROKEN_PIPE
    except OSError as error:
        return _print_error(f"{error.filename or 'the system'}: {error.strerror or error}")
    except KeyboardInterrupt as error:
        if not tell_launcher(error):
            print("sharpmax: stopped", file=sys.stderr)
        return INTERRUPTED


def _run_anywhere(arguments: list[str]) -> int:
    """Run a command here, or in several processes if it asks for them."""
    try:
        return _run(arguments)
    except NeedsProcesses as needed:
        return launch(arguments, needed.number)


def _run(arguments: list[str]) -> int:
    """Run the typer program, and translate its own errors to ours."""
    try:
        import typer

        from sharpmax.cli.program import program
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("sharpmax"):
            raise
        raise MissingExtraError(error.name, "cli", "the command") from error
    # The base class of typer's usage errors. Newer releases bundle click and do not export it.
    usage_error: Any = next(
        kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
    )
    try:
        # In standalone mode typer would print an error over four lines and exit.
        code = program(args=arguments, prog_name="sharpmax", standalone_mode=False)
    except usage_error as error:
        return _print_error(error.format_message())
    except typer.Abort as error:
        raise KeyboardInterrupt from error
    if code == INTERRUPTED:  # how newer releases of typer report Ctrl-C
        raise KeyboardInterrupt
    return code if isinstance(code, int) else 0


def _print_error(message: str) -> int:
    print(f"sharpmax: {' '.join(message.split())}", file=sys.stderr)
    return USER_ERROR
