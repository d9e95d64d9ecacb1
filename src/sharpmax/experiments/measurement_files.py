"""Keep every measurement of a long experiment in a file of its own, so that it can be resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sharpmax._errors import UserError
from sharpmax._files import write_atomically


class MeasurementFiles:
    """The measurements in a folder, each with what it depends on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, name: str, content: str) -> Path:
        """Return where a measurement of a condition is kept."""
        return self.folder / "measured" / name.replace(":", "-") / f"{content}.json"

    def load(self, name: str, content: str, depends_on: dict[str, Any]) -> dict[str, Any] | None:
        """Return a measurement; None if it has not been made.

        Raises:
            UserError: It was made with other settings.
        """
        path = self.path(name, content)
        if not path.exists():
            return None
        saved = json.loads(path.read_bytes())
        if saved["of"] != depends_on:
            raise UserError(
                f"{path} was measured with {_name_differences(saved['of'], depends_on)}: repeat "
                f"the command that did it, delete {self.folder}, or choose another --out"
            )
        measured: dict[str, Any] = saved["content"]
        return measured

    def save(
        self, name: str, content: str, depends_on: dict[str, Any], measured: dict[str, Any]
    ) -> None:
        """Write a measurement."""
        text = json.dumps({"of": depends_on, "content": measured})
        write_atomically(self.path(name, content), text.encode())


def _name_differences(saved: dict[str, Any], now: dict[str, Any]) -> str:
    different = [key for key in now if saved.get(key) != now[key]]
    if different == ["threads"]:
        return f"{saved['threads']} threads, not {now['threads']}"
    return "other settings"
