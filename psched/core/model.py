"""Rows, leases, settlements and decisions: the data that the rest of psched works on.

The API, the settings, the columns and the command line use PerfectSched's names, which mean:

==================  =========================================================================
schedule            a `Row`: what the store holds under one key; a ``Definition`` once parsed
occurrence          `Occurrence`: one instant of a schedule's trigger, ``(key, scheduled_time)``
``next_time``       scheduled time of the occurrence that is due or running next (Unix seconds)
``next_run_time``   no worker can claim the row before this; while leased, the end of the lease
``alive_time``      length of a lease in seconds
``delay``           seconds from an occurrence's scheduled time to its earliest run
task                an occurrence that is leased, as its handler sees it
one-shot            a schedule with one occurrence; its ``cron`` is NULL
settle              end a lease: finish, retry or release
extend              move the end of a lease
hold                keep a schedule from being claimed, because an extra run of it is going on
==================  =========================================================================

The `Token` of a lease consists of a random text that is unique to the claim (``owner``), and a
number that grows with every claim of the row (``fence``). Every later write of the lease's holder
compares both: a database that has lost its last commits can grant a number twice, but not an
owner.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import floor
from typing import Any, Final, Self

from psched.core.history.records import Fate, RunRecord, Skipped
from psched.core.hosts import hosts_of, is_template, template_of

# Values of the column ``status``. A row *rests* if it has no next run: its ``next_run_time`` is
# NULL, so no worker claims the row.
WAITING = "waiting"  # the row waits for its next run; or its task is running, if it has an owner
FINISHED = "finished"  # a one-shot that has succeeded, or a trigger without a further time
CANCELLED = "cancelled"  # ended by a person or a program
EXPIRED = "expired"  # a one-shot that has not succeeded in time
FAILED = "failed"  # a one-shot whose last allowed attempt has failed
QUARANTINED = "quarantined"  # the row is invalid; ``reason`` says why
PAUSED = "paused"  # the row does not run before it is resumed, see `psched.core.operations.pausing`
MIGRATING = "migrating"  # copied by `psched migrate`, but not released yet; the row does not run

ENDED = frozenset({FINISHED, CANCELLED, EXPIRED, FAILED})
"""Statuses of rows that run again only if they are requeued, or get a new trigger or time."""

RUNS_NO_MORE = "runs no more until psched requeue, or a new trigger or time"
"""What people are told about a schedule that has ended, see `Row.runs_no_more`."""

SET_ASIDE = frozenset({QUARANTINED, PAUSED, MIGRATING})
"""Statuses of rows that have not ended, but have no next run until their status changes."""

# Statuses that tell the holder of a leased row what to do with the row.
DELETING = "deleting"
CANCELLING = "cancelling"
FINISHING = "finishing"
STOPPING = "stopping"  # only its run ends; a schedule then goes on, see `psched.core.policy`

AFTER_RUN = {DELETING: "to_delete", CANCELLING: "to_cancel", FINISHING: "to_finish"}
"""The marks that a task gives its own row: its worker lets it end by itself."""

BEING_DELETED = frozenset({DELETING, AFTER_RUN[DELETING]})

_ENDS = {DELETING: None, CANCELLING: CANCELLED, FINISHING: FINISHED}

MARKS = {
    STOPPING: WAITING,
    **_ENDS,
    **{AFTER_RUN[mark]: status for mark, status in _ENDS.items()},
    **{status: status for status in sorted(ENDED)},
}
"""The marks: statuses of a leased row that ask its worker to stop the task, or to await its end.

