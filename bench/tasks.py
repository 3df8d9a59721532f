"""Tasks per second that do nothing, with a fresh process for each and with processes reused."""

from pathlib import Path
from typing import Any

import harness
from fleet import Fleet
from harness import CORES, Sample

REUSED = 1000
"""Tasks for which a process is used, where they are."""


def main() -> None:
    """Measure, and print JSON."""
    parser = harness.options(__doc__, runs=5, workers=CORES, concurrency=16)
    parser.add_argument("--tasks", type=int, help="default: 2000; with --short, 50")
    given = harness.parsed(parser)
    given.tasks = harness.choose(given, 2000, 50, given.tasks)
    harness.report("tasks", given, lambda kind, url, folder: measured(given, kind, url, folder))


def measured(given: Any, _kind: str, url: str, folder: Path) -> dict[str, Any]:  # noqa: ANN401
    """The figures on one database."""
    count, workers = given.tasks, given.workers
    each = -(-count // workers)
    how = {"processors": workers, "concurrency": given.concurrency}
    with (
        Fleet(folder, url, table="fresh", **how) as fresh,
        Fleet(folder, url, table="reused", max_tasks_per_child=REUSED, **how) as reused,
    ):
        samples = harness.rounds(
            given.rounds,
            {
                "fork_floor": lambda: harness.floor("fork", workers, url, each),
                "fresh": lambda: drained(fresh, count),
                "write_floor": lambda: harness.floor(
                    "fork_and_write", workers, url, each, folder / "notes"
                ),
                "ping_floor": lambda: harness.floor("ping", 1, 20 * count),
                "reused": lambda: drained(reused, count),
            },
        )
    found: dict[str, Any] = {name: harness.medians(these) for name, these in samples.items()}
    for name, floor in (
        ("fresh", "fork_floor"),
        ("fresh", "write_floor"),
        ("reused", "write_floor"),
        ("reused", "ping_floor"),
        ("reused", "fresh"),
    ):
        found[name][f"of_{floor}"] = harness.ratio(
            samples[name], "per_second", samples[floor], "per_second"
        )
    return found


def drained(fleet: Fleet, count: int) -> Sample:
    """Tasks per second, what each costs, and a worker's size."""
    drain = fleet.drain(count)
    return {
        "per_second": drain.per_second,
        "cpu_ms": drain.cpu_ms,
        "tasks": len(drain.starts),
        "rss_mib": drain.rss,
    }


if __name__ == "__main__":
    main()
