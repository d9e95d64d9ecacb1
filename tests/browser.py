"""Pages are made for browsers: a real one, cut off from the network, that remembers what went wrong.

Debian's Chromium, or any other that is installed; none is downloaded. Without one the tests that
need it are skipped, unless `SHARPMAX_BROWSER=required`, as in `.ci/run`, or `CI` is set.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
INSIDE = ("file:", "data:", "blob:", "about:")
"""Addresses that ask nobody: a page from disk, and what a page makes itself."""

SHARED_NAME, SHARED_HOST = "demo.example", "127.0.0.2"
"""A name that only the browser knows, and what it stands for: this computer by another address."""

PHONE = 390
DESKTOP = 1280


@dataclass
class Watched:
    """An open page, and what it must not do."""

    page: Any
    """Playwright's."""
    errors: list[str] = field(default_factory=list)
    """What it complained of in its console, and what it threw."""
    requests: list[str] = field(default_factory=list)
    """What it asked for beyond the places that it may ask; all refused."""

    def check(self) -> None:
        assert not self.errors
        assert not self.requests

    def fits(self) -> bool:
        """Whether nothing is wider than the screen."""
        return self.page.evaluate(
            "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
        )


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One for all tests of a file. Not of a session: while it runs, so does an event loop, and
    nothing else in the process could start one.
    """
    program = executable()
    from playwright.sync_api import sync_playwright

    # Nothing but this computer has an address, whatever way a page may find to ask.
    rules = [f"MAP {SHARED_NAME} {SHARED_HOST}", "MAP * ~NOTFOUND"]
    rules += [f"EXCLUDE {host}" for host in ("127.0.0.1", "localhost", "::1", SHARED_HOST)]
    closed = f"--host-resolver-rules={', '.join(rules)}"
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=[closed])
        yield started
        started.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Watched]]:
    """`open_page(file_or_address, width=..., dark=..., allow=...)`. Each page opened is asked at the
    end of the test whether it complained or asked for anything: empty a list that is meant to fill.
    """
    opened: list[Watched] = []

    def opener(place: Path | str, **options: Any) -> Watched:
        opened.append(watch(browser, place, **options))
        return opened[-1]

    yield opener
    for watched in opened:
        watched.page.context.close()
    for watched in opened:
        watched.check()


def watch(
    browser: Any,
    place: Path | str,
    *,
    width: int = DESKTOP,
    height: int = 900,
    dark: bool = False,
    allow: str | None = None,
) -> Watched:
    """Open a file, or an address whose server may be asked for what begins with `allow`."""
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if dark else "light",
        service_workers="block",  # their requests would pass by the route
    )
    watched = Watched(context.new_page())
    inside = INSIDE if allow is None else (*INSIDE, allow)

    def judge(route: Any) -> None:
        if route.request.url.startswith(inside):
            route.continue_()
            return
        watched.requests.append(route.request.url)
        route.abort()

    def heard(message: Any) -> None:
        if message.type in ("error", "warning"):
            watched.errors.append(f"{message.type}: {message.text}")

    context.route("**/*", judge)
    watched.page.on("console", heard)
    watched.page.on("pageerror", lambda error: watched.errors.append(str(error)))
    watched.page.goto(place.resolve().as_uri() if isinstance(place, Path) else place)
    return watched


def executable() -> str:
    """Where the browser is; the test is skipped, or fails where one is required, if there is none."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        missing = f"no browser: none of {', '.join(NAMES)} is installed"
        required = os.environ.get("CI") or os.environ.get("SHARPMAX_BROWSER") == "required"
        (pytest.fail if required else pytest.skip)(missing)
    return found
