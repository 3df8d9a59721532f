"""Stores whose table is a documented interface: other clients may write its rows by SQL."""

from collections.abc import Callable
from dataclasses import replace as changed

from psched.core.model import DEFAULT_TYPE, WAITING
from psched.testing.store_contract.bench import LONG_AGO, BackendFactory, claim, ending, found

Execute = Callable[[str], None]
"""Runs a statement on the test's database and commits it; ``{table}`` is the table's name."""


class TableContract:
    """A row inserted by plain SQL is run.

    Needs the fixtures ``backend_factory`` and ``execute``, an `Execute`.
    """

    def test_a_row_needs_nothing_but_an_id(
        self, backend_factory: BackendFactory, execute: Execute
    ) -> None:
        execute("INSERT INTO {table} (id) VALUES ('k')")
        store = backend_factory()
        row = found(store, "k")
        assert (row.type, row.status, row.version) == (DEFAULT_TYPE, WAITING, 1)
        assert (row.data, row.cron, row.next_time) == (None, None, None)
        (held,) = claim(store, "w.1").rows
        assert (held.key, held.owner, held.fence, held.attempt) == ("k", "w.1", 1, 1)

    def test_a_row_waits_for_the_time_it_was_given(
        self, backend_factory: BackendFactory, execute: Execute
    ) -> None:
        execute(
            "INSERT INTO {table} (id, type, data, cron, next_time, next_run_time)"
            """ VALUES ('k', 't', '{"n": 1}', '@daily', 4000000000, 4000000030)"""
        )
        store = backend_factory()
        assert not claim(store, "w.1").rows
        execute("UPDATE {table} SET next_run_time = 0 WHERE id = 'k'")
        assert [row.key for row in claim(store, "w.2").rows] == ["k"]

    def test_a_row_that_does_not_say_when_it_was_made_is_as_old_as_its_first_lease(
        self, backend_factory: BackendFactory, execute: Execute
    ) -> None:
        execute("INSERT INTO {table} (id, created_at) VALUES ('known', 1000000000)")
        execute("INSERT INTO {table} (id) VALUES ('k')")
        store = backend_factory()
        before = int(store.now())
        rows = claim(store, "w.1").rows
        store.settle([ending(row) for row in rows])
        created_at = found(store, "k").created_at
        assert created_at is not None
        assert before <= created_at <= store.now()
        assert found(store, "known").created_at == LONG_AGO

    def test_a_time_set_by_hand_is_not_overwritten_by_who_has_not_seen_it(
        self, backend_factory: BackendFactory, execute: Execute
    ) -> None:
        execute("INSERT INTO {table} (id) VALUES ('k')")
        store = backend_factory()
        seen = found(store, "k")
        execute("UPDATE {table} SET next_run_time = 4000000000")
        assert not store.replace(seen, seen)
        assert store.replace(found(store, "k"), changed(seen, type="new"))

    def test_a_row_removed_by_hand_is_a_lost_lease(
        self, backend_factory: BackendFactory, execute: Execute
    ) -> None:
        execute("INSERT INTO {table} (id) VALUES ('k')")
        store = backend_factory()
        (held,) = claim(store, "w.1").rows
        execute("DELETE FROM {table}")
        assert store.extend({"k": held.token}, alive_time=60, shortest=1) == frozenset()
        assert not store.update_data("k", held.token, "{}")