The value is the row's status once the task has ended; None means that the row is removed. psched
itself writes only the first seven marks. Clients can set any mark with plain SQL.
"""

ENDING = frozenset(MARKS) - {STOPPING}
"""The marks of rows that have ended, or are about to end."""

STATUSES = frozenset({WAITING, *SET_ASIDE, *MARKS})
"""Every valid status of a row; a row with any other status is quarantined."""

RUNNING = "running"
"""The `Row.state` of a leased row whose status is ``waiting``; it is no status."""

DEFAULT_TYPE = "default"


class ReasonCode(StrEnum):
    """What a reason says, for programs, which can rely on these texts; see `Row.reason_code`."""

    ATTEMPT_FAILED = "attempt_failed"
    CATCHUP = "catchup"
    """What was missed is dropped by the setting ``catchup``."""
    EXPIRED = "expired"
    GAVE_UP = "gave_up"
    INTERRUPTED = "interrupted"
    """The attempt does not count, because its end had an external reason."""
    INVALID = "invalid"
    NEW_ZONE_DATA = "new_zone_data"
    NOT_LOADED = "not_loaded"
    """The host that had claimed the row could not load its trigger."""
    OVERLAP = "overlap"
    PAUSED = "paused"
    PAUSED_AFTER_FAILURES = "paused_after_failures"
    RESUMED = "resumed"
    STOPPED = "stopped"
    TRIGGER_CHANGED = "trigger_changed"
    WORKER_DIED = "worker_died"


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One instant of a schedule's trigger.

    The text form of an occurrence is the idempotency key that handlers get: it is equal for all
    attempts of an occurrence on all workers, and different for each occurrence.
    """

    key: str
    scheduled_time: int

    def __str__(self) -> str:
        return f"{self.key}.{self.scheduled_time}"


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause of one schedule.

    Attributes:
        since: when the schedule was paused, in Unix seconds; None if that is not known, as with a
            row that plain SQL has paused.
        until: when the pause ends, in Unix seconds; None if it has no end.
        note: who has paused it, and why: ``ann@web1: deploy``; None if that is not known.
    """

    since: int | None = None
    until: int | None = None
    note: str | None = None

    @property
    def columns(self) -> Mapping[str, Any]:
        """The columns of a row with this pause."""
        return dict(zip(NO_PAUSE, (self.since, self.until, self.note), strict=True))


NO_PAUSE: Mapping[str, Any] = dict.fromkeys(("paused_at", "paused_until", "pause_note"))
"""The columns of a row that is not paused."""

TOLD = ("decided_until", "moved_at", "local_time", "reason_code", *NO_PAUSE)
"""What a settlement and a client's change write besides the status, the reason and the times."""


@dataclass(frozen=True, slots=True)
class Token:
    """The proof of a lease: an extend or a settle is refused if the row has another token."""

    owner: str
    fence: int

    def __str__(self) -> str:
        """The text form of the token, which the column ``settled_by`` stores."""
        return f"{self.owner}#{self.fence}"


