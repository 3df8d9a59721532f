"""The store protocol: what a store must do, and how leases work.

::

            claim                                extend / settle, all conditional on the token
  WAITING ──────────────▶ LEASED ──┬─ extend    same next_time, new lease end ────▶ LEASED
  next_run_time <= now    fence+1  ├─ finish    following, max(following + delay, now) ▶ WAITING
     ▲                    owner=me ├─ retry     same next_time, now + retry_wait ─▶ WAITING
     │                             ├─ release   same next_time, now ──────────────▶ WAITING
     │                             └─ rest      finished, quarantined; or the row is deleted
     └── lease expires: nobody writes anything; any worker may claim

**The cursor.** A row's ``next_time`` is the occurrence that is due or running. It moves only in
a settle, or when a person modifies the schedule. That is why no occurrence can be lost.

**Time.** The store's clock alone decides whether a row is due and when a lease ends. In the store,
a lease ends at floor(now) + alive_time + 1; its holder counts ``alive_time`` from *before* the
request was sent (see `psched.base.lease_times`). So the lease always ends for its holder before it
ends in the store, whatever the network and the hosts' clocks do.

**The token.** Every claim writes an owner that was never used before, and raises the fence. Every
later write is conditional on both. If it changes no row, the lease was lost: preempted.

**Three outcomes.** A write was applied; or it was not applied (`StoreUnavailableError`); or its
outcome is unknown (`UnknownOutcomeError`). After an unknown outcome, an extend or a settle can be
repeated; but because ``settled_by`` keeps the token of the last settle only, the store recognises a
repeated settle until the next lease of the row is settled, and answers PREEMPTED after that
(`psched.core.settling.Settler` can tell more). After an unknown claim, `Store.held` returns what
was claimed; it must be asked more than once, because the claim may be applied late.

**Redefinition.** ``version`` grows with every change of the definition, the payload included. A
settle names the version from which its times were computed, and the status that the row had then;
if either has changed, the holder reads the row again and computes anew. (A client that sets the
status by plain SQL need not raise the version.)

**Deleting** a leased row only marks it. Cancelling or force-finishing a leased row also marks it,
and so can any client that sets its status to one of `psched.core.model.MARKS`. The holder sees the
mark (`Store.marked`), stops the task under its lease, and deletes the row or puts it at rest. Until
then the key is taken.

**Capabilities.** `Store` is what every store must do. Each capability that only some stores have is
a protocol of its own (`JoinsTransactions`); a store has the capability if it has the methods.

The test suite in `psched.testing` checks psched's own stores, and can check others.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, runtime_checkable

from psched.base.errors import UnknownOutcomeError
from psched.core.model import Row, Settlement, Token


class Settled(Enum):
    """The result of one settlement."""

    DONE = "done"
    REDEFINED = "redefined"
    """The lease is held, but the row was changed: read the row and compute the settlement anew."""
    PREEMPTED = "preempted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """The answer to a claim.

    Attributes:
        rows: the rows that are now leased, with their new tokens, in the order in which they were
            due; their ``next_run_time`` need not be the lease's end.
        expired: keys of those rows whose last lease ended without a settle.
        now: the store's clock when the due rows were read; None if no row was due within the
            horizon.
        next_due: the earliest ``next_run_time`` after now, if it is within the horizon.
        more: whether rows that this claim has not leased may be due.
    """

    rows: Sequence[Row] = ()
    expired: frozenset[str] = frozenset()
    now: float | None = None
    next_due: int | None = None
    more: bool = False


class ClaimUnknownError(UnknownOutcomeError):
    """A claim may have been applied; `Store.held` with these arguments returns what was claimed.

    Attributes:
        owner: the owner that the claim wrote.
        keys: the rows that it may have leased; empty if they are not known.
    """

    def __init__(self, owner: str, keys: Sequence[str]) -> None:
        super().__init__("a claim was not answered")
        self.owner = owner
        self.keys = keys

    def __str__(self) -> str:
        return super().__str__() if self.__cause__ is None else str(self.__cause__)


class Store(Protocol):
    """A store, used by one process in one thread, with one connection, opened when needed.

    Besides the errors named below, every method may raise `StoreUnavailableError` (nothing was
    applied), `SchemaError` and `StoreError`; those that write may raise `UnknownOutcomeError` (the
    write may have been applied).
    """

    def init(self) -> Sequence[str]:
        """Create or upgrade what the store needs; may be repeated.

        Returns:
            One line for each thing that was done, for people.
        """
        ...

    def now(self) -> float:
        """The store's clock, Unix seconds."""
        ...

    def add(self, rows: Sequence[Row], *, nonce: str) -> None:
        """Insert rows, all or none.

        Args:
            rows: their definition, times, ``alive_time`` and ``options`` are stored; the other
                columns are those of a new row.
            nonce: stored in ``settled_by``, so that the rows of an insert of unknown outcome can
                be recognised.

        Raises:
            AlreadyExistsError: one of the keys exists.
        """
        ...

    def get(self, key: str) -> Row | None:
        """The row with this key; None: there is none."""
        ...

    def rows(self) -> Iterator[Row]:
        """Every row in the order of ``next_run_time``; rows without a next run are last.

        The rows are read in chunks: a row that is claimed or settled meanwhile may be returned
        twice, or not at all. After a `StoreUnavailableError`, ``next`` can be called again and
        continues with the row that failed (so the iterator cannot be a generator).
        """
        ...

    def try_rights(self) -> None:
        """Check that the database user may read and write; nothing is changed.

        Raises:
            StoreError: the user may not; the text names the missing rights.
        """
        ...

    def replace(self, seen: Row, new: Row) -> bool:
        """Change a row's definition, status and times if the row is still as it was seen.

        The version grows.

        Returns:
            False if the row was changed or deleted meanwhile: nothing was applied.
        """
        ...

    def delete(self, key: str) -> bool:
        """Delete a row; a leased row is marked for its holder instead.

        Returns:
            True if the row was deleted, False if it was marked.

        Raises:
            NotFoundError: there is no such row.
        """
        ...

    def claim(
        self, owner: str, *, limit: int, alive_time: int, shortest: int, horizon: float
    ) -> Claimed:
        """Lease up to ``limit`` due rows, those that have been due longest first.

        A row that cannot be leased, whatever it holds, is quarantined, so that it does not stop the
        others.

        Args:
            owner: a text that was never used before.
            limit: how many rows to lease at most.
            alive_time: length of the leases in seconds; a row's own ``alive_time`` overrides it.
            shortest: no lease is shorter than this, whatever ``alive_time`` says.
            horizon: how many seconds ahead to look for the next due row.

        Raises:
            ClaimUnknownError: the connection broke; rows may have been leased to ``owner``.
        """
        ...

    def held(self, owner: str, keys: Sequence[str]) -> Sequence[Row]:
        """The rows that this owner holds; this tells what a claim of unknown outcome did.

        Args:
            owner: the owner that the claim wrote.
            keys: the rows that it may have leased; empty if they are not known.
        """
        ...

    def extend(
        self, leases: Mapping[str, Token], *, alive_time: int, shortest: int
    ) -> frozenset[str]:
        """Move the end of leases to now + alive_time.

        Returns:
            The keys whose lease was still held and was extended. The others are preempted.
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
        """Replace a leased row's payload and raise its version; False if the lease was lost.

        Raises:
            InvalidError: the store cannot hold this payload; nothing was applied.
        """
        ...

    def marked(self, keys: Sequence[str]) -> Mapping[str, str]:
        """The marks (see `psched.core.model.MARKS`) of those rows that have one, by key."""
        ...

    def purge(self, limit: int) -> int:
        """Delete up to ``limit`` rows whose ``retain_until`` has passed.

        Returns:
            How many were deleted.
        """
        ...

    def look(self, keys: Sequence[str]) -> Mapping[str, Row]:
        """The rows with these keys, by key; keys without a row are missing."""
        ...

    def recover(self, nonce: str, *, alive_time: int, retry_wait: float) -> Sequence[str]:
        """Release the leases of a dead worker, whose processes must be gone.

        An occurrence that was in its second or a later attempt waits ``retry_wait`` seconds,
        because it may be what killed the worker.

        Args:
            nonce: the dead worker's nonce; its owners all begin with the nonce and a dot.
            alive_time: seconds; leases that end later than this from now (a row's own
                ``alive_time`` can be longer) are left to expire.
            retry_wait: seconds.

        Returns:
            The keys that were released.
        """
        ...

    def examine(self) -> Sequence[tuple[str, str]]:
        """Facts about the store, for display: pairs of a name and a value in words.

        Raises:
            StoreError: the store cannot be used; the text says why.
        """
        ...

    def disconnect(self) -> None:
        """Close the connection; the next request opens another."""
        ...


class CallersTransaction(Protocol):
    """A transaction that a program has begun on a connection of its own.

    The methods open no other connection, do not sleep, and repeat nothing, because the transaction
    may hold locks. Their writes take effect if the program commits.
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
    """A capability of a `Store`: it can insert rows in a transaction of the caller's.

    `ScheduleCollection.push` needs it when it is given a ``connection``.
    """

    def join_transaction(self, connection: Any) -> CallersTransaction:  # noqa: ANN401
        """Join the transaction on a program's own connection.

        Args:
            connection: the program's connection, of a type that this store knows.

        Raises:
            InvalidError: it is no connection of that type.
        """
        ...
