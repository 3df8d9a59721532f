"""What the benchmarks share: rounds and medians, the command line and its JSON, databases."""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from meter import Meter, Spent, cpu_of_tree  # noqa: E402
from support.big_tables import fill, joined, number  # noqa: E402
from support.servers import MariaDB, PostgreSQL, Redis  # noqa: E402
from support.stores import Sql, make_store  # noqa: E402

T = TypeVar("T")


class Measured:
    """What is measured.

    Attributes:
        python: the interpreter of psched and of the yardsticks. With that of ``bin/venv run``
            they have the packages that users have: PyMySQL loads more beside those of the tests.
        server: the seconds of processor time that the database's server has taken so far; None:
            unknown, because it was not started here.
    """

    python = sys.executable
    server: Callable[[], float] | None = None


CORES = len(os.sched_getaffinity(0))

KINDS = ("sqlite", "mariadb", "postgresql")

FLAGS = {
    # Room for five million rows. What is committed is synced, as on a server of somebody's own.
    MariaDB: ("--innodb-buffer-pool-size=2G", "--innodb-log-file-size=1G"),
    PostgreSQL: ("--shared-buffers=2GB", "--max-wal-size=8GB", "--fsync=on"),
    Redis: (),
}

FLOORS = ("floor_db", "floor_fork", "floor_lean")
"""The yardsticks of tasks."""

CHUNK = 250_000
"""Rows in one statement that fills a table."""

LATER = 4_000_000_000

DUE_SINCE = 1_700_000_000
"""The time of the first of rows that are due; there is a second between them."""

LEASE = {"alive_time": 600, "shortest": 1}
"""The leases of claims that run no task."""


# --- figures -------------------------------------------------------------------------


Sample = Mapping[str, float]
Samples = dict[str, list[Sample]]


def rounds(times: int, contestants: Mapping[str, Callable[[], Sample]]) -> Samples:
    """Measure all of them by turns, so that noise meets all alike.

    Args:
        times: how often.
        contestants: by name, what measures each.
    """
    samples: Samples = {name: [] for name in contestants}
    for count in range(times):
        for name, measure in contestants.items():
            samples[name].append(measure())
            tell(f"round {count + 1}, {name}: {rounded(samples[name][-1])}")
    return samples


def medians(samples: Sequence[Sample]) -> dict[str, float]:
    """The median of each figure."""
    return rounded({name: statistics.median(each[name] for each in samples) for name in samples[0]})


def ratio(these: Sequence[Sample], figure: str, those: Sequence[Sample], other: str) -> float:
    """The median of the rounds' ratios of a figure to another of the same round."""
    ratios = [a[figure] / b[other] for a, b in zip(these, those, strict=True)]
    return rounded({"ratio": statistics.median(ratios)})["ratio"]


def of(samples: Samples, name: str, figure: str, other: str) -> float:
    """The median of the rounds' ratios of a contestant's figure to that of another contestant."""
    return ratio(samples[name], figure, samples[other], figure)


def of_floors(samples: Samples, name: str) -> dict[str, float]:
    """The ratios of a contestant's rate and processor time to those of `task_floors`."""
    found = {}
    for floor_ in FLOORS:
        if floor_ != name:
            found[f"of_{floor_}"] = of(samples, name, "per_second", floor_)
            found[f"cpu_of_{floor_}"] = of(samples, name, cost_in(samples), floor_)
    return found


def cost_in(samples: Samples) -> str:
    """The figure for processor time: without the server's only if that is unknown."""
    return "cpu_ms" if "cpu_ms" in samples[FLOORS[0]][0] else "own_cpu_ms"


def difference(these: Sequence[Sample], figure: str, those: Sequence[Sample], other: str) -> float:
    """The median of the rounds' differences of a figure to another of the same round."""
    differences = [a[figure] - b[other] for a, b in zip(these, those, strict=True)]
    return rounded({"difference": statistics.median(differences)})["difference"]


def spread(values: Sequence[float], unit: str) -> dict[str, float]:
    """Median, 99th percentile and most of what was measured many times."""
    ordered = sorted(values)
    return {
        f"{unit}_p50": statistics.median(ordered),
        f"{unit}_p99": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)],
        f"{unit}_max": ordered[-1],
    }


def rounded(figures: Sample) -> dict[str, float]:
    """Figures as a person reads them."""
    return {name: round(value, 3) for name, value in figures.items()}


# --- the command line, and what it prints --------------------------------------------


