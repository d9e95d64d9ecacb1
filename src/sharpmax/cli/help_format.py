"""Layout of help texts: flags are shown as `--overwrite`, not as `--overwrite <bool>`."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup


class _FlagsWithoutType:
    def get_params(self, context: Any) -> Any:
        params = super().get_params(context)  # type: ignore[misc]
        for param in params:  # `--help` among them, which no option of ours declares
            if getattr(param, "is_flag", False):
                param.metavar = ""
        return params


class Command(_FlagsWithoutType, TyperCommand):
    """A command with our help layout; pass it as `cls` to `typer.Typer.command`."""


class Group(_FlagsWithoutType, TyperGroup):
    """A group of commands with our help layout; pass it as `cls` to `typer.Typer`."""
