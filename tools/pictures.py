"""Take the docs' screenshot of a report. Run `make pictures` after the report has changed.

Needs Chromium or Chrome on the PATH; none is downloaded.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from sharpmax import report

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "results" / "scan.json"
PICTURE = ROOT / "docs" / "report.png"
WIDTH = 1180


def main() -> None:
    """Photograph a scan report from its title to the head map and the selected head's curves."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        sys.exit("no chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_file = report.write([report.load(RESULT)], Path(folder) / "report.html")
        browser = playwright.chromium.launch(executable_path=program)
        page = browser.new_page(viewport={"width": WIDTH, "height": 1000})
        page.goto(page_file.as_uri())
        page.locator(".chart > svg").last.wait_for()
        end = page.locator(".explore").bounding_box()
        height = end["y"] + end["height"] + 16
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": height}
        page.screenshot(path=PICTURE, full_page=True, clip=clip)
        browser.close()
    print(f"Written: {PICTURE.relative_to(ROOT)} ({PICTURE.stat().st_size / 1e3:.0f} kB)")


if __name__ == "__main__":
    main()
