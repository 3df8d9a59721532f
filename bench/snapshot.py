"""Pushes, claims and settlements beside a transaction that keeps its snapshot, and without it.

The database keeps whatever such a transaction might still read. Two servers take turns, so that
noise meets both alike: on one of them the transaction is open all the time, as that of a dump.
"""

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import harness
from harness import LEASE, Sample, Sql, make_store
from history import RECORDER
from psched import config
from psched.core.history.records import Attempt, Outcome
from psched.core.model import Finish, Row
from psched.core.policy import after_run
from psched.core.store_protocol import Settled

TAKEN = 5
"""Rows that each claim takes, and each settlement removes: as many as a worker has slots."""

SETTINGS = config.from_mapping({"url": "sqlite:///unused.db", "retention_time": 0})

OPEN = {
    "sqlite": ("BEGIN",),
    "mariadb": (
        "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
        "START TRANSACTION WITH CONSISTENT SNAPSHOT",
    ),
    "postgresql": ("BEGIN ISOLATION LEVEL REPEATABLE READ",),
}


def main() -> None:
    """Measure, and print JSON."""
    parser = harness.options(__doc__, runs=1)
    parser.add_argument("--minutes", type=float, help="default: 10; with --short, 0.02")
    parser.add_argument("--batch", type=int, help="rows of a turn; default: 1000; short, 40")
    parser.set_defaults(databases=["mariadb", "postgresql"])
    given = harness.parsed(parser)
    if given.url:
        parser.error("it needs two servers of its own, so --url makes no sense")
    given.minutes = harness.choose(given, 10.0, 0.02, given.minutes)
    given.batch = harness.choose(given, 1000, 40, given.batch)
    harness.report("snapshot", given, lambda *where: measured(given, *where))


def measured(given: Any, kind: str, url: str, folder: Path) -> dict[str, Any]:  # noqa: ANN401
    """The figures on one kind of database, of the first and of the last tenth of the time."""
    server, other = harness.Measured.server, folder / "alone"
    other.mkdir(0o711)
    samples: dict[str, list[Sample]] = {"beside": [], "alone": []}
    with harness.database(kind, other) as calm, contextlib.ExitStack() as stack:
        turns = {
            "beside": stack.enter_context(turn(url, server, given.batch)),
            "alone": stack.enter_context(turn(calm, harness.Measured.server, given.batch)),
        }
        stack.enter_context(snapshot(kind, url))
        end = time.monotonic() + 60 * given.minutes
        while time.monotonic() < end:
            for name, take_turn in turns.items():
                samples[name].append(take_turn())
            harness.tell(f"{kind}: {harness.rounded(samples['beside'][-1])}")
    tenth = max(1, len(samples["alone"]) // 10)
    found: dict[str, Any] = {"batches": len(samples["alone"]), "batch": given.batch}
    for when, part in ("first", slice(tenth)), ("last", slice(-tenth, None)):
        beside, alone = samples["beside"][part], samples["alone"][part]
        found[when] = {
            "beside": harness.medians(beside),
            "alone": harness.medians(alone),
            "of_alone": harness.ratio(beside, "per_second", alone, "per_second"),
            "cpu_of_alone": harness.ratio(beside, "cpu_ms", alone, "cpu_ms"),
        }
    return found


@contextlib.contextmanager
def snapshot(kind: str, url: str) -> Iterator[None]:
    """A transaction that has read something, and stays open."""
    with Sql(url).session() as ask:
        for statement in OPEN[kind]:
            ask(statement)
        ask("SELECT count(*) FROM {table}")
        yield


@contextlib.contextmanager
def turn(
    url: str, server: Callable[[], float] | None, batch: int
) -> Iterator[Callable[[], Sample]]:
    """A function that pushes tasks, and claims and ends all of them, each by its own requests."""
    store = make_store(url, timeout=60)
    store.init()
    shuffled, count = random.Random(batch), 0  # noqa: S311  # keys of users are in no order

    def take() -> Sample:
        nonlocal count
        count += 1
        spent, begun = busy(server), time.perf_counter()
        now = int(store.now())
        keys = [f"n{count}.{number}" for number in range(batch)]
        shuffled.shuffle(keys)
        rows = [Row(key=key, type="noop", next_time=now, next_run_time=now) for key in keys]
        store.add(rows, nonce=f"bench{count}")
        left, claims, claim = {*keys}, list[float](), 0
        while left:
            claim += 1
            asked = time.perf_counter()
            found = store.claim(f"bench.{count}.{claim}", limit=TAKEN, horizon=1, **LEASE).rows
            claims.append(time.perf_counter() - asked)
            left -= {row.key for row in found}
            settle(store, found, now)
        took = time.perf_counter() - begun
        return {
            "per_second": batch / took,
            "cpu_ms": 1000 * (busy(server) - spent) / batch,
            **harness.spread([1000 * each for each in claims], "claim_ms"),
        }

    yield take
    store.disconnect()


def busy(server: Callable[[], float] | None) -> float:
    """The seconds that this process and the server have worked."""
    return time.process_time() + (0.0 if server is None else server())


def settle(store: Any, rows: Sequence[Row], now: int) -> None:  # noqa: ANN401
    """End leases, with a record of each run; the rows go."""
    attempt = Attempt(outcome=Outcome.FINISHED, started=1, ended=2)
    ends = [after_run(row, row, Finish(), SETTINGS, now) for row in rows]
    for row, end in zip(rows, ends, strict=True):
        end.records = RECORDER.records_of(end, row, attempt, history="all")
    if ends:
        assert {*store.settle(ends).values()} == {Settled.DONE}


if __name__ == "__main__":
    main()
