"""Takes pictures of the web pages, for bin/picture.

python bench/pictures.py ADDRESS TOKEN_FILE [FOLDER]
"""

import sys
from contextlib import closing
from pathlib import Path

from playwright.sync_api import Browser

from support.browsing import Tab, chromium

IMAGES = Path(__file__).resolve().parents[1] / "docs/images"

PAGES = {
    "timeline": "",
    "now": "now",
    "schedules": "schedules",
    "schedule": "schedule?key=inventory.count",
    "queue": "queue",
    "runs": "runs",
    "run": "occurrence?key=webhooks.replay",
    "events": "events",
    "hosts": "hosts",
    "pause": "act?do=pause&key=mail.digest",
    "edit": "act?do=edit&key=mail.digest",
}
"""The addresses of the pages by the names of their pictures."""

SHOWN = (
    ("timeline", "timeline", 1280, "light", 990),
    ("schedule", "schedule-dark", 900, "dark", 760),
    ("now", "now-narrow", 400, "light", 760),
)
"""Those in docs/images: the page, the name, the width, the colours and the height."""


def take(browser: Browser, address: str, token: str, folder: Path | None) -> None:
    """Take the pictures of all pages, or those that the documentation shows."""
    wanted = SHOWN if folder is None else [
        (page, f"{page}-{width}-{scheme}", width, scheme, 0)
        for page in PAGES
        for width in (1280, 400)
        for scheme in ("light", "dark")
    ]  # fmt: skip
    target = IMAGES if folder is None else folder
    target.mkdir(parents=True, exist_ok=True)
    for page, name, width, scheme, height in wanted:
        with closing(
            browser.new_context(
                viewport={"width": width, "height": height or 900},
                color_scheme=scheme,  # type: ignore[arg-type]
                extra_http_headers={"Authorization": f"Bearer {token}"},
            )
        ) as context:
            tab = Tab(context.new_page(), address)
            tab.open(PAGES[page])
            path = target / f"{name}.png"
            tab.page.screenshot(path=path, full_page=not height, animations="disabled")
            sys.stdout.write(f"{path}: {path.stat().st_size // 1000} kB\n")


if __name__ == "__main__":
    where, token_file, *more = sys.argv[1:]
    with chromium() as started:
        token = Path(token_file).read_text().strip()
        take(started, where, token, Path(more[0]) if more else None)
