"""Whatever comes from outside is text on the page."""

from __future__ import annotations

import pytest
from markupsafe import Markup

from report.pages import Page
from sharpmax import UserError
from sharpmax.app import views
from sharpmax.app.model_tab import sentence
from sharpmax.app.runs import Stopped

EVIL = '<script>alert(1)</script><img src=x onerror="alert(2)">&"'


@pytest.mark.parametrize(
    "made",
    [
        views.problem(EVIL),
        views.said(EVIL),
        views.progress(EVIL, 0.5),
        sentence(UserError(EVIL)),
        sentence(RuntimeError(EVIL)),
        views.explained(lambda: views.problem(EVIL))()["html"],
    ],
)
def test_words_are_escaped(made):
    page = Page(str(made))
    assert {name for name, _ in page.elements} <= {"p", "div", "span"}
    assert "<script>alert(1)</script>" in page.text


@pytest.mark.parametrize("document", [EVIL, Markup(EVIL)])
def test_a_sheet_cannot_leave_its_frame(document):
    ((name, frame),) = Page(str(views.sheet(document, EVIL))).elements
    assert (name, frame["srcdoc"], frame["title"]) == ("iframe", EVIL, EVIL)
    assert frame["sandbox"] == "allow-scripts"  # and so of no origin


def test_a_mistake_is_a_sentence():
    def make():
        raise UserError("say it so")

    assert "say it so" in views.explained(make)()["html"]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (Stopped(), "Stopped."),
        (NotImplementedError("not this"), "not this"),
        (MemoryError(), "This failed: MemoryError: no more is known"),
    ],
)
def test_how_a_run_ended_in_words(error, words):
    assert words in str(sentence(error))


def test_the_head_of_the_page_asks_nobody():
    assert "http://www.w3.org/2000/svg" in views.head()
    assert views.head().count("http") == 1
    assert "@import" not in views.head()
