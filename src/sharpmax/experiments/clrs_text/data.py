"""Read CLRS-Text: what `generate` wrote, or the datasets that its authors published.

The published ones are `tomg-group-umd/CLRS-Text-train` (split `train`) and `-test` (splits `test_1`
to `test_5`, one a seed), on the Hugging Face hub or as a folder copied from there.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sharpmax._errors import MissingExtraError, UserError
from sharpmax.experiments.clrs_text import manifest
from sharpmax.experiments.clrs_text.algorithms import SEEDS, check_algorithms

PUBLISHED = {"train": "tomg-group-umd/CLRS-Text-train", "test": "tomg-group-umd/CLRS-Text-test"}


class Sample(NamedTuple):
    """A question and the answer that is expected, to the letter."""

    algorithm: str
    size: int
    seed: int
    question: str
    answer: str


@dataclass(frozen=True)
class Source:
    """Samples, and where they are from."""

    samples: list[Sample]
    place: str
    about: dict[str, Any]
    """Which data this was, wherever it lies: hashes, versions, seeds."""


def read(
    place: str | Path,
    split: str,
    *,
    algorithms: Collection[str] = (),
    sizes: Collection[int] = (),
    limit: int | None = None,
    limits: Mapping[str, int] | None = None,
) -> Source:
    """The samples of a folder that `generate` wrote, of a published dataset on the hub, or of a
    folder that it was copied to.

    `algorithms` and `sizes` keep only those, `limit` so many for each algorithm, size and seed,
    `limits` so many of the algorithms that it names.
    """
    check_algorithms([*algorithms, *(limits or ())])
    folder = Path(place)
    if folder.is_file():
        raise UserError(f"{place} is a file: give the folder that its manifest is in")
    if (folder / manifest.NAME).is_file():
        about, rows = _generated(folder, split, algorithms)
    elif folder.is_dir() or str(place) in PUBLISHED.values():
        about, rows = _published(str(place), split)
    else:
        raise UserError(
            f"{place} is no folder of CLRS-Text: make one with sharpmax clrs generate, or give "
            f"{PUBLISHED[split]}"
        )
    most: dict[str, int | None] = defaultdict(lambda: limit)
    most.update(limits or {})
    samples = list(_chosen(rows, set(algorithms), set(sizes), most))
    if not samples:
        raise UserError(f"{place} has no samples of the algorithms and sizes that were asked for")
    missing = {*algorithms, *(limits or ())} - {sample.algorithm for sample in samples}
    if missing:
        raise UserError(f"{place} has no samples of {', '.join(sorted(missing))} at these sizes")
    return Source(samples, str(place), {**about, **_identity(samples)})


def _identity(samples: list[Sample]) -> dict[str, Any]:
    """Which samples were chosen: trainings on others must not continue each other."""
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(repr(tuple(sample)).encode())
    return {"samples": len(samples), "samples_sha256": digest.hexdigest()}


def _generated(
    folder: Path, split: str, algorithms: Collection[str]
) -> tuple[dict[str, Any], Iterator[Sample]]:
    found = manifest.load(folder)
    if found.split != split:
        raise UserError(f"{folder} holds the {found.split} split, expected {split}")
    if not found.complete:
        lacking = ", ".join(name for name in found.sizes if name not in found.files)
        raise UserError(f"{folder} lacks {lacking}: repeat sharpmax clrs generate to go on")
    wanted = [name for name in found.files if not algorithms or name in algorithms]
    about = {"sha256": found.sha256, "versions": found.versions, "seeds": list(found.seeds)}
    return about, (row for name in wanted for row in _rows(folder, found.files[name]))


def _rows(folder: Path, file: manifest.File) -> Iterator[Sample]:
    path = folder / file.name
    if Path(file.name).name != file.name or not path.is_file():
        raise UserError(f"{path} is missing: generate the data again")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise UserError(f"{path} is damaged: its hash is not the one that its manifest records")
    for line in content.splitlines():
        row = json.loads(line)
        yield _sample(row, row["seed"])


def _published(place: str, split: str) -> tuple[dict[str, Any], Iterator[Sample]]:
    try:
        import datasets
    except ModuleNotFoundError as error:
        purpose = "reading a published dataset"
        raise MissingExtraError(error.name or "datasets", "clrs", purpose) from error
    seeds = SEEDS[split]
    names = ["train"] if split == "train" else [f"test_{k + 1}" for k in range(len(seeds))]
    try:
        tables = [datasets.load_dataset(place, split=name) for name in names]
    except Exception as error:  # whatever the library, its HTTP client or a file format raises
        short = " ".join(str(error).split())[:200]
        raise UserError(
            f"{place} cannot be read ({short}): expected the splits {', '.join(names)}, in a "
            "folder or on the hub"
        ) from error
    needed = {"question", "answer", "algo_name", "length"}
    for table in tables:
        if lacking := needed - set(table.column_names):
            raise UserError(f"{place} is not CLRS-Text: no column {', '.join(sorted(lacking))}")
    about = {
        "published": PUBLISHED[split],
        "seeds": list(seeds),
        "rows": [len(table) for table in tables],
    }
    pairs = zip(tables, seeds, strict=True)
    return about, (_sample(row, seed) for table, seed in pairs for row in table)


def _sample(row: dict[str, Any], seed: int) -> Sample:
    return Sample(row["algo_name"], row["length"], seed, row["question"], row["answer"])


def _chosen(
    rows: Iterable[Sample], algorithms: set[str], sizes: set[int], most: Mapping[str, int | None]
) -> Iterator[Sample]:
    taken: dict[tuple[str, int, int], int] = {}
    for row in rows:
        if (algorithms and row.algorithm not in algorithms) or (sizes and row.size not in sizes):
            continue
        place = row[:3]
        taken[place] = taken.get(place, 0) + 1
        limit = most[row.algorithm]
        if limit is None or taken[place] <= limit:
            yield row
