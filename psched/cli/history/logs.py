"""The command logs, and the texts about outputs that the web shows, too."""

import codecs
import json
import sys
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import click

from psched.app import CLOCK, open_schedules
from psched.base.errors import NotFoundError
from psched.base.texts import visible
from psched.cli import options
from psched.cli.completion import complete_key
from psched.cli.exit_status import report_errors
from psched.cli.history.asked_output import AskedOutput, asked_for
from psched.cli.history.live_output import NO_ANSWER, PAUSE, SOON, Live
from psched.cli.other_database import settings_to_read
from psched.cli.output import one_line
from psched.cli.shown import result
from psched.cli.time_format import format_time, format_took, parse_time
from psched.core.history.records import Outcome
from psched.core.history.run import Run
from psched.core.output.output import Output
from psched.reports.redaction import Redaction


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
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(1, 10**9),
    help="Show the stored outputs of the last N attempts, without that of a running one.",
)
@click.option("-f", "--follow", is_flag=True, help="Show what a running task prints until it ends.")
@click.option(
    "--raw", is_flag=True, help="Write the bytes as they were printed, with all control characters."
)
@options.zone()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per attempt.")
@options.database
@click.pass_obj
@report_errors
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
                click.echo(json.dumps(self._object(output, run)))
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
            "text": self.redaction.text(output.text),
        }


# --- how outputs are written -----------------------------------------------------------------

_LONGEST_LINE = 2**16
"""If values are hidden, an incomplete line is held back, because a value ends with its line. A line
of so many characters is shown nevertheless."""


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
