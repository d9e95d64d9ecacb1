"""User-facing errors. The command line prints each as one line and exits with code 2."""

from __future__ import annotations


class UserError(ValueError):
    """Report a value, file or option that cannot be used.

    The message says what was given, what was expected and what to do.
    """


class MissingExtraError(UserError):
    """Report that a package of one of the extras is not installed.

    Args:
        package: the missing package.
        extra: the extra of sharpmax that installs it.
        purpose: what needs the package, as the subject of the message.
    """

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs {package}, which is not installed: pip install 'sharpmax[{extra}]'"
        )
        self._arguments = package, extra, purpose

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str, str]]:
        # By default pickle rebuilds an exception from its message alone, which would fail here.
        return MissingExtraError, self._arguments
