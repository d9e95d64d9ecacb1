"""The documentation as a site: whole, drawn without a network, and with every public name in it."""

from __future__ import annotations

import functools
import html
import http.server
import importlib
import importlib.util
import inspect
import os
import pkgutil
import re
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from mkdocs.exceptions import PluginError

from browser import PHONE
from test_public_api import ATTENTION, HF, SIGNATURES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "src" / "sharpmax"
CODE = re.compile(r"<(pre|code|script|style)\b.*?</\1>", re.S)
FENCE = re.compile(r"^```.*?^```|`[^`\n]*`", re.M | re.S)
FORMULA = re.compile(r"\$\$.+?\$\$|\$[^$\n]+\$|\$[^$]+?\$", re.S)
DIRECTIVE = re.compile(r"^::: (\S+)\n(?:    options:\n(?:      heading: (\S+)\n)?)?", re.M)


def hooks():
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "tools" / "site_hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]  # --quiet would mute it
    done = subprocess.run(
        [*command, "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Asked(HTMLParser):
    """The addresses that a browser asks for when it shows a page, without a click."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = {"link": ["href"], "a": [], "area": []}.get(
            tag, ["src", "srcset", "data", "poster"]
        )
        self.addresses += [value or "" for name, value in attrs if name in names]


@pytest.mark.slow
def test_no_page_asks_another_host(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        asked = Asked(page.read_text("utf-8")).addresses
        assert asked, page
        assert not [one for one in asked if re.match(r"(\w+:)?//", one)], page
    for style in site.rglob("*.css"):
        found = re.findall(
            r"(?:url\(|@import)\s*[\"']?((?:\w+:)?//[^)\"']*)", style.read_text("utf-8")
        )
        assert not found, style


def test_an_address_of_another_host_would_be_found():
    text = '<a href="https://a.org">a</a><img src="//b.org/x.png"><link href="https://c.org">'
    assert Asked(text).addresses == ["//b.org/x.png", "https://c.org"]


@pytest.mark.slow
def test_formulas_are_mathml(site):
    for page in sorted(DOCS.rglob("*.md")):
        built = site / page.relative_to(DOCS).with_suffix(".html")
        text = built.read_text("utf-8")
        assert "$" not in CODE.sub("", text), page
        assert "arithmatex" not in text, page
        formulas = FORMULA.findall(FENCE.sub("", page.read_text("utf-8")))
        assert text.count("<math ") == len(formulas), page
    assert (site / "theory.html").read_text("utf-8").count('display="block"') >= 12


def page_like(place: str) -> SimpleNamespace:
    return SimpleNamespace(file=SimpleNamespace(src_uri=place), meta={})


def test_a_formula_that_cannot_be_drawn_stops_the_build():
    good = r'<span class="arithmatex">\(x &lt; \alpha\)</span>'
    drawn = hooks().on_page_content(good, page_like("a.md"), None, None)
    assert drawn.startswith("<math")
    assert "&lt;" in drawn or "&#x0003C;" in drawn
    with pytest.raises(PluginError, match=r"a\.md: cannot draw the formula x < \\nonsense"):
        hooks().on_page_content(
            good.replace(r"\alpha", r"\nonsense"), page_like("a.md"), None, None
        )


def test_a_link_that_leads_nowhere_stops_the_build():
    files = SimpleNamespace(get_file_from_path=lambda place: None)
    with pytest.raises(PluginError, match=r"api/a\.md links to \.\./\.\./b\.json: no file b\.json"):
        hooks().on_page_markdown("[b](../../b.json)", page_like("api/a.md"), None, files)


def test_every_page_is_in_the_navigation():
    def leaves(entry: object) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        inner = entry.values() if isinstance(entry, dict) else entry
        return [leaf for one in inner for leaf in leaves(one)]

    named = leaves(yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"])
    pages = [page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")]
    run = [f"notebooks/{path.stem}.md" for path in DOCS.glob("notebooks/*.ipynb")]
    assert sorted(named) == sorted([*pages, *run, *hooks().PAGES.values()])


def directives() -> Iterator[tuple[Path, str, str]]:
    """(page, where the object is defined, what the page calls it)."""
    for page in sorted((DOCS / "api").glob("*.md")):
        for place, heading in DIRECTIVE.findall(page.read_text("utf-8")):
            yield page, place, heading or place


def public(path: str) -> object:
    """The object by its public name: an attribute of a module, not a module of the same name."""
    module, _, name = path.rpartition(".")
    owner = importlib.import_module(module)
    return getattr(owner, name) if hasattr(owner, name) else importlib.import_module(path)


def modules_with_public_names() -> list[str]:
    files = [file for file in PACKAGE.rglob("*.py") if "\n__all__ = " in file.read_text("utf-8")]
    paths = [file.relative_to(PACKAGE.parent).with_suffix("") for file in files]
    names = [".".join(path.parts).removesuffix(".__init__") for path in paths]
    return sorted(name for name in names if "._" not in name)


def test_every_public_name_is_on_one_api_page():
    shown = defaultdict(list)
    for page, place, heading in directives():
        thing = pkgutil.resolve_name(place)
        assert public(heading) is thing, (place, heading)
        shown[id(thing)].append(page.name)
    names = {
        f"{module}.{name}"
        for module in modules_with_public_names()
        for name in importlib.import_module(module).__all__
    }
    assert len(names) > 90
    wrong = {name: shown[id(public(name))] for name in names if len(shown[id(public(name))]) != 1}
    assert not wrong


@pytest.mark.slow
def test_the_contract_is_on_the_api_pages(site):
    text = "".join(page.read_text("utf-8") for page in (site / "api").glob("*.html"))
    headings = {heading for *_, heading in directives()}
    for name in [*SIGNATURES, *ATTENTION, *(f"hf.{name}" for name in HF)]:
        if f"sharpmax.{name}" not in headings:  # a method of a class that is on a page
            owner, _, method = name.rpartition(".")
            assert f"sharpmax.{owner}" in headings, name
            assert f'.{owner.rpartition(".")[2]}.{method}"' in text, name
    prose = " ".join(html.unescape(re.sub(r"<[^>]*>", "", text)).split())
    for _, place, heading in directives():
        thing = pkgutil.resolve_name(place)
        if f'id="{place}"' not in text:  # the module that a whole page is about has no heading
            assert inspect.ismodule(thing), place
            assert thing.__doc__.split(".")[0].split(":")[0].replace("`", "") in prose, place
        assert inspect.ismodule(thing) or heading.rpartition(".")[2] in prose, heading


def test_docstrings_survive_as_markdown():
    """`<p, e>` outside of backticks would be taken for a tag, and vanish."""
    for _, place, _ in directives():
        thing = pkgutil.resolve_name(place)
        members = vars(thing).values() if inspect.isclass(thing) else ()
        for one in (thing, *members):
            lines = (inspect.getdoc(one) or "").replace("<factory>", "").splitlines()
            prose = "\n".join(line for line in lines if not line.startswith("    "))
            assert not re.search(r"<[A-Za-z/!]", re.sub(r"`[^`]*`", "", prose)), (place, prose)


def search(page, words: str) -> list[str]:
    page.locator(".md-search__input").click()
    page.get_by_text("Type to start searching").wait_for()  # the index has been read
    page.keyboard.type(words)
    page.locator(".md-search-result__meta", has_text="matching").wait_for()
    return page.locator(".md-search-result__item h1").all_inner_texts()


@pytest.mark.slow
def test_from_disk(site, open_page):
    for dark, scheme in ((False, "default"), (True, "slate")):
        watched = open_page(site / "index.html", dark=dark)
        body = watched.page.locator("body")
        assert body.get_attribute("data-md-color-scheme") == scheme
    assert any("Theory" in title for title in search(watched.page, "least entropy"))
    watched.page.locator(".md-search-result__link").first.click()
    watched.page.wait_for_url("**/*.html?h=**")


@pytest.mark.slow
def test_phone(site, open_page):
    for name in ("theory", "choose", "leaderboard", "api/hf"):
        watched = open_page(site / f"{name}.html", width=PHONE)
        assert watched.fits(), name
        if name == "leaderboard":  # its tables are wider than the screen, and scroll inside
            around = watched.page.locator(".md-typeset__scrollwrap")
            assert max(around.evaluate_all("all => all.map(one => one.scrollWidth)")) > PHONE
            assert max(around.evaluate_all("all => all.map(one => one.clientWidth)")) <= PHONE


@pytest.mark.slow
def test_from_a_server(site, open_page):
    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/"
        watched = open_page(f"{address}theory.html", allow=address)
        box = watched.page.locator(".formula math").first.bounding_box()
        assert box["height"] > 30  # a fraction, not a line of text
        assert search(watched.page, "certify")
        server.shutdown()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass
