"""Tests of the alerts that Redis keeps beyond the contract: rights, memory, and what is left."""

import contextlib
from dataclasses import replace as changed

import pytest

from psched.base.errors import StoreError, StoreUnavailableError
from psched.testing.store_contract.alerts import (
    LATER,
    SINCE,
    alert,
    identities,
    one_closed,
    one_raised,
    one_taken,
    stored,
    taken,
)
from psched.testing.store_contract.bench import claim, due
from support.stores import store_factory

pytestmark = pytest.mark.redis


@pytest.fixture
def database(open_database):
    with open_database("redis") as database:
        yield database


@pytest.fixture
def left(redis_cli):
    """A function that returns all keys of alerts, without the prefix."""

    def left():
        names = (name.decode().partition(":")[2] for name in redis_cli("KEYS", "*"))
        return sorted(name for name in names if name.startswith("alert"))

    return left


@pytest.fixture
def open_as(database, redis_cli):
    """A function that opens the store as a user with these rights."""
    with contextlib.ExitStack() as opened:

        def open_as(*rights):
            redis_cli("ACL", "SETUSER", "u", "reset", "on", "nopass", *rights)
            url = database.url.replace("://", "://u:x@")
            return opened.enter_context(store_factory(url))()

        yield open_as
    redis_cli("ACL", "DELUSER", "u")


def test_a_deleted_alert_leaves_nothing_but_the_last_number(store, left, redis_cli):
    for key in "k", "", "k":
        one_closed(store, key, since=SINCE + len(stored(store)), on_close=("mail",))
        assert store.alerts.note_deliveries(changed(one_taken(store), next_try=None))
    assert store.alerts.trim_alerts(before=LATER, limit=9) == 3
    assert left() == ["alert_ids"]
    assert redis_cli("HKEYS", "{psched}:alert_ids") == [b"last"]


def test_leases_are_read_once_however_many_rows_are_due(store, redis_cli):
    many, few = 1100, 7
    store.add([due(f"k{number}") for number in range(many)], nonce="n")
    claimed = claim(store, "w.1", limit=few).rows
    redis_cli("CONFIG", "RESETSTAT")
    seen = store.light_reads.active_rows(None, many)
    calls = redis_cli("INFO", "commandstats")["cmdstat_hmget"]["calls"]
    assert {row.key for row in seen.leased} == {row.key for row in claimed}
    assert len(seen.due) == many - few
    assert calls == many


def test_a_user_without_a_right_keeps_no_alerts(store, open_as):
    mine = open_as("~{psched}*", "+@all", "-hgetall", "-hexists")
    assert mine.alerts.problem() == (
        "the server refuses HEXISTS, HGETALL (ERR The user executing the script can't run this"
        " command or subcommand); give the user of url the rights that docs/redis.md lists"
    )
    mine.try_rights()
    with pytest.raises(StoreError, match="can't run this command"):
        mine.alerts.raise_alerts([alert()])
    assert mine.history.problem() is None
    assert stored(store) == []
    assert store.alerts.problem() is None


def test_the_rights_that_the_documentation_lists_suffice(store, open_as):
    rights = "~{psched}:* +@read +@write +@connection +evalsha +eval +time +wait +info +config|get"
    mine = open_as(*rights.split())
    assert mine.alerts.problem() is None
    one_closed(mine, on_raise=("mail",))
    assert mine.alerts.note_deliveries(changed(one_taken(mine), next_try=None))
    assert mine.alerts.trim_alerts(before=LATER, limit=9) == 1
    assert stored(store) == []


def test_a_full_memory_raises_nothing_new_and_ends_what_is_there(store, set_memory):
    opened = one_raised(store, on_raise=("mail",), on_close=("mail",))
    set_memory(1)
    with pytest.raises(StoreUnavailableError, match="its memory is full"):
        store.alerts.raise_alerts([alert("other")])
    assert identities(store.alerts.close_alerts([opened], "it has run")) == identities([opened])
    assert store.alerts.note_deliveries(changed(one_taken(store), next_try=None))
    assert store.alerts.trim_alerts(before=LATER, limit=9) == 1
    set_memory(0)
    one_raised(store, "other")
    assert [each.key for each in stored(store)] == ["other"]


def test_an_alert_that_another_client_has_spoilt_hides_no_other(store, redis_cli):
    for key in "a", "b", "c", "d":
        one_raised(store, key, on_raise=("mail",))
    numbers = redis_cli("ZRANGE", "{psched}:alerts", "0", "-1")
    spoilt = [f"{{psched}}:alert:{number.decode()}" for number in numbers]
    redis_cli("DEL", spoilt[0])
    redis_cli("HSET", spoilt[1], "record", "no JSON")
    redis_cli("HSET", spoilt[2], "deliveries", "no JSON")
    assert [(each.key, each.deliveries) for each in stored(store)] == [("d", {}), ("c", {})]
    assert [each.key for each in taken(store)] == ["c", "d"]
