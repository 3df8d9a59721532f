"""The verbs that change schedules by hand, and the states in which each of them must end.

A test prepares a schedule that nobody runs (``free``), whose regular run is going on, or that the
worker of an extra run holds; applies a verb amid a fault; lets everything end; and checks the end.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import psched
from psched.core.model import ENDED, Row
from psched.core.operations.extra_runs import schedule_of

HOUR = 3600
DAY = 24 * HOUR

FREE, REGULAR, EXTRA = "free", "regular", "extra"
HELD = (FREE, REGULAR, EXTRA)

REFUSALS = (
    psched.AlreadyExistsError,
    psched.AlreadyFinishedError,
    psched.InvalidError,
    psched.NotFoundError,
)
"""How a verb is refused, as docs/operate.md says."""

ENDS = {"cancel": "cancelled", "force_finish": "finished"}
"""The status in which each of these verbs ends a schedule."""


@dataclass(frozen=True)
class Times:
    """The times of a schedule that runs every hour, never within half an hour from now.

    Attributes:
        now: the store's clock, in Unix seconds.
    """

    now: int

    @cached_property
    def last(self) -> int:
        """The last time that has passed."""
        return self.now // 60 * 60 - HOUR // 2

    @property
    def later(self) -> int:
        """A time of the schedule that is far away."""
        return self.last + DAY

    @property
    def cron(self) -> str:
        """The trigger of the schedule."""
        return f"{self.last // 60 % 60} * * * *"

    @property
    def other_cron(self) -> str:
        """Another trigger, whose times are a quarter of an hour later."""
        return f"{(self.last // 60 + 15) % 60} * * * *"


VERBS: dict[str, Callable[[Any, Times], object]] = {
    "trigger": lambda schedule, _: schedule.trigger(),
    "backfill": lambda schedule, times: schedule.backfill(times.last - 2 * HOUR, times.last - HOUR),
    "pause": lambda schedule, _: schedule.pause(),
    "resume": lambda schedule, _: schedule.resume(),
    "requeue": lambda schedule, _: schedule.requeue(),
    "skip": lambda schedule, _: schedule.skip(),
    "edit": lambda schedule, times: schedule.edit(cron=times.other_cron),
    "cancel": lambda schedule, _: schedule.cancel(),
    "force_finish": lambda schedule, _: schedule.force_finish(),
    "delete": lambda schedule, _: schedule.delete(),
}
"""What applies each verb to a `psched.Schedule`."""


class Operated:
    """One schedule to which one verb is applied.

    Args:
        verb: one of `VERBS`.
        held: one of `HELD`.
        times: its times.
    """

    def __init__(self, verb: str, held: str, times: Times) -> None:
        self.verb = verb
        self.held = held
        self.key = f"{verb}-{held}"
        self._times = times
        self._extra = 0
        self._is_refused = (verb, held) == ("skip", REGULAR)

    def add(self, schedules: Any, type_: str, **fields: Any) -> str | None:
        """Add the schedule, and its extra run if one is to hold it; return the key to wait for."""
        times = self._times
        next_time = times.last if self.held == REGULAR else times.later
        fields |= {"cron": times.cron, "next_time": next_time}
        schedules.add(self.key, type_, **fields)
        if self.held != EXTRA:
            return self.key if self.held == REGULAR else None
        self._extra = 1
        return schedules[self.key].trigger().key

    def prepare(self, schedules: Any) -> None:
        """What precedes the verb, while the schedule is held."""
        if self.verb in {"resume", "requeue"}:
            schedules[self.key].pause()

    def apply(self, schedules: Any) -> None:
        """Apply the verb; check that it is refused if it must be."""
        refused = False
        try:
            VERBS[self.verb](schedules[self.key], self._times)
        except psched.InvalidError:
            refused = True
        assert refused == self._is_refused, self.key
        self._extra += {"trigger": 1, "backfill": 2}.get(self.verb, 0)

    def is_over(self, schedules: Any) -> bool:
        """Whether the schedule is free, and its extra runs have ended."""
        row = self._row(schedules)
        gone = row is None if self.verb == "delete" else row is not None and row.owner is None
        own = ENDS.get(self.verb, "paused" if self.verb == "pause" else "waiting")
        ended = row is None or row.status == own
        if self.held == REGULAR and own == "waiting" and row is not None:
            ended = ended and row.next_time != self._times.last
        statuses = {each.status for each in self.extra_runs(schedules)}
        return gone and ended and statuses <= ENDED

    def extra_runs(self, schedules: Any) -> list[Row]:
        """Its extra runs."""
        found = schedules.list(prefix=f"{self.key}!")
        return [each.row for each in found if schedule_of(each.row.key) == self.key]

    def check(self, schedules: Any, *, died: bool) -> None:
        """Check the state in which the schedule has ended.

        Args:
            schedules: the schedules.
            died: whether the worker died that held it when the verb was applied.
        """
        assert len(self.extra_runs(schedules)) == self._extra, self.key
        actions = [each.action for each in schedules.audit(self.key)]
        assert (
            actions.count(self.verb)
            == 1 + (self.verb == "trigger" and self.held == EXTRA) - self._is_refused
        ), (self.key, actions)
        row = self._row(schedules)
        if self.verb == "delete":
            assert row is None
            return
        assert row is not None, self.key
        status = ENDS.get(self.verb, "paused" if self.verb == "pause" else "waiting")
        found = (row.status, row.owner, row.attempt < 0)
        assert found == (status, None, False), self.key
        if status in ENDS.values():
            assert row.next_run_time is None, self.key
            return
        assert row.next_time == self._next_time(row, died=died), self.key
        assert row.next_run_time == (None if status == "paused" else row.next_time), self.key

    def _next_time(self, row: Row, *, died: bool) -> int | None:
        times = self._times
        if self.verb == "edit":
            assert row.cron == times.other_cron
            # The first one of the new trigger from the change on, or from the end of the run on.
            return times.last + HOUR // 4 + HOUR
        if self.held == REGULAR:
            # A paused schedule does not run again after the death of its worker.
            return times.last + (0 if died and self.verb == "pause" else HOUR)
        return times.later + (HOUR if self.verb == "skip" else 0)

    def _row(self, schedules: Any) -> Row | None:
        try:
            row: Row = schedules.read(self.key).row
        except psched.NotFoundError:
            return None
        return row
