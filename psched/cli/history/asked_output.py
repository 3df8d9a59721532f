"""Finds the output that the user of the command logs asks for."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from heapq import merge
from itertools import islice, takewhile

from psched.app import CLOCK, make_store
from psched.base.errors import NotFoundError, NotSupportedError
from psched.base.retry import retry_while_unavailable
from psched.cli.history.command import prospect
from psched.cli.history.live_output import PAUSE, SOON, Live, LiveElsewhere, State, find_live
from psched.cli.output import one_line
from psched.cli.shown import DUE, shown_status
from psched.cli.time_format import format_span, format_time
from psched.client.collection import ScheduleCollection
from psched.config import Config
from psched.core.definition import output_setting
from psched.core.history.records import SERVER_DIED, Outcome
from psched.core.history.run import Run
from psched.core.model import WAITING, Row
from psched.core.operations.extra_runs import prefix_of_extra_runs, schedule_of
from psched.core.output.output import Output
from psched.core.output.records import KEPT, RunningAttempt

_TRIES = 6  # how often the masters of this host are asked for a task that they do not run
START_WAIT = 60.0  # seconds for which somebody who follows a task that is due waits for its start

_DUE_SOON = 5.0
"""A task that is due within so many seconds counts as due for somebody who follows it."""

_EARLIER = 60
"""Records are stored in the order of their ends, except for differences up to so many seconds."""

_SENT = 7
"""How often a request of somebody who reads running output is sent while the store is unavailable:
for about 12 s."""

_NEWEST = 10
"""Among so many of the newest records is that of an attempt that was followed until now."""


PRINTED_NOTHING = "it has printed nothing"
"""Why there is no output of an attempt, if no setting and no fault is the reason."""


_EXTRA_RUNS = 5
"""The output of so many of the newest extra runs is looked for if the run history omits them."""


def asked_for(
    schedules: ScheduleCollection, key: str, time: int | None, *, follow: bool
) -> tuple[str, int | None, int | None]:
    """What somebody means who names a schedule: one of its own runs, or one of its extra runs.

    That is the key of the run, its scheduled time, and the number of its attempt; None for any.
    """
    if time is not None:
        return _run_at(schedules, key, time)
    now, extra = schedules.now(), _extra_rows(schedules, key)
    rows = [each for each in (_read(schedules, key), *extra) if each is not None]
    running = [row for row in rows if row.owner and (row.next_run_time or 0) > now]
    if running:
        return max(running, key=lambda row: row.claimed_at or 0).key, None, None
    if follow and (due := [row for row in extra if shown_status(row, now) == DUE]):
        return due[-1].key, None, None
    ends = list[tuple[float, str]]()
    with suppress(NotSupportedError):
        attempts = schedules.runs(key, outcome=[*Outcome], limit=1)
        ends += [(run.ended, run.key) for run in attempts]
    if extra:
        with suppress(NotSupportedError):
            for each in (key, *(row.key for row in extra[-_EXTRA_RUNS:])):
                ends += [(found.ended, each) for found in schedules.outputs(each, limit=1)]
    return max(ends, default=(0.0, key))[1], None, None


def _run_at(schedules: ScheduleCollection, key: str, time: int) -> tuple[str, int, int | None]:
    """The run with this scheduled time, or else the attempt that started in this second."""
    started = None
    with suppress(NotSupportedError):
        # The newest record is first, and no attempt ends before it starts.
        for run in takewhile(lambda run: run.ended >= time - _EARLIER, schedules.runs(key)):
            if run.scheduled_time == time:
                return run.key, time, None
            if started is None and run.started is not None and int(run.started) == time:
                started = run
    if started is None:
        return key, time, None
    return started.key, started.scheduled_time, started.attempt


def _extra_rows(schedules: ScheduleCollection, key: str) -> Sequence[Row]:
    """The rows of the extra runs of a schedule, in the order in which they were made."""
    found = schedules.list(prefix=prefix_of_extra_runs(key), order="key")
    return [each.row for each in found if schedule_of(each.key) == key]


def _read(schedules: ScheduleCollection, key: str) -> Row | None:
    try:
        return schedules.read(key).row
    except NotFoundError:
        return None


@dataclass(kw_only=True)
class AskedOutput:
    """Finds the output that the user asks for.

    Without an ``attempt`` or a scheduled ``time``, that is the newest one; without a ``limit``,
    it is that of one attempt.
    """

    schedules: ScheduleCollection
    settings: Config
    key: str
    attempt: int | None
    time: int | None
    limit: int | None
    _problems: list[str] = field(default_factory=list)

    def outputs(self) -> Iterator[Output]:
        """What is stored, the newest first; if several are wanted, also that of extra runs."""
        keys = {self.key: None}
        if self.limit is not None:
            runs = islice(self._runs(extra_runs=True), self.limit)
            keys |= dict.fromkeys(run.key for run in runs)
        found = (
            self.schedules.outputs(key, time=self.time, attempt=self.attempt, limit=self.limit)
            for key in keys
        )
        return merge(*found, key=lambda output: -output.ended)

    def live(self) -> Live | None:
        """The output of the running attempt; None if the attempt that is asked for does not run."""
        row = self._row()
        for _ in range(_TRIES):
            if row is None or not self._runs_now(row):
                return None
            live, masters, self._problems = find_live(self.settings, self.key)
            if live is not None:
                if not live.is_collected:
                    raise NotFoundError(f"{self._named(row)}: {self._why_not_kept(row, None)}")
                return live
            if not masters:
                break
            # It runs on another host, or its end will be stored soon.
            CLOCK.sleep(PAUSE)
            row = self._row()
        if row is None or not self._runs_now(row):
            return None
        return self._live_elsewhere(row)

    def wait_for_start(self, say: Callable[[str], None]) -> None:
        """Wait until the attempt that is due begins, if it is asked for."""
        row = self._row()
        if row is None or self.attempt is not None or not self._is_due(row):
            return
        say(f"{self.key}: due, waits for a worker")
        # The attempt can also end between two looks. Then the fence has grown.
        fence, until = row.fence, CLOCK.monotonic() + START_WAIT
        while row is not None and row.fence == fence and self._is_due(row):
            if CLOCK.monotonic() >= until:
                return
            CLOCK.sleep(PAUSE)
            row = self._row()

    def newest(self) -> Output:
        """The stored output of the newest attempt."""
        row = self._row()
        while True:
            run = self.run()
            output = next(self.outputs(), None)
            if row is not None and self._runs_now(row):
                if output is not None and output.record.owner == row.owner:
                    return output
                text = f"is running, and has no stored output yet; psched logs {self.key} shows it"
                raise NotFoundError(f"{self._named(row)} {text}")
            soon = run is not None and self.schedules.now() - run.ended <= SOON
            if output is not None and (run is None or _identity(output) == _identity(run)):
                # What was written while it ran is soon replaced, unless its worker was killed.
                if not (soon and output.is_live and run and run.outcome != Outcome.LOST):
                    return output
            elif output is not None and run is not None and output.ended > run.ended:
                return output  # the setting history omits the run
            elif not soon:
                raise NotFoundError(self._why_none(row, run, output))
            CLOCK.sleep(PAUSE)

    def run(self) -> Run | None:
        """The record of the newest attempt; None if there is none."""
        for run in self._runs():
            if self.time in (None, run.scheduled_time) and self.attempt in (None, run.attempt):
                return run
        return None

    def runs_of(self, outputs: Iterable[Output]) -> Mapping[Output, Run]:
        """The records of the attempts that have printed these outputs; some may be missing."""
        missing = {_identity(output): output for output in outputs if not self.is_running(output)}
        found = dict[Output, Run]()
        for run in self._runs(extra_runs=True) if missing else ():
            if (output := missing.pop(_identity(run), None)) is not None:
                found[output] = run
            if not missing:
                break
        return found

    def run_of(self, attempt: RunningAttempt) -> Run | None:
        """The record of an attempt that was followed; None if it is not written yet."""
        newest = islice(self._runs(), _NEWEST)
        return next((run for run in newest if run.record.owner == attempt.owner), None)

    def is_running(self, output: Output) -> bool:
        """Whether an output is that of an attempt which is running now."""
        if not output.is_live:
            return False
        row = self._row()
        return row is not None and row.owner == output.record.owner and self._runs_now(row)

    def _live_elsewhere(self, row: Row) -> Live:
        """The output of an attempt that no master of this host runs, or none that can be asked."""
        where = f"{self._named(row)} is running on another host"
        if self._problems:
            problems = "; ".join(self._problems)
            where = f"{self._named(row)} is running, but its output cannot be read here: {problems}"
        if (setting := output_setting(row, self.settings)) not in KEPT:
            text = f"{where}; {_by_setting(setting)}"
            if setting == "service":
                text += "; psched logs shows it on the host that runs the task"
            raise NotFoundError(text)
        attempt = RunningAttempt(
            key=row.key,
            scheduled_time=row.next_time or 0,
            owner=row.owner or "",
            attempt=row.attempt,
        )
        return LiveElsewhere(
            make_store(self.settings),
            attempt,
            send=partial(retry_while_unavailable, clock=CLOCK, tries=_SENT),
            state=partial(self._state, attempt),
            where=where,
            clock=CLOCK,
        )

    def _state(self, attempt: RunningAttempt) -> State:
        """What the store says about an attempt that has been running."""
        row = self._row()
        if row is not None and row.owner == attempt.owner:
            has_lease = (row.next_run_time or 0) > self.schedules.now()
            return State.RUNNING if has_lease else State.LOST
        run = self.run_of(attempt)
        return State.LOST if run and run.outcome == Outcome.LOST else State.ENDED

    def _runs(self, *, extra_runs: bool = False) -> Iterator[Run]:
        """The attempts that are recorded, the newest first; none if there is no run history."""
        with suppress(NotSupportedError):
            runs = self.schedules.runs(self.key, extra_runs=extra_runs)
            yield from (run for run in runs if run.outcome is not None)

    def _runs_now(self, row: Row) -> bool:
        """Whether an attempt is running, and is the one that the user asks for."""
        if row.owner is None or (row.next_run_time or 0) <= self.schedules.now():
            return False
        return self.time in (None, row.next_time) and self.attempt in (None, row.attempt)

    def _is_due(self, row: Row) -> bool:
        """Whether an attempt that the user asks for can begin now or very soon."""
        if row.owner is not None or row.status != WAITING or row.next_run_time is None:
            return False
        is_asked_for = self.time in (None, row.next_time)
        return is_asked_for and row.next_run_time <= self.schedules.now() + _DUE_SOON

    def _row(self) -> Row | None:
        return _read(self.schedules, self.key)

    def _named(self, about: Row | Run | Output) -> str:
        when = about.next_time if isinstance(about, Row) else about.scheduled_time
        time = format_time(when or 0)
        return f"{self.key}: attempt {about.attempt} of {time}"

    def _asked(self) -> str:
        """What the options select, if there are any."""
        attempt = "the occurrence" if self.attempt is None else f"attempt {self.attempt}"
        if self.time is None:
            return attempt
        return f"{attempt} of {format_time(self.time)}"

    def _why_none(self, row: Row | None, run: Run | None, other: Output | None) -> str:
        if run is None:
            return self._why_no_run(row)
        text = f"{self._named(run)}: {self._why_not_kept(row, run)}"
        if other is not None:
            time = format_time(other.scheduled_time)
            text += f"; older output: --time {time!r} --attempt {other.attempt}"
        return text

    def _why_no_run(self, row: Row | None) -> str:
        if self.time is not None or self.attempt is not None:
            history = f"psched history {self.key} shows the attempts"
            return f"{self.key}: no output of {self._asked()} is kept; {history}"
        if row is None:
            return f"no schedule has the key {self.key!r}, and no output of one is kept"
        if (setting := output_setting(row, self.settings)) not in KEPT:
            return f"{self.key}: {_by_setting(setting)}"
        if self.settings.history != "all":
            return f"{self.key}: no output is kept"
        # Only a lease raises the fence: of a worker of an older version, or long ago.
        why = "no output of it is kept" if row.fence else "it has not run yet"
        return f"{self.key}: {why}; {prospect(row, self.schedules.now())}"

    def _why_not_kept(self, row: Row | None, run: Run | None) -> str:
        return why_not_kept(row, run, self.settings, self.schedules.now())


def why_not_kept(row: Row | None, run: Run | None, settings: Config, now: float) -> str:
    """Why there is no output of an attempt."""
    setting = settings.output
    if row is not None:
        setting = output_setting(row, settings)
    elif run is not None:
        setting = settings.types.get(run.type, {}).get("output", setting)
    if setting not in KEPT:
        return _by_setting(setting)
    if run is not None and run.outcome == Outcome.LOST and run.reason != SERVER_DIED:
        return _lost(run, setting)
    keep = settings.output_keep
    if run is not None and keep and now - run.ended > keep:
        return f"its output was deleted, because output_keep is {format_span(int(keep))}"
    return PRINTED_NOTHING


def _by_setting(setting: str) -> str:
    return f"its output is not kept, because the setting output is {setting}"


def _lost(run: Run, setting: str) -> str:
    text = f"its output is lost, because {one_line(run.reason) or 'nobody has seen its end'}"
    if setting == "both":
        where = "" if run.host is None else f" on {one_line(run.host)}"
        text += f"; the lines that it had printed are in the output of the service{where}"
    return text


def _identity(of: Output | Run) -> tuple[int, str | None]:
    """What an attempt of a key has for itself, in its output and in its record."""
    return of.record.scheduled_time, of.record.owner
