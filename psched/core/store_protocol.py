"""The storage seam: what a store must do, and the protocol of the lease.

::

            claim                                extend / settle, all conditional on the token
  WAITING ──────────────▶ LEASED ──┬─ extend    same next_time, new lease end ────▶ LEASED
  next_run_time <= now    fence+1  ├─ finish    following, max(following + delay, now) ▶ WAITING
     ▲                    owner=me ├─ retry     same next_time, now + retry_wait ─▶ WAITING
     │                             ├─ release   same next_time, now ──────────────▶ WAITING
     │                             └─ rest      finished, quarantined; or the row goes
     └── lease runs out: nobody writes anything; any worker may claim

**The cursor.** A row's ``next_time`` is the occurrence that is due or running. It moves only in
a settle, or when a person modifies the schedule. That is why no occurrence can be lost.

**Time.** Due or not, and when a lease ends, is judged by the store's clock alone. A lease ends,
in the store, at floor(now) + alive_time + 1; its holder counts ``alive_time`` from *before* the
request was sent (see `base.lease_times`). So the holder's end comes first, whatever the network
and the hosts' clocks do.

**The token.** Every claim writes an owner never used before and raises the fence. Every later
write names both. Zero rows means: preempted, nothing was changed.

**Three outcomes.** A write was applied, was not, or nobody knows (`UnknownOutcomeError`). An
extend can simply be repeated. So can a settle, but ``settled_by`` keeps the token of the last
settle alone: a repeated one is recognised until the next lease of the row is settled, and is
answered PREEMPTED after that; its holder knows better (`psched.core.settling.Settler`). After an
unknown claim, `Store.held` tells; it has to be asked again, for the claim may be applied late.

**Redefinition.** ``version`` grows with every change of the definition, the payload included. A
settle names the version its times were computed from, and the status that the row had then; if one
of them has changed, the holder reads the row again. (A client that sets the status by plain SQL
need not raise the version.)

**Deleting** a leased row only marks it, and so do cancelling and finishing it by force, and any
client that sets its status to one of `psched.core.model.MARKS`. Its holder sees the mark
(`Store.marked`), stops the task under its lease, and removes the row or puts it at rest. Until
then the key is taken.

Third-party stores are checked by the suite in `psched.testing`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, runtime_checkable

from psched.base.errors import UnknownOutcomeError
from psched.core.model import Row, Settlement, Token


class Settled(Enum):
    """What became of one settlement."""

    DONE = "done"
    REDEFINED = "redefined"
    """The lease is still held, the definition has changed: read the row, compute again."""
    PREEMPTED = "preempted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """The answer to a claim.

    Attributes:
        rows: the rows that are now leased, as they stand with their new tokens, in the order
            in which they were due; their ``next_run_time`` need not be the lease's end.
        expired: keys of those among them whose last lease ended without a settle.
        now: the store's clock when the due rows were read; None if none was near.
        next_due: the earliest ``next_run_time`` after now, if it is near.
        more: others may be due as well: ask again when there is room.
    """

    rows: Sequence[Row] = ()
    expired: frozenset[str] = frozenset()
    now: float | None = None
    next_due: int | None = None
    more: bool = False


class ClaimUnknownError(UnknownOutcomeError):
    """A claim may have been applied; `Store.held` with these arguments tells.

    Attributes:
        owner: the owner that the claim wrote.
        keys: the rows it may have taken; none if that is not known.
    """

    def __init__(self, owner: str, keys: Sequence[str]) -> None:
        super().__init__("a claim was not answered")
        self.owner = owner
        self.keys = keys

    def __str__(self) -> str:
        return super().__str__() if self.__cause__ is None else str(self.__cause__)


class Store(Protocol):
    """A store. One process, one thread, one connection, opened when needed.

    Besides the errors named below, every method may raise `StoreUnavailableError` (nothing was
    applied), `SchemaError` and `StoreError`, and those that write `UnknownOutcomeError` (it may
    have been applied).
    """

    def init(self) -> Sequence[str]:
        """Create or upgrade what the store needs; may be repeated.

        Returns:
            What was done, one line each, for people.
        """
        ...

    def now(self) -> float:
        """The store's clock, Unix seconds."""
        ...

    def add(self, rows: Sequence[Row], *, nonce: str) -> None:
        """Insert rows, all or none.

        Args:
            rows: their definition, times, ``alive_time`` and ``options`` are taken; the rest is
                as in a new row.
            nonce: kept in the rows, so that an insert of unknown outcome can be recognised.

        Raises:
            AlreadyExistsError: one of the keys exists.
        """
        ...

    def get(self, key: str) -> Row | None:
        """The row under a key."""
        ...

    def rows(self) -> Iterator[Row]:
        """Every row, those due first, those at rest last.

        Read little by little: a row that is claimed or settled meanwhile may come twice, or not
        at all. After a `StoreUnavailableError` the iterator can be asked again, and goes on (one
        that is a generator could not).
        """
        ...

    def try_rights(self) -> None:
        """Try whether we may read and write; nothing is changed.

        Raises:
            StoreError: we may not; the text says what.
        """
        ...

    def replace(self, seen: Row, new: Row) -> bool:
        """Change a row's definition, status and times if it is still as seen; the version grows.

        Returns:
            False if the row has changed meanwhile, or is gone: nothing was applied.
        """
        ...

    def delete(self, key: str) -> bool:
        """Remove a row; one that is leased is marked for its holder instead.

        Returns:
            True if it was removed, False if it was marked.

        Raises:
            NotFoundError: there is no such row.
        """
        ...

    def claim(
        self, owner: str, *, limit: int, alive_time: int, shortest: int, horizon: float
    ) -> Claimed:
        """Lease up to ``limit`` due rows, those due longest first.

        A row that cannot be leased, whatever it holds, is set aside as quarantined and does not
        stand in the way of the others.

        Args:
            owner: a text never used before.
            limit: at most that many rows.
            alive_time: seconds; a row's own ``alive_time`` overrides it …
            shortest: … but for no lease shorter than this.
            horizon: how many seconds ahead to look for the next due row.

        Raises:
            ClaimUnknownError: the connection broke; rows may have been leased to ``owner``.
        """
        ...

    def held(self, owner: str, keys: Sequence[str]) -> Sequence[Row]:
        """The rows that this owner holds: what an unknown claim really did.

        Args:
            owner: the one that the claim wrote.
            keys: the rows that it may have taken; none if that is not known.
        """
        ...

    def extend(
        self, leases: Mapping[str, Token], *, alive_time: int, shortest: int
    ) -> frozenset[str]:
        """Move the end of leases to now + alive_time.

        Returns:
            The keys whose lease was still held, and is now extended. The others are preempted.
        """
        ...

    def settle(self, settlements: Sequence[Settlement]) -> Mapping[str, Settled]:
        """End leases.

        Repeating a settlement that was applied answers DONE again, at least until the next lease
        of the row is settled.

        ``next_run_time`` becomes the later of ``not_before`` and floor(now) + wait + 1, or
        floor(now) if there is no wait. A store that tells two leases of an occurrence apart by
        their seconds alone may write floor(now) + 1 instead of floor(now).
        """
        ...

    def update_data(self, key: str, token: Token, data: str) -> bool:
        """Replace a leased row's payload and raise its version; False if it is held no more.

        Raises:
            InvalidError: the store cannot hold these data; nothing was applied.
        """
        ...

    def marked(self, keys: Sequence[str]) -> Mapping[str, str]:
        """Those of the rows that are marked (see `psched.core.model.MARKS`), and their marks."""
        ...

    def purge(self, limit: int) -> int:
        """Remove rows whose ``retain_until`` has passed, at most so many.

        Returns:
            How many were removed.
        """
        ...

    def look(self, keys: Sequence[str]) -> Mapping[str, Row]:
        """The rows under these keys, as far as they exist."""
        ...

    def recover(self, nonce: str, *, alive_time: int, retry_wait: float) -> Sequence[str]:
        """Release what a dead worker still holds; its processes must be gone.

        An occurrence that was being tried for the second time or more waits ``retry_wait``
        seconds: it may be what killed the worker.

        Args:
            nonce: the dead worker's; its owners all begin with it and a dot.
            alive_time: seconds; leases that end later than this from now (a row's own
                ``alive_time`` can be longer) are left to run out.
            retry_wait: seconds.

        Returns:
            The keys that were released.
        """
        ...

    def examine(self) -> Sequence[tuple[str, str]]:
        """What is to be known about the store, for people: names, and values in words.

        Raises:
            StoreError: it cannot be used; the text says why.
        """
        ...

    def disconnect(self) -> None:
        """Close the connection; the next request opens another."""
        ...


class CallersTransaction(Protocol):
    """A transaction that a program has begun on a connection of its own.

    Nothing here opens another connection, sleeps, or sends a request again; and nothing is written
    unless the program commits.
    """

    def now(self) -> float:
        """The store's clock, Unix seconds."""
        ...

    def add(self, rows: Sequence[Row], *, nonce: str) -> None:
        """Insert rows, all or none; see `Store.add`.

        Raises:
            AlreadyExistsError: one of the keys exists; the transaction is as it was before.
        """
        ...


@runtime_checkable
class JoinsTransactions(Protocol):
    """What a `Store` can do besides, if a program can have a transaction in the same database.

    A store has this capability if it has the method. `ScheduleCollection.push` asks for it when it
    is given a ``connection``.
    """

    def join_transaction(self, connection: Any) -> CallersTransaction:  # noqa: ANN401
        """The transaction on a program's own connection.

        Args:
            connection: the program's; its type is the store's affair.

        Raises:
            InvalidError: it is no connection.
            StoreError: it is one to another kind of database.
        """
        ...
