"""Narrow selections are read by their keys, wide ones page by page: with the same result."""

import itertools

import pytest

from psched.base.errors import StoreUnavailableError
from psched.core.model import RUNNING, Row, Settlement
from psched.core.selection import Selection, selection_of

pytestmark = pytest.mark.twins

LATER = 4_000_000_000

CONDITIONS = {
    "status": (
        *(None, ["waiting"], ["running"], ["failed", "paused"], ["running", "waiting"]),
        *(["failed", "running"], ["failed", "waiting"]),
    ),
    "type": (None, "mail", ["mail", "Mail"]),
    "label": (None, "me", ["me", "you"]),
    "prefix": (None, "a", "b-"),
    "due": (False, True),
}


@pytest.fixture
def filled(store, sql):
    """A store with rows of many kinds, neighbours in no order."""
    rows = [
        Row(
            key=f"{'ab'[number % 2]}-{number * 7 % 60:02}",
            type=("mail", "Mail", "report")[number % 3],
            next_run_time=None if number % 10 == 9 else (5, LATER, LATER + number)[number // 3 % 3],
            label=(None, "me", "you")[number // 4 % 3],
        )
        for number in range(60)
    ]
    store.add(rows, nonce="n")
    taken = store.claim("w.1", limit=12, alive_time=600, shortest=6, horizon=0).rows
    ends = [Settlement.of(row, rest=True, status="failed") for row in taken[:4]]
    store.settle(ends)
    sql("UPDATE {table} SET status = 'paused' WHERE id IN ('a-14', 'b-07')")
    sql("UPDATE {table} SET status = 'cancelling' WHERE id = :key", key=taken[5].key)
    return store


def selections():
    for values in itertools.product(*CONDITIONS.values()):
        yield dict(zip(CONDITIONS, values, strict=True))


def expected(every, conditions, limit, now):
    """The rows of a selection, by its definition."""
    selection = selection_of(**conditions)
    rows = [row for row in every if selection.matches(row, now)]
    if selection.sorted_by_key:
        rows.sort(key=lambda row: row.key)
    return [row.key for row in rows][:limit]


@pytest.mark.parametrize("most", [50_000, 5, 0], ids=["by keys", "mixed", "page by page"])
def test_every_selection_has_its_rows_in_its_order(filled, monkeypatch, most):
    monkeypatch.setattr("psched.stores.sql.selecting.MOST_KEYS", most)
    monkeypatch.setattr("psched.stores.sql.selecting.PAGE", 3)
    every = [*filled.rows()]
    assert {row.state for row in every} >= {RUNNING, "failed", "paused", "cancelling", "waiting"}
    for number, conditions in enumerate(selections()):
        order, limit = ("next", "key")[number % 2], (None, 2)[number // 2 % 2]
        asked = {**conditions, "order": order}
        found = [row.key for row in filled.rows(selection_of(**asked, limit=limit))]
        assert found == expected(every, asked, limit, filled.now()), asked


@pytest.mark.parametrize("most", [50_000, 0], ids=["by keys", "page by page"])
def test_a_selection_goes_on_where_it_was_when_the_store_has_been_away(filled, monkeypatch, most):
    monkeypatch.setattr("psched.stores.sql.selecting.MOST_KEYS", most)
    monkeypatch.setattr("psched.stores.sql.selecting.PAGE", 3)
    selection = Selection(prefix="a", types=frozenset({"mail", "report"}))
    keys = [row.key for row in filled.rows(selection)]
    assert len(keys) > 9
    rows, read, found, calls = filled.rows(selection), filled._connector.read, [], itertools.count()

    def sometimes_away(*work):
        if next(calls) % 7 == 3:
            raise StoreUnavailableError("away")
        return read(*work)

    filled._connector.read = sometimes_away
    refused = 0
    while len(found) < len(keys):
        try:
            found.append(next(rows).key)
        except StoreUnavailableError:
            refused += 1
    assert next(rows, None) is None
    assert refused
    assert found == keys


def test_a_row_that_goes_while_a_selection_is_read_is_omitted(filled, monkeypatch):
    monkeypatch.setattr("psched.stores.sql.selecting.PAGE", 3)
    monkeypatch.setattr("psched.stores.sql.selecting.FIRST_PAGE", 3)
    selection = Selection(types=frozenset({"report"}), statuses=frozenset({"waiting"}))
    keys = [row.key for row in filled.rows(selection)]
    rows = filled.rows(selection)
    assert next(rows).key == keys[0]
    filled.delete(keys[4])
    assert [row.key for row in rows] == [*keys[1:4], *keys[5:]]


def test_few_queries_read_a_narrow_selection(filled, monkeypatch):
    failed = [row for row in filled.rows() if row.status == "failed"]
    assert failed
    sent, read = [], filled._connector.read
    monkeypatch.setattr(filled._connector, "read", lambda *work: sent.append(work) or read(*work))
    found = [*filled.rows(Selection(statuses=frozenset({"failed"})))]
    assert {row.key for row in found} == {row.key for row in failed}
    assert len(sent) == 3  # the count, the keys, the rows


def test_a_row_that_is_claimed_while_due_rows_are_read_is_not_due(store):
    store.add([Row(key=key, next_run_time=5) for key in "ab"], nonce="n")
    due = store.rows(selection_of(due=True))
    read = store._query

    def read_after_a_claim(statement, values):
        if " IN (" in str(statement):  # the keys have been found, and the rows follow
            store.claim("w.1", limit=1, alive_time=600, shortest=6, horizon=0)
        return read(statement, values)

    due._read = read_after_a_claim
    assert [row.key for row in due] == ["b"]
