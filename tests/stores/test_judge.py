"""The judge of expectations on each kind of database, with the clock of the server."""

import random
from dataclasses import replace as changed

import pytest

from psched.config import from_mapping
from psched.core.alerts.alert import Rule
from psched.core.alerts.protocol import AlertSelection
from psched.core.alerts.watching import active_rows
from psched.core.history.records import Fate
from psched.reports.judge import MOST_OPEN, Judge
from psched.testing import ManualClock
from psched.testing.store_contract.bench import LATER, LONG_AGO, claim, claim_all, due
from psched.testing.store_contract.history import ending_with, made
from support.stores import store_factory
from support.waiting import wait_until

pytestmark = pytest.mark.parametrize(
    "database",
    [
        "sqlite",
        pytest.param("mariadb", marks=pytest.mark.mariadb),
        pytest.param("postgresql", marks=pytest.mark.postgresql),
        pytest.param("redis", marks=pytest.mark.redis),
    ],
    indirect=True,
)

EXPECT = {"late": "5m", "longest": 0.1, "silent": "1d", "unusual": 1.5}


@pytest.fixture
def make_store(database):
    with store_factory(database.url) as make:
        make().init()
        yield make


def judge(store, clock, expect=None):
    settings = from_mapping({"url": "sqlite:///unused.db", "expect": expect})
    return Judge(store, store.alerts, settings, clock=clock, rng=random.Random(1))  # noqa: S311  # jitter


def stepped(judges, clock):
    """What some judges raise and close in one round."""
    clock.advance(70)
    raised, closed = [], []
    for each in judges:
        for _ in range(2):
            done = each.step()
            raised += [(str(alert.rule), alert.key) for alert in done.raised]
            closed += [(str(alert.rule), alert.key) for alert in done.closed]
    return sorted(raised), sorted(closed)


def test_each_rule_is_raised_once_and_closed_once(make_store):
    store, clock = make_store(), ManualClock()
    judges = [judge(make_store(), clock, EXPECT) for _ in range(2)]
    store.add([due("k")], nonce="n")
    added = store.get("k")
    # What is silent counts from when a schedule was added, or succeeded since.
    assert store.replace(added, changed(added, created_at=LONG_AGO))
    milliseconds = round(store.now() * 1000)
    old = milliseconds - 2 * 86_400_000
    store.history.record(
        [
            made(
                "k",
                owner=f"w.{number}",
                scheduled_time=LONG_AGO - number,
                started=old - 10,
                ended=old,
                fate=Fate.FINISHED,
            )
            for number in range(6)
        ]
    )
    assert stepped(judges, clock) == ([("late", "k"), ("silent", "k")], [])
    assert stepped(judges, clock) == ([], [])
    (silent,) = store.alerts.find_alerts(AlertSelection(rules=frozenset({Rule.SILENT})))
    assert silent.since == old

    (row,) = claim(store, "worker.1").rows
    begun = store.get("k").claimed_at
    wait_until(lambda: store.now() > begun + 2, what="a run that takes long")
    raised, closed = stepped(judges, clock)
    assert (raised, closed) == ([("longest", "k"), ("unusual", "k")], [("late", "k")])

    ended = round(store.now() * 1000)
    success = made(
        "k",
        owner=row.owner,
        fence=row.fence,
        scheduled_time=row.next_time,
        ended=ended,
        fate=Fate.FINISHED,
    )
    store.settle([ending_with(row, success, next_time=LATER, not_before=LATER)])
    expected = [("longest", "k"), ("silent", "k"), ("unusual", "k")]
    assert stepped(judges, clock) == ([], expected)
    assert stepped(judges, clock) == ([], [])
    assert all(alert.closed is not None for alert in store.alerts.find_alerts())


MANY = 1100
"""More leases than one request reads from any store."""


def test_each_of_many_runs_is_judged(make_store):
    store, clock = make_store(), ManualClock()
    store.add([due(f"k{number}") for number in range(MANY)], nonce="n")
    claimed = claim_all(store, "w")
    assert len(claimed) == MANY
    begun = max(row.claimed_at for row in store.look([row.key for row in claimed]).values())
    wait_until(lambda: store.now() > begun + 2, what="runs that take long")
    seen = active_rows(store, None, 10)
    assert {row.key for row in seen.leased} == {row.key for row in claimed}
    assert seen.due == []
    court = judge(store, clock, {"longest": 0.1})
    raised = [key for _ in range(10) for _, key in stepped([court], clock)[0]]
    assert len({*raised}) == len(raised) == MOST_OPEN


def test_the_sweep_finds_what_rows_expect_themselves(make_store):
    store, clock = make_store(), ManualClock()
    store.add([due(f"k{number}") for number in range(50)], nonce="n")
    store.add([due("own", options='{"expect":{"late":300}}')], nonce="n")
    both = [judge(make_store(), clock) for _ in range(2)]
    found = [stepped(both, clock) for _ in range(4)]
    assert sorted(raised for each, _ in found for raised in each) == [("late", "own")]
    store.delete("own")
    assert ([], [("late", "own")]) in [stepped(both, clock) for _ in range(3)]
