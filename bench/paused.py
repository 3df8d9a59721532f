"""Claims beside a million due rows of a paused type, compared with claims when nothing is due."""

import time
from typing import Any

import harness
from harness import DUE_SINCE, LEASE, Sample, make_store
from psched.core.model import Row
from psched.core.operations.pauses import PauseRule

RULE = PauseRule(id="bench", type="bench", since=DUE_SINCE, by="bench")


def main() -> None:
    """Measure, and print JSON."""
    parser = harness.options(__doc__, runs=5)
    parser.add_argument("--rows", type=int, help="that are paused; default: 1000000; short, 3000")
    parser.add_argument("--claims", type=int, help="of a round; default: 100; with --short, 5")
    given = harness.parsed(parser)
    given.rows = harness.choose(given, 1_000_000, 3000, given.rows)
    given.claims = harness.choose(given, 100, 5, given.claims)
    harness.report("paused", given, lambda kind, url, _folder: measured(given, kind, url))


def measured(given: Any, kind: str, url: str) -> dict[str, Any]:  # noqa: ANN401
    """The figures on one database."""
    harness.load(kind, url, given.rows, "paused", due=True)
    setup = make_store(url, table="paused", timeout=600)
    setup.pauses.change_pause_rules(drop=[], store=[RULE])
    none = make_store(url, table="none", timeout=600)
    none.init()
    workers: list[Any] = []

    def search() -> Sample:
        workers.append(make_store(url, table="paused", timeout=600))
        return searched(setup, workers[-1])

    samples = harness.rounds(
        given.rounds,
        {
            "search": search,
            "claims": lambda: claimed(workers[-1], given.claims),
            "idle": lambda: claimed(none, given.claims),
        },
    )
    found: dict[str, Any] = {name: harness.medians(these) for name, these in samples.items()}
    found["claims"]["above_idle"] = harness.difference(
        samples["claims"], "ms_p50", samples["idle"], "ms_p50"
    )
    for store in (setup, none, *workers):
        store.disconnect()
    return found


def searched(setup: Any, store: Any) -> Sample:  # noqa: ANN401
    """The claims of a new worker until it has searched the whole backlog.

    It finds a task that has just been pushed, and one that was given a time in the middle.
    """
    store.now()  # connects
    now, run = int(setup.now()), time.monotonic_ns()
    rows = {f"pushed{run}": now, f"middle{run}": DUE_SINCE + 1000}
    setup.add(
        [Row(key=key, type="web", next_time=due, next_run_time=due) for key, due in rows.items()],
        nonce="bench",
    )
    begun, took, seen, more = time.perf_counter(), list[float](), dict[str, float](), True
    while more:
        answer = one(store, took)
        more = answer.more
        seen |= {row.key: time.perf_counter() - begun for row in answer.rows}
    assert seen.keys() == rows.keys(), seen
    return {
        "pushed_ms": 1000 * seen[f"pushed{run}"],
        "seconds": time.perf_counter() - begun,
        **harness.spread(took, "claim_ms"),
    }


def claimed(store: Any, claims: int) -> Sample:  # noqa: ANN401
    """Claims that find nothing."""
    took: list[float] = []
    for _ in range(claims):
        assert not one(store, took).rows
    return harness.spread(took, "ms")


def one(store: Any, took: list[float]) -> Any:  # noqa: ANN401
    """Claim, and add to ``took`` for how many milliseconds."""
    begun = time.perf_counter()
    answer = store.claim(f"bench{time.monotonic_ns()}.1", limit=20, horizon=1, **LEASE)
    took.append(1000 * (time.perf_counter() - begun))
    return answer


if __name__ == "__main__":
    main()
