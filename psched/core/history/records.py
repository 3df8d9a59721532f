"""The records of the run history, as data.

A **run record** (`RunRecord`) describes one attempt, and says how it ended: its `Outcome`. The
record that moves the cursor also says what became of the occurrence: its `Fate`. Occurrences that
never ran have a record without an outcome. Neighbouring occurrences that share a fate for one
reason are one record, a span (``scheduled_time`` to ``until``), however many they are.

**Times.** ``due``, ``started`` and ``ended`` are milliseconds of the store's clock: the time that
the claim returned, plus the time that has passed since on the boot-time clock of the worker's host.
The claim's time is known up to half the duration of the claim's request, which is the tolerance.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import StrEnum

from psched.core.hosts import has_name, is_template, serves


class Outcome(StrEnum):
    """How an attempt ended."""

    FINISHED = "finished"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    """It was stopped at its time limit (``kill_timeout``)."""
    CANCELLED = "cancelled"
    """Somebody has stopped it, or cancelled or deleted its schedule."""
    RELEASED = "released"
    """It was interrupted, and its occurrence runs again: for example, its worker was stopped."""
    LOST = "lost"
    """Its worker, fork server or host died, so nobody saw its end."""
    PREEMPTED = "preempted"
    """Its worker could not extend the lease in time, so what it did does not count."""


class Fate(StrEnum):
    """What became of an occurrence."""

    FINISHED = "finished"
    GAVE_UP = "gave_up"
    """The last allowed attempt has failed."""
    CANCELLED = "cancelled"
    STOPPED = "stopped"
    """Somebody has stopped its run (``psched stop``); its schedule goes on."""
    EXPIRED = "expired"
    """A one-off task that has not succeeded within the setting ``expire``."""
    QUARANTINED = "quarantined"
    """The row was invalid, so it does not run until somebody corrects and requeues it."""
    SKIPPED_CATCHUP = "skipped_catchup"
    """It was missed, and the setting ``catchup`` drops missed occurrences of this age."""
    SKIPPED_OVERLAP = "skipped_overlap"
    """It fell due while an earlier occurrence ran, and ``catchup: skip`` dropped it."""
    COALESCED = "coalesced"
    """It was missed, and only the latest missed occurrence ran (``catchup: latest``)."""
    SKIPPED = "skipped"
    """Somebody has skipped it (``psched skip``)."""
    SKIPPED_PAUSED = "skipped_paused"
    """It fell due while its schedule was paused."""
    SKIPPED_CALENDAR = "skipped_calendar"
    SKIPPED_CLOCK_CHANGE = "skipped_clock_change"
    """Its time of day does not exist on the day of a clock change (``dst_policy: wallclock``)."""


SKIPPED = frozenset(
    {
        Fate.SKIPPED_CATCHUP,
        Fate.SKIPPED_OVERLAP,
        Fate.COALESCED,
        Fate.SKIPPED,
        Fate.SKIPPED_PAUSED,
        Fate.SKIPPED_CALENDAR,
        Fate.SKIPPED_CLOCK_CHANGE,
    }
)
"""The fates of occurrences that never ran by a rule of their schedule."""

FAILURES = frozenset(Outcome) - {Outcome.FINISHED, Outcome.RELEASED}
"""The outcomes that ``psched history --failed`` shows."""

WHOLE = frozenset({Outcome.FINISHED, Outcome.FAILED, Outcome.TIMED_OUT})
"""The outcomes of attempts that nothing cut short from outside, so that they took their time."""

DECISIONS = frozenset(Fate) - SKIPPED
"""The fates that `RunRecord.is_end` counts, even if nothing ran."""

FAILED_FATES = DECISIONS - {Fate.FINISHED}
"""The fates that ``psched history --failed`` shows, even if nothing ran."""

MOST_COUNTED = 30
"""The policy counts a span's occurrences up to this number; ``count`` is None if there are more.

