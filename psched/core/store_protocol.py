"""The store protocol: what a store must do, and how leases work.

::

            claim                                extend / settle, all conditional on the token
  WAITING ──────────────▶ LEASED ──┬─ extend    same next_time, new lease end ────▶ LEASED
  next_run_time <= now    fence+1  ├─ finish    following, max(following + delay, now) ▶ WAITING
     ▲                    owner=me ├─ retry     same next_time, now + retry_wait ─▶ WAITING
     │                             ├─ release   same next_time, now ──────────────▶ WAITING
     │                             └─ rest      finished, quarantined; or the row is deleted
     └── lease expires: nobody writes anything; any worker may claim

**The cursor.** A row's ``next_time``, the cursor, is the scheduled time of the occurrence that is
due or running. Only a settle, or a client that modifies the schedule, changes the cursor. That is
why no occurrence can be lost.

**Time.** The store's clock alone decides whether a row is due and when a lease ends. In the store,
a lease ends at floor(now) + alive_time + 1; its holder counts ``alive_time`` from the instant
*before* the request was sent (see `psched.base.lease_times`). So the lease always ends for its
holder before it ends in the store, whatever the network and the hosts' clocks do.

**The token.** Every claim writes an ``owner`` that was never used before, and increases ``fence``.
Every later write is conditional on both. If such a write changes no row, the lease was lost: its
holder was preempted.

**Three outcomes.** A write was applied; or it was not applied (`StoreUnavailableError`); or its
outcome is unknown (`UnknownOutcomeError`). After an unknown outcome, an extend or a settle can be
repeated. But ``settled_by`` stores only the token of the last settle. So the store recognises a
repeated settle until the next lease of the row is settled, and answers PREEMPTED after that
(`psched.core.settling.Settler` can still recognise some of these settles). After a claim with an
unknown outcome, `Store.held` returns the rows that were claimed. `Store.held` must be called more
than once, because the database may apply the claim late.

**Redefinition.** ``version`` grows with every change of the definition, which includes the payload.
A settle contains the version from which its times were computed, and the status that the row had
then. If the version or the status has changed, the store refuses the settle, and the holder reads
the row again and computes a new one. (The status is compared, because a client that sets it by
plain SQL need not increase the version.)

**Marks.** To delete, cancel or force-finish a leased row only marks the row: its status becomes one
of `psched.core.model.MARKS`. Any client can also set such a status. The holder of the lease sees
the mark (`Store.marked`), stops the task while it still holds the lease, and then deletes the row
or settles it without a next run. Until then no other row can have the key.

**What a store can leave out.** Derive the class from `Store`, and define what it can do. There is
one rule for the rest: if callers behave differently without something, it is an attribute, which is
None in a store that lacks it: `Store.history`, `Store.output` and so on. Each is an object of its
own, or the store itself. If callers need not know, it is a method that is defined here, in a slower
way that always works, or raises `NotSupportedError`.

The test suite in `psched.testing` checks psched's own stores, and can check others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from psched.base.errors import NotSupportedError, UnknownOutcomeError
from psched.core.selection import EVERY_ROW, Selection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from psched.core.alerts.protocol import KeepsAlerts
    from psched.core.alerts.watching import ReadsLightly
    from psched.core.history.protocol import KeepsHistory
    from psched.core.history.records import RunRecord
    from psched.core.model import Row, Settlement, Token
    from psched.core.operations.announcing import Announces
    from psched.core.operations.pauses import PausesTypes
    from psched.core.output import KeepsOutput

T = TypeVar("T")


class Settled(Enum):
    """The result of one settlement."""

    DONE = "done"
    REDEFINED = "redefined"
    """The lease is still held, but the row was changed, so nothing was applied.

    The caller must read the row again, and compute a new settlement.
    """
    PREEMPTED = "preempted"


@dataclass(frozen=True, slots=True)
class ExpiredLease:
    """A lease that has ended without a settle: its worker died, or could not reach the store.

    Attributes:
        token: the token of the lease.
        claimed_at: when the lease was claimed, in Unix seconds; None if the store does not know.
    """

    token: Token
    claimed_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """The answer to a claim.

    Attributes:
        rows: the rows that are now leased, with their new tokens, in the order in which they were
            due. Their ``next_run_time`` is the time at which they fell due.
        expired: the last lease of each of those ``rows`` whose last lease ended without a settle,
            by key.
        now: the time of the store's clock when the due rows were read; None if no row is due within
            the horizon of the claim.
        next_due: the earliest ``next_run_time`` after ``now``, in Unix seconds; None if there is
            none within the horizon of the claim.
        more: True if there might be more due rows, which this claim has not leased.
    """

    rows: Sequence[Row] = ()
    expired: Mapping[str, ExpiredLease] = field(default_factory=dict)
    now: float | None = None
    next_due: int | None = None
    more: bool = False


class ClaimUnknownError(UnknownOutcomeError):
    """A claim may have been applied. `Store.held` with these attributes returns its rows.

    Attributes:
        owner: the owner that the claim wrote.
        keys: the keys of the rows that the claim may have leased; empty if they are not known.
    """

    def __init__(self, owner: str, keys: Sequence[str]) -> None:
        super().__init__("a claim was not answered")
        self.owner = owner
        self.keys = keys

    def __str__(self) -> str:
        return super().__str__() if self.__cause__ is None else str(self.__cause__)


class Store(Protocol):
    """A store, used by one thread of one process. It opens its only connection when needed.

    Besides the errors that a method lists, every method can raise `StoreUnavailableError` (nothing
    was applied), `SchemaError` and `StoreError`. Methods that write can also raise
    `UnknownOutcomeError` (the write may have been applied).

    Attributes:
        history: the run history, the records of workers and the audit trail.
        output: what tasks print.
        alerts: the alerts.
        pauses: the rules that pause types.
        holds: keeps schedules from being claimed while extra runs of them are going on.
        announcements: tells other hosts that rows may be due.
        light_reads: reads rows without their data, in a few cheap requests.
        recorded_changes: changes a row and records why, in one transaction.
    """

    history: KeepsHistory | None = None
    output: KeepsOutput | None = None
    alerts: KeepsAlerts | None = None
    pauses: PausesTypes | None = None
    holds: HoldsSchedules | None = None
    announcements: Announces | None = None
    light_reads: ReadsLightly | None = None
    recorded_changes: ReplacesAndRecords | None = None

    def init(self, *, force: bool = False) -> Sequence[str]:
        """Create or upgrade the table and whatever else the store needs.

        The call can be repeated.

        Args:
            force: whether to upgrade although workers run that cannot use the store afterwards.

        Returns:
            One line for people about each change that was made.

        Raises:
            SchemaError: such workers run, or a newer psched has made the table.
        """
        ...

    def now(self) -> float:
        """The time of the store's clock, in Unix seconds."""
        ...

    def add(self, rows: Sequence[Row], *, nonce: str) -> None:
        """Insert all rows, or none if an error is raised.

        Args:
            rows: the new rows. Their definition, times, ``alive_time`` and ``options`` are stored;
                the other columns get the values of a new row.
            nonce: a unique text, which is stored in ``settled_by``. If the outcome of the insert is
                unknown, the caller recognises its rows by the nonce.

        Raises:
            AlreadyExistsError: one of the keys exists.
        """
        ...

    def get(self, key: str) -> Row | None:
        """The row with this key; None if there is none."""
        ...

    def rows(self, selection: Selection = EVERY_ROW) -> Iterator[Row]:
        """The rows of a selection, in its order.

        A store that cannot search its rows can use `psched.core.selection.SelectedRows`.

        The rows are read in chunks, so a row that is claimed or settled meanwhile can be returned
        twice, or not at all. After a `StoreUnavailableError`, the caller can call ``next`` again,
        which continues with the row that could not be read. So the iterator cannot be a generator.
        """
        ...

    def try_rights(self) -> None:
        """Check that the database user has the rights to read and write; nothing is changed.

        Raises:
            StoreError: a right is missing; the text names the missing rights.
        """
        ...

    def replace(self, seen: Row, new: Row) -> bool:
        """Change a row's definition, status and times, and increase its version.

        Args:
            seen: the row as the caller has read it.
            new: the row with the new values.

        Returns:
            False if the row was changed or deleted after it was read: nothing was applied.
        """
        ...

    def delete(self, key: str) -> bool:
        """Delete a row. A leased row is only marked, so that the holder of the lease deletes it.

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

        If a row cannot be leased because of an invalid value in it, the store quarantines the row,
        so that the claim can lease the other rows.

        Args:
            owner: a text that was never used before.
            limit: the largest number of rows to lease.
            alive_time: the length of the leases in seconds, for rows that have no ``alive_time``.
            shortest: the shortest length of a lease in seconds; it replaces any shorter
                ``alive_time``.
            horizon: the seconds after the present time in which the next due row is searched.

        Raises:
            ClaimUnknownError: the connection broke; rows may have been leased to ``owner``.
        """
        ...

    def held(self, owner: str, keys: Sequence[str]) -> Sequence[Row]:
        """The rows that an owner holds now: those that a claim of unknown outcome has leased.

        A store that trusts no clock also returns leases that are over, but that nobody has taken
        over. The caller knows when it sent the claim, and so until when it may use them.

        Args:
            owner: the owner that the claim wrote.
            keys: the keys of the rows that the claim may have leased; empty if they are not known.
        """
        ...

    def extend(
        self, leases: Mapping[str, Token], *, alive_time: int, shortest: int
    ) -> frozenset[str]:
        """Move the end of leases to now + alive_time.

        Args:
            leases: the token of each lease, by key.
            alive_time: see `claim`.
            shortest: see `claim`.

        Returns:
            The keys of the leases that were extended. All other leases are lost (preempted).
        """
        ...

    def settle(self, settlements: Sequence[Settlement]) -> Mapping[str, Settled]:
        """End leases.

        If a settlement that was applied is repeated, the answer is DONE again, at least until the
        next lease of the row is settled.

        ``next_run_time`` becomes the later of ``not_before`` and floor(now) + wait + 1. Without a
        wait, it becomes the later of ``not_before`` and floor(now). A store that distinguishes two
        leases of an occurrence only by their seconds can use floor(now) + 1 instead of floor(now).
        """
        ...

    def settle_and_claim(
        self,
        settlements: Sequence[Settlement],
        owner: str,
        *,
        limit: int,
        alive_time: int,
        shortest: int,
        horizon: float,
    ) -> tuple[Mapping[str, Settled], Claimed | None]:
        """End leases as `settle` does, and claim rows as `claim` does, in one request.

        If a store claims, all settlements are DONE. Otherwise it leaves out the claim, and the
        caller claims by itself. Without a definition of its own, a store always does so.

        Returns:
            The results of the settlements, and the answer to the claim; None if nothing was
            claimed.

        Raises:
            ClaimUnknownError: the connection broke; both may have been applied, or one of them, or
                none.
        """
        _ = owner, limit, alive_time, shortest, horizon
        return self.settle(settlements), None

    def update_data(self, key: str, token: Token, data: str) -> bool:
        """Replace the payload of a leased row, and increase its version.

        Returns:
            False if the lease was lost: nothing was applied.

        Raises:
            InvalidError: the store cannot hold this payload; nothing was applied.
        """
        ...

    def marked(self, keys: Sequence[str]) -> Mapping[str, str]:
        """The marks (see `psched.core.model.MARKS`) by key; rows without a mark are omitted."""
        ...

    def purge(self, limit: int) -> int:
        """Delete up to ``limit`` rows whose ``retain_until`` has passed.

        Returns:
            The number of deleted rows.
        """
        ...

    def look(self, keys: Sequence[str]) -> Mapping[str, Row]:
        """Read the rows with these keys; keys that have no row are missing in the result."""
        ...

    def recover(self, nonce: str, *, alive_time: int, retry_wait: float) -> Sequence[str]:
        """Release the leases of a dead worker. All processes of its tasks must have ended.

        An occurrence that was in its second or a later attempt waits, because the occurrence itself
        may have killed the worker: see `psched.core.attempts.wait_after_death`.

        Args:
            nonce: the dead worker's nonce. Each owner that the worker has written begins with the
                nonce and a dot.
            alive_time: the length of a lease in seconds. Leases that end more than this after now,
                because a row has a longer ``alive_time``, are not released, but expire.
            retry_wait: the wait in seconds after a second attempt.

        Returns:
            The keys of the rows whose leases were released.
        """
        ...

    def examine(self) -> Sequence[tuple[str, str]]:
        """Facts about the store, for display: for each fact, its name and its value as text.

        Raises:
            StoreError: the store cannot be used; the text says why.
        """
        ...

    def disconnect(self) -> None:
        """Close the connection; the next request opens a new one."""
        ...

    def count(self) -> int:
        """The number of rows, whatever their status is.

        Without a definition of its own, a store reads every row, so that the number can be wrong
        while schedules run.
        """
        return sum(1 for _ in self.rows())

    def backlog(self, limit: int) -> Backlog:  # noqa: ARG002
        """Count the rows that a claim could lease now, and say how late the oldest of them is.

        The cost must not grow with the number of due rows above ``limit``. A store may leave out
        rows whose leases or holds have ended. Workers without a free slot report how many rows wait
        for one; without a definition of its own, a store reports none.

        Args:
            limit: the largest number of rows to count.
        """
        return Backlog()

    def lanes(self, most: int) -> Sequence[str]:
        """The lanes of rows that wait or are leased, at most so many; see `psched.core.hosts`.

        It may tell those of other rows, too.

        Without a definition of its own, a store tells none; `psched check` then cannot warn of
        lanes that no host serves.
        """
        return [][:most]

    def replace_many(self, changes: Sequence[tuple[Row, Row]]) -> Sequence[bool]:
        """Replace each row that was not changed or deleted after it was read, in one transaction.

        If an error is raised, none of the rows was replaced; after an `UnknownOutcomeError`, all or
        none of those that were unchanged. Without a definition of its own, a store replaces none,
        and the caller replaces each row by itself.

        Args:
            changes: for each row, the row as the caller has read it, and the row with the new
                values.

        Returns:
            For each row, whether it was replaced; see `replace`.
        """
        return [False] * len(changes)

    def join_transaction(self, connection: Any) -> CallersTransaction:  # noqa: ANN401, ARG002
        """Join the transaction on a program's own connection.

        `ScheduleCollection.push` needs this if its argument ``connection`` is set.

        Args:
            connection: the program's connection, of a type that this store knows.

        Raises:
            InvalidError: ``connection`` is not of such a type.
            NotSupportedError: this store cannot join a transaction.
        """
        raise NotSupportedError("connection: this store cannot join a transaction")

    def plan_init(self) -> Sequence[tuple[str, str]]:
        """The statements that `init` would execute, and in words the lock that each takes.

        Nothing is changed. The result is empty if there is nothing to do.

        Raises:
            NotSupportedError: `init` of this store executes no SQL.
        """
        raise NotSupportedError(
            "this store has no SQL to plan; `psched init` creates what it needs"
        )


