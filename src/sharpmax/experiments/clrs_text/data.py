"""Read CLRS-Text: the folders that `generate` writes, or the datasets that its authors published.

A generated folder has a JSONL file per algorithm and a manifest, which says how it was made and
holds the hash of every file. The published datasets are `tomg-group-umd/CLRS-Text-train` (split
`train`) and `-test` (splits `test_1` to `test_5`, one per seed), on the Hugging Face hub or as a
folder copied from there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from sharpmax._errors import MissingExtraError, UserError
from sharpmax._files import write_atomically
from sharpmax.experiments.clrs_text.algorithms import SEEDS, check_algorithms

PUBLISHED = {"train": "tomg-group-umd/CLRS-Text-train", "test": "tomg-group-umd/CLRS-Text-test"}
MANIFEST = "manifest.json"
FORMAT = "sharpmax-clrs-text"
VERSION = 1


class Sample(NamedTuple):
    """A question and the exact answer that is expected."""

    algorithm: str
    size: int
    seed: int
    question: str
    answer: str


@dataclass(frozen=True)
class Source:
    """Samples, and where they come from."""

    samples: list[Sample]
    location: str
    """The folder or the name of the dataset."""
    about: dict[str, Any]
    """Hashes, versions and seeds, which identify the data wherever it is stored."""


@dataclass(frozen=True)
class File:
    """The samples of one algorithm."""

    name: str
    sizes: tuple[int, ...]
    rows: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The settings of a generated folder, and the files that are finished."""

    split: str
    sizes: dict[str, tuple[int, ...]]
    """Requested sizes by algorithm."""
    seeds: tuple[int, ...]
    samples: int
    """Samples per algorithm, size and seed."""
    decimals: int
    versions: dict[str, str]
    """Versions of the packages that decide the content."""
    files: dict[str, File] = field(default_factory=dict)
    """Finished files by algorithm."""

    @property
    def sha256(self) -> str:
        """The hash of all files: the same for the same samples."""
        lines = [f"{name} {file.sha256}" for name, file in sorted(self.files.items())]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    @property
    def complete(self) -> bool:
        """Whether the file of every requested algorithm is finished."""
        return set(self.files) == set(self.sizes)

    def has_settings_of(self, other: Manifest) -> bool:
        """Return whether the two differ at most in the finished files."""
        return {**asdict(self), "files": None} == {**asdict(other), "files": None}

    def save(self, folder: Path) -> None:
        """Write the manifest into a folder."""
        content: dict[str, Any] = {"format": FORMAT, "version": VERSION, **asdict(self)}
        content["sha256"] = self.sha256 if self.complete else None
        write_atomically(folder / MANIFEST, (json.dumps(content, indent=1) + "\n").encode())


def load_manifest(folder: Path) -> Manifest:
    """Read the manifest of a folder; refuse a damaged or unknown one."""
    path = folder / MANIFEST
    try:
        content = json.loads(path.read_text("utf-8"))
        format_name, version = content.pop("format", None), content.pop("version", None)
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"{path} cannot be read ({error}): generate the data again") from error
    if format_name != FORMAT or version != VERSION:
        raise UserError(f"{path} is not a manifest of CLRS-Text that this sharpmax reads")
    expected = content.pop("sha256", None)
    try:
        files = {
            name: File(**{**file, "sizes": tuple(file["sizes"])})
            for name, file in content.pop("files").items()
        }
        sizes = {name: tuple(numbers) for name, numbers in content.pop("sizes").items()}
        seeds = tuple(content.pop("seeds"))
        manifest = Manifest(sizes=sizes, seeds=seeds, files=files, **content)
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is damaged ({error}): generate the data again") from error
    if manifest.complete and manifest.sha256 != expected:
        raise UserError(f"{path} is damaged: its hash is not that of its files")
    return manifest


