"""Rows, leases, settlements and decisions: the data that the rest of psched works on.

The API, the settings, the columns and the command line use PerfectSched's names. They mean:

==================  =========================================================================
schedule            a `Row`: what the store holds under one key; a ``Definition`` once parsed
occurrence          `Occurrence`: one instant of a schedule's trigger, ``(key, scheduled_time)``
``next_time``       scheduled time of the occurrence that is due or running next (Unix seconds)
``next_run_time``   no worker may claim the row before this; while leased, the end of the lease
``alive_time``      length of a lease in seconds
``delay``           seconds from an occurrence's scheduled time until it may run
task                an occurrence that is leased, as its handler sees it
one-shot            a schedule with one occurrence; its ``cron`` is NULL
settle              end a lease: finish, retry or release
extend              move the end of a lease
==================  =========================================================================

A lease's `Token` is a nonce drawn for that claim (``owner``) and a number that grows with
every claim of the row (``fence``). Every later write compares both, because a database that has
lost its last commits can grant a number twice, but not a nonce.
"""

from dataclasses import dataclass
from typing import Any, Final, Self

# Values of the column ``status``. A row without a next run (``next_run_time`` is NULL) rests.
WAITING = "waiting"  # the row waits for its next run; if it has an owner, its task is running
FINISHED = "finished"  # a one-shot that is done, or a trigger that will never fire again
CANCELLED = "cancelled"  # by a person or a program
EXPIRED = "expired"  # a one-shot that has not succeeded in time
FAILED = "failed"  # a one-shot that has used up its attempts
QUARANTINED = "quarantined"  # it is invalid; ``reason`` says why
PAUSED = "paused"  # reserved; the row rests
MIGRATING = "migrating"  # a row that `psched migrate` has copied, but not released yet; it rests

ENDED = frozenset({FINISHED, CANCELLED, EXPIRED, FAILED})
"""Statuses of rows that rest, and run again only if a person or a program requeues them."""

SET_ASIDE = frozenset({QUARANTINED, PAUSED, MIGRATING})
"""Statuses of rows that rest without having ended; such a row may be put into service again."""

# Statuses that tell the holder of a leased row what to do with the row.
DELETING = "deleting"
CANCELLING = "cancelling"
FINISHING = "finishing"

MARKS = {
    DELETING: None,
    CANCELLING: CANCELLED,
    FINISHING: FINISHED,
    **{status: status for status in sorted(ENDED)},
}
"""For each mark on a leased row: the row's status once its task has stopped; None: it is removed.

psched itself writes only the first three. A client may set any of them with plain SQL.
"""

STATUSES = frozenset({WAITING, *SET_ASIDE, *MARKS})
"""Every status that a row can have; a row with another one is quarantined."""

DEFAULT_TYPE = "default"


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One instant of a schedule's trigger.

    Its text form is the idempotency key that handlers get: the same for all attempts on all
    workers, and different for each occurrence.
    """

    key: str
    scheduled_time: int

    def __str__(self) -> str:
        return f"{self.key}.{self.scheduled_time}"


@dataclass(frozen=True, slots=True)
class Token:
    """The proof of a lease, which every extend and settle compares."""

    owner: str
    fence: int

    def __str__(self) -> str:
        """The token as the column ``settled_by`` stores it."""
        return f"{self.owner}#{self.fence}"


@dataclass(slots=True)
class Row:
    """A schedule as it is stored, unchecked; its fields are the table's columns.

    ``data`` and ``options`` are the stored text or bytes: a row that an SQL client wrote can hold
    anything, and it must still be possible to list it, quarantine it and delete it.

    Mypy checks that no field is assigned. The class is not frozen, because an instance of a frozen
    class with so many fields takes ten times as long to create, which is as long as SQLite takes to
    find and read the row.
    """

    key: Final[str]
    type: Final[str] = DEFAULT_TYPE
    data: Final[str | bytes | None] = None
    cron: Final[str | None] = None
    timezone: Final[str | None] = None
    delay: Final[int] = 0
    next_time: Final[int | None] = None
    next_run_time: Final[int | None] = None
    owner: Final[str | None] = None
    fence: Final[int] = 0
    settled_by: Final[str | None] = None
    attempt: Final[int] = 0
    status: Final[str] = WAITING
    reason: Final[str | None] = None
    version: Final[int] = 1
    created_at: Final[int | None] = None
    alive_time: Final[int | None] = None
    options: Final[str | bytes | None] = None
    retain_until: Final[int | None] = None

    @property
    def state(self) -> str:
        """The status for display: ``running`` if the row is waiting and leased, else ``status``."""
        return "running" if self.status == WAITING and self.owner is not None else self.status

    @property
    def token(self) -> Token:
        """The token of the current or last claim."""
        return Token(self.owner or "", self.fence)

    @property
    def known_status(self) -> str | None:
        """``status``, if it is one of `STATUSES`; else None.

        An unknown status must not be compared with the stored one, because some of its characters
        may have been lost when it was read.
        """
        return self.status if self.status in STATUSES else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """The end of one lease, and what the row holds afterwards.

    Attributes:
        key: the row.
        token: the lease; the write is refused if the row has another.
        version: the version of the definition that was used; the write is refused if it changed.
        seen_status: the row's status when it was read; the write is refused if the status has
            changed. None: any status.
        next_time: the scheduled time of the occurrence that runs next, in Unix seconds; None: not
            known yet, or there is none.
        not_before: the earliest next run that the schedule allows, in Unix seconds; None: any time.
        wait: the earliest next run after this outcome, in seconds from the store's present time.
            The later one of ``not_before`` and this instant becomes ``next_run_time``.
        rest: there is no next run (``next_run_time`` becomes NULL).
        remove: the row is removed; all other fields are ignored.
        retain: seconds after which a row at rest may be purged; None: never.
        attempt: the number of attempts of the occurrence at ``next_time`` so far.
        status: the row's new status.
        reason: text on why the row rests, or on what was decided about it; None: no text.
    """

    key: str
    token: Token
    version: int
    next_time: int | None
    seen_status: str | None = WAITING
    not_before: int | None = None
    wait: int = 0
    rest: bool = False
    remove: bool = False
    retain: int | None = None
    attempt: int = 0
    status: str = WAITING
    reason: str | None = None

    @classmethod
    def of(cls, row: Row, **decided: Any) -> Self:  # noqa: ANN401  # its fields
        """The end of a row's lease; the row's cursor stays unless ``next_time`` is given.

        Args:
            row: the row with its lease, as it is stored now.
            decided: fields other than ``key``, ``token``, ``version`` and ``seen_status``.
        """
        return cls(
            key=row.key,
            token=row.token,
            version=row.version,
            seen_status=row.known_status,
            **{"next_time": row.next_time, **decided},
        )


@dataclass(frozen=True, slots=True)
class Finish:
    """The occurrence has succeeded: the schedule continues with its next occurrence."""


@dataclass(frozen=True, slots=True)
class Retry:
    """The attempt failed: the same occurrence runs again later.

    Attributes:
        wait: seconds until the next attempt; None: ``retry_wait`` and ``retry_backoff`` apply.
        reason: text on what failed; None: no text.
    """

    wait: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Release:
    """The task was interrupted for an external reason: it runs again at once, on any worker."""


@dataclass(frozen=True, slots=True)
class Quarantine:
    """The row's payload is invalid: nothing was run.

    Attributes:
        reason: text on what is wrong with the payload.
    """

    reason: str


Decision = Finish | Retry | Release | Quarantine
