"""What reads and writes of the table of alerts cost with many alerts: no more than with few."""

from dataclasses import dataclass
from typing import Any

import pytest

from psched.core.alerts.protocol import AlertSelection
from psched.stores.sql.alerts import closing, identity_of, inserted, noted
from psched.testing.store_contract.alerts import alert
from support.big_tables import KINDS, Cost, big_store, fill, joined, number

KEYS = 50
CLOSED = 60_000
"""Closed alerts without a delivery, of all keys in turn."""

BUSY = 30_000
"""The same of the key ``busy0``."""

OPEN = 5_000
"""Open alerts, each of a key of its own, with a delivery in the future."""

DUE = 5_000
"""Open alerts whose deliveries are due."""

LIMIT = 20
MOST = 15 * LIMIT
"""Rows that a statement may examine."""

START = 1_700_000_000_000
FUTURE = 4_000_000_000_000


@dataclass(frozen=True)
class Alarmed:
    """A store with many alerts."""

    kind: str
    store: Any

    @property
    def sql(self):
        return self.store.alerts._sql

    def cost(self, statement, values):
        return self.store._connector.run(lambda c: Cost(c, self.kind, statement, values))


@pytest.fixture(
    scope="module", params=[pytest.param(kind, marks=mark, id=kind) for kind, mark in KINDS.items()]
)
def many(request, tmp_path_factory):
    kind = request.param

    def fill_all(connection, store):
        gather(connection, kind, store)

    with big_store(kind, request, tmp_path_factory, fill_all) as store:
        store.disconnect()
        yield Alarmed(kind, store)


def gather(connection, kind, store):
    for prefix, rows, keys, is_closed, next_try in (
        ("k", CLOSED, f"i % {KEYS}", True, "NULL"),
        ("busy", BUSY, "0", True, "NULL"),
        ("open", OPEN, "i", False, f"{FUTURE} + i"),
        ("due", DUE, "i", False, f"{START} + i"),
    ):
        columns = {
            "key": joined(kind, f"'{prefix}'", number(kind, keys)),
            "host": "''",
            "rule": "'late'",
            "since": f"{START} + i * 1000",
            "text": "'it is late'",
            "raised": f"{START} + i * 1000",
            "closed": f"{START} + i * 1000 + 500" if is_closed else "NULL",
            "on_raise": "'[]'",
            "on_close": "'[]'",
            "deliveries": "'{}'",
            "next_try": next_try,
            "closed_id": "i + 1" if is_closed else "0",
        }
        quoted = {store._connector.quote(name): value for name, value in columns.items()}
        fill(connection, kind, rows, table="psched_alerts", **quoted)
    if kind == "mariadb":
        connection.exec_driver_sql("ANALYZE TABLE psched_alerts").close()
    elif kind == "postgresql":
        # The server does this by itself in the course of time.
        connection.exec_driver_sql("VACUUM ANALYZE psched_alerts")


SELECTIONS = {
    "all": {},
    "since a time": {"since": START + 25_000_000},
    "of a key": {"key": "k7"},
    "of a busy key": {"key": "busy0"},
    "of a busy key since a time": {"key": "busy0", "since": START + 25_000_000},
    "of a key that has none": {"key": "none"},
    "open": {"only_open": True},
    "open since a time": {"only_open": True, "since": START + 1_000_000},
    "open of a busy key": {"key": "busy0", "only_open": True},
    "open of a key": {"key": "open77", "only_open": True},
    "of a rule": {"rules": frozenset({"late", "failed"})},
}
"""Arguments of `AlertSelection`."""


@pytest.mark.parametrize("name", SELECTIONS)
@pytest.mark.parametrize(
    "after", [None, (START + 20_000_000, 12_345)], ids=["first page", "later page"]
)
def test_a_page_of_alerts_costs_a_page(many, name, after):
    selection = AlertSelection(**SELECTIONS[name])
    cost = many.cost(*many.sql.select(selection, after=after, limit=LIMIT))
    assert cost.examined <= MOST, cost.plan


def test_due_deliveries_are_found_by_their_times(many):
    cost = many.cost(many.sql.due, {"limit": LIMIT})
    assert not cost.scans, cost.plan
    assert not cost.sorts, cost.plan
    assert cost.examined <= MOST, cost.plan


@pytest.mark.parametrize("before", [0, START, START + 8_000, FUTURE])
def test_old_alerts_are_found_by_their_times(many, before):
    cost = many.cost(many.sql.old, {"before": before, "limit": LIMIT})
    assert cost.examined <= MOST, cost.plan


def some(count):
    """Alerts of which every second one exists, and some are open."""
    return [
        alert(f"{('busy', 'open')[i % 4 > 1]}{i if i % 4 > 1 else 0}", since=START + i * 500)
        for i in range(count)
    ]


@pytest.mark.parametrize("count", [1, 9, 100])
@pytest.mark.parametrize("name", ["find", "obstacles"])
def test_a_question_costs_as_much_as_there_are_alerts(many, name, count):
    cost = many.cost(*many.sql.table.for_each(getattr(many.sql, name), some(count)))
    assert not cost.scans, cost.plan
    assert cost.examined <= 20 * count + MOST, cost.plan


def test_what_concerns_one_alert_reads_one_row(many):
    for each in (*some(8), alert("due7", since=START + 7000, owner="m", fence=0)):
        taken = {**identity_of(each), "owner": "m", "lease": 1000, "fence": each.fence}
        for statement, values in (
            (many.sql.close, closing(each, "it has run")),
            (many.sql.take, taken),
            (many.sql.note, noted(each)),
        ):
            cost = many.cost(statement, values)
            assert not cost.scans, cost.plan
            assert cost.examined <= MOST, cost.plan
    assert many.cost(many.sql.insert, inserted(alert("new"))).examined <= MOST


def test_a_deletion_reads_what_it_deletes(many):
    cost = many.cost(*many.sql.table.delete([1, 77, CLOSED, CLOSED + BUSY]))
    assert not cost.scans, cost.plan
    assert cost.examined <= MOST, cost.plan
