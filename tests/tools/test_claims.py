"""The tables of claims are what the committed results say, row by row."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import claims
import numpy as np
import pytest
from claim_numbers import AGAIN
from claim_rows import OURS, PAPERS

from report.published import first_of
from report.synthetic import figure8
from sharpmax.experiments.max_retrieval.paper import TABLE1
from sharpmax.report.renderers.markdown import replace_marked
from sharpmax.results import Result

BEGIN, END = "<!-- claims begin -->", "<!-- claims end -->"
ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
ALL = (*PAPERS, *OURS)
COMMITTED = claims.Results(RESULTS)
"""Read once; nothing changes them."""


class Changed:
    """The committed results with some of them replaced."""

    folder = RESULTS

    def __init__(self, **replaced: Result | None) -> None:
        self.replaced = {name.replace("__", "/") + ".json": one for name, one in replaced.items()}

    def __getitem__(self, name: str):
        return self.replaced[name] if name in self.replaced else COMMITTED[name]


def row(results, start: str) -> str:
    """Return the row of the whole table whose claim begins so."""
    (found,) = (line for line in claims.whole(results).splitlines() if f"[{start}" in line)
    return found


def made_by(results, file: str) -> str:
    """Return the paragraphs on the command behind a result."""
    (found,) = re.findall(rf"^#### {file}\n(.*?)^```$", claims.whole(results), re.M | re.S)
    return found


@pytest.mark.parametrize("name", claims.PAGES, ids=str)
def test_committed_pages_are_up_to_date(name):
    """If this fails: make claims."""
    text = (ROOT / name).read_text("utf-8")
    assert BEGIN in text
    assert END in text
    assert replace_marked(text, claims.MARK, claims.PAGES[name](COMMITTED)) == text


def test_every_claim_has_a_row():
    text = claims.whole(COMMITTED)
    assert all(claim.text in text for claim in ALL)


def test_a_changed_number_changes_its_rows_only():
    table = first_of("table1").model_copy(deep=True)
    table.measurements["mean"]["baseline"][6] = 0.123
    before = claims.whole(COMMITTED).splitlines()
    after = claims.whole(Changed(table1=table)).splitlines()
    (differing,) = (new for old, new in zip(before, after, strict=True) if old != new)
    assert "1,024 items" in differing
    assert "12.3 ±" in differing


def test_every_committed_result_has_a_row():
    files = {path.relative_to(RESULTS).as_posix() for path in RESULTS.rglob("*.json")}
    # Trained models and single measurements are what numbers are made with; the sample is what the
    # site's report shows, and claims nothing.
    made_with = ("clrs/", "study/", "sample/")
    files = {name for name in files if "training/" not in name and not name.startswith(made_with)}
    assert files <= {claim.file for claim in ALL}


def test_the_papers_table_is_reused():
    for size, known in TABLE1.items():
        if known.sure == "confirmed":
            cells = row(COMMITTED, f"Table 1: {size:,} items").split(" | ")
            assert cells[1].startswith(f"{known.baseline} → {known.adaptive}")
            assert cells[1].endswith(f"(*{known.sure}*)")


def test_the_command_and_the_time_are_those_of_the_result():
    figure = first_of("figure5")
    origin = {"command": "sharpmax reproduce figure5 --out x", "seconds": 7200}
    changed = figure.model_copy(update={"provenance": figure.provenance.model_copy(update=origin)})
    found = made_by(Changed(figure5=changed), "figure5.json")
    assert ", made in 2.0 h (sharpmax " in found
    assert found.endswith("```text\nsharpmax reproduce figure5 --out x\n")


def test_a_long_command_is_broken_before_options():
    command = "sharpmax evaluate smollm2" + " --policy constant:1.2@10-19" * 8
    lines = claims.wrap(command).split(" \\\n")
    assert len(lines) > 1
    assert max(len(line) for line in lines) <= 84
    assert " ".join(line.strip() for line in lines) == command
    assert claims.wrap("sharpmax demo") == "sharpmax demo"


def test_every_row_leads_to_its_command():
    text = claims.whole(COMMITTED)
    headings = {claims.anchor(name) for name in re.findall(r"^#### (.*)", text, re.M)}
    assert headings == {claims.anchor(claim.file) for claim in ALL}
    assert set(re.findall(r"\(#([\w-]+)\) \|$", text, re.M)) == headings


def test_a_missing_result_is_not_run_yet_until_it_is_there():
    missing = row(Changed(tuned__figure8=None), "Figure 8: ")
    assert f"| {claims.NOT_RUN} |" in missing
    command = made_by(Changed(tuned__figure8=None), "tuned/figure8.json")
    assert command.startswith("\nNot run yet.\n")
    assert "sharpmax clrs evaluate" in command
    figure = figure8()
    shares = {"softmax": (0.2, 0.4), "adaptive": (0.5, 0.7), "inference": (0.1, 0.1)}
    for algorithm in figure.measurements["algorithms"].values():
        shape = (len(figure.measurements["test_seeds"]), len(algorithm["sizes"]))
        for arm, trainings in shares.items():
            accuracy = [np.full(shape, value).tolist() for value in trainings]
            algorithm["arms"][arm]["accuracy"] = accuracy
    figure.measurements["trainings"] = [{"seconds": 1800.0}, {"seconds": 1800.0}]
    results = Changed(tuned__figure8=figure)
    there = row(results, "Figure 8: ")
    labels = figure.measurements["labels"]
    assert f"{labels['softmax']} 30.0 ± 14.1 %;" in there
    assert f"{labels['adaptive']} 60.0 ± 14.1 %, better in 8 of 8 and worse in 0" in there
    assert f"{labels['inference']} 10.0 ± 0.0 %, better in 0 of 8 and worse in 8" in there
    assert "; training took 1.0 h of one core (" in made_by(results, "tuned/figure8.json")


def test_an_algorithm_by_size_leaves_out_answers_that_cannot_be_expected():
    figure = figure8(algorithms=1)
    ((name, algorithm),) = figure.measurements["algorithms"].items()
    familiar = [0.25, *[None] * (len(algorithm["sizes"]) - 1)]
    algorithm["arms"]["softmax"]["mean_familiar"] = familiar
    text = claims.clrs_tables(figure, name)
    head, _, softmax, *others = text.partition("\n\n")[2].splitlines()
    assert head.startswith(f"| {name}, familiar answers | 4 | 8 |")
    assert softmax.startswith("| `softmax` | 25.0 | \N{EN DASH} | \N{EN DASH} |")
    assert len(others) == 2
    assert "familiar answers" not in claims.clrs_tables(figure, "minimum")
    assert "| `softmax` | `adaptive` | `inference` |" in text


def bench_torch(new: bool) -> Result:
    """A benchmark as benchmarks/attention_torch.py writes it, or wrote it once."""
    timed = {"low": 0.9, "high": 1.1, "milliseconds": 2.0}
    ratios = {"SDPA": 1.0, "cpu": 0.8, "statistics": 0.6, "textbook": 9.0}
    slower = {name: {**timed, "ratio": 2 * ratio} for name, ratio in ratios.items()}
    rows = {name: {**timed, "ratio": ratio} for name, ratio in ratios.items()}
    known = first_of("bench-torch")
    config = known.config | {"decode_keys": 16384, "memory_tokens": 16384}
    return known.model_copy(
        update={
            "config": config if new else {k: v for k, v in config.items() if k != "dims"},
            "measurements": {
                "prefill": {
                    "256 tokens, head size 64": rows,
                    "1,024 tokens, head size 64": slower,
                    "16,384 tokens, head size 64": {key: rows[key] for key in list(rows)[:3]},
                },
                "decode": {"8 query heads, 8 key heads, head size 64": rows},
                "memory": {"cpu": {"heads": 8, "megabytes": 40.2}},
            },
            "provenance": known.provenance.model_copy(
                update={"command": "attention_torch.py x.json"}
            ),
        }
    )


def test_benchmarks_of_the_new_format():
    results = Changed(bench_torch=bench_torch(new=True))
    found = row(results, "Adaptive attention for PyTorch")
    assert "0.80 to 1.60 times SDPA's time from 1,024 tokens up, 0.80 to 0.80 below" in found
    assert "textbook's matrix 18.00 to 18.00 and 9.00 to 9.00" in found
    assert "\npython benchmarks/attention_torch.py x.json\n" in made_by(results, "bench_torch.json")
    assert "0.80 to 0.80 times SDPA's time" in row(results, "The same, one token more")
    assert "cpu 40 (8 heads)" in row(results, "The same, memory")


def test_benchmarks_of_the_old_format_are_to_be_measured_again():
    results = Changed(bench_torch=bench_torch(new=False))
    for start in ("Adaptive attention for PyTorch", "The same, one token", "The same, memory"):
        assert f"| {AGAIN} |" in row(results, start)
    assert " min" not in made_by(results, "bench_torch.json")  # the time of numbers not shown


def test_the_readme_has_few_rows():
    table = claims.brief(COMMITTED).splitlines()
    assert len(table) - 2 == 6
    assert all(line.count(" | ") == 3 for line in table if "---" not in line)


def cut(content: bytes) -> bytes:
    return content[:200]


def empty(content: bytes) -> bytes:
    return json.dumps(json.loads(content) | {"measurements": {}}).encode()


@pytest.mark.parametrize("damage", [cut, empty])
def test_a_damaged_file_gives_one_clear_line(tmp_path, damage):
    (tmp_path / "results").mkdir()
    for path in RESULTS.iterdir():
        (tmp_path / "results" / path.name).symlink_to(path)
    (tmp_path / "docs").mkdir()
    for name in claims.PAGES:
        (tmp_path / name).write_text(f"{BEGIN}\n{END}\n", "utf-8")
    broken = tmp_path / "results" / "figure6.json"
    content = damage(broken.read_bytes())
    broken.unlink()
    broken.write_bytes(content)
    command = [sys.executable, str(ROOT / "tools" / "claims.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "figure6.json is damaged" in line
    assert (tmp_path / "README.md").read_text("utf-8") == f"{BEGIN}\n{END}\n"
