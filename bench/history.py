"""What the run history costs: tasks per second with it and without; reads from a large history."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sqlalchemy import text

import harness
from fleet import Fleet
from harness import CORES, Sample
from psched.core.history.protocol import RunSelection
from psched.core.history.records import RunRecord

REUSED = 1000
"""Tasks for which a process is used, where they are."""

KEYS = 1000
"""The keys in the large history."""


def main() -> None:
    """Measure, and print JSON."""
    parser = harness.options(__doc__, runs=5, workers=CORES, concurrency=16)
    parser.add_argument("--tasks", type=int, help="default: 2000; with --short, 50")
    parser.add_argument("--records", type=int, help="default: 10000000; with --short, 2000")
    given = harness.parsed(parser)
    given.tasks = harness.choose(given, 2000, 50, given.tasks)
    given.records = harness.choose(given, 10_000_000, 2000, given.records)
    harness.report("history", given, lambda *where: measured(given, *where))


def measured(given: Any, kind: str, url: str, folder: Path) -> dict[str, Any]:  # noqa: ANN401
    """The figures on one database."""
    found = cost(given, url, folder)
    if given.records:
        found |= large(given, kind, url)
    return found


def cost(given: Any, url: str, folder: Path) -> dict[str, Any]:  # noqa: ANN401
    """Tasks per second with the history and without, by turns."""
    how = {"processors": given.workers, "concurrency": given.concurrency}
    layouts: dict[str, dict[str, Any]] = {
        "fresh": how,
        "reused": how | {"max_tasks_per_child": REUSED},
    }
    with ExitStack() as stack:
        contestants: dict[str, Callable[[], Sample]] = {}
        for layout, settings in layouts.items():
            for history in "none", "all":
                name = f"{layout}_{history}"
                fleet = stack.enter_context(
                    Fleet(folder, url, table=name, history=history, **settings)
                )
                contestants[name] = lambda fleet=fleet, history=history: drained(
                    fleet, given.tasks, recorded=history == "all"
                )
        samples = harness.rounds(given.rounds, contestants)
    found: dict[str, Any] = {name: harness.medians(these) for name, these in samples.items()}
    for layout in layouts:
        these, those = samples[f"{layout}_all"], samples[f"{layout}_none"]
        for figure in "per_second", "cpu_ms":
            found[f"{layout}_all"][f"{figure}_of_none"] = harness.ratio(
                these, figure, those, figure
            )
    return found


def drained(fleet: Fleet, count: int, *, recorded: bool) -> Sample:
    """Tasks per second, what each costs, and how many records there are for each."""
    before = records_in(fleet)
    drain = fleet.drain(count)
    records = (records_in(fleet) - before) / count
    assert records == (1.0 if recorded else 0.0), f"{records} records for each task"
    return {"per_second": drain.per_second, "cpu_ms": drain.cpu_ms, "records": records}


def records_in(fleet: Fleet) -> int:
    """How many records the history has."""
    return int(fleet.sql(f"SELECT COUNT(*) FROM {fleet.table}_runs")[0][0])  # noqa: S608


def large(given: Any, kind: str, url: str) -> dict[str, Any]:  # noqa: ANN401
    """Milliseconds of a claim, of a settle with a record, and of reads, in a large history."""
    found = {}
    for size in 0, given.records:
        table = f"large{size}"
        store = harness.make_store(url, table=table, timeout=3600)
        store.init()
        began = time.monotonic()
        fill(store, kind, table, size)
        harness.tell(f"{size} records in {time.monotonic() - began:.0f} s")
        reads = {
            "history_of_a_key": RunSelection(key="k7", limit=50),
            "newest": RunSelection(limit=50),
            "covering": RunSelection(key="k7", covering=size // KEYS // 2),
        }
        contestants = {
            name: lambda selection=selection, store=store: timed(lambda: [*store.runs(selection)])
            for name, selection in reads.items()
        }
        contestants["trim_a_key"] = lambda store=store: timed(lambda: store.trim_key("k8", 10**9))
        samples = harness.rounds(given.rounds, contestants)
        found[f"of_{size}"] = {
            name: harness.medians(these)["ms"] for name, these in samples.items()
        }
        store.disconnect()
    return {"large": found}


def timed(work: Callable[[], object]) -> Sample:
    """How long something takes."""
    began = time.perf_counter()
    work()
    return {"ms": 1000 * (time.perf_counter() - began)}


def fill(store: Any, kind: str, table: str, size: int) -> None:  # noqa: ANN401
    """Fill a history: ``KEYS`` keys in turn, then what is there again and again."""
    first = min(size, KEYS)
    store.record([record(f"k{number}") for number in range(first)])
    columns = "type, owner, fence, ended, attempt, started, outcome, fate, host"
    quote = store._connector.quote
    have = first
    while have < size:
        more = min(have, size - have)
        # Each copy has later times, so that it is another occurrence.
        times = f"scheduled_time + {have // KEYS}"
        statement = text(
            f"INSERT INTO {quote(table + '_runs')} ({quote('key')}, scheduled_time, {columns})"  # noqa: S608
            f" SELECT {quote('key')}, {times}, {columns} FROM {quote(table + '_runs')}"
            f" ORDER BY id LIMIT {more}"
        )
        store._connector.run(lambda c, statement=statement: c.execute(statement))
        have += more
    if kind != "sqlite" and size:
        analyze = {"mariadb": "ANALYZE TABLE", "postgresql": "ANALYZE"}[kind]
        store._connector.run(
            lambda c: c.exec_driver_sql(f"{analyze} {quote(table + '_runs')}").close()
        )


def record(key: str) -> RunRecord:
    """A record of a run that has finished."""
    return RunRecord(
        key=key,
        type="bench",
        scheduled_time=0,
        owner="w.1",
        fence=1,
        attempt=1,
        started=1_700_000_000_000,
        ended=1_700_000_000_100,
        outcome="finished",
        fate="finished",
        host="host",
    )


if __name__ == "__main__":
    main()
