"""Stores whose rows clients write by SQL, or whose statuses any client sets."""

from collections.abc import Callable
from dataclasses import replace as changed

from psched.core.model import CANCELLED, DEFAULT_TYPE, ENDED, MARKS, PAUSED, WAITING
from psched.core.store_protocol import Settled
from psched.testing.store_contract.bench import (
    LONG_AGO,
    BackendFactory,
    add,
    claim,
    ending,
    found,
    leased,
)

Execute = Callable[[str], None]
"""Runs and commits an SQL statement; replaces ``{table}`` in the statement by the table's name."""


class TableContract:
    """Tests that workers run a row that a client has inserted or changed by plain SQL.

    A subclass needs the fixtures ``backend_factory`` and ``execute``, an `Execute`.
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


SetStatus = Callable[[str, str], None]
"""Sets the status of a row, and no other column. The arguments are the row's key and the status."""


class StatusContract:
    """Tests that a settle does not overwrite a status that its sender has not read.

    A subclass needs the fixtures ``backend_factory`` and ``set_status``, a `SetStatus`.
    """

    def test_its_holder_is_told_that_a_leased_row_is_to_end(
        self, backend_factory: BackendFactory, set_status: SetStatus
    ) -> None:
        store = backend_factory()
        words = {status: status for status in (*MARKS, PAUSED, WAITING, "nonsense")}
        add(store, *words)
        claim(store, "w.1", limit=len(words))
        for key, status in words.items():
            set_status(key, status)
        assert MARKS.keys() >= ENDED
        assert store.marked([*words]) == {status: status for status in MARKS}

    def test_a_settle_does_not_overwrite_a_status_that_it_has_not_seen(
        self, backend_factory: BackendFactory, set_status: SetStatus
    ) -> None:
        store = backend_factory()
        held, other = leased(store, "k"), leased(store, "other", "worker.2")
        set_status("k", CANCELLED)
        before = found(store, "k")
        results = store.settle([ending(held), ending(other)])
        assert results == {"k": Settled.REDEFINED, "other": Settled.DONE}
        assert store.settle([ending(held, remove=True)]) == {"k": Settled.REDEFINED}
        assert found(store, "k") == before
        rest = ending(before, rest=True, status=CANCELLED, retain=60)
        assert store.settle([rest]) == {"k": Settled.DONE}
        row = found(store, "k")
        assert (row.status, row.next_run_time, row.owner) == (CANCELLED, None, None)
        assert row.retain_until is not None

    def test_a_row_is_not_replaced_by_who_has_not_seen_its_status(
        self, backend_factory: BackendFactory, set_status: SetStatus
    ) -> None:
        store = backend_factory()
        leased(store, "leased")
        add(store, "free")
        for key in ("free", "leased"):
            seen = found(store, key)
            set_status(key, CANCELLED)
            assert not store.replace(seen, changed(seen, type="new"))
            seen = found(store, key)
            assert store.replace(seen, changed(seen, type="new"))
            assert (found(store, key).type, found(store, key).status) == ("new", CANCELLED)

    def test_a_status_that_nobody_knows_stands_in_nobodys_way(
        self, backend_factory: BackendFactory, set_status: SetStatus
    ) -> None:
        store = backend_factory()
        add(store, "k", "free")
        (held,) = claim(store, "w.1", limit=1).rows
        for key in ("k", "free"):
            set_status(key, "nonsense")
        row = found(store, held.key)
        assert store.settle([ending(row, rest=True, status=PAUSED)]) == {row.key: Settled.DONE}
        (other,) = {"k", "free"} - {held.key}
        seen = found(store, other)
        assert store.replace(seen, changed(seen, status=WAITING))
        assert [row.key for row in claim(store, "w.2").rows] == [other]