def options(
    about: str | None,
    *,
    runs: int = 3,
    workers: int = 0,
    concurrency: int = 0,
    kinds: Sequence[str] = KINDS,
) -> argparse.ArgumentParser:
    """The options that all benchmarks have.

    Args:
        about: what is measured.
        runs: how many rounds are usual.
        workers: how many workers are; 0: that cannot be chosen.
        concurrency: how many tasks at a time each has; 0: that cannot be chosen.
        kinds: the databases on which it can be measured.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--short", action="store_true", help="only to see that it works")
    parser.add_argument("--databases", nargs="+", choices=kinds, default=[*KINDS[:2]])
    parser.add_argument("--rounds", type=int, help=f"default: {runs}; with --short, 1")
    parser.add_argument("--folder", help="where the databases are made, and removed again")
    parser.add_argument(
        "--python",
        default=sys.executable,
        type=os.path.abspath,  # and no further: a link leads out of the virtual environment
        help="of what is measured; default: this one",
    )
    parser.add_argument(
        "--url", help="an empty database of the one kind in --databases; thrown away"
    )
    if workers:
        text = f"default: {workers}; with --short, 1"
        parser.add_argument("--workers", type=int, help=text)
    if concurrency:
        parser.add_argument(
            "--concurrency", type=int, default=concurrency, help="default: %(default)s"
        )
    parser.set_defaults(usual_rounds=runs, usual_workers=workers)
    return parser


def choose(given: argparse.Namespace, usual: T, short: T, wanted: T | None) -> T:
    """How much of something: what was asked for, else what is usual, or short."""
    if wanted is not None:
        return wanted
    return short if given.short else usual


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """What the command line says."""
    given = parser.parse_args()
    Measured.python = given.python
    if given.url and len(given.databases) != 1:
        parser.error("--url wants exactly one kind in --databases")
    given.rounds = choose(given, given.usual_rounds, 1, given.rounds)
    if given.usual_workers:
        given.workers = choose(given, given.usual_workers, 1, given.workers)
    return given


def report(name: str, given: argparse.Namespace, measure: Callable[..., dict[str, Any]]) -> None:
    """Measure on each database, and print JSON.

    Args:
        name: the benchmark's.
        given: the command line.
        measure: takes the kind of database, its url and a folder; the figures.
    """
    found = {}
    with tempfile.TemporaryDirectory(prefix="psched-bench-", dir=given.folder) as name_:
        folder = Path(name_)
        folder.chmod(0o711)  # a server that refuses to be root is another user
        host = {
            "python": _version(given.python),
            "cores": CORES,
            "load_before": os.getloadavg()[0],
            "filesystem": _filesystem(folder),
        }
        for kind in given.databases:
            own = folder / kind
            own.mkdir(0o711)
            with database(kind, own, given.url) as url:
                found[kind] = measure(kind, url, own)
    told = {key: value for key, value in vars(given).items() if key not in _NOT_TOLD}
    result = {"benchmark": name, "host": host, "options": told, "databases": found}
    json.dump(result, sys.stdout, indent=2)
    sys.stdout.write("\n")


_NOT_TOLD = ("folder", "venv", "url", "databases", "usual_rounds", "usual_workers")


def tell(line: str) -> None:
    """Say how far it is."""
    sys.stderr.write(line + "\n")


def _version(python: str) -> str:
    """Of an interpreter."""
    told = [python, "-c", "import platform; print(platform.python_version())"]
    return subprocess.run(told, capture_output=True, text=True, check=True).stdout.strip()


def _filesystem(folder: Path) -> str:
    """The kind of file system that a folder is on: durable is what it makes so."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    around = [mount for mount in mounts if folder.resolve().is_relative_to(mount[1])]
    return max(around, key=lambda mount: len(mount[1]))[2]


# --- databases -----------------------------------------------------------------------


@contextlib.contextmanager
def database(kind: str, folder: Path, url: str | None = None) -> Iterator[str]:
    """The url of an empty database, durable as it comes."""
    Measured.server = None
    if url is not None:
        yield url
        return
    if kind == "sqlite":
        Measured.server = float  # there is none, which takes nothing
        yield f"sqlite:///{folder}/psched.db"
        return
    server = {"mariadb": MariaDB, "postgresql": PostgreSQL, "redis": Redis}[kind]
    with server(folder, *FLAGS[server]) as running:
        Measured.server = lambda: cpu_of_tree(running.pid)
        yield running.url(running.create_database())


