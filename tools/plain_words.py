"""Draw the pictures of docs/plain_words.md from committed results. Run `make plain-words`.

The numbers of the page come from the same functions; a test compares them.
"""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sharpmax.report.palette import LIGHT
from sharpmax.report.renderers import matplotlib as pictures
from sharpmax.results import Calibration, Result, schemas

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
FOLDER = ROOT / "docs" / "plain_words"
CALIBRATION = ROOT / "src" / "sharpmax" / "hf" / "tune" / "calibrations" / "smollm2.json"
HELD_OUT = ("births", "scores", "settings", "records", "boxes")
"""Formats of questions that the shipped calibration was not tuned on."""

CHANGES = {
    "tuned": "tuned: a number of its own for each head",
    "calibration-answers": "one number for 16 chosen heads",
    "constant:1.2@10-19": "20 % sharper in the middle third",
    "log-length:128": "sharper with length, every head",
    "constant:1.2@0-9": "20 % sharper in the first third",
    "paper": "the paper's formula, every head",
}
"""What the page calls the conditions of the evaluations, the best first."""

CURVES = {"plain": ("as it comes", "ink"), "tuned": ("tuned", "series-1")}
"""The curves of right answers: what each is called, and its colour."""

Bars = list[tuple[str, float]]


def diagnosis() -> schemas.Diagnosis:
    """Return the committed diagnosis of SmolLM2."""
    return schemas.Diagnosis.of(Result.load(RESULTS / "diagnose.json"))


def evaluation(name: str) -> schemas.Evaluation:
    """Return a committed evaluation."""
    return schemas.Evaluation.of(Result.load(RESULTS / f"{name}.json"))


def attention_shares() -> Bars:
    """Return the attention that the right code gets, in percent, by the length of the list."""
    bars = []
    for row in diagnosis().rows:
        assert row.split is not None, "the diagnosis found no retrieval heads"
        bars.append((f"{row.length} names", 100 * row.split.weight))
    return bars


def changes() -> Bars:
    """Return what each method changes among 32 names, in points of right answers."""
    found = {}
    for name in ("evaluate_lookup", "smollm2/evaluate_lookup"):
        for row in evaluation(name).rows:
            if row.length == 32 and row.compared is not None:
                found[row.arm] = 100 * row.compared.difference
    return [(name, found[condition]) for condition, name in CHANGES.items()]


def held_out() -> tuple[float, float]:
    """Return right answers in formats that were not tuned on, plain and tuned, in percent."""
    plain, tuned = (
        [
            100 * evaluation(f"smollm2/evaluate_{task}").rows_of(condition)[0].accuracy.mean
            for task in HELD_OUT
        ]
        for condition in ("plain", "tuned")
    )
    return sum(plain) / len(plain), sum(tuned) / len(tuned)


def text_cost() -> float:
    """Return how much worse the tuned model predicts ordinary text, in percent."""
    cost = Calibration.load(CALIBRATION).text_cost
    assert cost is not None
    return 100 * (cost.nats_after / cost.nats_before - 1)


def draw(folder: Path) -> None:
    """Draw all pictures into a folder."""
    _draw_bars(
        folder / "attention",
        "Attention on the right code, % of a head's budget",
        [(*bar, "series-1") for bar in attention_shares()],
    )
    _draw_answers(folder)
    bars = [(*bar, "series-1" if bar[1] > 0 else "series-2") for bar in changes()]
    _draw_bars(folder / "changes", "Change of right answers among 32 names, in points", bars)


def _draw_answers(folder: Path) -> None:
    """Draw right answers by length, plain and tuned, with 95 % intervals."""
    with pictures.house_style():
        figure, axes = _start("SmolLM2 looks up a code: right answers, %", height=3.2)
        for condition, (text, colour) in CURVES.items():
            rows = evaluation("smollm2/evaluate_lookup").rows_of(condition)
            names = [row.length for row in rows]
            means, low, high = (
                [100 * getattr(row.accuracy, name) for row in rows]
                for name in ("mean", "low", "high")
            )
            axes.plot(names, means, marker="o", color=LIGHT[colour], linewidth=2.2)
            axes.fill_between(names, low, high, color=LIGHT[colour], alpha=0.15, linewidth=0)
            for x, y in zip(names, means, strict=True):
                axes.annotate(
                    f"{y:.0f}", (x, y), (0, 7), textcoords="offset points", ha="center", size=9
                )
            axes.annotate(
                text, (names[-1], means[-1]), (12, 0), textcoords="offset points", va="center",
                color=LIGHT[colour], weight="bold",
            )  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_xticks(names, [str(length) for length in names])
        axes.set_xlim(names[0] * 0.85, names[-1] * 2.2)
        axes.set_ylim(0, 100)
        axes.set_xlabel("names in the list")
    _save(figure, folder / "answers")


def _draw_bars(path: Path, title: str, bars: list[tuple[str, float, str]]) -> None:
    """Draw labelled horizontal bars, the first on top."""
    with pictures.house_style():
        figure, axes = _start(title, height=0.75 + 0.34 * len(bars))
        _fill_bars(axes, bars)
    _save(figure, path)


def _start(title: str, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(7.2, height))
    figure.suptitle(title, x=0.01, ha="left", size=11, weight="bold")
    return figure, figure.subplots()


def _save(figure: Figure, path: Path) -> None:
    for picture in pictures.save(figure, path, overwrite=True):
        if picture.suffix != ".svg":
            picture.unlink()


def _fill_bars(axes: Axes, bars: list[tuple[str, float, str]]) -> None:
    names, values, colours = zip(*reversed(bars), strict=True)
    drawn = axes.barh(names, values, color=[LIGHT[colour] for colour in colours], height=0.62)
    signed = min(values) < 0
    axes.bar_label(drawn, fmt="{:+.0f}" if signed else "{:.0f}", padding=3)
    axes.margins(x=0.12)
    axes.grid(visible=False)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.tick_params(bottom=False, labelbottom=False, left=False)
    axes.axvline(0, color=LIGHT["muted"], linewidth=0.8)


def main() -> None:
    """Draw the pictures of the page."""
    FOLDER.mkdir(exist_ok=True)
    draw(FOLDER)
    print(f"Written: {FOLDER.relative_to(ROOT)}/*.svg")


if __name__ == "__main__":
    main()
