"""Write the tables made of results into the README and the pages of docs.

Every number comes from the committed results. Run `make claims` after a result has changed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from claim_numbers import AGAIN
from claim_rows import OURS, PAPERS, Claim
from study_tables import study

from sharpmax import report
from sharpmax._errors import UserError
from sharpmax._files import write_atomically
from sharpmax.report.blocks import Column, Table
from sharpmax.report.kinds import figure8, train_normalisers
from sharpmax.report.renderers import markdown
from sharpmax.results import Calibration, Provenance, Result, schemas

MARK = "claims"
NOT_RUN = "not run yet"

CLRS = {
    "Trained from scratch": "figure8.json",
    "Fine-tuned, as in the paper": "tuned/figure8.json",
}
"""The parts of docs/clrs.md: titles and results."""


class Results:
    """The results of a folder by name, each read once; None for one that is not there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._loaded: dict[str, Result | Calibration | None] = {}

    def __getitem__(self, name: str) -> Result | Calibration | None:
        if name not in self._loaded:
            path = self.folder / name
            self._loaded[name] = report.load(path) if path.exists() else None
        return self._loaded[name]


def duration(seconds: float) -> str:
    """Format a duration in the unit that fits."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def training_seconds(result: Result) -> float | None:
    """Return the time of one core that trainings took; a later run reuses their checkpoints."""
    if result.kind == "table1":
        return sum(schemas.Table1.of(result).training_seconds)
    if result.kind == "train-normalisers":
        rows = schemas.TrainNormalisers.of(result).rows
        # Conditions that share a training have its time.
        return sum({row.seconds for row in rows})
    if result.kind == "leaderboard":
        return schemas.Leaderboard.of(result).unit_seconds
    if result.kind == "figure8":
        return sum(training.seconds for training in schemas.Figure8.of(result).trainings)
    return None


def time_taken(result: Result) -> str:
    """Format how long a result took, and its trainings."""
    whole, trained = duration(result.provenance.seconds), training_seconds(result)
    if trained is None:
        return whole
    return f"{whole}; training took {duration(trained)} of one core"


def version(origin: Provenance) -> str:
    """Format the version and the commit that made a result."""
    commit, mark, _ = (origin.commit or "unknown").partition("+changes")
    changes = " with uncommitted changes" if mark else ""
    return f"sharpmax {origin.sharpmax}, commit {commit[:9]}{changes}"


def command(claim: Claim, origin: Provenance | None) -> str:
    """Return the command that was typed, with the folder of a program of ours."""
    if origin is None:
        return claim.command
    program = origin.command.partition(" ")[0]
    for folder in ("benchmarks", "examples"):
        if (Path(__file__).parents[1] / folder / program).exists():
            return f"python {folder}/{origin.command}"
    return origin.command


def wrap(command: str, width: int = 84) -> str:
    """Break a long command before its options, so that it can still be pasted into a shell."""
    first, *options = re.split(r" (?=--)", command)
    lines = [first]
    for option in options:
        if len(lines[-1]) + len(option) < width:
            lines[-1] += f" {option}"
        else:
            lines.append(f"  {option}")
    return " \\\n".join(lines)


def number(claim: Claim, results: Results) -> str:
    """Return our number for a claim."""
    result = results[claim.file]
    if result is None:
        return NOT_RUN
    try:
        return claim.ours(result)
    except UserError as error:
        raise UserError(f"{results.folder / claim.file} is damaged: {error}") from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(
            f"{results.folder / claim.file} is damaged: it does not hold what the claim "
            f"{claim.text!r} needs ({type(error).__name__}: {error}); run its command again"
        ) from error


def cells(claim: Claim, results: Results, *, paper: bool) -> list[str]:
    """Return one row of the tables of docs/reproduce.md."""
    return [
        f"[{claim.text}]({claim.page})",
        *([f"{claim.paper} (*{claim.sure}*)"] if paper else []),
        number(claim, results),
        f"[{claim.file}](#{anchor(claim.file)})",
    ]


def anchor(heading: str) -> str:
    """Return the anchor that Markdown gives a heading without spaces."""
    return re.sub(r"[^\w-]", "", heading.lower())


def made_by(file: str, results: Results) -> str:
    """Return how a result was made: its command, version and time.

    A long command is a block of its own, since it would not fit the cell of a table.
    """
    claims = [claim for claim in (*PAPERS, *OURS) if claim.file == file]
    result = results[file]
    origin = result.provenance if isinstance(result, Result) else None
    if result is None:
        text = f"{NOT_RUN.capitalize()}."
    else:
        text = f"[Result](../results/{file})"
        outdated = all(number(claim, results) == AGAIN for claim in claims)
        if isinstance(result, Result) and origin is not None and not outdated:
            text += f", made in {time_taken(result)} ({version(origin)})"
        text += ":"
    return f"#### {file}\n\n{text}\n\n```text\n{wrap(command(claims[0], origin))}\n```"


def whole(results: Results) -> str:
    """Return both tables of docs/reproduce.md, and the command behind each result."""
    parts = []
    for title, claims, paper in (("The paper's", PAPERS, True), ("Ours", OURS, False)):
        names = ["claim", *(["paper"] if paper else []), "ours", "result"]
        rows = [cells(claim, results, paper=paper) for claim in claims]
        table = Table(title, [Column(name) for name in names], rows)
        parts.append(f"### {title}\n\n{markdown.table(table)}")
    files = dict.fromkeys(claim.file for claim in (*PAPERS, *OURS))
    return "\n\n".join([*parts, "### Commands", *(made_by(file, results) for file in files)])


def brief(results: Results) -> str:
    """Return the README's table."""
    rows = [
        [claim.text, claim.paper, number(claim, results), _page_link(claim)]
        for claim in (*PAPERS, *OURS)
        if claim.brief
    ]
    columns = [Column(name) for name in ("claim", "paper", "ours", "page")]
    return markdown.table(Table("Claims", columns, rows))


