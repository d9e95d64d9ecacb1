"""Text from outside is escaped, and errors are shown as sentences."""

from __future__ import annotations

import pytest
from markupsafe import Markup

from report.pages import Page
from sharpmax import UserError
from sharpmax.app import views
from sharpmax.app.background_jobs import Stopped
from sharpmax.app.model.tab import explain

EVIL = '<script>alert(1)</script><img src=x onerror="alert(2)">&"'


@pytest.mark.parametrize(
    "markup",
    [
        views.error_message(EVIL),
        views.message(EVIL),
        views.progress_bar(EVIL, 0.5),
        explain(UserError(EVIL)),
        explain(RuntimeError(EVIL)),
        views.with_errors_shown(lambda: views.error_message(EVIL))()["html"],
    ],
)
def test_text_is_escaped(markup):
    page = Page(str(markup))
    assert {name for name, _ in page.elements} <= {"p", "div", "span"}
    assert "<script>alert(1)</script>" in page.text


@pytest.mark.parametrize("document", [EVIL, Markup(EVIL)])
def test_a_frame_cannot_reach_the_page(document):
    ((name, frame),) = Page(str(views.iframe(document, EVIL))).elements
    assert (name, frame["srcdoc"], frame["title"]) == ("iframe", EVIL, EVIL)
    assert frame["sandbox"] == "allow-scripts"  # it has no origin of its own


def test_a_user_error_is_shown_in_the_view():
    def render():
        raise UserError("say it so")

    assert "say it so" in views.with_errors_shown(render)()["html"]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (Stopped(), "Stopped."),
        (NotImplementedError("not this"), "not this"),
        (MemoryError(), "Unexpected error: MemoryError<"),
    ],
)
def test_how_a_job_ended(error, words):
    assert words in str(explain(error))


def test_the_head_of_the_page_loads_nothing():
    assert "http://www.w3.org/2000/svg" in views.page_head()
    assert views.page_head().count("http") == 1
    assert "@import" not in views.page_head()
