"""Stores that can insert rows in a caller's transaction: `JoinsTransactions`."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from psched.base.errors import AlreadyExistsError, InvalidError
from psched.core.store_protocol import CallersTransaction, JoinsTransactions, Store
from psched.testing.store_contract.bench import BackendFactory, add, due, found, refused

Begin = Callable[[], AbstractContextManager[Any]]
"""Begins a transaction on a new connection, for a ``with`` block, whose target is the connection.

The transaction is committed when the block ends, and rolled back if the block raises an error.
"""


class _UndoneError(Exception):
    """Raised in a test to roll a transaction back."""


class TransactionContract:
    """Rows that were inserted in a caller's transaction exist only if the caller commits.

    Needs the fixtures ``backend_factory`` and ``begin``, a `Begin`.
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
