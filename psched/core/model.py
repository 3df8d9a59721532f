"""The nouns, and the dictionary between psched's two vocabularies.

Outside (API, configuration keys, columns, command line) psched speaks PerfectSched's words;
inside, types use the field's. This is the only place where the two meet:

==================  =========================================================================
outside             inside
==================  =========================================================================
schedule            a `Row`: what the store holds under one key; a ``Definition`` once understood
occurrence          `Occurrence`: one instant of a schedule's trigger, ``(key, scheduled_time)``
``next_time``       scheduled time of the occurrence that is due or running next (Unix seconds)
``next_run_time``   nobody may take the row before this; while leased, the instant the lease ends
``alive_time``      length of a lease in seconds
``delay``           seconds between an occurrence's scheduled time and the moment it may run
task                an occurrence that is leased: `Lease` (its right) and a handler's view of it
one-shot            a schedule with one occurrence; its ``cron`` is NULL
finish …            to *settle*: to end a lease. To move its end is to *extend* it.
==================  =========================================================================

A lease's `Token` is a nonce drawn for that claim (``owner``) and a number that grows with
every claim of the row (``fence``). Both are compared by every later write: the number alone
can be granted twice by a database that lost its last commits, the nonce cannot.
"""

from dataclasses import dataclass
from typing import Any, Final, Self

# What a row is (column ``status``).
WAITING = "waiting"  # running ones too: those have an owner and a lease's end
FINISHED = "finished"  # a one-shot that is done, or a trigger that will never fire again
CANCELLED = "cancelled"  # by a person or a program
EXPIRED = "expired"  # a one-shot that has not succeeded in time
FAILED = "failed"  # a one-shot that has used up its attempts
QUARANTINED = "quarantined"  # it could not be understood; ``reason`` says why
PAUSED = "paused"  # reserved; it rests
MIGRATING = "migrating"  # a copy that `psched migrate` has not released yet; it rests

ENDED = frozenset({FINISHED, CANCELLED, EXPIRED, FAILED})
"""It rests, and is run again only if somebody says so."""

SET_ASIDE = frozenset({QUARANTINED, PAUSED, MIGRATING})
"""Statuses of rows that rest without having ended; such a row may be put into service again."""

# Marks of a leased row: what its holder is to make of it.
DELETING = "deleting"
CANCELLING = "cancelling"
FINISHING = "finishing"

MARKS = {
    DELETING: None,
    CANCELLING: CANCELLED,
    FINISHING: FINISHED,
    **{status: status for status in sorted(ENDED)},
}
"""What a leased row with one of these statuses becomes when its task has been stopped.

None: the row is removed. psched itself writes the first three; a client that sets one of the others
with plain SQL means the same.
"""

STATUSES = frozenset({WAITING, *SET_ASIDE, *MARKS})
"""Every status that a row can have; a row with another one is quarantined."""

DEFAULT_TYPE = "default"


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One instant of a schedule's trigger.

    Its text form is the idempotency key that handlers get: the same for every attempt and
    every worker, different for every occurrence.
    """

    key: str
    scheduled_time: int

    def __str__(self) -> str:
        return f"{self.key}.{self.scheduled_time}"


@dataclass(frozen=True, slots=True)
class Token:
    """What proves a lease: compared, whole, by every extend and settle."""

    owner: str
    fence: int

    def __str__(self) -> str:
        """The form kept in ``settled_by``."""
        return f"{self.owner}#{self.fence}"


@dataclass(slots=True)
class Row:
    """A schedule as the store holds it, judged by nobody; its fields are the table's columns.

    ``data`` and ``options`` are the stored text or bytes: a row that any SQL client wrote can
    hold anything, and it must still be possible to list it, quarantine it and delete it.

    Its fields are never changed, which mypy checks: a frozen class of so many fields takes ten
    times as long to make, as long as SQLite takes to find and read the row.
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
        """What it is, for people: ``status``, and ``running`` while it waits and is leased."""
        return "running" if self.status == WAITING and self.owner is not None else self.status

    @property
    def token(self) -> Token:
        """The token of the current (or last) claim."""
        return Token(self.owner or "", self.fence)

    @property
    def known_status(self) -> str | None:
        """``status``, if it is one of `STATUSES`.

        None: it is another, and what is stored may differ from what was read of it.
        """
        return self.status if self.status in STATUSES else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """How one lease ends; what the row is to hold afterwards.

    Attributes:
        key: the row.
        token: the lease; the write is refused if the row has another.
        version: definition version the new times were computed from; refused if it changed.
        seen_status: the row's status when that was done; refused if it changed. None: any.
        next_time: the cursor.
        not_before: Unix seconds, or None: earliest next run by the schedule.
        wait: seconds from the store's now: earliest next run by the outcome. The later of
            the two becomes ``next_run_time``.
        rest: no next run at all (``next_run_time`` becomes NULL).
        remove: the row goes, whatever the others say.
        retain: seconds after which a row at rest may be purged; None: it stays.
        attempt: tries of the occurrence at ``next_time`` so far.
        status: what the row is now.
        reason: why it rests, or what was decided about it, for people.
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
        """How the lease of a row ends; the row's cursor stays unless ``next_time`` is given.

        Args:
            row: as it stands, with its lease.
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
    """The occurrence is done: the schedule goes on to its next one."""


@dataclass(frozen=True, slots=True)
class Retry:
    """The attempt failed: the same occurrence again, later.

    Attributes:
        wait: seconds until then; None means the installation's ``retry_wait``.
        reason: what failed, for people.
    """

    wait: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Release:
    """Not done and nobody's fault: the same occurrence again, at once, on any worker."""


@dataclass(frozen=True, slots=True)
class Quarantine:
    """The row's payload cannot be understood: nothing was run.

    Attributes:
        reason: what is wrong with it, for people.
    """

    reason: str


Decision = Finish | Retry | Release | Quarantine
