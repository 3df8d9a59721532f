"""Changes many schedules, one after the other, at a rate, and says what became of each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from psched.base.clock import Clock
from psched.base.errors import (
    AlreadyExistsError,
    AlreadyFinishedError,
    InvalidError,
    NotFoundError,
    ScheduleError,
)
from psched.base.quantities import RATES, as_rate
from psched.client.operations.wanted import Wanted
from psched.client.writer import ChangedMeanwhileError, Condition
from psched.core.model import Row
from psched.core.operations.backfills import Backfill
from psched.core.operations.changes.rescheduled import Rescheduled
from psched.core.schedule import Schedules

_CHANGED_MEANWHILE = (
    AlreadyExistsError,
    AlreadyFinishedError,
    ChangedMeanwhileError,
    NotFoundError,
)
"""The errors about a schedule that somebody has changed since the selection was read."""

Outcome = bool | str | Rescheduled | ScheduleError | InvalidError
"""What became of a schedule: whether it was changed, False if its worker will do it; the key of the
extra run that was triggered; how the schedule runs before and after the change; or the error."""

Report = Callable[[str, Outcome], object]
"""Is called after each change, with the key and the outcome."""

Confirm = Callable[[Sequence[str]], bool]
"""Is called with the keys of all selected schedules before the first change. If it returns False,
nothing is changed."""


@dataclass(frozen=True, slots=True)
class ManyChanged:
    """What became of selected schedules.

    Attributes:
        changed: the keys of those that were changed; with ``dry_run``, that would be.
        marked: those of them whose task runs; they are changed when it has ended.
        skipped: why others were not changed, by key: somebody else has changed or deleted them
            after the selection was read.
        failed: why others could not be changed, by key: they are invalid.
        extra_runs: the extra run of each schedule that was triggered, by the schedule's key.
        backfills: what was done for each schedule that was backfilled, by the schedule's key.
        rescheduled: how each schedule that was skipped or edited runs before and after that, by the
            schedule's key; also with ``dry_run``.
    """

    changed: list[str] = field(default_factory=list)
    marked: set[str] = field(default_factory=set)
    skipped: dict[str, ScheduleError] = field(default_factory=dict)
    failed: dict[str, InvalidError] = field(default_factory=dict)
    extra_runs: dict[str, str] = field(default_factory=dict)
    backfills: dict[str, Backfill] = field(default_factory=dict)
    rescheduled: dict[str, Rescheduled] = field(default_factory=dict)

    def try_to_change(
        self, key: str, change: Callable[..., Outcome], *arguments: object
    ) -> Outcome:
        """Change a schedule by a call; note and return what became of it."""
        try:
            outcome = change(*arguments)
        except _CHANGED_MEANWHILE as error:
            self.skipped[key] = error
            return error
        except InvalidError as error:
            self.failed[key] = error
            return error
        self.changed.append(key)
        if isinstance(outcome, str):
            self.extra_runs[key] = outcome
        elif isinstance(outcome, Rescheduled):
            self.rescheduled[key] = outcome
        elif outcome is False:
            self.marked.add(key)
        return outcome


class Manner(NamedTuple):
    """How selected schedules are changed; see `psched.client.selected.SelectedSchedules.requeue`.

    Attributes:
        rate: the most changes in a time; None means no limit.
        dry_run: whether nothing is changed.
        report: is called after each change.
        confirm: is called before the first change.
    """

    rate: str | None
    dry_run: bool
    report: Report | None
    confirm: Confirm | None


def change_many(
    schedules: Schedules,
    wanted: Wanted,
    change: Callable[[str, Condition], Outcome],
    manner: Manner,
    *,
    clock: Clock,
    preview: Callable[[Row], Outcome] | None = None,
) -> ManyChanged:
    """Change the schedules that fulfil conditions."""
    pace, result = Pace(manner.rate, clock), ManyChanged()
    # All keys are read first, because the changes would change what is read next.
    rows = wanted.rows(schedules)
    if manner.dry_run:
        for row in rows:
            if preview is None:
                result.changed.append(row.key)
            else:
                result.try_to_change(row.key, preview, row)
        return result
    keys = [row.key for row in rows]
    if manner.confirm is not None and not manner.confirm(keys):
        return result
    for key in keys:
        pace.wait()
        outcome = result.try_to_change(key, change, key, wanted.has)
        if manner.report is not None:
            manner.report(key, outcome)
    return result


class Pace:
    """Limits how many changes are made in a time.

    Args:
        rate: the most changes in a time, such as ``"10/s"``; None means no limit.
        clock: measures the time, and sleeps.

    Raises:
        InvalidError: the rate is invalid.
    """

    def __init__(self, rate: str | None, clock: Clock) -> None:
        per_second = inf if rate is None else as_rate(rate)
        if per_second is None:
            raise InvalidError("rate", f"must be a number per time ({RATES}), not {rate!r}")
        self.pause = 1 / per_second
        self._clock = clock
        self._next = -inf

    def wait(self) -> None:
        """Wait until the next change may be made."""
        now = self._clock.monotonic()
        if self._next > now:
            self._clock.sleep(self._next - now)
        self._next = max(self._next, now) + self.pause
