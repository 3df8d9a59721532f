"""A leased occurrence, as a handler sees it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from psched.base import payload
from psched.base.errors import AlreadyFinishedError, InvalidError
from psched.core.columns import decode, encode
from psched.core.definition import Definition
from psched.core.model import Decision, Finish, Occurrence, Release, Retry, Row, Token

if TYPE_CHECKING:
    from psched.client.collection import ScheduleCollection


LONGEST_WAIT = 366 * 86_400
"""Seconds."""


class Holder(Protocol):
    """Who holds a task's lease and writes for it."""

    def decide(self, decision: Decision) -> None:
        """Take down how the task ends.

        Raises:
            PreemptedError: the lease is lost; the decision counts for nothing.
        """
        ...

    def extend(self) -> None:
        """Move the lease's end to now + alive_time.

        Raises:
            PreemptedError: the lease is lost.
        """
        ...

    def update_data(self, data: Mapping[str, Any]) -> None:
        """Replace the schedule's payload.

        Raises:
            InvalidError: ``data`` is not a mapping that JSON can hold.
            PreemptedError: the lease is lost; nothing was changed.
        """
        ...

    @property
    def schedules(self) -> "ScheduleCollection":
        """The schedules of the store that the task came from."""
        ...


class Task:
    """One occurrence of a schedule, leased to be run.

    Its lease is extended by the worker for as long as the task runs; `extend` is for those who
    lease tasks themselves (`ScheduleCollection.poll`), or who want to know before a step that
    cannot be undone.

    Attributes:
        key: the schedule's key.
        type: which handler runs it.
        data: the payload, a JSON object; a copy of this task's own. A payload that is not an
            object is carried in one: ``{"data": "<text>"}`` or ``{"data_base64": "…"}``.
        scheduled_time: Unix seconds; the instant of the trigger that this run is for. It does
            not change when the run is late or tried again.
        attempt: 1 for the first try of this occurrence.
        cron: trigger text; None for a one-shot.
        timezone: the zone in which ``cron`` is read.
        delay: seconds between ``scheduled_time`` and the earliest run.
        token: the lease's token.
    """

    __slots__ = (
        "_form", "_holder", "_settled", "_text", "attempt", "cron", "data", "delay", "key",
        "scheduled_time", "timezone", "token", "type",
    )  # fmt: skip

    def __init__(self, assignment: Mapping[str, Any], holder: Holder) -> None:
        """See `assignment`; the payload stands beside that, as ``data``, a JSON object's text.

        Raises:
            InvalidError: the payload is not a JSON object.
        """
        self.key: str = assignment["key"]
        self.type: str = assignment["type"]
        self._text: str = assignment["data"]
        self._form: str | None = assignment.get(payload.OPTION)
        self.data: dict[str, Any] = decode("data", self._text, values=None)
        self.scheduled_time: int = assignment["scheduled_time"]
        self.attempt: int = assignment["attempt"]
        self.cron: str | None = assignment["cron"]
        self.timezone: str = assignment["timezone"]
        self.delay: int = assignment["delay"]
        self.token = Token(assignment["owner"], assignment["fence"])
        self._holder = holder
        self._settled = False

    def __repr__(self) -> str:
        # No payload: it may hold what does not belong into a log.
        return f"<Task {self.occurrence} type={self.type!r} attempt={self.attempt}>"

    @property
    def id(self) -> str:
        """PerfectQueue's name of ``key``."""
        return self.key

    @property
    def raw_data(self) -> bytes:
        """The payload as it was submitted, byte for byte.

        The text or the bytes of a payload that is not a JSON object, as PerfectQueue's may be; the
        object's JSON text otherwise.
        """
        return payload.unwrap(self._text, self._form)

    @property
    def occurrence(self) -> Occurrence:
        """The occurrence this task runs."""
        return Occurrence(self.key, self.scheduled_time)

    @property
    def idempotency_key(self) -> str:
        """``key.scheduled_time``: the same for every attempt of this occurrence, and no other."""
        return str(self.occurrence)

    @property
    def schedules(self) -> "ScheduleCollection":
        """The schedules of the store that the task came from, to add others or look at them."""
        return self._holder.schedules

    @property
    def fence(self) -> int:
        """Grows with every claim of this schedule.

        A system outside that keeps the highest fence it has seen per key can refuse a writer
        that has been preempted without knowing it.
        """
        return self.token.fence

    @property
    def settled(self) -> bool:
        """Whether `finish`, `retry` or `release` was called."""
        return self._settled

    def finish(self) -> None:
        """Done: the schedule goes on to its next occurrence when this process's tree is gone.

        Raises:
            AlreadyFinishedError: this task has been settled before.
            PreemptedError: the lease is lost.
        """
        self._settle(Finish())

    def retry(self, wait: float | None = None) -> None:
        """Not done: run the same occurrence again, later.

        Args:
            wait: seconds; default: the schedule's ``retry_wait``.

        Raises:
            InvalidError: ``wait`` is no such number.
            AlreadyFinishedError: this task has been settled before.
            PreemptedError: the lease is lost.
        """
        if wait is not None and not _is_wait(wait):
            raise InvalidError("wait", f"must be from 0 to {LONGEST_WAIT} seconds, not {wait!r}")
        self._settle(Retry(wait, reason="retry asked for by the handler"))

    def release(self) -> None:
        """Not done, nobody's fault: run the same occurrence again at once, on any worker.

        Raises:
            AlreadyFinishedError: this task has been settled before.
            PreemptedError: the lease is lost.
        """
        self._settle(Release())

    def extend(self) -> None:
        """Make sure that the lease is still held, and move its end to now + alive_time.

        Raises:
            AlreadyFinishedError: this task has been settled before.
            PreemptedError: the lease is lost.
        """
        self._refuse_settled()
        self._holder.extend()

    def update_data(self, data: Mapping[str, Any]) -> None:
        """Replace the schedule's payload; later attempts and occurrences get the new one.

        Raises:
            AlreadyFinishedError: this task has been settled before.
            InvalidError: ``data`` is not a mapping that JSON can hold.
            PreemptedError: the lease is lost; nothing was changed.
        """
        self._refuse_settled()
        self._holder.update_data(data)
        self._text = encode("data", data)
        self.data = dict(data)

    def _settle(self, decision: Decision) -> None:
        self._refuse_settled()
        self._holder.decide(decision)
        self._settled = True

    def _refuse_settled(self) -> None:
        if self._settled:
            raise AlreadyFinishedError(f"{self.occurrence} has been settled already")


def _is_wait(wait: object) -> bool:
    if isinstance(wait, bool) or not isinstance(wait, int | float):
        return False
    return 0 <= wait <= LONGEST_WAIT  # "not a number" is within nothing


def assignment(row: Row, definition: Definition, scheduled_time: int) -> dict[str, Any]:
    """What a `Task` is made of beside its payload, in a form that JSON can carry.

    Args:
        row: as the claim returned it.
        definition: the row, understood.
        scheduled_time: the occurrence to run.
    """
    return {
        "key": row.key,
        "type": definition.type,
        payload.OPTION: definition.payload,
        "scheduled_time": scheduled_time,
        "attempt": row.attempt,
        "cron": definition.cron,
        "timezone": definition.timezone,
        "delay": definition.delay,
        "owner": row.owner,
        "fence": row.fence,
        "data_limit": definition.settings.data_limit,
        "on_return": definition.settings.on_return,
    }
