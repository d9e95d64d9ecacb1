"""The tables of claims are what the committed results say, row by row."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import claims
import clrs_results
import numpy as np
import pytest
from claim_numbers import AGAIN
from claim_own_rows import OURS
from claim_rows import PAPERS
from marked import filled

from plot.synthetic import figure8
from sharpmax.experiments.max_retrieval.paper import TABLE1
from sharpmax.results import Result

BEGIN, END = "<!-- claims begin -->", "<!-- claims end -->"
ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
ALL = (*PAPERS, *OURS)


@pytest.fixture
def results(tmp_path) -> Path:
    """A copy of the committed results, to be changed."""
    return shutil.copytree(
        RESULTS, tmp_path / "results", ignore=shutil.ignore_patterns("*.png", "*.svg", "training")
    )


def row(folder: Path, start: str) -> str:
    """The row of the whole table whose claim begins so."""
    (found,) = [
        line for line in claims.whole(claims.Results(folder)).splitlines() if f"[{start}" in line
    ]
    return found


def change(path: Path, edit) -> None:
    content = json.loads(path.read_text("utf-8"))
    edit(content)
    path.write_text(json.dumps(content), "utf-8")


@pytest.mark.parametrize("name", claims.PAGES, ids=str)
def test_committed_pages_are_up_to_date(name):
    """If this fails: make claims."""
    text = (ROOT / name).read_text("utf-8")
    assert filled(text, claims.MARK, claims.PAGES[name](claims.Results(RESULTS))) == text


def test_the_page_has_the_table():
    text = (ROOT / "docs" / "reproduce.md").read_text("utf-8")
    assert BEGIN in text
    assert END in text
    assert all(claim.text in text for claim in ALL)


def test_a_changed_number_changes_its_rows_only(results):
    before = claims.whole(claims.Results(results)).splitlines()

    def edit(content):
        content["measurements"]["mean"]["baseline"][6] = 0.123

    change(results / "table1.json", edit)
    after = claims.whole(claims.Results(results)).splitlines()
    differing = [new for old, new in zip(before, after, strict=True) if old != new]
    assert len(differing) == 1
    assert "1,024 items" in differing[0]
    assert "12.3 ±" in differing[0]


def test_every_committed_result_has_a_row():
    files = {path.relative_to(RESULTS).as_posix() for path in RESULTS.rglob("*.json")}
    # Trained models are what numbers are made with.
    files = {name for name in files if "training/" not in name and not name.startswith("clrs/")}
    assert files <= {claim.file for claim in ALL}


def test_the_papers_table_is_reused():
    for size, known in TABLE1.items():
        if known.sure == "confirmed":
            cells = row(RESULTS, f"Table 1: {size:,} items").split(" | ")
            assert cells[1].startswith(f"{known.baseline} → {known.adaptive}")
            assert cells[2] == known.sure


def test_the_command_and_the_time_are_those_of_the_result(results):
    def edit(content):
        content["provenance"] |= {"command": "sharpmax reproduce figure5 --out x", "seconds": 7200}

    change(results / "figure5.json", edit)
    assert "`sharpmax reproduce figure5 --out x` | 2.0 h |" in row(results, "Figure 5")


def test_a_missing_result_is_not_run_yet_until_it_is_there(results):
    (results / "tuned").mkdir(exist_ok=True)
    (results / "tuned" / "figure8.json").unlink(missing_ok=True)
    missing = row(results, "Figure 8: ")
    assert f"| {claims.NOT_RUN} |" in missing
    assert f"| {claims.NOTHING} | tuned/figure8.json |" in missing

    made = figure8()
    shares = {"softmax": (0.2, 0.4), "adaptive": (0.5, 0.7), "inference": (0.1, 0.1)}
    for one in made.measurements["algorithms"].values():
        for arm, trainings in shares.items():
            shape = (len(made.measurements["test_seeds"]), len(one["sizes"]))
            one["arms"][arm]["accuracy"] = [np.full(shape, each).tolist() for each in trainings]
    made.measurements["trainings"] = [{"seconds": 1800.0}, {"seconds": 1800.0}]
    made.save(results / "tuned" / "figure8.json")
    there = row(results, "Figure 8: ")
    labels = made.measurements["labels"]
    assert f"{labels['softmax']} 30.0 ± 14.1 %;" in there
    assert f"{labels['adaptive']} 60.0 ± 14.1 %, better in 8 of 8" in there
    assert f"{labels['inference']} 10.0 ± 0.0 %, better in 0 of 8" in there
    assert "trainings 1.0 h of a core" in there


def test_the_tables_of_clrs_tell_sizes_trained_at_from_those_beyond():
    made = figure8(algorithms=1)
    (one,) = made.measurements["algorithms"].values()
    inside = [size <= max(one["train_sizes"]) for size in one["sizes"]]
    for arm, (low, high) in {"softmax": (0.5, 0.1), "adaptive": (0.7, 0.3)}.items():
        row = np.where(inside, low, high)
        one["arms"][arm]["accuracy"] = [[row.tolist()] * 2, [(row + 0.1).tolist()] * 2]
    made.measurements["labels"].pop("inference")
    first, second = clrs_results.table(made).splitlines()[2:]
    assert first.startswith("| activity selector | trained at: 4, 5, 6,")
    assert first.endswith("| 100.0 | 55.0 ± 7.1 | 75.0 ± 7.1 |")
    assert "| beyond: 32, 33, 34, 35, 36, 37, 38, 39, 40 |" in second
    assert second.endswith("| 15.0 ± 7.1 | 35.0 ± 7.1 |")


def test_an_algorithm_by_size_leaves_out_answers_that_cannot_be_expected():
    made = figure8(algorithms=1)
    ((name, one),) = made.measurements["algorithms"].items()
    one["arms"]["softmax"]["mean_familiar"] = [0.25, *[None] * (len(one["sizes"]) - 1)]
    head, _, row, *others = clrs_results.by_size(made, name).splitlines()
    assert head.startswith(f"| {name}, familiar answers | 4 | 5 |")
    assert row.startswith("| `softmax` | 25.0 | — | — |")
    assert len(others) == len(one["arms"]) - 1
    assert clrs_results.by_size(made, "minimum") == ""


def bench_torch(new: bool) -> Result:
    """As benchmarks/attention_torch.py writes it, or wrote it once."""
    timed = {"low": 0.9, "high": 1.1, "milliseconds": 2.0}
    ways = {"SDPA": 1.0, "cpu": 0.8, "statistics": 0.6, "textbook": 9.0}
    slower = {way: {**timed, "ratio": 2 * ratio} for way, ratio in ways.items()}
    rows = {way: {**timed, "ratio": ratio} for way, ratio in ways.items()}
    known = Result.load(RESULTS / "bench_scan.json")
    return Result(
        kind="bench-torch",
        config={"decode_keys": 16384, "memory_tokens": 16384} | ({"dims": [64]} if new else {}),
        seeds=(0,),
        measurements={
            "prefill": {
                "256 tokens, head size 64": rows,
                "1,024 tokens, head size 64": slower,
                "16,384 tokens, head size 64": {key: rows[key] for key in list(rows)[:3]},
            },
            "decode": {"8 query heads, 8 key heads, head size 64": rows},
            "memory": {"cpu": {"heads": 8, "megabytes": 40.2}},
        },
        provenance=known.provenance.model_copy(update={"command": "attention_torch.py x.json"}),
    )


def test_benchmarks_of_the_new_format(results):
    bench_torch(new=True).save(results / "bench_torch.json", overwrite=True)
    found = row(results, "Adaptive attention for PyTorch")
    assert "0.80 to 1.60 times SDPA's time from 1,024 tokens up, 0.80 to 0.80 below" in found
    assert "textbook's matrix 18.00 to 18.00 and 9.00 to 9.00" in found
    assert "`python benchmarks/attention_torch.py x.json`" in found
    assert "0.80 to 0.80 times SDPA's time" in row(results, "The same, one token more")
    assert "cpu 40 (8 heads)" in row(results, "The same, memory")


def test_benchmarks_of_the_old_format_are_to_be_measured_again(results):
    bench_torch(new=False).save(results / "bench_torch.json", overwrite=True)
    for start in ("Adaptive attention for PyTorch", "The same, one token", "The same, memory"):
        assert f"| {AGAIN} |" in row(results, start)
        assert "min |" not in row(results, start)  # the time of what is no longer said


def test_a_page_without_marks_is_left_alone():
    assert filled("# A page\n", claims.MARK, "table") == "# A page\n"
    assert filled(f"{BEGIN}\nold\n", claims.MARK, "table") == f"{BEGIN}\nold\n"
    assert "table" in filled(f"a {BEGIN} old {END} b", claims.MARK, "table")


def test_the_readme_has_few_rows():
    table = claims.brief(claims.Results(RESULTS)).splitlines()
    assert 7 <= len(table) - 2 <= 10
    assert all(line.count(" | ") == 3 for line in table if "---" not in line)


def cut(content: bytes) -> bytes:
    return content[:200]


def emptied(content: bytes) -> bytes:
    return json.dumps(json.loads(content) | {"measurements": {}}).encode()


@pytest.mark.parametrize("damage", [cut, emptied])
def test_a_damaged_file_gives_one_clear_line(results, damage):
    root = results.parent
    (root / "docs").mkdir()
    for name in claims.PAGES:
        (root / name).write_text(f"{BEGIN}\n{END}\n", "utf-8")
    broken = results / "figure6.json"
    broken.write_bytes(damage(broken.read_bytes()))
    command = [sys.executable, str(ROOT / "docs" / "claims.py"), str(root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "figure6.json is damaged" in line
    assert (root / "README.md").read_text("utf-8") == f"{BEGIN}\n{END}\n"
