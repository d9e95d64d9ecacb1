"""The `sharpmax` command, a file a subcommand; a user's mistake is one line and exit code 2."""

from __future__ import annotations

import sys
from typing import Any

from sharpmax._errors import MissingExtraError, UserError


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    try:
        return _run(arguments)
    except (UserError, NotImplementedError) as error:  # the second: what a library part refuses
        return _failed(str(error))
    except BrokenPipeError:  # the reader, say `head`, has seen enough
        sys.stderr.close()
        return 141
    except OSError as error:
        return _failed(f"{error.filename or 'the system'}: {error.strerror or error}")
    except KeyboardInterrupt:
        print("sharpmax: stopped", file=sys.stderr)
        return 130


def _run(arguments: list[str] | None) -> int:
    try:
        import typer

        from sharpmax.cli.app import app
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("sharpmax"):
            raise
        raise MissingExtraError(error.name, "cli", "the command") from error
    # The base of typer's complaints; newer releases carry their own click and do not name it.
    mro = typer.BadParameter.__mro__
    complaint: Any = next(kind for kind in mro if kind.__name__ == "ClickException")
    try:
        # Not as a standalone: that prints a mistake over four lines.
        code = app(args=arguments, prog_name="sharpmax", standalone_mode=False)
    except complaint as error:
        return _failed(error.format_message())
    except typer.Abort as error:
        raise KeyboardInterrupt from error
    if code == 130:  # how newer releases of typer tell an interrupt
        raise KeyboardInterrupt
    return code if isinstance(code, int) else 0


def _failed(message: str) -> int:
    print(f"sharpmax: {' '.join(message.split())}", file=sys.stderr)
    return 2
