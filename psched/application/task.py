"""A leased occurrence, as a handler sees it."""

import json
from collections.abc import Mapping
from datetime import datetime
from math import inf
from typing import Any, Protocol

from psched.base import payload
from psched.base.errors import AlreadyFinishedError, InvalidError
from psched.core.columns import decode, encode, encode_result
from psched.core.model import Decision, Finish, Occurrence, Release, Retry, Token
from psched.core.operations.extra_runs import schedule_key
from psched.core.schedule import Schedules

LONGEST_WAIT = 366 * 86_400
"""The longest wait, in seconds, that a task may ask for before it is tried again."""


class Holder(Protocol):
    """Holds a task's lease, and sends the task's requests to the store."""

    def decide(self, decision: Decision) -> None:
        """Record how the task ends; a `PreemptedError` means that the decision has no effect."""

    def extend(self) -> None:
        """Move the lease's end to now + alive_time; a `PreemptedError` means that it is lost."""

    def update_data(self, data: Mapping[str, Any]) -> None:
        """Replace the schedule's payload; a `PreemptedError` means that nothing was changed."""

    def progress(self, percent: float | None, text: str) -> None:
        """Make known how far the task is; a percent is from 0 to 100."""

    def keep_result(self, result: str | None) -> None:
        """Set the result, JSON text, that the record of this attempt will contain."""

    @property
    def schedules(self) -> Schedules:
        """The schedules of the store that the task came from."""


