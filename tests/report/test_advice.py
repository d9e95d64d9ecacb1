"""What reports and pages advise is what the committed results support."""

from __future__ import annotations

import inspect
import re
import shlex
from pathlib import Path

import pytest
import typer

from report.published import everything, first_of
from sharpmax import hf as shf
from sharpmax import report
from sharpmax.app.model.example import load_example
from sharpmax.cli.program import program
from sharpmax.report.kinds import calibration as calibration_kind
from sharpmax.report.kinds import evaluate, figure1, scan
from sharpmax.report.kinds.scan_view import ScanView
from sharpmax.results import Calibration, schemas

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PLACES = {"MODEL": "smollm2", "TASK": "passkey"}


def evaluations() -> list[schemas.Evaluation]:
    found = [result for result in everything().values() if result.kind == "evaluate"]
    return [schemas.Evaluation.of(result) for result in found]


def helping() -> set[str]:
    """The conditions that help in a committed evaluation, and do harm in none."""
    effects = [evaluate.sort_by_effect(evaluation) for evaluation in evaluations()]
    good = {condition for one in effects for condition in one.helps}
    return good - {condition for one in effects for condition in (*one.harms, *one.mixed)}


def parse(command: str) -> dict[str, object]:
    """Parse a command without running it; an option that does not exist raises."""
    words = [PLACES.get(word, word) for word in shlex.split(command)]
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text("utf-8"), re.M), command
        return {}
    assert words[0] == "sharpmax", command
    group = typer.main.get_command(program)
    chosen = group.get_command(group.make_context("sharpmax", [words[1]]), words[1])
    return chosen.make_context(words[1], words[2:]).params


@pytest.mark.parametrize("file", sorted(everything()))
def test_the_next_command_is_one_that_the_command_line_has(file):
    verdict = report.describe(everything()[file]).verdict
    assert verdict.command
    for line in verdict.command.splitlines():
        parse(line.partition("  #")[0])


def test_a_command_that_does_not_exist_is_found():
    with pytest.raises(Exception, match="--polcy"):
        parse("sharpmax evaluate MODEL --polcy paper")


def test_no_advice_names_a_policy_that_did_not_help():
    for name, result in everything().items():
        verdict = report.describe(result).verdict
        for policy in re.findall(r"--policy (\S+)", verdict.command):
            if isinstance(result, Calibration):
                continue  # it asks to test that very file
            assert policy.removesuffix(".json") in helping(), name


def test_what_a_model_is_sharpened_with_by_default_is_what_helped():
    """Functions, commands and the explorer begin with a calibration, not with the paper's policy."""
    for function in (shf.sharpen, shf.apply):
        assert inspect.signature(function).parameters["policy"].default in helping()
    for command in ("evaluate", "lm-eval"):
        (option,) = [
            option
            for option in typer.main.get_command(program).commands[command].params
            if option.name == "policy"
        ]
        said = re.search(r"Default: ([\w-]+)|^([\w-]+)$", option.help or "")
        default = option.default or (said and said[1])
        assert default in helping(), command
    assert inspect.signature(shf.register).parameters["policy"].default == "beside"
    assert next(iter(load_example()["conditions"])) in helping()


def test_the_advice_of_a_scan_is_what_helped():
    """A scan names no head and no policy: it sends to `tune`, whose result helps at every length."""
    verdict = report.describe(first_of("scan")).verdict
    assert "sharpmax tune MODEL" in verdict.command
    assert not re.search(r"layers?=|heads?=|--policy", verdict.command)
    assert "tuned" in helping()


def test_heads_chosen_by_entropy_are_not_recommended():
    """The sentence about SmolLM2 in that verdict is what the evaluation found."""
    (by_entropy,) = [
        result
        for result in everything().values()
        if isinstance(result, Calibration) and result.method.get("choose") == "entropy"
    ]
    verdict = report.describe(by_entropy).verdict
    assert verdict.status == "neutral"
    assert "no measurable effect on the answers" in " ".join(verdict.details)
    assert "worth" not in calibration_kind.chosen_heads(by_entropy)
    effects = [evaluate.sort_by_effect(one) for one in evaluations()]
    kinds = {
        kind
        for one in effects
        for kind in ("helps", "harms", "mixed", "none")
        if "calibration-entropy" in getattr(one, kind)
    }
    assert kinds == {"none"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_example_sharpens_a_language_model_by_a_policy_that_harms(page):
    """The paper's polynomial does harm in all heads, and a constant in the first ten layers."""
    calls = re.findall(r"\bshf\.sharpen\(([^)]*)\)", page.read_text("utf-8"))
    for call in calls:
        assert "PAPER" not in call, call
        assert "layers=[0" not in call, call


def test_the_effective_tokens_of_a_sentence_and_a_table_are_the_same():
    result = first_of("scan")
    view = ScanView.of(result)
    table = next(
        block for block in report.describe(result).blocks if block.title.startswith("Means over")
    )
    column = [one.name for one in table.columns].index("Effective tokens")
    said = re.findall(r"about ([\d,.]+) tokens", " ".join(scan.sentences(view)))
    shown = [table.cells(row)[column].text for row in (table.rows[0], table.rows[-1])]
    assert said == shown


def test_the_needle_of_figure_1_has_one_weight_everywhere():
    result = first_of("figure1")
    head = schemas.Figure1.of(result)
    content = report.describe(result)
    table = next(block for block in content.blocks if block.title == "By size")
    text = " ".join(content.sentences)
    claims = (ROOT / "docs" / "reproduce.md").read_text("utf-8")
    for size in (min(head.shown_sizes), max(head.shown_sizes)):
        needle = figure1.needle_weight(head, size)
        assert needle in text
        mean = next(row[1] for row in table.rows if row[0] == size)
        assert needle.startswith(f"{100 * mean:.1f}")
    assert figure1.needle_weight(head, 8) in claims
