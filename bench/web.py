"""Pages of psched web: their time and their size, of schedules with half a day of history."""

import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import harness
from harness import Sample
from past import fill
from psched.app import CLOCK, open_schedules
from psched.cli.top.snapshot import Reader
from psched.config import from_mapping
from psched.web.gate import Gate, Rules
from psched.web.secret import Secret
from psched.web.site import Site, Source

PAGES: dict[str, tuple[str, dict[str, str]]] = {
    "timeline of 12 h": ("/", {}),
    "timeline of 2 weeks": ("/", {"span": "2w"}),
    "timeline as JSON": ("/api/v1/timeline.json", {}),
    "now": ("/now", {}),
    "schedules": ("/schedules", {}),
    "schedule": ("/schedule", {"key": "crm.sync"}),
    "occurrence": ("/occurrence", {"key": "crm.sync"}),
    "runs": ("/runs", {}),
}
"""The paths and the queries of the pages."""


def main() -> None:
    """Measure, and print JSON."""
    parser = harness.options(__doc__)
    parser.add_argument("--schedules", type=int, help="default: 500; with --short, 40")
    given = harness.parsed(parser)
    given.schedules = harness.choose(given, 500, 40, given.schedules)
    harness.report("web", given, lambda *where: measured(given, *where))


def measured(given: Any, _kind: str, url: str, folder: Path) -> dict[str, Any]:  # noqa: ANN401
    """Time, processor time and bytes of each page on one database."""
    fill(url, given.schedules)
    settings = from_mapping({"url": url, "dispatch": "handlers:Dispatch"})
    with open_schedules(settings) as schedules:
        reader = Reader(schedules, settings, ask_masters=list, clock=CLOCK)
        secret = Secret(folder / "web-token", clock=CLOCK)
        gate = Gate(Rules(is_open=True), secret, CLOCK)
        site = Site(Source(schedules, reader), settings, gate)
        contestants = {
            name: lambda path=path, query=query: read(site, path, query)
            for name, (path, query) in PAGES.items()
        }
        samples = harness.rounds(given.rounds, contestants)
    return {name: harness.medians(found) for name, found in samples.items()}


def read(site: Site, path: str, query: dict[str, str]) -> Sample:
    """Ask for a page."""
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": path, "QUERY_STRING": urlencode(query)}
    statuses: list[str] = []
    begun, spent = time.perf_counter(), time.process_time()
    body = b"".join(site(environ, lambda status, _headers: statuses.append(status)))
    took, cpu = time.perf_counter() - begun, time.process_time() - spent
    if statuses != ["200 OK"]:
        raise AssertionError(f"{path}: {statuses}")
    return {"ms": 1000 * took, "own_cpu_ms": 1000 * cpu, "bytes": len(body)}


if __name__ == "__main__":
    main()
