"""What reads and writes of the table of output cost with many records: no more than with few."""

from dataclasses import asdict, dataclass
from typing import Any

import pytest

from psched.core.output import OutputSelection, RunningAttempt
from psched.stores.sql.output import stored
from psched.testing.store_contract.output import printed
from support.big_tables import KINDS, Cost, big_store, fill, joined, number

KEYS = 50
RECORDS = 60_000
BUSY = 30_000
"""The records of the key ``busy``, besides those of the other keys."""

SIZE = 500
"""The size of each record, as the column says; the output itself is 200 bytes."""

TOTAL = (RECORDS + BUSY) * SIZE

LIMIT = 20
MOST = 15 * LIMIT
"""Rows that a statement may examine."""

CHUNK = 2000
"""Records from one that has a total to the next one."""

MARGIN = 100
"""The newest records have no total."""

START = 1_700_000_000


@dataclass(frozen=True)
class Printed:
    """A store with much output."""

    kind: str
    store: Any

    @property
    def sql(self):
        return self.store.output._sql

    def cost(self, statement, values):
        return self.store._connector.run(lambda c: Cost(c, self.kind, statement, values))


@pytest.fixture(
    scope="module", params=[pytest.param(kind, marks=mark, id=kind) for kind, mark in KINDS.items()]
)
def much(request, tmp_path_factory):
    kind = request.param

    def fill_all(connection, store):
        gather(connection, kind, store)

    with big_store(kind, request, tmp_path_factory, fill_all) as store:
        store.disconnect()
        yield Printed(kind, store)


def gather(connection, kind, store):
    output = {
        "sqlite": "zeroblob(200)",
        "mariadb": "REPEAT('x', 200)",
        "postgresql": "CAST(REPEAT('x', 200) AS BYTEA)",
    }
    for prefix, rows, keys in ("k", RECORDS, f"i % {KEYS}"), ("busy", BUSY, "0"):
        columns = {
            "key": joined(kind, f"'{prefix}'", number(kind, keys)),
            "scheduled_time": f"{START} + i",
            "owner": joined(kind, "'w.'", number(kind, "i")),
            "attempt": "1",
            "ended": f"{START * 1000} + i * 1000",
            "output": output[kind],
            "size": str(SIZE),
        }
        quoted = {store._connector.quote(name): value for name, value in columns.items()}
        fill(connection, kind, rows, table="psched_output", **quoted)
    if kind == "mariadb":
        connection.exec_driver_sql("ANALYZE TABLE psched_output").close()
    elif kind == "postgresql":
        # The server does this by itself in the course of time.
        connection.exec_driver_sql("VACUUM ANALYZE psched_output")


@pytest.fixture
def marked(much):
    """A store that has had the time to add up the sizes."""
    calls = (RECORDS + BUSY) // CHUNK
    assert any(much.store.output._sum_of_sizes() >= TOTAL for _ in range(calls))
    return much


def test_a_call_adds_up_a_part_of_what_is_there(much):
    """It takes no longer for a million records than for these."""
    if much.store._query(much.sql.last_mark, {}):
        pytest.skip("another test has added up all of them")
    assert 0 < much.store.output._sum_of_sizes() < TOTAL


def test_the_sum_is_exact_and_found_by_few_reads(marked):
    assert marked.store.output._sum_of_sizes() == TOTAL
    sql = marked.sql
    [(first, _, _)] = marked.store._query(sql.first_mark, {})
    [(last, _, _)] = marked.store._query(sql.last_mark, {})
    for statement, values, rows in (
        (sql.first_mark, {}, 1),
        (sql.last_mark, {}, 1),
        (sql.size_before, {"id": first}, CHUNK),
        (sql.sizes_after, {"id": last, "limit": CHUNK + MARGIN}, CHUNK + MARGIN),
        (sql.sizes_after, {"id": 0, "limit": LIMIT}, LIMIT),
        (sql.mark, {"id": 77, "total": 1}, 1),
    ):
        cost = marked.cost(statement, values)
        assert cost.examined <= rows * 2 + MOST, cost.plan
        assert not cost.sorts, cost.plan


@pytest.mark.parametrize("name", ["first_mark", "last_mark", "size_before", "sizes_after"])
def test_the_sum_is_found_in_an_index_which_has_no_output(marked, name):
    cost = marked.cost(getattr(marked.sql, name), {"id": 1000, "limit": LIMIT})
    covering = {
        "sqlite": "USING COVERING INDEX psched_output_total",
        "mariadb": "psched_output_total",
        "postgresql": "Index Only Scan",
    }
    assert covering[marked.kind] in cost.plan
    if marked.kind == "mariadb":
        assert "Using index" in cost.plan


