"""The two errors that are the user's to mend; the command line turns each into one line and exit
code 2.
"""

from __future__ import annotations


class UserError(ValueError):
    """A value, file or option that cannot be used; the message says which, what was expected and
    what to do.
    """


class MissingExtraError(UserError):
    """A package of one of the extras is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs {package}, which is not installed: pip install 'sharpmax[{extra}]'"
        )
        self._made_of = package, extra, purpose

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str, str]]:
        """Made again in another process: an exception is by default made of its message alone."""
        return MissingExtraError, self._made_of
