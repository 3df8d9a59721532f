"""What the run history costs: tasks per second with it and without; reads from a large history."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import text

import harness
from fleet import Fleet
from harness import CORES, Sample
from psched import config
from psched.base.clock import SystemClock
from psched.client.verifier import Verifier
from psched.core.history.protocol import RunSelection
from psched.core.history.recording import Recorder, StoreClock
from psched.core.history.records import Attempt, Outcome, RunRecord
from psched.core.model import Finish, Row
from psched.core.policy import after_run
from psched.core.store_protocol import Settled

REUSED = 1000
"""Tasks for which a process is used, where they are."""

KEYS = 1000
"""The keys in the large history."""

SETTLED = 16
"""The tasks that one settle ends, each with its record."""

LEASE = {"alive_time": 300, "shortest": 1, "horizon": 1.0}
"""Arguments of a claim."""

SETTINGS = config.from_mapping({"url": "sqlite:///unused.db"})
RECORDER = Recorder(host="bench", generation=1, clock=StoreClock(SystemClock()))


def main() -> None:
    """Measure, and print JSON."""
    parser = harness.options(__doc__, runs=5, workers=CORES, concurrency=16)
    parser.add_argument("--tasks", type=int, help="default: 2000; with --short, 50")
    parser.add_argument("--schedules", type=int, help="default: 6000; with --short, 50")
    parser.add_argument("--records", type=int, help="default: 10000000; with --short, 2000")
    given = harness.parsed(parser)
    given.tasks = harness.choose(given, 2000, 50, given.tasks)
    given.schedules = harness.choose(given, 6000, 50, given.schedules)
    given.records = harness.choose(given, 10_000_000, 2000, given.records)
    harness.report("history", given, lambda *where: measured(given, *where))


def measured(given: Any, kind: str, url: str, folder: Path) -> dict[str, Any]:  # noqa: ANN401
    """The figures on one database."""
    found = cost(given, url, folder) | verified(given, url)
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
        for figure in "per_second", "own_cpu_ms":
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
    return {
        "per_second": drain.per_second,
        "own_cpu_ms": drain.costs["own_cpu_ms"],
        "records": records,
    }


def records_in(fleet: Fleet) -> int:
    """How many records the history has."""
    return int(fleet.sql(f"SELECT COUNT(*) FROM {fleet.table}_runs")[0][0])  # noqa: S608


def verified(given: Any, url: str) -> dict[str, Any]:  # noqa: ANN401
    """How long it takes to verify schedules that have had one run each."""
    store = harness.make_store(url, table="verified", timeout=3600)
    store.init()
    for _ in range(0, given.schedules, SETTLED):
        leased(store, cron="@hourly")
    verifier = Verifier(store, SETTINGS)

    def verify() -> Sample:
        cpu = time.process_time()
        sample = timed(lambda: verifier.verify(3600))
        return sample | {"own_cpu_ms": 1000 * (time.process_time() - cpu)}

    samples = harness.rounds(given.rounds, {"verify": verify})
    found = verifier.verify(3600)
    assert (found.violations, found.runs) == ([], found.schedules)
    store.disconnect()
    return {"verify": harness.medians(samples["verify"]) | {"schedules": found.schedules}}


def large(given: Any, kind: str, url: str) -> dict[str, Any]:  # noqa: ANN401
    """Milliseconds of a claim, a settle and reads, in an empty history and in a large one."""
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
            name: lambda selection=selection, store=store: timed(
                lambda: [*store.history.runs(selection)]
            )
            for name, selection in reads.items()
        }
        contestants["trim_a_key"] = lambda store=store: timed(
            lambda: store.history.trim_key("k8", 10**9)
        )
        samples = harness.rounds(given.rounds, contestants)
        samples |= harness.rounds(given.rounds, {"lease": lambda store=store: leased(store)})
        figures = {name: harness.medians(these) for name, these in samples.items()}
        found[f"of_{size}"] = figures.pop("lease") | {
            name: these["ms"] for name, these in figures.items()
        }
        store.disconnect()
    return {"large": found}


def leased(store: Any, **fields: Any) -> Sample:  # noqa: ANN401
    """How long a claim of some rows takes, and a settle with their records, in milliseconds."""
    nonce = f"bench{time.monotonic_ns()}"
    rows = [Row(key=f"{nonce}.{number}", type="bench", **fields) for number in range(SETTLED)]
    now = int(store.now())
    store.add([replace(row, next_time=now, next_run_time=now) for row in rows], nonce=nonce)
    begun = time.perf_counter()
    rows = store.claim(f"{nonce}.1", limit=SETTLED, **LEASE).rows
    claimed = time.perf_counter()
    assert len(rows) == SETTLED
    ends = [after_run(row, row, Finish(), SETTINGS, now) for row in rows]
    attempt = Attempt(outcome=Outcome.FINISHED, started=1000 * now, ended=1000 * now + 1)
    for row, end in zip(rows, ends, strict=True):
        end.records = RECORDER.records_of(end, row, attempt, history="all")
    settling = time.perf_counter()
    done = store.settle(ends)
    settled = time.perf_counter()
    assert {*done.values()} == {Settled.DONE}
    return {"claim": 1000 * (claimed - begun), "settle": 1000 * (settled - settling)}


def timed(work: Callable[[], object]) -> Sample:
    """How long something takes."""
    began = time.perf_counter()
    work()
    return {"ms": 1000 * (time.perf_counter() - began)}


def fill(store: Any, kind: str, table: str, size: int) -> None:  # noqa: ANN401
    """Fill a history: ``KEYS`` keys in turn, then what is there again and again."""
    first = min(size, KEYS)
    store.history.record([record(f"k{number}") for number in range(first)])
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
