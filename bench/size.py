"""Tasks and claims on tables of ten thousand and a million schedules, or more."""

from pathlib import Path
from typing import Any

import claims
import harness
from fleet import Fleet
from harness import CORES, Sample


def main() -> None:
    """Measure, and print JSON."""
    parser = harness.options(__doc__, workers=CORES, concurrency=8)
    parser.add_argument(
        "--sizes", type=int, nargs="+", help="default: 10000 1000000; with --short, 1000 3000"
    )
    parser.add_argument("--tasks", type=int, help="default: 1000; with --short, 20")
    given = harness.parsed(parser)
    given.sizes = harness.choose(given, [10_000, 1_000_000], [1000, 3000], given.sizes)
    given.tasks = harness.choose(given, 1000, 20, given.tasks)
    harness.report("size", given, lambda *where: measured(given, *where))


def measured(given: Any, kind: str, url: str, folder: Path) -> dict[str, Any]:  # noqa: ANN401
    """The figures on one database."""
    contestants = {}
    for size in given.sizes:
        harness.load(kind, url, size, f"t{size}")
        contestants[f"tasks {size}"] = lambda size=size: ran(given, url, folder, size)
        contestants[f"claims {size}"] = lambda size=size: claimed(url, size)
    samples = harness.rounds(given.rounds, contestants)
    smallest, found = given.sizes[0], {}
    for size in given.sizes:
        tasks, taken = samples[f"tasks {size}"], samples[f"claims {size}"]
        found[str(size)] = harness.medians(tasks) | harness.medians(taken)
        # Above 1, this size is so many times slower than the smallest.
        found[str(size)]["task_ratio"] = harness.ratio(
            samples[f"tasks {smallest}"], "per_second", tasks, "per_second"
        )
        found[str(size)]["claim_ratio"] = harness.ratio(
            taken, "claim_ms_p50", samples[f"claims {smallest}"], "claim_ms_p50"
        )
    return found


def ran(given: Any, url: str, folder: Path, size: int) -> Sample:  # noqa: ANN401
    """Tasks per second among so many schedules; afterwards the table is as it was."""
    how = {"processors": given.workers, "concurrency": given.concurrency}
    with Fleet(folder, url, table=f"t{size}", **how) as fleet:
        drain = fleet.drain(given.tasks)
        fleet.sql("DELETE FROM {table} WHERE type = 'noop'")
    return {"per_second": drain.per_second, "tasks": len(drain.starts)}


def claimed(url: str, size: int) -> Sample:
    """What a claim takes among so many schedules, as the database does it best."""
    store = harness.make_store(url, table=f"t{size}", timeout=600)
    try:
        return claims.run(store, size, hosts=0)
    finally:
        store.disconnect()


if __name__ == "__main__":
    main()