class CallersTransaction(Protocol):
    """A transaction that a program has begun on its own connection.

    The methods use only this connection. They never sleep and never repeat a request,
    because the transaction may hold locks. Their writes take effect when the program commits.
    """

    def now(self) -> float:
        """The time of the store's clock, in Unix seconds."""
        ...

    def add(self, rows: Sequence[Row], *, nonce: str) -> None:
        """Insert all rows, or none if an error is raised; see `Store.add`.

        Raises:
            AlreadyExistsError: one of the keys exists; the transaction is as it was before, and can
                continue.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """The due rows that no worker has claimed yet.

    Attributes:
        due: the number of these rows; if it is the limit of the request, there may be more.
        late: the seconds by which the oldest of these rows is late; 0 if there is no such row.
    """

    due: int = 0
    late: float = 0.0


class HoldsSchedules(Protocol):
    """A part of a store: it holds schedules while extra runs of them are going on.

    A held row is not claimed, and everything else of it can change as if nobody held it. The hold
    ends by itself after some time, like a lease. `Store.claim` leases no row that is held, and
    clears what is left of a hold that has ended. `Store.delete` treats a held row as if it were
    leased, and makes it due, so that whoever claims it after the hold removes it. `Store.purge`
    leaves held rows alone. `Store.recover` also ends the holds of a dead worker.

    `hold` and `Store.claim` each check and change one row in one step, so that only one of them
    can win.

    Extra runs (`psched.core.operations.extra_runs`) need them.
    """

    def hold(self, holds: Mapping[str, str], *, alive_time: int, shortest: int) -> frozenset[str]:
        """Hold the schedules that are free, or extend these holds.

        A row can be held if it is neither leased nor held by somebody else, and its status is no
        mark. A lease that has ended without a settle counts as a lease, because the next claim has
        to record it first. A hold of the same holder is extended in any case.

        Args:
            holds: for each key, a text that identifies the hold, and is used for no other one. It
                begins like the owners of the worker's leases, see `Store.recover`.
            alive_time: see `Store.claim`; the hold lasts as long as a lease of the row would.
            shortest: see `Store.claim`.

        Returns:
            The keys of the rows that are held now by these holders.

        Raises:
            UnknownOutcomeError: the connection broke; some of the rows may be held. The call can
                be repeated.
        """
        ...

    def release(self, holds: Mapping[str, str]) -> None:
        """End holds; those that have ended or are somebody else's are left alone.

        Args:
            holds: as `hold` got them.
        """
        ...


class ReplacesAndRecords(Protocol):
    """A part of a store with a run history: one transaction changes a row and records why."""

    def replace_and_record(self, seen: Row, new: Row, records: Sequence[RunRecord]) -> bool:
        """Replace a row as `Store.replace` does, and write records of the run history with it.

        If the row is not replaced, no record is written. If the records cannot be written, the row
        is not replaced: nothing else would tell what was skipped.

        Args:
            seen: the row as the caller has read it.
            new: the row with the new values.
            records: the records, such as spans of occurrences that somebody has skipped.

        Returns:
            False if the row was changed or deleted after it was read: nothing was applied.
        """
        ...


class Send(Protocol):
    """Sends a request to a store once, or repeatedly while the store is unavailable."""

    def __call__(self, request: Callable[[], T], /) -> T:
        """Send the request, and return its answer."""
        ...


CAN_LACK = (
    "history", "output", "alerts", "pauses", "holds", "announcements", "light_reads",
    "recorded_changes", "count", "backlog", "lanes", "replace_many", "join_transaction",
    "plan_init",
)  # fmt: skip
"""What a store can leave out."""