The number is small, because a worker counts them, and each costs a question to the trigger, which
takes up to 0.2 ms. After an outage, a worker can have to count those of thousands of schedules."""

SERVER_DIED = "its fork server died"
"""The reason of a `Outcome.LOST` attempt whose worker has lived on, and knows what it printed."""

LONGEST_ERROR = 8192
"""The most characters of an error with its traceback that a record keeps."""

LARGEST_RESULT = 2**16
"""The largest size of a task's result as JSON text, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """Neighbouring occurrences that were dropped for one reason.

    Attributes:
        fate: what became of them.
        first: the scheduled time of the first one, in Unix seconds.
        until: the scheduled time of the last one, or, if that is not known, an instant between it
            and the next occurrence, in Unix seconds. None means that the span has no end.
        count: how many they are; None if they were not counted. The policy counts `MOST_COUNTED` at
            most.
        reason: why they were dropped, for people.
    """

    fate: Fate
    first: int
    until: int | None
    count: int | None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What a worker knows about an attempt that has ended.

    Attributes:
        outcome: how it ended.
        pid: the process that ran it; None if it is not known.
        started: when it was started, in milliseconds of the store's clock; None if not known.
        ended: when it ended, in milliseconds of the store's clock.
        reason: what went wrong, in one line; None if nothing did.
        exit_status: the exit status of the program or process that ran it; None if not known.
        exit_signal: the number of the signal that ended that program or process.
        cpu_ms: the CPU time of all its processes, in milliseconds; None if not known.
        peak_kb: the most memory that it used at one time, in KiB; None if not known.
        out_of_memory: whether it was probably killed because memory ran out.
        error: the error with its traceback, at most `LONGEST_ERROR` characters.
        result: the result of the task, as JSON text; None if it has set none.
    """

    outcome: Outcome
    ended: int
    pid: int | None = None
    started: int | None = None
    reason: str | None = None
    exit_status: int | None = None
    exit_signal: int | None = None
    cpu_ms: int | None = None
    peak_kb: int | None = None
    out_of_memory: bool = False
    error: str | None = None
    result: str | None = None


@dataclass(slots=True, kw_only=True)
class RunRecord:
    """One record of the run history; its fields are the columns of ``<table>_runs``.

    No field is assigned. The class is not frozen, because the creation of an instance would then
    take several times as long.

    Key, ``scheduled_time`` and ``owner`` identify a record: a store keeps the first record only, so
    that a request that is repeated writes no second one. There is one exception: a record with
    another outcome replaces one whose outcome is ``lost``, because its writer knows more.

    Attributes:
        key: the key of the schedule.
        type: the type of the schedule when it was claimed.
        label: the label of the schedule; None if it has none.
        scheduled_time: the scheduled time of the occurrence, or of the first one of a span.
        until: the end of a span, see `Skipped`; None if the record is about one occurrence. It
            equals `FOREVER` for a span without an end.
        count: the number of occurrences of a span, see `Skipped`; 1 if it is no span.
        attempt: the number of the attempt, from 1; 0 if nothing ran.
        owner: the owner of the lease, see `psched.core.model.Token`.
        fence: the fence of the lease.
        host: the name of the worker's host.
        pid: see `Attempt`.
        generation: the number of the worker's generation; None if it is not known.
        due: since when a worker could have claimed the row, in milliseconds; None if not known.
        started: see `Attempt`.
        ended: when the attempt ended, or the decision was made, in milliseconds.
        outcome: how the attempt ended; None if nothing ran.
        fate: what became of the occurrences; None if the occurrence will be tried again.
        reason: a text for people, in one line.
        reason_code: a `psched.core.model.ReasonCode`; None if nothing was decided for a reason.
        exit_status: see `Attempt`. The remaining attributes, too.
        id: the number that the store gave the record; later records have larger numbers. None
            before it is stored, or if the store numbers its records in another way.
    """

    key: str
    type: str
    scheduled_time: int
    owner: str
    fence: int
    ended: int
    label: str | None = None
    until: int | None = None
    count: int | None = 1
    attempt: int = 0
    host: str | None = None
    pid: int | None = None
    generation: int | None = None
    due: int | None = None
    started: int | None = None
    outcome: str | None = None
    fate: str | None = None
    reason: str | None = None
    reason_code: str | None = None
    exit_status: int | None = None
    exit_signal: int | None = None
    cpu_ms: int | None = None
    peak_kb: int | None = None
    out_of_memory: bool = False
    error: str | None = None
    result: str | None = None
    id: int | None = None

    @property
    def took(self) -> float | None:
        """The seconds from start to end; None if nothing ran, or the start is not known."""
        return None if self.started is None else (self.ended - self.started) / 1000

    @property
    def nonce(self) -> str:
        """The nonce of the worker that held the lease; see `WorkerRecord`."""
        return nonce_of(self.owner)

    @property
    def lease(self) -> str:
        """The lease as text, in the form of the column ``settled_by``."""
        return f"{self.owner}#{self.fence}"

    @property
    def began(self) -> int:
        """When the attempt started, in milliseconds; ``ended`` if nothing ran, or if not known."""
        return self.ended if self.started is None else self.started

    @property
    def last(self) -> int:
        """The scheduled time of the last occurrence of a span; of the only one if it is none."""
        return self.scheduled_time if self.until is None else self.until

    @property
    def is_end(self) -> bool:
        """Whether the record says how an attempt ended, or how an occurrence did.

        An occurrence that was skipped did not end in this sense. Neither did those of a span.
        """
        return self.outcome is not None or (self.fate in DECISIONS and self.until is None)

    def covers(self, instant: int) -> bool:
        """Whether the record is about the occurrence with this scheduled time."""
        return self.scheduled_time <= instant <= self.last