@dataclass(slots=True)
class Row:
    """A schedule as it is stored, unchecked; its fields are the table's columns.

    ``data`` and ``options`` are the stored text or bytes, not parsed: a row that an SQL client
    wrote can hold anything, and psched must still be able to list, quarantine and delete the row.

    Mypy checks that no field is assigned. The class is not frozen, because the creation of an
    instance would then take ten times as long: as much time as SQLite needs to find and read a row.
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
    claimed_at: Final[int | None] = None
    held_by: Final[str | None] = None
    held_until: Final[int | None] = None
    decided_until: Final[int | None] = None
    moved_at: Final[int | None] = None
    local_time: Final[str | None] = None
    reason_code: Final[str | None] = None
    paused_at: Final[int | None] = None
    paused_until: Final[int | None] = None
    pause_note: Final[str | None] = None
    label: Final[str | None] = None
    lane: Final[str | None] = None
    run_as: Final[str | None] = None

    @property
    def hosts(self) -> Sequence[str] | None:
        """The hosts that run it, see `psched.core.hosts`; None for every host."""
        return hosts_of(self.lane)

    @property
    def each_host(self) -> bool:
        """Whether it is a template, which never runs; each of its hosts runs a row of its own."""
        return self.lane is not None and is_template(self.lane)

    @property
    def template(self) -> str | None:
        """The key of the template of which this is the row of one host; None without."""
        return None if self.lane is None else template_of(self.key, self.lane)

    @property
    def state(self) -> str:
        """The status for display, ``running`` if the row is waiting and leased, else ``status``."""
        return RUNNING if self.status == WAITING and self.owner is not None else self.status

    @property
    def runs_no_more(self) -> bool:
        """Whether it is a schedule with a trigger, and has ended, or is about to."""
        return self.cron is not None and MARKS.get(self.status) in ENDED

    @property
    def pause(self) -> Pause | None:
        """The pause of the schedule, also if it is paused when its run was stopped; None without.

        A row with another status can have the columns of an earlier pause, if plain SQL has changed
        the status.
        """
        if self.status == PAUSED or (self.status == STOPPING and self.paused_at is not None):
            return Pause(self.paused_at, self.paused_until, self.pause_note)
        return None

    @property
    def is_tried(self) -> bool:
        """Whether there was an attempt at the occurrence of ``next_time``, or is now."""
        return self.attempt > 0 and self.moved_at is None

    @property
    def token(self) -> Token:
        """The token of the current or last claim."""
        return Token(self.owner or "", self.fence)

    def is_held(self, now: float) -> bool:
        """Whether an extra run of the schedule is going on, so that no worker claims the row."""
        return self.held_by is not None and floor(now) < (self.held_until or 0)

    @property
    def known_status(self) -> str | None:
        """``status`` if it is one of `STATUSES`; None for an unknown status.

        An unknown status must not be compared with the status in the store, because some of its
        characters may have been lost when the row was read.
        """
        return self.status if self.status in STATUSES else None


@dataclass(slots=True, kw_only=True)
class Settlement:
    """The end of one lease, and the new values of the row.

    The code that computes a settlement may assign ``fate`` and ``records``; nobody assigns another
    field, or any field once the store has the settlement. The class is not frozen, because every
    task needs two of these assignments, and a changed copy would take 6 µs each time.

    Attributes:
        key: the key of the row.
        token: the token of the lease; the store refuses the settlement if the token of the row is
            different.
        version: the version of the definition from which the settlement was computed; the store
            refuses the settlement if the row has another version.
        seen_status: the row's status when the row was read; the store refuses the settlement if the
            row has another status. None means any status.
        next_time: the scheduled time of the occurrence that runs next, in Unix seconds. None means
            that the time is not known yet, or that there is no next occurrence.
        not_before: the earliest next run that the schedule allows, in Unix seconds; None means at
            any time.
        wait: the seconds from the store's present time to the earliest next run that this outcome
            allows. The later of this instant and ``not_before`` becomes ``next_run_time``.
        rest: True if there is no next run (``next_run_time`` becomes NULL).
        remove: True if the row is removed; then all other fields are ignored.
        retain: the seconds after which a row without a next run can be purged; None means never.
        attempt: the number of attempts of the occurrence at ``next_time`` so far.
        status: the row's new status.
        reason: a text that says why the row has no next run, or what was decided about the row;
            None for no text.
        reason_code: a `ReasonCode`; None without a reason. The other columns that a settlement
            writes are explained in docs/table.md: ``decided_until``, ``moved_at``, ``local_time``,
            ``paused_at``, ``paused_until`` and ``pause_note``.
        fate: what became of the occurrence that was leased; None if it will run again, or if the
            lease ended before its occurrence was decided.
        skipped: the occurrences that are dropped by this settlement.
        records: the records of the run history that the store writes if it applies the settlement.
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
    reason_code: str | None = None
    decided_until: int | None = None
    moved_at: int | None = None
    local_time: str | None = None
    paused_at: int | None = None
    paused_until: int | None = None
    pause_note: str | None = None
    fate: Fate | None = None
    skipped: tuple[Skipped, ...] = ()
    records: tuple[RunRecord, ...] = ()

    @classmethod
    def of(cls, row: Row, **decided: Any) -> Self:  # noqa: ANN401  # its fields
        """Create the settlement of a row's lease.

        The next time, and what belongs to it, stay unless ``next_time`` is given. A pause stays if
        the status is given and stays.

        Args:
            row: the row with its lease, as it is stored now.
            decided: fields other than ``key``, ``token``, ``version`` and ``seen_status``.
        """
        if "next_time" not in decided:
            decided["next_time"] = row.next_time
            decided.setdefault("decided_until", row.decided_until)
            decided.setdefault("moved_at", row.moved_at)
            decided.setdefault("local_time", row.local_time)
        if decided.get("status") == row.status and (pause := row.pause) is not None:
            decided |= pause.columns
        return cls(
            key=row.key,
            token=row.token,
            version=row.version,
            seen_status=row.known_status,
            **decided,
        )


@dataclass(frozen=True, slots=True)
class Finish:
    """The occurrence has succeeded: the schedule continues with its next occurrence."""


@dataclass(frozen=True, slots=True)
class Retry:
    """The attempt failed: the occurrence runs again later.

    Attributes:
        wait: seconds until the next attempt; None means that ``retry_wait`` and ``retry_backoff``
            apply.
        reason: a text that says what failed; None for no text.
        earlier: how many attempts of earlier occurrences have failed in a row before this
            occurrence, for the setting ``pause_after_failures``.
    """

    wait: float | None = None
    reason: str | None = None
    earlier: int = field(default=0, repr=False)


@dataclass(frozen=True, slots=True)
class Release:
    """The task was interrupted for an external reason; this does not count as an attempt.

    Attributes:
        wait: seconds until any worker can run it again.
        reason: a text that says what kept it from running; None for no text.
    """

    wait: float = field(default=0.0, repr=False)
    reason: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Quarantine:
    """The row's payload is invalid, so the handler was not run.

    Attributes:
        reason: a text that says what is wrong with the payload.
    """

    reason: str


Decision = Finish | Retry | Release | Quarantine
