"""The part of a store that tells other hosts at once that rows may be due."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable


class Announces(Protocol):
    """The attribute ``announcements`` of a `Store`: it carries an announcement to all who listen.

    An announcement contains no data, it only says: rows may be due. It can get lost, for example
    while a listener reconnects, so workers poll the store nevertheless. The setting
    ``wake: notify`` needs it.
    """

    def announce(self) -> None:
        """Tell all who listen to this store's table that rows may be due."""

    def listen(self, heard: Callable[[], object], is_over: Callable[[], bool]) -> None:
        """Call a function whenever rows may be due; return when it is over.

        The function is also called once when the store has begun to listen, because nobody was told
        of what was announced before.

        Args:
            heard: the function. Several announcements may be one call.
            is_over: is called about once a second.

        Raises:
            StoreError: the store cannot be reached, or the connection broke.
        """


@runtime_checkable
class TellsOfCommit(Protocol):
    """A capability of a `CallersTransaction`: it can be known when the program has committed."""

    def after_commit(self, function: Callable[[], object]) -> None:
        """Have a function called after the transaction has been committed, as far as is known.

        The function may be called late, or never, and also after a rollback. It must not fail.
        """


@runtime_checkable
class AnnouncesInTransaction(Protocol):
    """A capability of a `CallersTransaction`: what it announces is told when it commits."""

    def announce(self) -> None:
        """Tell all who listen that rows may be due, if and when the transaction commits."""