def nonce_of(owner: str) -> str:
    """The nonce in the owner of a lease, see `psched.core.model.Token`."""
    return owner.rpartition(".")[0]


FOREVER = 2**53
"""The end of a span that has no end; no scheduled time is so large."""


BEAT_INTERVAL = 60
"""The seconds between two writes of a worker's record."""

GONE_AFTER = BEAT_INTERVAL + 30
"""A worker whose record is older than this, in seconds, is taken to be gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRecord:
    """A worker that is or was alive; its fields are the columns of ``<table>_workers``.

    Attributes:
        nonce: the random text that identifies the worker in the owners of its leases.
        host: the name of its host.
        pid: its process id.
        number: its number in its generation.
        generation: the number of its generation.
        slots: how many tasks it can run at the same time.
        busy: how many tasks it ran when it wrote the record.
        types: the types that it takes, as a JSON list: the setting ``only``, else those that have a
            handler; None means all, or that every type may have one.
        started: when it started, in Unix seconds of the store's clock.
        seen: when it last wrote the record, in Unix seconds of the store's clock.
        ended: when it ended, in Unix seconds of the store's clock; None if it is alive or was
            killed.
        clock_offset: by how many milliseconds the wall clock of its host was ahead of the store's
            clock when it wrote the record; negative if it was behind. None if it is not known.
        zone_data: the release of its zone data, such as ``2026b``; None if it is not known.
        labels: the configured name of its host, and its labels, with blanks between them; None
            without any.
        version: the version of its psched; None if it is not known.
        python: the version of its Python; None if it is not known.
    """

    nonce: str
    host: str
    pid: int
    number: int
    generation: int
    slots: int
    busy: int
    types: str | None
    started: int
    seen: int
    ended: int | None = None
    clock_offset: int | None = None
    zone_data: str | None = None
    labels: str | None = None
    version: str | None = None
    python: str | None = None

    @property
    def host_names(self) -> Sequence[str]:
        """The name and the labels of its host, see `psched.core.hosts`."""
        return [*dict.fromkeys((self.host.lower(), *(self.labels or "").split()))]

    @property
    def is_named(self) -> bool:
        """Whether the name of its host is configured (``host_name``)."""
        return self.host.lower() in (self.labels or "").split()

    def may_run(self, lane: str | None) -> bool:
        """Whether its host runs what has this lane; or a row of its own, if that of a template."""
        if is_template(lane):
            return self.is_named and has_name(self.host_names, lane or "")
        return serves(self.host_names, lane)

    @property
    def taken_types(self) -> list[str] | None:
        """The types that the worker takes; None means all."""
        try:
            found = json.loads(self.types) if self.types else None
        except ValueError:
            return None
        return [str(each) for each in found] if isinstance(found, list) and found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """A change of a schedule by a person or a program; a row of ``<table>_audit``.

    Attributes:
        key: the key of the schedule.
        action: what was done, for example ``add``, ``modify``, ``delete`` or ``requeue``.
        time: when, in milliseconds of the store's clock; None before it is stored.
        user: the name of the operating system's user.
        host: the name of the host.
        program: the command or program that made the change.
        note: why, in the words of who made the change; None if nothing was said.
        before: the changed fields before the change, as a JSON object; None if the schedule did not
            exist.
        after: the changed fields after the change, as a JSON object; None if the schedule does not
            exist any more.
        id: the number that the store gave the record; None before it is stored.
    """

    key: str
    action: str
    user: str
    host: str
    program: str
    note: str | None = None
    before: str | None = None
    after: str | None = None
    time: int | None = None
    id: int | None = None


def texts_of(record: type[RunRecord | WorkerRecord | AuditRecord]) -> frozenset[str]:
    """The names of the fields that are texts."""
    return frozenset(field.name for field in fields(record) if field.type in {str, str | None})
