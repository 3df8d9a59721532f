"""How long it takes to start: psched-master up to its first task, and a command."""

import subprocess
import time
from pathlib import Path
from typing import Any

import harness
from fleet import Fleet
from harness import Measured, Sample

ROWS = 10


def main() -> None:
    """Measure, and print JSON."""
    parser = harness.options(__doc__, runs=11)
    given = harness.parsed(parser)
    harness.report("startup", given, lambda _kind, url, folder: measured(given, url, folder))


def measured(given: Any, url: str, folder: Path) -> dict[str, Any]:  # noqa: ANN401
    """The figures on one database."""
    with Fleet(folder, url, table="starts") as fleet, Fleet(folder, url, table="rows") as rows:
        rows.push([f"row{number}" for number in range(ROWS)])
        samples = harness.rounds(
            given.rounds,
            {
                "python": lambda: ran(rows, "-c", "pass"),
                "list": lambda: listed(rows),
                "master": lambda: started(fleet),
            },
        )
    found: dict[str, Any] = {name: harness.medians(these) for name, these in samples.items()}
    for name in ("list", "master"):
        found[name]["above_python_ms"] = harness.difference(
            samples[name], "ms", samples["python"], "ms"
        )
    return found


def ran(fleet: Fleet, *arguments: str, lines: int = 0) -> Sample:
    """Milliseconds of a Python with these arguments; it is to print so many lines."""
    begun = time.perf_counter()
    done = subprocess.run(
        [Measured.python, *arguments],
        cwd=fleet.folder,
        env=fleet.env,
        capture_output=True,
        text=True,
        check=True,
    )
    took = time.perf_counter() - begun
    assert len(done.stdout.splitlines()) == lines, done.stdout
    return {"ms": 1000 * took}


def listed(fleet: Fleet) -> Sample:
    """``psched list`` of ten rows: their headings, them, and their number."""
    command = ("-m", "psched", "-c", fleet.config.name, "list")
    return {**ran(fleet, *command, lines=1 + ROWS + 1), "rows": ROWS}


def started(fleet: Fleet) -> Sample:
    """``psched-master``, up to the first line of a task that was due already."""
    key = fleet.name("due")
    fleet.push([key])
    begun = fleet.launch()
    [start] = fleet.wait_for_ends(key, [key])
    fleet.stop()
    return {"ms": 1000 * (start.at - begun), "tasks": 1}


if __name__ == "__main__":
    main()
