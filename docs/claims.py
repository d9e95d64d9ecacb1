"""Every claim with its command and its number: the tables of docs/reproduce.md, docs/clrs.md and of
the README, made from the committed results alone. `make claims` after a result has changed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import clrs_results
from claim_numbers import AGAIN
from claim_own_rows import OURS
from claim_rows import PAPERS, Claim
from marked import filled, markdown

from sharpmax import report
from sharpmax._errors import UserError
from sharpmax._files import write_atomically
from sharpmax.report.calibration import Calibration
from sharpmax.results import Provenance, Result

MARK = "claims"
NOT_RUN = "not run yet"
NOTHING = "—"

TRAINED = {
    "table1": lambda found: sum(found["training_seconds"]),
    "leaderboard": lambda found: found["unit_seconds"],
    "figure8": lambda found: sum(one["seconds"] for one in found["trainings"]),
}
"""By kind: the time of one core that its trainings took, whose checkpoints a later run goes on
from."""


class Results:
    """The results of a folder by name, each read once; None for one that is not there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[str, Result | Calibration | None] = {}

    def __getitem__(self, name: str) -> Result | Calibration | None:
        if name not in self._read:
            path = self.folder / name
            self._read[name] = report.load(path) if path.exists() else None
        return self._read[name]


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def took(result: Result) -> str:
    whole = duration(result.provenance.seconds)
    if result.kind in TRAINED:
        return f"{whole}; trainings {duration(TRAINED[result.kind](result.measurements))} of a core"
    return whole


def version(made: Provenance) -> str:
    commit, mark, _ = (made.commit or "no commit").partition("+changes")
    return f"{made.sharpmax} at {commit[:9]}" + (" and changes" if mark else "")


def command(claim: Claim, made: Provenance | None) -> str:
    """What was typed; a program of ours in benchmarks/ by its place."""
    if made is None:
        return f"`{claim.command}`"
    program = made.command.partition(" ")[0]
    ours = (Path(__file__).parents[1] / "benchmarks" / program).exists()
    return f"`python benchmarks/{made.command}`" if ours else f"`{made.command}`"


def number(claim: Claim, results: Results) -> str:
    found = results[claim.file]
    if found is None:
        return NOT_RUN
    try:
        return claim.ours(found)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(
            f"{results.folder / claim.file} is damaged: it does not hold what the claim "
            f"{claim.text!r} needs ({type(error).__name__}: {error}); run its command again"
        ) from error


def cells(claim: Claim, results: Results, *, paper: bool) -> list[str]:
    """One row of the whole table."""
    found, ours = results[claim.file], number(claim, results)
    made = found.provenance if isinstance(found, Result) else None
    known = made is not None and ours != AGAIN
    link = f"[{claim.file}](../results/{claim.file})" if found is not None else claim.file
    return [
        f"[{claim.text}]({claim.page})",
        *([claim.paper, claim.sure] if paper else []),
        ours,
        command(claim, made),
        took(found) if known and isinstance(found, Result) else NOTHING,
        f"{link}, {version(made)}" if known and made is not None else link,
    ]


def whole(results: Results) -> str:
    """Both tables of docs/reproduce.md."""
    rest = ["ours", "command", "took", "result, made by"]
    parts = []
    for title, claims, paper in (
        ("The paper's", PAPERS, True),
        ("Ours", OURS, False),
    ):
        head = ["claim", *(["the paper's number", "how sure"] if paper else []), *rest]
        rows = [cells(claim, results, paper=paper) for claim in claims]
        parts.append(f"### {title}\n\n{markdown(head, rows)}")
    return "\n\n".join(parts)


def brief(results: Results) -> str:
    """The README's table."""
    rows = [
        [claim.text, claim.paper, number(claim, results), _page(claim)]
        for claim in (*PAPERS, *OURS)
        if claim.brief
    ]
    return markdown(["claim", "paper", "ours", "page"], rows)


def _page(claim: Claim) -> str:
    return f"[{claim.page.partition('#')[0]}](docs/{claim.page})"


PAGES = {
    Path("docs") / "reproduce.md": whole,
    Path("docs") / "clrs.md": clrs_results.tables,
    Path("README.md"): brief,
}


def main(root: Path) -> None:
    results = Results(root / "results")
    for name, table in PAGES.items():
        page = root / name
        old = page.read_text("utf-8")
        new = filled(old, MARK, table(results))
        if new != old:
            write_atomically(page, new.encode())
            print(f"Written: {name}")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1])
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