def load(kind: str, url: str, size: int, table: str, *, due: bool = False, hosts: int = 0) -> float:
    """Fill a table: nothing due, a tenth at rest, the rest over the next months; the seconds.

    Args:
        kind: the kind of database.
        url: the database's.
        size: how many rows.
        table: is made.
        due: or all due, over the last months, in the order of their numbers.
        hosts: if given, row number n is only for host number n modulo this, ``host0`` and so on.
    """
    store = make_store(url, table=table, timeout=600)
    store.init()
    now, begun = int(store.now()), time.monotonic()
    for start in range(0, size, CHUNK):
        rows = min(CHUNK, size - start)
        run = f"(i + {start})"
        columns = {
            "id": joined(kind, "'k'", number(kind, run)),
            "type": "'bench'",
            "data": """'{"n":12345}'""",
            "cron": "'17 3 * * *'",
            "next_time": str(LATER),
            "next_run_time": (
                f"CASE WHEN {run} % 10 = 5 THEN NULL ELSE {now} + 86400 + {run} * 401 % 8640007 END"
            ),
            "status": f"CASE WHEN {run} % 10 = 5 THEN 'finished' ELSE 'waiting' END",
        }
        if due:
            columns |= {"next_run_time": f"{DUE_SINCE} + {run}", "status": "'waiting'"}
        if hosts:
            columns["lane"] = joined(kind, "'host'", number(kind, f"({run} % {hosts})"))
        store._connector.run(
            lambda c, rows=rows, columns=columns: fill(c, kind, rows, table=table, **columns)
        )
    store.disconnect()
    took = round(time.monotonic() - begun, 1)
    tell(f"{kind}: {size} rows in {took} s")
    return took


# --- processes -----------------------------------------------------------------------


def cpu_seconds(pid: int) -> float:
    """The seconds for which all threads of a process have had a processor, to the nanosecond."""
    stats = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(stat.read_text().split()[0]) for stat in stats) / 1e9


def memory(pid: int) -> dict[str, float]:
    """A process's memory in MiB: its share of all (PSS), and what it has alone."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    alone = kib["Private_Clean"] + kib["Private_Dirty"]
    return {"pss": kib["Pss"] / 1024, "private": alone / 1024, "rss": kib["Rss"] / 1024}


def floor(name: str, processes: int, *arguments: object) -> dict[str, float]:
    """Run one of the yardsticks of ``floors.py`` in so many processes at the same time.

    Returns:
        How often it was done per second, by all together, what each cost (see `Meter.costs`), and
        the size of the largest process in MiB.
    """
    command = [Measured.python, str(BENCH / "floors.py"), name, *map(str, arguments)]
    pipe = subprocess.PIPE
    with contextlib.ExitStack() as running:
        all_ = [
            running.enter_context(
                subprocess.Popen([*command, str(place)], stdin=pipe, stdout=pipe, text=True)
            )
            for place in range(processes)
        ]
        sizes = [json.loads(_line(each)) for each in all_]  # all have imported what they need
        with Meter(server=Measured.server) as meter:
            for each in all_:
                assert each.stdin is not None
                each.stdin.write("go\n")
                each.stdin.flush()
            done = [json.loads(_line(each)) for each in all_]
    meter.own = Spent(sum(each["cpu"] for each in done), sum(each["faults"] for each in done))
    begin, end = min(each["begin"] for each in done), max(each["end"] for each in done)
    count = sum(each["count"] for each in done)
    return {
        "per_second": count / (end - begin),
        **meter.costs(count, begin, end),
        "rss_mib": max(sizes),
        "processes": processes,
    }


def task_floors(
    url: str, tasks: int, folder: Path, processes: int
) -> dict[str, Callable[[], Sample]]:
    """The yardsticks of tasks: a fork for each, alone and with two commits.

    Args:
        url: the database's.
        tasks: how many, at least, all processes together do.
        folder: for their notes.
        processes: how many.
    """
    notes = folder / "notes"
    each = -(-tasks // processes)

    def run(name: str, *arguments: object) -> Sample:
        notes.write_text("")
        found = floor(name, processes, *arguments, each, notes)
        assert notes.read_text().count("\n") == each * processes, "a child has left no line"
        return found

    all_ = lambda: run("db", url), lambda: run("fork"), lambda: run("lean")
    return dict(zip(FLOORS, all_, strict=True))


def durability(kind: str, url: str) -> dict[str, str]:
    """The settings of a database by which a commit is on the disk, as they are."""
    if kind == "sqlite":
        return {"synchronous": "FULL"}  # floors.py and psched set it on each connection
    if kind == "redis":
        from redis import Redis  # noqa: PLC0415

        return {name: Redis.from_url(url).config_get(name)[name] for name in ("appendfsync",)}
    names = {
        "mariadb": ["innodb_flush_log_at_trx_commit"],
        "postgresql": ["fsync", "synchronous_commit"],
    }[kind]
    show = {"mariadb": "SELECT @@{}", "postgresql": "SHOW {}"}[kind]
    ask = Sql(url)
    return {name: str(ask(show.format(name))[0][0]) for name in names}


def _line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "a yardstick has failed"
    return line