def _page_link(claim: Claim) -> str:
    return f"[{claim.page.partition('#')[0]}](docs/{claim.page})"


def clrs(results: Results) -> str:
    """Return the tables of docs/clrs.md, for each result that is there."""
    parts = []
    for title, name in CLRS.items():
        result = results[name]
        text = clrs_tables(result) if isinstance(result, Result) else "Not run yet."
        parts.append(f"### {title}\n\n{text}")
    return "\n\n".join(parts)


def clrs_tables(result: Result, algorithm: str = "minimum") -> str:
    """Return the accuracy of all algorithms, and that of one by size."""
    figure = schemas.Figure8.of(result)
    tables = [figure8.by_algorithm(figure)]
    if algorithm in figure.algorithms:
        tables.append(figure8.familiar_by_size(figure, algorithm))
    return "\n\n".join(markdown.table(_conditions_as_code(table, figure)) for table in tables)


def _conditions_as_code(table: Table, figure: schemas.Figure8) -> Table:
    """Mark the names of conditions as code, as the page does."""

    def mark(text: str) -> str:
        return f"`{text}`" if text in figure.labels else text

    columns = [replace(column, name=mark(column.name)) for column in table.columns]
    rows = [[mark(row[0]), *row[1:]] for row in table.rows]
    return replace(table, columns=columns, rows=rows)


def trainings(results: Results) -> str:
    """Return the table of docs/train.md."""
    result = results["train-normalisers.json"]
    if not isinstance(result, Result):
        return f"{NOT_RUN.capitalize()}."
    return markdown.table(train_normalisers.longest_texts(schemas.TrainNormalisers.of(result)))


PAGES: dict[Path, Callable[[Results], str]] = {
    Path("docs") / "reproduce.md": whole,
    Path("docs") / "clrs.md": clrs,
    Path("docs") / "study.md": study,
    Path("docs") / "train.md": trainings,
    Path("README.md"): brief,
}


def main(root: Path) -> None:
    """Write the tables into the pages below a folder."""
    results = Results(root / "results")
    texts = {root / name: table(results) for name, table in PAGES.items()}
    for page, text in texts.items():
        old = page.read_text("utf-8")
        new = markdown.replace_marked(old, MARK, text)
        if new != old:
            write_atomically(page, new.encode())
            print(f"Written: {page.relative_to(root)}")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1])
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
