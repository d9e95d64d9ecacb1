"""Extend an earlier leaderboard: keep its rows, and run only the trials that it lacks."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from sharpmax._errors import UserError
from sharpmax.experiments.leaderboard.config import Config
from sharpmax.experiments.leaderboard.entries import METHODS, TASKS, TRACKS, Entry
from sharpmax.experiments.max_retrieval.train import package_versions
from sharpmax.results import Result, schemas


@dataclass(frozen=True)
class Earlier:
    """The leaderboard that is extended."""

    result: Result
    rows: dict[Entry, dict[str, Any]]
    """The rows that have numbers."""

    @classmethod
    def of(cls, result: Result, config: Config, rules: str) -> Earlier:
        """Read the rows of a leaderboard that was made under the same conditions.

        Args:
            result: The earlier leaderboard.
            config: The settings of the new one.
            rules: The rules of the new one.

        Raises:
            UserError: The result is of another kind, or its rows cannot be compared with new ones.
        """
        schemas.Leaderboard.of(result)
        if result.config["budget"] != json.loads(json.dumps(asdict(config.budget))):
            raise UserError(
                "cannot extend a leaderboard with another budget: use the --steps and --seeds "
                "that it was made with"
            )
        if result.measurements["rules"] != rules:
            raise UserError("cannot extend a leaderboard that was made under other rules")
        installed, before = package_versions(), _versions(result)
        for package in installed.keys() & before:
            if before[package] != installed[package]:
                raise UserError(
                    f"cannot extend a leaderboard that was made with {package} {before[package]}: "
                    f"{installed[package]} is installed"
                )
        rows = {
            Entry(row["track"], row["task"], row["method"]): row
            for row in result.measurements["rows"]
            if "reason" not in row
        }
        return cls(result, rows)

    def widen(self, config: Config) -> Config:
        """Add the tracks, tasks and methods of the earlier leaderboard, so that no row is lost."""
        earlier = self.result.config
        return replace(
            config,
            tracks=_union(TRACKS, config.tracks, earlier["tracks"]),
            tasks=_union(TASKS, config.tasks, earlier["tasks"]),
            methods=_union(METHODS, config.methods, earlier["methods"]),
        )

    def record(self, cost: dict[str, Any], seconds: float, trials: int) -> dict[str, Any]:
        """Return the measurements that say what is new and what was kept.

        Ratios to softmax are taken within one process and can stand side by side. Milliseconds
        depend on the load of the machine, so new ones are recorded with their run.

        Args:
            cost: The cost of a training step, measured now.
            seconds: The time that the new trials took.
            trials: The number of new trials.
        """
        before = self.result.measurements
        ratios = ("ratio", "ratio_quartiles")
        run = {
            "earlier": self.result.provenance.model_dump(mode="json"),
            "new_trials": trials,
            "new_cost": cost,
        }
        return {
            "cost": before["cost"]
            | {name: cost.get(name, {}) | before["cost"].get(name, {}) for name in ratios},
            "unit_seconds": before["unit_seconds"] + seconds,
            "extensions": [*before.get("extensions", []), run],
        }


def _versions(result: Result) -> dict[str, str]:
    return {"sharpmax": result.provenance.sharpmax, **result.provenance.packages}


def _union(known: Iterable[str], given: Iterable[str], earlier: Iterable[str]) -> tuple[str, ...]:
    """Return all names in the order in which they are known; names that are not known come last."""
    names = {*given, *earlier}
    return tuple(dict.fromkeys([*(name for name in known if name in names), *given, *earlier]))