class Task:
    """One occurrence of a schedule, leased to be run.

    The worker extends the lease while the task runs. `extend` is for programs that lease tasks
    themselves (`ScheduleCollection.poll`), and for handlers that must know that the lease is held
    before a step that cannot be undone.

    Any thread of the task's process can send requests (`extend`, `finish`, `update_data` …); only
    one at a time can use `schedules`. A process that the handler has forked can use `schedules` and
    report its `progress`; all other requests raise `RuntimeError` there.

    Attributes:
        key: the schedule's key; that of an extra run is longer, see `schedule_key`.
        type: the type, which selects the handler.
        data: the payload, a JSON object; changes to it affect only this task. A payload that is not
            an object is wrapped in one: ``{"data": "<text>"}`` or ``{"data_base64": "…"}``.
        scheduled_time: Unix seconds; the instant of the trigger for which the task runs. A late run
            and a further attempt do not change it.
        attempt: 1 for the first attempt at this occurrence.
        cron: the schedule's trigger as text; None if the schedule runs only once.
        timezone: the zone in which ``cron`` is read.
        delay: seconds between ``scheduled_time`` and the earliest run.
        run_as: the Unix user as whom its program runs; None for the user of the service.
        token: the token that identifies the lease.
    """

    __slots__ = (
        "_form", "_holder", "_result", "_settled", "_text", "attempt", "cron", "data", "delay",
        "key", "run_as", "scheduled_time", "timezone", "token", "type",
    )  # fmt: skip

    def __init__(self, assignment: Mapping[str, Any], holder: Holder) -> None:
        """Create a task from a `Definition.assignment` with the payload, added as ``data``."""
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
        self.run_as: str | None = assignment.get("run_as")
        self.token = Token(assignment["owner"], assignment["fence"])
        self._holder = holder
        self._settled = False
        self._result: str | None = None

    def __repr__(self) -> str:
        # Leave the payload out, because this text is logged and the payload can contain secrets.
        return f"<Task {self.occurrence} type={self.type!r} attempt={self.attempt}>"

    @property
    def id(self) -> str:
        """The key of the schedule, under the name that PerfectQueue uses."""
        return self.key

    @property
    def schedule_key(self) -> str:
        """The key of the schedule, which is that of the task without what an extra run adds to it.

        See `psched.core.schedule.Schedule.trigger`.
        """
        return schedule_key(self.key)

    @property
    def raw_data(self) -> bytes:
        """The payload as it was submitted, byte for byte.

        A payload that is a JSON object is returned as its JSON text. Any other payload, such as one
        that PerfectQueue has submitted, is returned as it was before it was wrapped in ``data``.
        """
        return payload.unwrap(self._text, self._form)

    @property
    def scheduled_at(self) -> datetime:
        """``scheduled_time`` as an aware datetime in the schedule's time zone."""
        # Not at the top, because few tasks need it.
        from psched.triggers.zone import find_zone  # noqa: PLC0415

        return find_zone(self.timezone).at(self.scheduled_time)

    @property
    def occurrence(self) -> Occurrence:
        """The occurrence that this task runs."""
        return Occurrence(self.key, self.scheduled_time)

    @property
    def idempotency_key(self) -> str:
        """``key.scheduled_time``: equal for all attempts at this occurrence, otherwise unique."""
        return str(self.occurrence)

    @property
    def schedules(self) -> Schedules:
        """The schedules of the store that the task came from; they can be read and changed."""
        return self._holder.schedules

    @property
    def fence(self) -> int:
        """A number that grows with every claim of this schedule.

        An external system can store the highest fence that it has received for each key, and refuse
        requests with a lower fence. Such a request is from a task that has lost its lease.
        """
        return self.token.fence

    @property
    def result(self) -> Any:  # noqa: ANN401  # of JSON
        """The result of this attempt, which the run history keeps; None if there is none.

        Assign any value that JSON can represent; None removes the result. The value is copied when
        it is assigned and when it is read, so changes of a list or a dict have no effect. The last
        value that was assigned before the task ended is kept, also if the task then fails. It is
        lost if the task's process is killed. `psched.Run.result` reads it.

        In a program that polls, assign the result before `finish`, `retry` or `release`.

        Raises:
            InvalidError: JSON cannot represent the value, or needs more than 64 KiB for it.
            AlreadyFinishedError: a program that polls has settled the task already.
        """
        # Each reader gets a copy: a change of it must not look like a change of what is kept.
        return None if self._result is None else json.loads(self._result)

    @result.setter
    def result(self, value: Any) -> None:  # noqa: ANN401
        text = None if value is None else encode_result(value)
        self._holder.keep_result(text)
        self._result = text

    @property
    def settled(self) -> bool:
        """Whether `finish`, `retry` or `release` was called."""
        return self._settled

    def finish(self) -> None:
        """Decide that the occurrence is done.

        This is recorded in the store when all processes of the task have ended.

        Raises:
            AlreadyFinishedError: this task has been settled before.
            PreemptedError: the lease is lost.
        """
        self._decide(Finish())

    def retry(self, wait: float | None = None) -> None:
        """Decide that this attempt has failed, so that the same occurrence is run again later.

        Args:
            wait: seconds until the next attempt; None for the schedule's ``retry_wait``.

        Raises:
            InvalidError: ``wait`` is not a number from 0 to `LONGEST_WAIT`.
            AlreadyFinishedError: this task has been settled before.
            PreemptedError: the lease is lost.
        """
        if wait is not None and not _is_number(wait, LONGEST_WAIT):
            raise InvalidError("wait", f"must be from 0 to {LONGEST_WAIT} seconds, not {wait!r}")
        self._decide(Retry(wait, reason="retry asked for by the handler"))

    def release(self) -> None:
        """Decide to give the occurrence back: any worker may run it again at once.

        The attempt does not count as failed.

        Raises:
            AlreadyFinishedError: this task has been settled before.
            PreemptedError: the lease is lost.
        """
        self._decide(Release())

    def extend(self) -> None:
        """Check that the lease is still held, and move its end to now + alive_time.

        Raises:
            AlreadyFinishedError: this task has been settled before.
            PreemptedError: the lease is lost.
            TransientStoreError: the store did not answer; whether the lease is held is unknown.
        """
        self._refuse_settled()
        self._holder.extend()

    def progress(self, percent: float | None = None, text: str = "") -> None:
        """Report how far the task is; ``psched status`` and ``psched show`` show the last report.

        A call takes some microseconds and asks nobody, so a loop can call it each time. A process
        that the handler has forked can call it, too. In a program that polls, it has no effect.

        Args:
            percent: a number from 0 to 100; None if it is not known. A number outside counts as the
                nearer end, because sums of rounded steps can exceed 100 a little.
            text: what is done, in a few words; the first 100 characters are shown.

        Raises:
            InvalidError: an argument has another type, or the percent is NaN or infinite.
        """
        if percent is not None:
            if not _is_number(percent, inf, least=-inf) or percent in (inf, -inf):
                raise InvalidError("percent", f"must be a number from 0 to 100, not {percent!r}")
            percent = min(max(percent, 0), 100)
        if not isinstance(text, str):
            raise InvalidError("text", f"must be a text, not {type(text).__name__}")
        self._holder.progress(percent, text)

    def update_data(self, data: Mapping[str, Any]) -> None:
        """Replace the schedule's payload; later attempts and occurrences get the new payload.

        Raises:
            AlreadyFinishedError: this task has been settled before.
            InvalidError: ``data`` is not a mapping that JSON can hold.
            PreemptedError: the lease is lost; nothing was changed.
            StoreUnavailableError: the request failed; nothing was changed.
            UnknownOutcomeError: the answer was lost; whether the payload was replaced is unknown.
        """
        self._refuse_settled()
        self._holder.update_data(data)
        self._text = encode("data", data)
        self.data = dict(data)

    def _decide(self, decision: Decision) -> None:
        self._refuse_settled()
        self._holder.decide(decision)
        self._settled = True

    def _refuse_settled(self) -> None:
        if self._settled:
            raise AlreadyFinishedError(f"{self.occurrence} has been settled already")


def _is_number(value: object, most: float, least: float = 0) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return least <= value <= most  # This is False for NaN, so NaN is refused.
