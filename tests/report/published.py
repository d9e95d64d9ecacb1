"""The committed results, read once per session, also with hostile text in them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from sharpmax import report
from sharpmax.report.kinds import KINDS
from sharpmax.results import Result

UNPUBLISHED = {
    "bench-training",
    "tune-comparison",
}
"""Kinds whose first run has not ended yet."""

ALL = sorted({*KINDS, "calibration"} - UNPUBLISHED)
ROOT = Path(__file__).parents[2]
FOLDERS = ("", "long", "smollm2", "tuned", "gemma-3-270m", "qwen2.5-coder-1.5b")
"""The main results come first: `first_of` gives the first of a kind."""
FILES = [path for folder in FOLDERS for path in sorted((ROOT / "results" / folder).glob("*.json"))]
EVIL = "<script>alert(1)</script></script>&\"'\u2028\u2029<img src=x onerror=alert(1)>"


@cache
def everything() -> dict[str, Any]:
    """By the name of its file."""
    return {f"{path.parent.name}/{path.stem}": report.load(path) for path in FILES}


def first_of(kind: str) -> Any:
    return next(result for result in everything().values() if result.kind == kind)


def poisoned(value: Any, names: tuple[str, ...]) -> Any:
    """The same with evil text for every value of these names, and every text in a list of them."""
    if isinstance(value, dict):
        return {
            key: _evil(inner) if key in names else poisoned(inner, names)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [poisoned(inner, names) for inner in value]
    return value


def _evil(value: Any) -> Any:
    if isinstance(value, str):
        return EVIL
    if isinstance(value, list):
        return [_evil(inner) for inner in value]
    if isinstance(value, dict):
        return {key: _evil(inner) for key, inner in value.items()}
    return value


def evil(kind: str) -> Any:
    """A result of that kind with evil text wherever a user's words or another program's may stand."""
    names = (
        "model",
        "architecture",
        "notes",
        "prompt",
        "unit",
        "task",
        "labels",
        "sure",
        "reason",
        "rules",
    )
    result = first_of(kind)
    if kind == "calibration":
        content = poisoned(result.model_dump(), (*names, "choose", "weights", "model_type"))
        content["architecture"] = result.architecture.model_dump() | {"model_type": EVIL}
        return type(result).model_validate(content)
    origin = dict.fromkeys(("command", "commit", "platform", "processor"), EVIL)
    # The names of scans and leaderboards are ours, and so are a study's models.
    fixed = {"scan": ("reason", "rules"), "leaderboard": ("reason", "rules")}
    fixed["study"] = ("architecture", "notes", "reasons")
    measurements = poisoned(result.measurements, fixed.get(kind, names))
    config = poisoned(result.config, names if kind != "leaderboard" else ())
    if kind == "evaluate":  # the name of a file of the user's
        config["arms"] = {
            arm if arm == "plain" else f"{EVIL}{arm}": one for arm, one in config["arms"].items()
        }
        for row in measurements["rows"]:
            row["arm"] = row["arm"] if row["arm"] == "plain" else f"{EVIL}{row['arm']}"
    update = {"measurements": measurements, "config": config}
    update["provenance"] = result.provenance.model_copy(update=origin)
    copy = Result(**(result.model_dump() | update))
    return copy.with_arrays(**result.arrays)
