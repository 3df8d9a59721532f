"""What reads and writes of the run history cost with many records: no more than with few."""

from dataclasses import dataclass
from typing import Any

import pytest

from psched.core.history.protocol import AuditSelection, RunSelection
from psched.core.history.records import AuditRecord, RunRecord
from psched.stores.sql.history import _AUDIT_VALUES, run_values
from support.big_tables import KINDS, Cost, big_store, fill, joined, number

KEYS = 50
RECORDS = 60_000
BUSY = 30_000
"""The records of the key ``busy``, besides those of the other keys."""

LIMIT = 20
MOST = 15 * LIMIT
"""Rows that a statement may examine."""

LATE = 1000
"""How many records before the newest known one are read again, because they may be written late."""

START = 1_700_000_000


@dataclass(frozen=True)
class Ledger:
    """A store with a large history."""

    kind: str
    store: Any

    @property
    def sql(self):
        return self.store.history._sql

    def cost(self, statement, values):
        return self.store._connector.run(lambda c: Cost(c, self.kind, statement, values))


@pytest.fixture(
    scope="module", params=[pytest.param(kind, marks=mark, id=kind) for kind, mark in KINDS.items()]
)
def ledger(request, tmp_path_factory):
    kind = request.param

    def fill_all(connection, store):
        gather(connection, kind, store)

    with big_store(kind, request, tmp_path_factory, fill_all) as store:
        store.disconnect()
        yield Ledger(kind, store)


def gather(connection, kind, store):
    quote = store._connector.quote
    for prefix, rows, keys in (
        ("k", RECORDS, f"i % {KEYS}"),
        ("busy", BUSY, "0"),
        # The records of 30 extra runs of k7.
        ("k7!20261125T023000", 30, "i % 10"),
    ):
        columns = {
            "key": joined(kind, f"'{prefix}'", number(kind, keys)),
            "type": "'t'",
            "scheduled_time": f"{START} + i",
            "until": "CASE WHEN i % 97 = 5 THEN i ELSE NULL END",
            "attempt": "1",
            "owner": joined(kind, "'w.'", number(kind, "i")),
            "fence": "1",
            "started": f"{START * 1000} + i * 1000 - 7",
            "ended": f"{START * 1000} + i * 1000",
            "outcome": "CASE WHEN i % 1000 = 7 THEN 'failed' ELSE 'finished' END",
            "fate": "'finished'",
        }
        quoted = {quote(name): value for name, value in columns.items()}
        fill(connection, kind, rows, table="psched_runs", **quoted)
    columns = {
        "key": joined(kind, "'k'", number(kind, f"i % {KEYS}")),
        **dict.fromkeys(("action", "user", "host", "program"), "'x'"),
        "time": f"{START * 1000} + i * 1000",
    }
    quoted = {quote(name): value for name, value in columns.items()}
    fill(connection, kind, RECORDS, table="psched_audit", **quoted)
    if kind == "mariadb":
        connection.exec_driver_sql("ANALYZE TABLE psched_runs, psched_audit").close()
    elif kind == "postgresql":
        connection.exec_driver_sql("ANALYZE psched_runs, psched_audit")


SELECTIONS = {
    "newest": {},
    "of a key": {"key": "k7"},
    "of a busy key": {"key": "busy0"},
    "of a key that has none": {"key": "none"},
    "covering a late instant": {"key": "busy0", "covering": START + BUSY - 9},
    "covering an early instant": {"key": "busy0", "covering": START + 9},
    "covering a future instant": {"key": "k7", "covering": START + 10**9},
}
"""Arguments of `RunSelection`."""


@pytest.mark.parametrize("name", SELECTIONS)
@pytest.mark.parametrize("page", ["first", "later"])
def test_a_page_of_the_history_costs_a_page(ledger, name, page):
    selection = RunSelection(**SELECTIONS[name])
    before = None if page == "first" else RECORDS
    request = ledger.sql.select_runs(selection, first=None, before=before, limit=LIMIT)
    cost = ledger.cost(*request)
    nearest = 2 * request[1].get("nearest", 0)
    assert cost.examined <= MOST + nearest, cost.plan


@pytest.mark.parametrize("key", ["k7", "busy0", "none"])
@pytest.mark.parametrize("page", ["first", "later"])
@pytest.mark.parametrize("more", [{}, {"fates": frozenset({"finished"})}], ids=["all", "finished"])
def test_a_page_with_extra_runs_costs_a_page_and_the_entries_of_the_extra_runs(
    ledger, key, page, more
):
    """Each condition can be fulfilled through the index of keys, and none reads other keys."""
    selection = RunSelection(key=key, with_extra_runs=True, **more)
    before = None if page == "first" else RECORDS
    request = ledger.sql.select_runs(selection, first=1, before=before, limit=LIMIT)
    cost = ledger.cost(*request)
    assert cost.examined <= MOST, cost.plan
    assert "_key" in cost.plan


