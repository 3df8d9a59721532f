"""Listings with a filter that few of a million schedules match; and with one that most match."""

import itertools
import time
from pathlib import Path
from typing import Any

from sqlalchemy import text

import harness
from harness import Sample
from psched.core.selection import selection_of

TABLE = "listed"

FIRST = 20
"""The rows of a wide listing that are read."""

NARROW: dict[str, dict[str, Any]] = {
    "status": {"status": "failed"},
    "type": {"type": "rare"},
    "label": {"label": "reports"},
    "prefix": {"prefix": "k100"},
    "due": {"due": True},
    "running": {"status": "running"},
    "type and status": {"type": "bench", "status": "failed"},
}
"""The arguments of listings that match at most one of a thousand rows; all are read."""

WIDE: dict[str, dict[str, Any]] = {
    "wide type": {"type": "bench"},
    "wide status": {"status": "finished"},
}


def main() -> None:
    """Measure, and print JSON."""
    parser = harness.options(__doc__)
    parser.add_argument("--size", type=int, help="default: 1000000; with --short, 3000")
    given = harness.parsed(parser)
    given.size = harness.choose(given, 1_000_000, 3000, given.size)
    harness.report("list", given, lambda *where: measured(given, *where))


def measured(given: Any, kind: str, url: str, _folder: Path) -> dict[str, Any]:  # noqa: ANN401
    """The milliseconds of each listing on one database."""
    harness.load(kind, url, given.size, TABLE)
    store = harness.make_store(url, table=TABLE, timeout=600)
    past = int(store.now()) - 60
    for change, ending in {
        "type = 'rare'": "007",
        "status = 'failed'": "005",
        "label = 'reports'": "008",
        f"next_run_time = {past}": "003",
        f"leased_by = 'w.1', next_run_time = {past + 600}": "002",
    }.items():
        update = text(f"UPDATE {TABLE} SET {change} WHERE id LIKE 'k%{ending}'")  # noqa: S608
        store._connector.run(lambda c, update=update: c.execute(update))

    def read(conditions: dict[str, Any], most: int | None) -> Sample:
        begun = time.perf_counter()
        rows = [*itertools.islice(store.rows(selection_of(**conditions)), most)]
        return {"ms": 1000 * (time.perf_counter() - begun), "rows": len(rows)}

    contestants = {
        name: lambda conditions=conditions, most=most: read(conditions, most)
        for group, most in ((NARROW, None), (WIDE, FIRST))
        for name, conditions in group.items()
    }
    samples = harness.rounds(given.rounds, contestants)
    store.disconnect()
    return {name: harness.medians(found) for name, found in samples.items()}


if __name__ == "__main__":
    main()
