"""Stores with capabilities that the protocol does not require; see `psched.core.store_protocol`."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace as changed
from math import floor
from typing import Any

from psched.base.errors import AlreadyExistsError, InvalidError
from psched.core.model import CANCELLED, DEFAULT_TYPE, ENDED, MARKS, PAUSED, WAITING, Row
from psched.core.store_protocol import (
    Backlog,
    CallersTransaction,
    Settled,
    Store,
)
from psched.testing.store_contract.bench import (
    LONG_AGO,
    WithStore,
    add,
    claim,
    due,
    ending,
    found,
    leased,
    refused,
)

Begin = Callable[[], AbstractContextManager[Any]]
"""Begins a transaction on a new connection; ``with begin() as connection:`` runs a block in it.

The transaction is committed when the block ends, and rolled back if the block raises an error.
"""


class _UndoneError(Exception):
    """Raised by a test so that a transaction is rolled back."""


class TransactionContract(WithStore):
    """Tests that rows inserted in a caller's transaction exist only if the caller commits.

    A subclass needs the fixtures ``backend_factory`` and ``begin``, a `Begin`.
    """

    def test_rows_exist_when_the_caller_has_committed(
        self, store: Store, other: Store, begin: Begin
    ) -> None:
        with begin() as connection:
            transaction = _joined(store, connection)
            assert abs(transaction.now() - store.now()) < 60  # noqa: PLR2004  # the same clock
            transaction.add([due("a"), due("b")], nonce="n")
        assert found(store, "a").settled_by == "n"
        assert found(other, "b").version == 1

    def test_rows_do_not_exist_when_the_caller_has_rolled_back(
        self, store: Store, begin: Begin
    ) -> None:
        with refused(_UndoneError), begin() as connection:
            _joined(store, connection).add([due("k")], nonce="n")
            raise _UndoneError
        assert store.get("k") is None

    def test_a_taken_key_does_not_end_the_callers_transaction(
        self, store: Store, begin: Begin
    ) -> None:
        add(store, "taken")
        with begin() as connection:
            transaction = _joined(store, connection)
            transaction.add([due("before")], nonce="n")
            with refused(AlreadyExistsError):
                transaction.add([due("taken")], nonce="n")
            transaction.add([due("after")], nonce="n")
        assert {row.key for row in store.rows()} == {"taken", "before", "after"}

    def test_what_is_no_connection_is_refused(self, store: Store) -> None:
        with refused(InvalidError):
            _joined(store, object())


def _joined(store: Store, connection: object) -> CallersTransaction:
    return store.join_transaction(connection)


class ReplaceManyContract(WithStore):
    """Tests that each row is replaced if nobody has changed it since it was read.

    A subclass needs the fixture ``backend_factory``.
    """

    def test_every_unchanged_row_is_replaced(self, store: Store) -> None:
        add(store, "a", "b")
        seen = [found(store, "a"), found(store, "b")]
        assert _replace(store, [(row, changed(row, type=f"new {row.key}")) for row in seen])
        assert [found(store, key).type for key in "ab"] == ["new a", "new b"]
        assert [found(store, row.key).version > row.version for row in seen] == [True, True]

    def test_rows_that_have_changed_are_left_alone_and_the_others_are_replaced(
        self, store: Store, other: Store
    ) -> None:
        add(store, "a", "b", "c")
        seen = [found(store, key) for key in "abc"]
        assert other.replace(seen[0], changed(seen[0], type="theirs"))
        other.delete("b")
        changes = [(row, changed(row, type="mine")) for row in seen]
        assert [*store.replace_many(changes)] == [False, False, True]
        assert found(store, "a").type == "theirs"
        assert store.get("b") is None
        assert found(store, "c").type == "mine"

    def test_nothing_is_replaced_by_nothing(self, store: Store) -> None:
        assert _replace(store, [])


def _replace(store: Store, changes: Sequence[tuple[Row, Row]]) -> bool:
    return all(store.replace_many(changes))


class BacklogContract(WithStore):
    """The backlog is what a claim could lease. Needs the fixture ``backend_factory``."""

    def test_without_due_rows_there_is_no_backlog(self, store: Store) -> None:
        assert _backlog(store) == Backlog(due=0, late=0)
        store.add([due("future", int(store.now()) + 3600)], nonce="n")
        store.add([changed(due("resting"), next_run_time=None)], nonce="n")
        leased(store, "leased")
        assert _backlog(store) == Backlog(due=0, late=0)

    def test_the_rows_that_a_claim_could_lease_are_counted(self, store: Store) -> None:
        add(store, "a", "b", "c")
        assert _backlog(store).due == len("abc")
        held = claim(store, "w.1", limit=2).rows
        assert _backlog(store).due == 1
        store.settle([ending(held[0])])
        # A store may make a released row due only in the next second.
        assert _backlog(store).due in {1, 2}

    def test_no_row_is_leased_or_changed(self, store: Store) -> None:
        add(store, "a", "b")
        before = [*store.rows()]
        _backlog(store)
        assert [*store.rows()] == before

    def test_the_backlog_says_how_late_the_oldest_row_is(self, store: Store) -> None:
        since = floor(store.now()) - 42
        store.add([due("late", since + 30), due("latest", since)], nonce="n")
        before = store.now()
        late = _backlog(store).late
        # A store may round its clock down.
        assert floor(before) - since <= late <= store.now() - since

    def test_no_more_rows_are_counted_than_the_limit(self, store: Store) -> None:
        add(store, *(f"k{number}" for number in range(5)))
        assert _backlog(store, limit=3).due == 3  # noqa: PLR2004  # the limit


def _backlog(store: Store, limit: int = 100) -> Backlog:
    return store.backlog(limit)


Execute = Callable[[str], None]
"""Runs and commits an SQL statement; replaces ``{table}`` in the statement by the table's name."""


