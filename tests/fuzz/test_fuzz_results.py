"""Damaged results and calibrations: every case is reported or refused."""

from __future__ import annotations

import copy
import hashlib
import io
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import accept, damage, mutate
from hypothesis import given, settings
from hypothesis import strategies as st

from report.published import ROOT, UNPUBLISHED
from report.synthetic import scan as synthetic_scan
from sharpmax import report
from sharpmax.report.kinds import KINDS
from sharpmax.results import Result


@cache
def published(kind: str) -> tuple[dict[str, Any], bytes | None]:
    """The smallest committed result of this kind, and its arrays."""
    if kind == "scan":
        folder = Path(__file__).parent / "none"
        result = synthetic_scan(3, 4, 3)
        content = json.loads(result.model_dump_json())
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **result.arrays)
        return content | {"arrays_file": "a.npz"}, buffer.getvalue()
    found = []
    for folder in ("results", "results/tuned", "results/smollm2"):
        for path in (ROOT / folder).glob("*.json"):
            content = json.loads(path.read_text("utf-8"))
            calibration = content.get("format") == "sharpmax-calibration"
            if content.get("kind") == kind or (calibration and kind == "calibration"):
                found.append((path.stat().st_size, str(path)))
    path = Path(min(found)[1])
    content = json.loads(path.read_text("utf-8"))
    arrays = content.get("arrays_file")
    return content, None if arrays is None else path.with_name(arrays).read_bytes()


def render(path: Path) -> None:
    report.render([report.load(path)], names=[path.name])


def check_json(kind: str, number: int, folder: Path) -> None:
    """Mutate the JSON of a result or calibration."""
    rng = np.random.default_rng([number, len(kind)])
    content, arrays = published(kind)
    content = copy.deepcopy(content)
    if arrays is not None:
        (folder / content["arrays_file"]).write_bytes(arrays)
        content["arrays_sha256"] = hashlib.sha256(arrays).hexdigest()
    # Mostly what was measured: the rest is checked field by field when it is read.
    parts = [
        content[part] for part in ("measurements", "config", "method", "heads") if content.get(part)
    ]
    mutate(content if rng.random() < 0.2 else parts[rng.integers(len(parts))], rng)
    path = folder / "x.json"
    path.write_text(json.dumps(content), "utf-8")
    accept(lambda: render(path))


def check_arrays(kind: str, number: int, folder: Path) -> None:
    """Mutate the arrays of a result, or the bytes of their file, and write the right hash."""
    rng = np.random.default_rng([number, len(kind), 1])
    content, packed = published(kind)
    assert packed is not None
    if rng.random() < 0.5:
        changed = damage(packed, rng)
    else:
        arrays = dict(np.load(io.BytesIO(packed)))
        name = list(arrays)[rng.integers(len(arrays))]
        array = arrays[name]
        choices: list[Callable[[], Any]] = [
            lambda: arrays.pop(name),
            lambda: arrays.update({name: array.T}),
            lambda: arrays.update({name: array[:0]}),
            lambda: arrays.update({name: np.float64(1)}),
            lambda: arrays.update({name: array[..., None]}),
            lambda: arrays.update({name: np.zeros_like(array)}),
            lambda: arrays.update({name: np.full(array.shape, np.nan)}),
            lambda: arrays.update({name: np.full(array.shape, -1e300)}),
            lambda: arrays.update({name: array.astype(">f2")}),
            lambda: arrays.update({name: array.astype(complex)}),
            lambda: arrays.update({name: array.astype(bool)}),
            lambda: arrays.update({name: array.astype(object)}),
            lambda: arrays.update({name: array.astype("U5")}),
            lambda: arrays.update({f"{name}\n": array}),
        ]
        choices[rng.integers(len(choices))]()
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=True, **arrays)
        changed = buffer.getvalue()
    (folder / "a.npz").write_bytes(changed)
    content = content | {
        "arrays_file": "a.npz",
        "arrays_sha256": hashlib.sha256(changed).hexdigest(),
    }
    path = folder / "x.json"
    path.write_text(json.dumps(content), "utf-8")
    accept(lambda: render(path))


JSON_KINDS = sorted({*KINDS, "calibration"} - UNPUBLISHED)
ARRAY_KINDS = ("certify", "diagnose", "evaluate", "figure5", "figure6", "scan", "table1")


@pytest.mark.parametrize("kind", JSON_KINDS)
def test_json_some(kind, tmp_path):
    for number in range(8):
        check_json(kind, number, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", JSON_KINDS)
def test_json_many(kind, tmp_path):
    for number in range(1200 if kind == "calibration" else 150):
        check_json(kind, 100 + number, tmp_path)


@pytest.mark.parametrize("kind", ARRAY_KINDS)
def test_arrays_some(kind, tmp_path):
    for number in range(10):
        check_arrays(kind, number, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ARRAY_KINDS)
def test_arrays_many(kind, tmp_path):
    for number in range(150):
        check_arrays(kind, 100 + number, tmp_path)


@given(st.binary(max_size=400) | st.text(max_size=100).map(str.encode))
@settings(max_examples=300)
def test_any_bytes(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_bytes(content)
    accept(lambda: report.load(path))
    accept(lambda: Result.load(path))