def load_samples(
    location: str | Path,
    split: str,
    *,
    algorithms: Collection[str] = (),
    sizes: Collection[int] = (),
    limit: int | None = None,
    limits: Mapping[str, int] | None = None,
) -> Source:
    """Load samples of a generated folder, of a published dataset, or of a copy of one.

    Args:
        location: A folder, or one of the names in `PUBLISHED`.
        split: `train` or `test`.
        algorithms: Only these algorithms; all by default.
        sizes: Only these sizes; all by default.
        limit: Maximum number of samples per algorithm, size and seed.
        limits: The same for single algorithms, in place of `limit`.

    Returns:
        The samples with their origin.

    Raises:
        UserError: If the data is missing, damaged or of another split, or nothing is left.
    """
    check_algorithms([*algorithms, *(limits or ())])
    folder = Path(location)
    if folder.is_file():
        raise UserError(f"{location} is a file: give the folder that its manifest is in")
    if (folder / MANIFEST).is_file():
        about, rows = _read_generated(folder, split, algorithms)
    elif folder.is_dir() or str(location) in PUBLISHED.values():
        about, rows = _read_published(str(location), split)
    else:
        raise UserError(
            f"{location} is not a folder of CLRS-Text: create one with sharpmax clrs generate, or "
            f"give {PUBLISHED[split]}"
        )
    samples = list(_select(rows, set(algorithms), set(sizes), limit, limits or {}))
    if not samples:
        raise UserError(f"{location} has no samples of the requested algorithms and sizes")
    missing = {*algorithms, *(limits or ())} - {sample.algorithm for sample in samples}
    if missing:
        raise UserError(f"{location} has no samples of {', '.join(sorted(missing))} at these sizes")
    return Source(samples, str(location), {**about, **_fingerprint(samples)})


def _fingerprint(samples: list[Sample]) -> dict[str, Any]:
    """Identify the selected samples: a training on other samples must not be resumed."""
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(repr(tuple(sample)).encode())
    return {"samples": len(samples), "samples_sha256": digest.hexdigest()}


def _read_generated(
    folder: Path, split: str, algorithms: Collection[str]
) -> tuple[dict[str, Any], Iterator[Sample]]:
    manifest = load_manifest(folder)
    if manifest.split != split:
        raise UserError(f"{folder} holds the {manifest.split} split, expected {split}")
    if not manifest.complete:
        missing = ", ".join(name for name in manifest.sizes if name not in manifest.files)
        raise UserError(f"{folder} lacks {missing}: repeat sharpmax clrs generate to resume")
    names = [name for name in manifest.files if not algorithms or name in algorithms]
    about = {
        "sha256": manifest.sha256,
        "versions": manifest.versions,
        "seeds": list(manifest.seeds),
    }
    return about, (row for name in names for row in _read_file(folder, manifest.files[name]))


def _read_file(folder: Path, file: File) -> Iterator[Sample]:
    path = folder / file.name
    if Path(file.name).name != file.name or not path.is_file():
        raise UserError(f"{path} is missing: generate the data again")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise UserError(f"{path} is damaged: its hash is not the one in the manifest")
    for line in content.splitlines():
        row = json.loads(line)
        yield _sample(row, row["seed"])


def _read_published(location: str, split: str) -> tuple[dict[str, Any], Iterator[Sample]]:
    try:
        import datasets
    except ModuleNotFoundError as error:
        purpose = "reading a published dataset"
        raise MissingExtraError(error.name or "datasets", "clrs", purpose) from error
    seeds = SEEDS[split]
    names = ["train"] if split == "train" else [f"test_{k + 1}" for k in range(len(seeds))]
    try:
        tables = [datasets.load_dataset(location, split=name) for name in names]
    except Exception as error:  # whatever the library, its HTTP client or a file format raises
        short = " ".join(str(error).split())[:200]
        raise UserError(
            f"{location} cannot be read ({short}): expected the splits {', '.join(names)}, in a "
            "folder or on the hub"
        ) from error
    needed = {"question", "answer", "algo_name", "length"}
    for table in tables:
        if missing := needed - set(table.column_names):
            raise UserError(f"{location} is not CLRS-Text: no column {', '.join(sorted(missing))}")
    about = {
        "published": PUBLISHED[split],
        "seeds": list(seeds),
        "rows": [len(table) for table in tables],
    }
    pairs = zip(tables, seeds, strict=True)
    return about, (_sample(row, seed) for table, seed in pairs for row in table)


def _sample(row: dict[str, Any], seed: int) -> Sample:
    return Sample(row["algo_name"], row["length"], seed, row["question"], row["answer"])


def _select(
    rows: Iterable[Sample],
    algorithms: set[str],
    sizes: set[int],
    limit: int | None,
    limits: Mapping[str, int],
) -> Iterator[Sample]:
    """Keep the requested algorithms and sizes, and the first samples of each up to the limit."""
    counts: dict[tuple[str, int, int], int] = {}
    for row in rows:
        if (algorithms and row.algorithm not in algorithms) or (sizes and row.size not in sizes):
            continue
        group = row[:3]
        counts[group] = counts.get(group, 0) + 1
        most = limits.get(row.algorithm, limit)
        if most is None or counts[group] <= most:
            yield row