class TableContract(WithStore):
    """Tests that workers run a row that a client has inserted or changed by plain SQL.

    A subclass needs the fixtures ``backend_factory`` and ``execute``, an `Execute`.
    """

    def test_a_row_needs_nothing_but_an_id(self, store: Store, execute: Execute) -> None:
        execute("INSERT INTO {table} (id) VALUES ('k')")
        row = found(store, "k")
        assert (row.type, row.status, row.version) == (DEFAULT_TYPE, WAITING, 1)
        assert (row.data, row.cron, row.next_time) == (None, None, None)
        (held,) = claim(store, "w.1").rows
        assert (held.key, held.owner, held.fence, held.attempt) == ("k", "w.1", 1, 1)

    def test_a_row_waits_for_the_time_it_was_given(self, store: Store, execute: Execute) -> None:
        execute(
            "INSERT INTO {table} (id, type, data, cron, next_time, next_run_time)"
            """ VALUES ('k', 't', '{"n": 1}', '@daily', 4000000000, 4000000030)"""
        )
        assert not claim(store, "w.1").rows
        execute("UPDATE {table} SET next_run_time = 0 WHERE id = 'k'")
        assert [row.key for row in claim(store, "w.2").rows] == ["k"]

    def test_a_row_that_does_not_say_when_it_was_made_is_as_old_as_its_first_lease(
        self, store: Store, execute: Execute
    ) -> None:
        execute("INSERT INTO {table} (id, created_at) VALUES ('known', 1000000000)")
        execute("INSERT INTO {table} (id) VALUES ('k')")
        before = int(store.now())
        rows = claim(store, "w.1").rows
        store.settle([ending(row) for row in rows])
        created_at = found(store, "k").created_at
        assert created_at is not None
        assert before <= created_at <= store.now()
        assert found(store, "known").created_at == LONG_AGO

    def test_a_time_set_by_hand_is_not_overwritten_by_who_has_not_seen_it(
        self, store: Store, execute: Execute
    ) -> None:
        execute("INSERT INTO {table} (id) VALUES ('k')")
        seen = found(store, "k")
        execute("UPDATE {table} SET next_run_time = 4000000000")
        assert not store.replace(seen, seen)
        assert store.replace(found(store, "k"), changed(seen, type="new"))

    def test_a_row_removed_by_hand_is_a_lost_lease(self, store: Store, execute: Execute) -> None:
        execute("INSERT INTO {table} (id) VALUES ('k')")
        (held,) = claim(store, "w.1").rows
        execute("DELETE FROM {table}")
        assert store.extend({"k": held.token}, alive_time=60, shortest=1) == frozenset()
        assert not store.update_data("k", held.token, "{}")


SetStatus = Callable[[str, str], None]
"""Sets the status of a row, and no other column. The arguments are the row's key and the status."""


class StatusContract(WithStore):
    """Tests that a settle does not overwrite a status that its sender has not read.

    A subclass needs the fixtures ``backend_factory`` and ``set_status``, a `SetStatus`.
    """

    def test_its_holder_is_told_that_a_leased_row_is_to_end(
        self, store: Store, set_status: SetStatus
    ) -> None:
        words = {status: status for status in (*MARKS, PAUSED, WAITING, "nonsense")}
        add(store, *words)
        claim(store, "w.1", limit=len(words))
        for key, status in words.items():
            set_status(key, status)
        assert MARKS.keys() >= ENDED
        assert store.marked([*words]) == {status: status for status in MARKS}

    def test_a_settle_does_not_overwrite_a_status_that_it_has_not_seen(
        self, store: Store, set_status: SetStatus
    ) -> None:
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
        self, store: Store, set_status: SetStatus
    ) -> None:
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
        self, store: Store, set_status: SetStatus
    ) -> None:
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
