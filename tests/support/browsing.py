"""A browser without a window: Debian's chromium, driven by Playwright, and what it finds wrong."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from playwright.sync_api import Browser, Page, Response, Route, sync_playwright

from support.servers import MissingServerError, find_binary
from support.waiting import PATIENCE

_AXE = Path(sys.prefix, "axe/node_modules/axe-core/axe.min.js")
"""Where bin/test installs it."""

FLAGS = (
    # The tests may run as root, and the pages are ours.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    # Nothing is asked of a network.
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-proxy-server",
)

_REACHES_OUT = """() => [...document.querySelectorAll('body *')]
    .filter(each => each.getBoundingClientRect().right > innerWidth + 1)
    .filter(each => !each.closest('.wide, pre, svg'))
    .map(each => each.outerHTML.slice(0, 200))"""
"""The elements that are wider than the window; a wide table, and what was printed, scroll."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser. While it is open, this process must not fork psched's own processes.

    Raises:
        MissingServerError: it is not installed.
    """
    program = os.environ.get("CHROMIUM") or find_binary("chromium", "chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


def read_axe() -> str:
    """The script axe-core, which looks for what keeps people out of a page.

    Raises:
        MissingServerError: it is not installed.
    """
    if not _AXE.is_file():
        raise MissingServerError(f"{_AXE} is missing: bin/test --all installs it")
    return _AXE.read_text()


def _hold(route: Route) -> None:
    """Show a page that would be read again by itself, as long as a test looks at it."""
    if route.request.resource_type != "document" or route.request.method != "GET":
        route.continue_()
        return
    answer = route.fetch(max_redirects=0)
    headers = {name: value for name, value in answer.headers.items() if name != "refresh"}
    route.fulfill(response=answer, headers=headers)


class Tab:
    """A tab of a browser below an address, which keeps what went wrong.

    Attributes:
        page: what Playwright drives.
        faults: errors that the console shows, such as a violation of the Content-Security-Policy;
            uncaught errors of scripts; dialogs; requests to other addresses.
    """

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.faults: list[str] = []
        self._address = address
        page.set_default_timeout(1000 * PATIENCE)
        page.on("console", lambda line: self._note(line.type, line.text))
        page.on("pageerror", lambda error: self.faults.append(f"script: {error}"))
        page.on("dialog", lambda dialog: (self.faults.append("dialog"), dialog.dismiss()))
        page.on("request", lambda request: self._watch(request.url))
        page.route("**/*", _hold)

    def _note(self, kind: str, text: str) -> None:
        if kind in {"error", "warning"}:
            self.faults.append(f"{kind}: {text}")

    def _watch(self, url: str) -> None:
        if not url.startswith((self._address, "data:", "about:")):
            self.faults.append(f"asks {url}")

    def open(self, path: str = "", /, **query: str) -> Response:
        """Open a page."""
        url = f"{self._address}{path}{'?' if query else ''}{urlencode(query)}"
        answer = self.page.goto(url, wait_until="load")
        assert answer is not None
        return answer

    def press(self, name: str, *, role: str = "button") -> None:
        """Press the button, or follow the link, of this name, and wait for the page behind it."""
        with self.page.expect_navigation(wait_until="load"):
            self.page.get_by_role(role, name=name, exact=True).first.click()  # type: ignore[arg-type]

    @property
    def text(self) -> str:
        """What a reader sees."""
        return self.page.inner_text("body")

    @property
    def place(self) -> str:
        """The path of the page, without its query."""
        return urlsplit(self.page.url).path.lstrip("/")

    def too_wide(self) -> Sequence[str]:
        """What does not fit into the window, so that the page must be moved sideways."""
        width, most = self.page.evaluate(
            "() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        found: list[str] = self.page.evaluate(_REACHES_OUT)
        return found or ([f"the page has {width} pixels of {most}"] if width > most else [])

    def barriers(self, axe: str, *, without: Mapping[str, str]) -> Sequence[str]:
        """What axe-core finds that keeps people out, but for some rules, each with a reason."""
        self.page.evaluate(axe)
        options: Any = {
            "resultTypes": ["violations"],
            "rules": {rule: {"enabled": False} for rule in without},
        }
        found = self.page.evaluate("options => axe.run(document, options)", options)
        return [
            f"{each['id']}: {each['help']}: {node['html'][:200]} {node['failureSummary']}"
            for each in found["violations"]
            for node in each["nodes"][:3]
        ]
