"""The command logs, and the texts about outputs that the web shows, too."""

import codecs
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from heapq import merge
from itertools import islice, takewhile
from typing import Any

import click

from psched.app import CLOCK, make_store, open_schedules
from psched.base.errors import NotFoundError, NotSupportedError
from psched.base.texts import visible
from psched.cli import options
from psched.cli.completion import complete_key
from psched.cli.history.command import prospect
from psched.cli.history.live_output import (
    NO_ANSWER,
    PAUSE,
    SOON,
    Live,
    LiveElsewhere,
    State,
    find_live,
)
from psched.cli.opening import settings_to_read
from psched.cli.output import one_line
from psched.cli.shown import DUE, result, shown_status
from psched.cli.time_format import format_span, format_time, format_took, parse_time
from psched.client.access import retry_while_unavailable
from psched.client.collection import ScheduleCollection
from psched.config import Config
from psched.core.definition import output_setting
from psched.core.history.records import SERVER_DIED, Outcome
from psched.core.history.run import Run
from psched.core.model import WAITING, Row
from psched.core.operations.extra_runs import prefix_of_extra_runs, schedule_of
from psched.core.output import KEPT, Output, RunningAttempt
from psched.reports.redaction import Redaction

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


@click.command()
@click.argument("key", shell_complete=complete_key)
@click.option(
    "--attempt",
    metavar="N",
    type=click.IntRange(1, 10**9),
    help="Show the output of attempt N; without --time, of the newest occurrence.",
)
@click.option(
    "--time",
    metavar="TIME",
    help="Show the output of the run with this scheduled time, or with this start; psched history"
    " KEY shows the times.",
)
@options.limit("Show the stored outputs of the last N attempts, without that of a running one.")
@click.option("-f", "--follow", is_flag=True, help="Show what a running task prints until it ends.")
@click.option(
    "--raw", is_flag=True, help="Write the bytes as they were printed, with all control characters."
)
@options.zone()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per attempt.")
@options.database
@click.pass_obj
def logs(
    location: options.ConfigLocation,
    key: str,
    *,
    attempt: int | None,
    time: str | None,
    limit: int | None,
    follow: bool,
    raw: bool,
    as_json: bool,
) -> None:
    """Show what a task printed, or what it prints now.

    KEY is the key of a schedule or task, which may have been deleted since. Without options, the
    output of the newest attempt is shown, also of an extra run (psched trigger, psched backfill):
    the end of its standard output and standard error, and of those of all programs that it has
    started. If the attempt is running, this is what it has printed so far; with -f, what it prints
    until it ends. If it runs on another host, the output comes through the store, a few seconds
    later.

    If the task is due, -f waits up to 60 s for its start. The exit status of -f is 0 also if the
    attempt fails.

    A line on standard error says which attempt it is. Control characters are shown as escapes,
    except with --raw. If there is no output, the exit status is 1, and a line says why.

    A TIME is yesterday 02:30, 02:30, 2026-01-31T09:00 or Unix seconds, in the zone of the times
    that are shown.
    """
    if as_json and (follow or raw):
        raise click.UsageError("--follow and --raw write text; leave out --json")
    if limit is not None and (follow or attempt is not None):
        raise click.UsageError("--limit selects several attempts; leave out --follow, --attempt")
    settings = settings_to_read(location)
    redaction = Redaction(() if raw else settings.redact)
    with open_schedules(settings) as schedules:
        wanted = parse_time("time", time, schedules.now(), is_next=False)
        if limit is None:
            key, wanted, started = asked_for(schedules, key, wanted, follow=follow)
            attempt = attempt or started
        asked = AskedOutput(
            schedules=schedules,
            settings=settings,
            key=key,
            attempt=attempt,
            time=wanted,
            limit=limit,
        )
        shown = _Shown(redaction=redaction, raw=raw, as_json=as_json)
        if limit is not None:
            shown.outputs(asked, [*islice(asked.outputs(), limit)][::-1] or [asked.newest()])
            return
        if follow:
            asked.wait_for_start(partial(click.echo, err=True))
        live = asked.live()
        if live is None:
            shown.outputs(asked, [asked.newest()])
        elif follow:
            shown.follow(asked, live)
        elif (so_far := live.so_far()) is not None:
            shown.outputs(asked, [so_far], running=so_far.is_live)
        elif live.over == NO_ANSWER:
            raise NotFoundError(live.why_over())
        else:
            shown.outputs(asked, [asked.newest()])


# --- which output is asked for ---------------------------------------------------------------


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


# --- how outputs are shown -------------------------------------------------------------------

_LONGEST_LINE = 2**16
"""If values are hidden, an incomplete line is held back, because a value ends with its line. A line
of so many characters is shown nevertheless."""