def test_the_oldest_are_found_by_their_ids(much):
    cost = much.cost(much.sql.oldest, {"limit": LIMIT, "after": 0})
    assert cost.examined <= MOST, cost.plan


@pytest.mark.parametrize(("until", "before"), [(LIMIT, 0), (0, START * 2000), (0, 0)])
def test_a_range_of_ids_costs_as_much_as_it_holds(much, until, before):
    ends = {"first": 1, "last": LIMIT, "until": until, "before": before}
    cost = much.cost(much.sql.delete_range, ends)
    assert cost.examined <= MOST, cost.plan


SELECTIONS = {
    "of a key": {"key": "k7"},
    "of a busy key": {"key": "busy0"},
    "of a key that has none": {"key": "none"},
    "of an occurrence": {"key": "busy0", "scheduled_time": START + 5},
    "of an attempt": {"key": "busy0", "scheduled_time": START + BUSY - 5, "attempt": 1},
    "of an attempt that has none": {"key": "busy0", "scheduled_time": START + 9, "attempt": 2},
    "of an occurrence that has none": {"key": "busy0", "scheduled_time": START - 9},
}
"""Arguments of `OutputSelection`."""


@pytest.mark.parametrize("name", SELECTIONS)
@pytest.mark.parametrize("before", [None, RECORDS], ids=["first page", "later page"])
def test_a_page_of_output_costs_a_page(much, name, before):
    selection = OutputSelection(**SELECTIONS[name])
    cost = much.cost(*much.sql.select(selection, before=before, limit=LIMIT))
    assert cost.examined <= MOST, cost.plan


def test_a_write_reads_only_what_it_replaces(much):
    records = [printed("busy0", scheduled_time=START + i, owner=f"w.{i + i % 2}") for i in range(9)]
    cost = much.cost(*much.sql.table.for_each(much.sql.find, records))
    assert cost.examined <= MOST, cost.plan
    cost = much.cost(*much.sql.table.delete([1, 77, RECORDS, RECORDS + BUSY]))
    assert cost.examined <= MOST, cost.plan
    assert much.cost(much.sql.insert, stored(printed(owner="new"))).examined <= MOST


def attempts(count):
    """Attempts of a busy key; of every second one, a record exists."""
    return [
        RunningAttempt(
            key="busy0", scheduled_time=START + i, owner=f"w.{i + i % 2 * BUSY}", attempt=1
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("count", [1, 9, 100])
def test_a_question_who_reads_costs_as_much_as_there_are_attempts(much, count):
    cost = much.cost(*much.sql.table.for_each(much.sql.asked, attempts(count), now=5))
    assert not cost.scans, cost.plan
    assert cost.examined <= 10 * count + MOST, cost.plan
    # MariaDB looks into the index, which is unique, while it makes the plan.
    by_index = "const tables" if much.kind == "mariadb" else "psched_output_lease"
    assert cost.plan.count(by_index) == count, cost.plan


@pytest.mark.parametrize("name", ["of_attempt", "until", "ask_again", "ask", "write_live"])
def test_what_concerns_one_running_attempt_reads_one_row(much, name):
    for attempt in attempts(2):
        live = stored(printed(**asdict(attempt), is_live=True))
        cost = much.cost(getattr(much.sql, name), {**live, "now": 5, "until": 9})
        assert not cost.scans, cost.plan
        assert cost.examined <= MOST, cost.plan


def test_the_sum_is_right_after_deletions(marked):
    """This test is the last one, because it deletes records."""
    left = TOTAL
    for count in 1, CHUNK - 1, 1, 5 * CHUNK + 3:
        found = marked.store._query(marked.sql.oldest, {"limit": count, "after": 0})
        ends = {"first": found[0][0], "last": found[-1][0], "until": found[-1][0], "before": 0}
        assert marked.store._write(marked.sql.delete_range, ends) == count
        left -= count * SIZE
        assert marked.store.output._sum_of_sizes() == left
    assert marked.store.output.trim_output(before=0, budget=left, limit=100) == 0
    assert marked.store.output.trim_output(before=0, budget=left - 7 * SIZE, limit=100) == len(
        range(7)
    )
    assert marked.store.output._sum_of_sizes() == left - 7 * SIZE