@pytest.mark.parametrize("key", ["k7", "busy0", "none"])
def test_the_durations_of_a_key_cost_as_much_as_they_are_many(ledger, key):
    cost = ledger.cost(*ledger.sql.select_durations([key], LIMIT))
    assert cost.examined <= MOST, cost.plan
    assert not cost.scans, cost.plan
    found = ledger.store.history.durations([key], LIMIT)
    assert len(found.get(key, ())) == (0 if key == "none" else LIMIT)


def test_failures_are_searched_among_as_many_records_as_wanted(ledger):
    sent = []

    def query(statement, values):
        sent.append((statement, values))
        return ledger.store._query(statement, values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger.store.history, "_query", query)
        found = ledger.store.history.failures(since=0, among=1000, limit=LIMIT)
    assert [record.outcome for record in found] == ["failed"]
    assert len(sent) == 2
    assert sum(ledger.cost(*each).examined for each in sent) <= 2 * 1000 + MOST


def test_new_failures_cost_the_new_records_and_those_that_may_be_late(ledger):
    sent = []

    def query(statement, values):
        sent.append((statement, values))
        return ledger.store._query(statement, values)

    place = str(int(ledger.store.history.new_failures(None, 1).place) - LIMIT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger.store.history, "_query", query)
        assert ledger.store.history.new_failures(place, 1000).place == str(int(place) + LIMIT)
    assert len(sent) == 2
    assert sum(ledger.cost(*each).examined for each in sent) <= 2 * (LATE + LIMIT) + MOST


@pytest.mark.parametrize("share", [0.0, 0.5, 0.999, 2.0])
def test_records_since_a_time_are_found_by_few_reads(ledger, share):
    since = int((START + share * RECORDS) * 1000)
    late = 3_600_000
    with_time = [
        record
        for record in ledger.store.history.runs(RunSelection(since=since, key="k7"))
        if record.ended < since
    ]
    assert with_time == []
    first = ledger.store.history._first_since(since + late)
    request = ledger.sql.next_ended, {"id": first, "limit": LIMIT}
    assert ledger.cost(*request).examined <= MOST
    newest = [*ledger.store.history.runs(RunSelection(since=since + late, limit=LIMIT))]
    assert all(record.ended >= since + late for record in newest)


def test_old_records_of_a_key_are_found_through_an_index(ledger):
    cost = ledger.cost(ledger.sql.nth_of_key, {"key": "busy0", "keep": 100})
    assert cost.examined <= 100 + MOST, cost.plan
    cost = ledger.cost(ledger.sql.oldest_of_key, {"key": "busy0", "most": 100})
    assert cost.examined <= 100 + MOST, cost.plan
    cost = ledger.cost(ledger.sql.delete_of_key, {"key": "k7", "last": 10})
    assert cost.examined <= MOST, cost.plan


@pytest.mark.parametrize("name", ["oldest", "oldest_audits"])
def test_the_oldest_are_found_by_their_ids(ledger, name):
    cost = ledger.cost(getattr(ledger.sql, name), {"limit": LIMIT, "after": 0})
    assert cost.examined <= MOST, cost.plan


@pytest.mark.parametrize("name", ["delete_range", "delete_audits"])
def test_a_range_of_ids_costs_as_much_as_it_holds(ledger, name):
    cost = ledger.cost(getattr(ledger.sql, name), {"first": 1, "last": LIMIT, "before": START})
    assert cost.examined <= MOST, cost.plan


def test_a_lost_record_is_found_by_its_lease(ledger):
    lease = {"key": "busy0", "scheduled_time": START + 5, "owner": "w.5"}
    assert ledger.cost(ledger.sql.delete_lost, lease).examined <= MOST


def test_an_insert_reads_nothing(ledger):
    record = RunRecord(key="k7", type="t", scheduled_time=1, owner="w.x", fence=1, ended=1)
    change = AuditRecord(key="k7", action="add", user="ann", host="here", program="test")
    assert ledger.cost(ledger.sql.insert_run, run_values(record)).examined <= MOST
    insert = ledger.sql._changes.request([_AUDIT_VALUES(change)])
    assert ledger.cost(*insert).examined <= MOST


def test_a_page_of_changes_costs_a_page(ledger):
    for selection in AuditSelection(), AuditSelection(key="k7"), AuditSelection(key="none"):
        cost = ledger.cost(*ledger.sql.select_audits(selection, None, LIMIT))
        assert cost.examined <= MOST, cost.plan