@dataclass(frozen=True, kw_only=True)
class _Shown:
    """Shows outputs as the user wants them: as text, as the bytes that they are, or as JSON."""

    redaction: Redaction
    raw: bool
    as_json: bool

    def outputs(self, asked: AskedOutput, outputs: list[Output], *, running: bool = False) -> None:
        """Show outputs; ``running`` says that they are those of attempts that run now."""
        runs = {} if running else asked.runs_of(outputs)
        for output in outputs:
            run = runs.get(output)
            if self.as_json:
                click.echo(json.dumps(output_object(output, run, self.redaction)))
                continue
            is_running = running or asked.is_running(output)
            click.echo(_heading(output, run, is_running=is_running), err=True)
            printer = OutputPrinter(self.redaction, raw=self.raw)
            printer.write(output.record.output)
            printer.end()

    def follow(self, asked: AskedOutput, live: Live) -> None:
        """Show what a running attempt prints until it has ended."""
        click.echo(_heading(live.output(b"", 0), None, is_running=True), err=True)
        printer = OutputPrinter(self.redaction, raw=self.raw)
        for dropped, chunk in live.pieces():
            if dropped != 0:
                printer.end()
                click.echo(_left_out(dropped), err=True)
            printer.write(chunk)
        printer.end()
        if live.over != "ended":
            raise NotFoundError(live.why_over())
        click.echo(self._end(asked, live), err=True)

    @staticmethod
    def _end(asked: AskedOutput, live: Live) -> str:
        """How the attempt has ended, if its record is stored soon."""
        for _ in range(int(SOON / PAUSE)):
            if (run := asked.run_of(live.attempt)) is not None:
                took = format_took(run.took)
                return f"attempt {run.attempt}: {result(run)}" + (f" after {took}" if took else "")
            CLOCK.sleep(PAUSE)
        return "the attempt has ended"


def output_object(output: Output, run: Run | None, redaction: Redaction) -> dict[str, Any]:
    """The output of an attempt as a JSON object."""
    return {
        "key": output.key,
        "scheduled_time": output.scheduled_time,
        "attempt": output.attempt,
        "is_live": output.is_live,
        "ended": None if output.is_live else output.ended,
        "outcome": None if run is None else run.outcome,
        "fate": None if run is None else run.fate,
        "dropped": output.dropped,
        "text": redaction.text(output.text),
    }


def _heading(output: Output, run: Run | None, *, is_running: bool = False) -> str:
    return f"==> {about_output(output, run, is_running=is_running)} <=="


def about_output(output: Output, run: Run | None, *, is_running: bool = False) -> str:
    """Say which attempt has printed an output, how it has ended, and what is missing."""
    when = format_time(output.scheduled_time)
    parts = [f"{one_line(output.key)}, attempt {output.attempt} of {when}"]
    if is_running:
        parts.append("running")
    elif output.is_live:
        if run is not None:
            parts.append(result(run))
        written = f"written {format_time(int(output.ended))}"
        is_lost = run is not None and run.outcome == Outcome.LOST
        when = "before its worker was lost" if is_lost else "while it ran"
        parts.append(f"{written} {when}; what followed is not known")
    else:
        ended = f"ended {format_time(int(output.ended))}"
        parts.append(ended if run is None else f"{result(run)}, {ended}")
        if run is not None and run.took is not None:
            parts.append(f"took {format_took(run.took)}")
    if output.dropped != 0:
        parts.append(_left_out(output.dropped))
    return "; ".join(parts)


def _left_out(dropped: int | None) -> str:
    """A text about bytes that are missing."""
    if dropped is None:
        return "output is lost here"
    return f"{dropped:,} bytes before this are left out"


class OutputPrinter:
    """Writes captured output to standard output, piece by piece.

    If it is ``raw``, the bytes are written unchanged, else as text with visible control characters.
    """

    def __init__(self, redaction: Redaction, *, raw: bool) -> None:
        self._redaction = redaction
        self._raw = raw
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._in_line = False

    def write(self, piece: bytes) -> None:
        """Write the next bytes."""
        if not piece:
            return
        if sys.stdout is None:
            return  # standard output is closed
        if self._raw:
            sys.stdout.flush()
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
            return
        self._write(self._decoder.decode(piece))

    def end(self) -> None:
        """Write what was held back, and end the line."""
        if self._raw:
            return
        self._write(self._decoder.decode(b"", final=True), last=True)
        if self._in_line:
            self._in_line = False
            click.echo()

    def _write(self, text: str, *, last: bool = False) -> None:
        if self._redaction:
            text = self._held + text
            end = len(text) if last or len(text) > _LONGEST_LINE else text.rfind("\n") + 1
            text, self._held = text[:end], text[end:]
            text = self._redaction.text(text)
        if text:
            self._in_line = not text.endswith("\n")
            click.echo(visible(text, lines=True), nl=False)
            sys.stdout.flush()
