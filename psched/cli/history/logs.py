"""The command logs."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from itertools import islice
from typing import Any

import click

from psched.app import CLOCK, open_schedules
from psched.base.errors import NotFoundError, NotSupportedError
from psched.cli import options
from psched.cli.completion import complete_key
from psched.cli.exit_status import report_errors
from psched.cli.history.command import prospect
from psched.cli.history.live_output import Live, find_live
from psched.cli.history.output_text import OutputPrinter, heading, left_out
from psched.cli.history.run_text import result
from psched.cli.options import ConfigLocation
from psched.cli.other_database import settings_to_read
from psched.cli.output import one_line
from psched.cli.time_format import format_exactly, format_span, format_took, parse_instant
from psched.client.collection import ScheduleCollection
from psched.config import Config
from psched.core.definition import output_setting
from psched.core.history.records import SERVER_DIED, Outcome
from psched.core.history.redaction import Redaction
from psched.core.history.run import Run
from psched.core.model import Row
from psched.core.output.output import Output
from psched.core.output.records import KEPT

_SOON = 3.0
"""Seconds after its end within which the output and the record of an attempt are stored."""

_TRIES = 6
"""How often the masters of this host are asked for a task that they do not run."""

_PAUSE = 0.2
"""Seconds between two looks for what will be stored soon."""


@click.command()
@click.argument("key", shell_complete=complete_key)
@click.option(
    "--attempt", metavar="N", type=click.IntRange(1, 10**9), help="That of the Nth attempt."
)
@click.option(
    "--time",
    metavar="TIME",
    help="That of the occurrence with this scheduled time; psched history KEY shows the times.",
)
@click.option(
    "--limit", metavar="N", type=click.IntRange(1, 10**9), help="Those of the last N attempts."
)
@click.option("-f", "--follow", is_flag=True, help="Show what a running task prints until it ends.")
@click.option(
    "--raw", is_flag=True, help="The bytes as they were printed, with all control characters."
)
@click.option("--utc", is_flag=True, help="Show times in UTC instead of your time zone.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per attempt.")
@options.database
@click.pass_obj
@report_errors
def logs(
    location: ConfigLocation,
    key: str,
    *,
    attempt: int | None,
    time: str | None,
    limit: int | None,
    follow: bool,
    raw: bool,
    utc: bool,
    as_json: bool,
) -> None:
    """Show what a task printed, or what it prints now.

    KEY is the key of a schedule or task, which may have been deleted since. Without options, the
    output of the newest attempt is shown: the end of its standard output and standard error, and of
    those of all programs that it has started. If the attempt is running on this host, this is what
    it has printed so far; with -f, what it prints until it ends.

    A line on standard error says which attempt it is. Control characters are shown as escapes,
    except with --raw. If there is no output, the exit status is 1, and a line says why.

    A TIME is ISO 8601, such as 2026-01-31T09:00, or Unix seconds; without an offset, it is in your
    time zone.
    """
    if as_json and (follow or raw):
        raise click.UsageError("--follow and --raw write text; leave out --json")
    if limit is not None and (follow or attempt is not None):
        raise click.UsageError("--limit selects several attempts; leave out --follow, --attempt")
    settings = settings_to_read(location)
    redaction = Redaction(() if raw else settings.redact)
    with open_schedules(settings) as schedules:
        asked = _Asked(
            schedules,
            settings,
            key,
            attempt=attempt,
            time=None if time is None else parse_instant("--time", time, utc=utc),
            limit=limit,
            utc=utc,
        )
        shown = _Shown(redaction, raw=raw, utc=utc, as_json=as_json)
        if limit is not None:
            shown.outputs(asked, [*islice(asked.outputs(), limit)][::-1] or [asked.newest()])
            return
        live = asked.live()
        if live is None:
            shown.outputs(asked, [asked.newest()])
        elif follow:
            shown.follow(asked, live)
        else:
            shown.outputs(asked, [live.so_far()])


class _Asked:
    """Finds the output that the user asks for.

    Args:
        schedules: the schedules.
        settings: the settings of this command.
        key: the key.
        attempt: the number of the attempt; None means the newest one.
        time: the scheduled time; None means the newest occurrence.
        limit: how many attempts are wanted; None means one.
        utc: whether times in messages are in UTC.
    """

    def __init__(
        self,
        schedules: ScheduleCollection,
        settings: Config,
        key: str,
        *,
        attempt: int | None,
        time: int | datetime | None,
        limit: int | None,
        utc: bool,
    ) -> None:
        self._schedules = schedules
        self._settings = settings
        self._key = key
        self._attempt = attempt
        self._limit = limit
        self._utc = utc
        self._time = int(time.timestamp()) if isinstance(time, datetime) else time
        self._problems: list[str] = []

    def outputs(self) -> Iterator[Output]:
        """What is stored, the newest first."""
        return self._schedules.outputs(
            self._key, time=self._time, attempt=self._attempt, limit=self._limit
        )

    def live(self) -> Live | None:
        """The connection to the running attempt; None if it does not run, or cannot be reached.

        Raises:
            NotFoundError: it runs, but is not read from here.
        """
        for _ in range(_TRIES):
            row = self._row()
            if row is None or not self._runs_now(row):
                return None
            live, masters, self._problems = find_live(self._settings, self._key)
            if live is not None:
                if not live.is_collected:
                    raise NotFoundError(f"{self._named(row)}: {self._not_kept(row, None)}")
                return live
            if not masters:
                return None
            # It runs on another host, or its end will be stored soon.
            CLOCK.sleep(_PAUSE)
        return None

    def newest(self) -> Output:
        """The stored output of the newest attempt.

        Raises:
            NotFoundError: there is none; the text says why.
        """
        row = self._row()
        while True:
            run = self.run()
            output = next(self.outputs(), None)
            if row is not None and self._runs_now(row):
                if output is not None and output.record.owner == row.owner:
                    return output
                raise NotFoundError(f"{self._named(row)} is running{self._elsewhere()}")
            if output is not None and (run is None or _identity(output) == _identity(run)):
                return output
            if output is not None and run is not None and output.ended > run.ended:
                return output  # the setting history omits the run
            if run is None or self._schedules.now() - run.ended > _SOON:
                raise NotFoundError(self._why_none(row, run, output))
            CLOCK.sleep(_PAUSE)

    def run(self) -> Run | None:
        """The record of the newest attempt; None if there is none."""
        for run in self._runs():
            if self._time in (None, run.scheduled_time) and self._attempt in (None, run.attempt):
                return run
        return None

    def runs_of(self, outputs: Iterable[Output]) -> Mapping[Output, Run]:
        """The records of the attempts that have printed these outputs; some may be missing."""
        missing = {_identity(output): output for output in outputs if not output.is_live}
        found = dict[Output, Run]()
        for run in self._runs() if missing else ():
            if (output := missing.pop(_identity(run), None)) is not None:
                found[output] = run
            if not missing:
                break
        return found

    def run_of(self, live: Live) -> Run | None:
        """The record of an attempt that was followed; None if it is not written yet."""
        newest = next(self._runs(), None)
        return newest if newest and newest.record.owner == live.owner else None

    def _runs(self) -> Iterator[Run]:
        """The attempts that are recorded, the newest first; none if there is no run history."""
        with suppress(NotSupportedError):
            yield from (run for run in self._schedules.runs(self._key) if run.outcome is not None)

    def _runs_now(self, row: Row) -> bool:
        """Whether an attempt is running, and is the one that the user asks for."""
        if row.owner is None or (row.next_run_time or 0) <= self._schedules.now():
            return False
        return self._time in (None, row.next_time) and self._attempt in (None, row.attempt)

    def _row(self) -> Row | None:
        try:
            return self._schedules.read(self._key).row
        except NotFoundError:
            return None

    def _named(self, about: Row | Run | Output) -> str:
        when = about.next_time if isinstance(about, Row) else about.scheduled_time
        time = format_exactly(when or 0, local=not self._utc)
        return f"{self._key}: attempt {about.attempt} of {time}"

    def _elsewhere(self) -> str:
        if self._problems:
            return f", but its output cannot be read: {'; '.join(self._problems)}"
        return (
            " on another host; psched logs shows its output on that host now, and everywhere when"
            " it has ended"
        )

    def _why_none(self, row: Row | None, run: Run | None, other: Output | None) -> str:
        if run is None:
            return self._why_no_run(row)
        text = f"{self._named(run)}: {self._not_kept(row, run)}"
        if other is not None:
            time = format_exactly(other.scheduled_time, local=not self._utc)
            text += f"; older output: --time {time} --attempt {other.attempt}"
        return text

    def _why_no_run(self, row: Row | None) -> str:
        if self._time is not None or self._attempt is not None:
            return f"{self._key}: no output of such an attempt is kept; see psched history"
        if row is None:
            return f"no schedule has the key {self._key!r}, and no output of one is kept"
        if (setting := output_setting(row, self._settings)) not in KEPT:
            return f"{self._key}: {_by_setting(setting)}"
        if self._settings.history != "all":
            return f"{self._key}: no output is kept"
        return f"{self._key}: it has not run yet; {prospect(row, self._schedules.now())}"

    def _not_kept(self, row: Row | None, run: Run | None) -> str:
        """Why there is no output of an attempt."""
        setting = self._settings.output
        if row is not None:
            setting = output_setting(row, self._settings)
        elif run is not None:
            setting = self._settings.types.get(run.type, {}).get("output", setting)
        if setting not in KEPT:
            return _by_setting(setting)
        if run is not None and run.outcome == Outcome.LOST and run.reason != SERVER_DIED:
            return _lost(run, setting)
        keep = self._settings.output_keep
        if run is not None and keep and self._schedules.now() - run.ended > keep:
            return f"its output was deleted, because output_keep is {format_span(int(keep))}"
        return "it has printed nothing"


class _Shown:
    """Shows outputs as the user wants them.

    Args:
        redaction: hides the values of fields.
        raw: whether the bytes are written unchanged.
        utc: whether times are in UTC.
        as_json: whether JSON objects are written.
    """

    def __init__(self, redaction: Redaction, *, raw: bool, utc: bool, as_json: bool) -> None:
        self._redaction = redaction
        self._raw = raw
        self._utc = utc
        self._as_json = as_json

    def outputs(self, asked: _Asked, outputs: list[Output]) -> None:
        """Show outputs."""
        runs = asked.runs_of(outputs)
        for output in outputs:
            run = runs.get(output)
            if self._as_json:
                click.echo(json.dumps(self._object(output, run)))
                continue
            click.echo(heading(output, run, utc=self._utc), err=True)
            printer = OutputPrinter(self._redaction, raw=self._raw)
            printer.write(output.record.output)
            printer.end()

    def follow(self, asked: _Asked, live: Live) -> None:
        """Show what a running attempt prints until it has ended.

        Raises:
            NotFoundError: the rest of its output cannot be shown.
        """
        click.echo(heading(live.output(b"", 0), None, utc=self._utc), err=True)
        printer = OutputPrinter(self._redaction, raw=self._raw)
        for dropped, chunk in live.pieces():
            if dropped != 0:
                printer.end()
                click.echo(left_out(dropped), err=True)
            printer.write(chunk)
        printer.end()
        if live.over != "ended":
            raise NotFoundError(live.why_over())
        click.echo(self._end(asked, live), err=True)

    @staticmethod
    def _end(asked: _Asked, live: Live) -> str:
        """How the attempt has ended, if its record is stored soon."""
        for _ in range(int(_SOON / _PAUSE)):
            if (run := asked.run_of(live)) is not None:
                took = format_took(run.took)
                return f"attempt {run.attempt}: {result(run)}" + (f" after {took}" if took else "")
            CLOCK.sleep(_PAUSE)
        return "the attempt has ended"

    def _object(self, output: Output, run: Run | None) -> dict[str, Any]:
        return {
            "key": output.key,
            "scheduled_time": output.scheduled_time,
            "attempt": output.attempt,
            "is_live": output.is_live,
            "ended": None if output.is_live else output.ended,
            "outcome": None if run is None else run.outcome,
            "fate": None if run is None else run.fate,
            "dropped": output.dropped,
            "text": self._redaction.text(output.text),
        }


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
