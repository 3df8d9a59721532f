"""The judge of expectations beside a hundred thousand schedules: its statements and their time."""

import random
import time
from pathlib import Path
from typing import Any

import harness
from harness import Sample, make_store
from psched.config import from_mapping
from psched.core.history.records import Fate, Outcome, RunRecord
from psched.reports.judge import Judge
from psched.testing import ManualClock

TABLE = "expected"

CONTESTANTS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "active": {"late": "5m", "longest": "1h", "unusual": 3},
    "silent": {"silent": "1d"},
}
"""What is expected of all schedules."""

BATCH = 1000
"""Records that are written at once."""


def main() -> None:
    """Measure, and print JSON."""
    parser = harness.options(__doc__)
    parser.add_argument("--rows", type=int, help="default: 100000; with --short, 3000")
    parser.add_argument("--minutes", type=int, help="that are simulated; default: 20; short, 2")
    given = harness.parsed(parser)
    given.rows = harness.choose(given, 100_000, 3000, given.rows)
    given.minutes = harness.choose(given, 20, 2, given.minutes)
    harness.report("expectations", given, lambda *where: measured(given, *where))


def measured(given: Any, kind: str, url: str, _folder: Path) -> dict[str, Any]:  # noqa: ANN401
    """The figures on one database."""
    harness.load(kind, url, given.rows, TABLE)
    store = make_store(url, table=TABLE, timeout=600)
    store.init()
    remember(store)
    samples = harness.rounds(
        given.rounds,
        {
            name: lambda expect=expect: judged(store, expect, given.minutes)
            for name, expect in CONTESTANTS.items()
        },
    )
    store.disconnect()
    return {name: harness.medians(found) for name, found in samples.items()}


def remember(store: Any) -> None:  # noqa: ANN401
    """Record a success of each schedule."""
    now = round(store.now() * 1000)
    keys = [row.key for row in store.rows()]
    for start in range(0, len(keys), BATCH):
        store.history.record(
            [
                RunRecord(
                    key=key,
                    type="bench",
                    scheduled_time=now // 1000,
                    owner=f"bench.{start + number}",
                    fence=1,
                    attempt=1,
                    started=now - 1000,
                    ended=now,
                    outcome=Outcome.FINISHED,
                    fate=Fate.FINISHED,
                )
                for number, key in enumerate(keys[start : start + BATCH])
            ]
        )


def judged(store: Any, expect: dict[str, Any], minutes: int) -> Sample:  # noqa: ANN401
    """A new judge, whose clock a test moves as fast as it can, for some minutes."""
    settings = from_mapping({"url": "sqlite:///unused.db", "expect": expect})
    clock, sent, took, read = ManualClock(), [0], list[float](), store._connector.read

    def counting(*work: Any) -> Any:  # noqa: ANN401
        sent[0] += 1
        return read(*work)

    store._connector.read = counting
    judge = Judge(store, store.alerts, settings, clock=clock, rng=random.Random(1))  # noqa: S311  # jitter
    end = clock.monotonic() + 60 * minutes
    while clock.monotonic() < end:
        begun = time.perf_counter()
        done = judge.step()
        took.append(1000 * (time.perf_counter() - begun))
        assert not any([done.raised, done.closed, done.notes]), done
        clock.advance(max(done.wait, 0.001))
    del store._connector.read
    return {
        "statements_per_minute": sent[0] / minutes,
        "ms_per_minute": sum(took) / minutes,
        **harness.spread(took, "step_ms"),
    }


if __name__ == "__main__":
    main()
