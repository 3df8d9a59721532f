"""Pauses of types in Redis: very many due rows of a paused type do not hide the others."""

from dataclasses import replace

import pytest

from psched.core.model import Row
from psched.core.operations.pauses import PauseRule
from psched.stores.redis.store import MOST_ADDED
from support.stores import store_factory

pytestmark = pytest.mark.redis

MANY = 60_000
"""Rows; one claim reads at most 50,000 of them."""

CLAIM = {"limit": 10, "alive_time": 60, "shortest": 6, "horizon": 0}


@pytest.fixture
def store(open_database):
    with open_database("redis") as database, store_factory(database.url, timeout=60) as open_store:
        store = open_store()
        store.init()
        yield store


def add(store, type_, times):
    rows = [
        Row(key=f"{type_}{number}", type=type_, next_time=time, next_run_time=time)
        for number, time in enumerate(times)
    ]
    for start in range(0, len(rows), MOST_ADDED):
        store.add(rows[start : start + MOST_ADDED], nonce="n")


def claimed(store, count=[0]):  # noqa: B006  # each owner is used once
    """The types of the rows that claims return until one says that there are no more."""
    types = set()
    for _ in range(10):
        count[0] += 1
        answer = store.claim(f"w.{count[0]}", **CLAIM)
        types |= {row.type for row in answer.rows}
        if not answer.more:
            break
    return types


def pause(store, type_, **fields):
    rule = PauseRule(id="a", type=type_, since=1, by="ann@web1", **fields)
    store.pauses.change_pause_rules(drop=[], store=[rule])


def test_rows_behind_very_many_paused_ones_are_claimed(store):
    now = int(store.now())
    add(store, "mail", [now - 2000 + number % 1000 for number in range(MANY)])
    add(store, "web", [now - 100])
    pause(store, "mail")
    assert claimed(store) == {"web"}
    # What is added later with an earlier time is found, too.
    add(store, "early", [now - 1999])
    assert claimed(store) == {"early"}
    assert claimed(store) == set()
    store.pauses.change_pause_rules(drop=["a"], store=[])
    assert claimed(store) == {"mail"}


def test_very_many_paused_rows_of_one_time_hide_none(store):
    now = int(store.now())
    add(store, "mail", [now - 200] * MANY)
    add(store, "web", [now - 100])
    pause(store, "mail")
    assert claimed(store) == {"web"}


def test_another_rule_is_obeyed_although_rows_were_passed(store):
    now = int(store.now())
    add(store, "mail", [now - 2000 + number % 1000 for number in range(2000)])
    pause(store, "mail")
    assert claimed(store) == set()
    pause(store, "web")
    assert claimed(store) == {"mail"}


def test_a_row_that_gets_another_type_is_found(store):
    now = int(store.now())
    add(store, "mail", [now - 2000 + number % 1000 for number in range(2000)])
    pause(store, "mail")
    assert claimed(store) == set()
    row = store.get("mail5")
    assert store.replace(row, replace(row, type="web"))
    assert claimed(store) == {"web"}


def test_what_is_passed_is_claimed_at_the_end_of_its_rule(store):
    now = int(store.now())
    add(store, "mail", [now - 2000 + number % 1000 for number in range(2000)])
    pause(store, "mail", until=now + 1000)
    assert claimed(store) == set()
    passed, over = store._connector.ask("HGET", "{psched}:layout", "passed").split()
    assert now - 1100 < int(passed) < now
    assert int(over) <= now + 1000
    pause(store, "mail", until=now)
    assert claimed(store) == {"mail"}
