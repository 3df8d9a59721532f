"""Stores with capabilities that the protocol does not require; see `psched.core.store_protocol`."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace as changed
from math import floor
from typing import Any

from psched.base.errors import AlreadyExistsError, InvalidError
from psched.core.model import Row
from psched.core.store_protocol import (
    Backlog,
    CallersTransaction,
    CountsBacklog,
    JoinsTransactions,
    ReplacesMany,
    Store,
)
from psched.testing.store_contract.bench import (
    BackendFactory,
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


class TransactionContract:
    """Tests that rows inserted in a caller's transaction exist only if the caller commits.

    A subclass needs the fixtures ``backend_factory`` and ``begin``, a `Begin`.
    """

    def test_rows_exist_when_the_caller_has_committed(
        self, backend_factory: BackendFactory, begin: Begin
    ) -> None:
        store = backend_factory()
        with begin() as connection:
            transaction = _joined(store, connection)
            assert abs(transaction.now() - store.now()) < 60  # noqa: PLR2004  # the same clock
            transaction.add([due("a"), due("b")], nonce="n")
        assert found(store, "a").settled_by == "n"
        assert found(backend_factory(), "b").version == 1

    def test_rows_do_not_exist_when_the_caller_has_rolled_back(
        self, backend_factory: BackendFactory, begin: Begin
    ) -> None:
        store = backend_factory()
        with refused(_UndoneError), begin() as connection:
            _joined(store, connection).add([due("k")], nonce="n")
            raise _UndoneError
        assert store.get("k") is None

    def test_a_taken_key_does_not_end_the_callers_transaction(
        self, backend_factory: BackendFactory, begin: Begin
    ) -> None:
        store = backend_factory()
        add(store, "taken")
        with begin() as connection:
            transaction = _joined(store, connection)
            transaction.add([due("before")], nonce="n")
            with refused(AlreadyExistsError):
                transaction.add([due("taken")], nonce="n")
            transaction.add([due("after")], nonce="n")
        assert {row.key for row in store.rows()} == {"taken", "before", "after"}

    def test_what_is_no_connection_is_refused(self, backend_factory: BackendFactory) -> None:
        with refused(InvalidError):
            _joined(backend_factory(), object())


def _joined(store: Store, connection: object) -> CallersTransaction:
    assert isinstance(store, JoinsTransactions)
    return store.join_transaction(connection)


class ReplaceManyContract:
    """Tests that each row is replaced if nobody has changed it since it was read.

    A subclass needs the fixture ``backend_factory``.
    """

    def test_every_unchanged_row_is_replaced(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        add(store, "a", "b")
        seen = [found(store, "a"), found(store, "b")]
        assert _replace(store, [(row, changed(row, type=f"new {row.key}")) for row in seen])
        assert [found(store, key).type for key in "ab"] == ["new a", "new b"]
        assert [found(store, row.key).version > row.version for row in seen] == [True, True]

    def test_rows_that_have_changed_are_left_alone_and_the_others_are_replaced(
        self, backend_factory: BackendFactory
    ) -> None:
        store, other = backend_factory(), backend_factory()
        add(store, "a", "b", "c")
        seen = [found(store, key) for key in "abc"]
        assert other.replace(seen[0], changed(seen[0], type="theirs"))
        other.delete("b")
        assert isinstance(store, ReplacesMany)
        changes = [(row, changed(row, type="mine")) for row in seen]
        assert [*store.replace_many(changes)] == [False, False, True]
        assert found(store, "a").type == "theirs"
        assert store.get("b") is None
        assert found(store, "c").type == "mine"

    def test_nothing_is_replaced_by_nothing(self, backend_factory: BackendFactory) -> None:
        assert _replace(backend_factory(), [])


def _replace(store: Store, changes: Sequence[tuple[Row, Row]]) -> bool:
    assert isinstance(store, ReplacesMany)
    return all(store.replace_many(changes))


class BacklogContract:
    """The backlog is what a claim could lease. Needs the fixture ``backend_factory``."""

    def test_without_due_rows_there_is_no_backlog(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        assert _backlog(store) == Backlog(due=0, late=0)
        store.add([due("future", int(store.now()) + 3600)], nonce="n")
        store.add([changed(due("resting"), next_run_time=None)], nonce="n")
        leased(store, "leased")
        assert _backlog(store) == Backlog(due=0, late=0)

    def test_the_rows_that_a_claim_could_lease_are_counted(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        add(store, "a", "b", "c")
        assert _backlog(store).due == len("abc")
        held = claim(store, "w.1", limit=2).rows
        assert _backlog(store).due == 1
        store.settle([ending(held[0])])
        # A store may make a released row due only in the next second.
        assert _backlog(store).due in {1, 2}

    def test_no_row_is_leased_or_changed(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        add(store, "a", "b")
        before = [*store.rows()]
        _backlog(store)
        assert [*store.rows()] == before

    def test_the_backlog_says_how_late_the_oldest_row_is(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        since = floor(store.now()) - 42
        store.add([due("late", since + 30), due("latest", since)], nonce="n")
        before = store.now()
        late = _backlog(store).late
        # A store may round its clock down.
        assert floor(before) - since <= late <= store.now() - since

    def test_no_more_rows_are_counted_than_the_limit(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        add(store, *(f"k{number}" for number in range(5)))
        assert _backlog(store, limit=3).due == 3  # noqa: PLR2004  # the limit


def _backlog(store: Store, limit: int = 100) -> Backlog:
    assert isinstance(store, CountsBacklog)
    return store.backlog(limit)
