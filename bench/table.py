"""One table: psched on each database, its peers and the yardsticks, with ratios.

The table is in Markdown, for docs/comparison.md. All that it compares was measured in the same
run, by programs that print JSON: `peers.py` on MariaDB, and `tasks.py` on each further database.
Layouts and numbers of tasks are the usual ones, and nobody chooses among the figures.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parent

COLUMNS = (
    ("tasks/s", "per_second", "{:,.0f}"),
    ("× floor-db", "of_floor_db", "{:.2f}"),  # noqa: RUF001
    ("CPU ms/task", "cpu_ms", "{:.2f}"),
    ("without the server", "own_cpu_ms", "{:.2f}"),
    ("idle cores", "idle_share", "{:.0%}"),
)
"""The head, the name in the JSON and the form of each column."""

FURTHER = ("postgresql", "sqlite", "redis")
"""The databases beside MariaDB."""


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="only to see that it works")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--databases", nargs="*", choices=FURTHER, default=[*FURTHER])
    parser.add_argument("--peers", nargs="*", help="see peers.py")
    parser.add_argument("--folder", help="where the databases are made, and removed again")
    given = parser.parse_args()
    common = ["--rounds", str(given.rounds), *(["--short"] if given.short else [])]
    common += ["--folder", given.folder] if given.folder else []
    peers = ["--peers", *given.peers] if given.peers is not None else []
    kinds = {"mariadb": ("peers", peers)} | {
        kind: ("tasks", ["--databases", kind]) for kind in given.databases
    }
    print(f"{time.strftime('%B %Y')}, {_machine()}", end="\n\n", flush=True)  # noqa: T201
    heads = ["", *(head for head, _, _ in COLUMNS)]
    print(_row(heads), _row(["---"] * len(heads)), sep="\n", flush=True)  # noqa: T201
    for kind, (program, options) in kinds.items():
        for line in lines(kind, measured(program, *common, *options)["databases"]):
            print(line, flush=True)  # noqa: T201


def measured(program: str, *options: str) -> dict[str, Any]:
    """What a benchmark prints; what it says meanwhile goes to standard error."""
    command = [sys.executable, str(BENCH / f"{program}.py"), *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def lines(kind: str, found: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """The rows of a database: the yardsticks, psched, the peers, each from the fastest."""
    [figures] = found.values()
    rows = {
        name: each
        for name, each in figures.items()
        if isinstance(each, dict) and "per_second" in each
    }
    order = sorted(rows, key=lambda name: (_group(name), -rows[name]["per_second"]))
    for name in order:
        cells = (_cell(rows[name], key, form) for _, key, form in COLUMNS)
        title = name.replace("_", " ")
        version = rows[name].get("version")
        yield _row([f"{kind}: {title}" if version is None else f"{title} {version}", *cells])


def _group(name: str) -> int:
    if name.startswith("floor_"):
        return 0
    return 1 if name.split("_", maxsplit=1)[0] in {"psched", "fresh", "reused", "exec"} else 2


def _cell(figures: Mapping[str, Any], key: str, form: str) -> str:
    if key.endswith("of_floor_db") and key not in figures:
        return "1"
    return form.format(figures[key]) if key in figures else "-"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _machine() -> str:
    """What the machine is, and how busy it is with other work."""
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    release = os.uname().release.split("-")[0]
    python = ".".join(map(str, sys.version_info[:3]))
    return f"{cores} cores, Linux {release}, Python {python}, load before {load:.1f}"


if __name__ == "__main__":
    main()
