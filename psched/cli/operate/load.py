"""The command load: when the coming runs are most, and how to spread them."""

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import click

from psched.app import open_schedules
from psched.base.errors import InvalidError, NotSupportedError, SchemaError
from psched.base.quantities import DURATIONS, format_duration
from psched.base.texts import counted
from psched.cli import options
from psched.cli.opening import settings_to_read
from psched.cli.output import one_line
from psched.cli.text_table import Column, View, print_table
from psched.cli.time_format import format_time, short_time
from psched.client.collection import ScheduleCollection
from psched.config import Config
from psched.core.model import Row
from psched.core.operations.extra_runs import schedule_key
from psched.reports.load import (
    ASSUMED,
    LONGEST,
    Coming,
    Load,
    Worst,
    coming_of,
    estimate,
    has_past,
    slots_needed,
)
from psched.reports.redaction import Redaction
from psched.reports.spreading import Proposal, propose

_MOST_SCHEDULES = 200_000  # the most schedules that are read
_SHOWN = 20  # the most changes of a proposal that are shown with the load

_MOST_PROBLEMS = 3

_PER = {"minute": 60, "hour": 3600}


@dataclass(frozen=True, slots=True)
class _Read:
    """What was read from the store: the schedules that run in the period, and what is broken.

    ``slots`` is how many tasks the live workers can run at the same time, None if it is not known;
    ``no_history`` is why no durations are known.
    """

    schedules: Sequence[Coming]
    broken: Sequence[tuple[str, str]]
    slots: int | None
    all_read: bool
    no_history: str | None


@click.command("load")
@options.lasting(
    "--next",
    "period",
    whole=True,
    least=60,
    default="24h",
    help=f"The period from now on ({DURATIONS}), at most 31 days. Default: 24h.",
)
@click.option(
    "--per",
    type=click.Choice([*_PER]),
    default="minute",
    help="The intervals that are compared. Default: minute.",
)
@click.option("--commands", is_flag=True, help="Print only the proposed commands, all of them.")
@click.option(
    "--yaml", "as_yaml", is_flag=True, help="Print only the proposed lines for psched apply."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@options.zone()
@options.database
@click.pass_obj
def load_(
    location: options.ConfigLocation,
    *,
    period: int,
    per: str,
    commands: bool,
    as_yaml: bool,
    as_json: bool,
) -> None:
    """Show when most runs come, and how to spread them.

    Each run counts for as long as the runs of its schedule usually take: the median of the last 20.
    The result is an estimate. It says how many slots are needed so that no run waits, in which
    minutes, and which schedules run then.

    A proposal moves schedules so that the peak becomes lower: those that run every hour, or more
    often, at fixed minutes, and those of every whose times are aligned. It never moves a schedule
    with a time of day, or with a jitter. Nothing is changed: --commands prints commands for a
    shell, and --yaml lines for the files of psched apply.
    """
    if period > LONGEST:
        raise click.UsageError("--next is at most 31d")
    if sum((commands, as_yaml, as_json)) > 1:
        raise click.UsageError("give one of --commands, --yaml and --json")
    settings = settings_to_read(location)
    with open_schedules(settings) as schedules:
        start = int(schedules.now())
        read = _read(schedules, settings, start, start + period)
    found, runs = estimate(read.schedules, start, start + period, per=_PER[per])
    proposal = propose(read.schedules, found, runs)
    if commands:
        for move in proposal.moves:
            click.echo(_command(move.key, move.after))
    elif as_yaml:
        for move in proposal.moves:
            click.echo(_yaml(move.key, move.after))
    elif as_json:
        click.echo(json.dumps(_object(read, found, proposal)))
    else:
        _show(read, found, proposal, per, Redaction(settings.redact))


def _read(schedules: ScheduleCollection, settings: Config, start: int, end: int) -> _Read:
    rows = list[Row]()
    all_read = True
    shown = schedules.shown_as_paused()
    for each in schedules.list():
        row = each.row
        # The rows are read in the order of their times, and those without one are last.
        if row.next_run_time is None or row.next_run_time >= end:
            break
        if len(rows) == _MOST_SCHEDULES:
            all_read = False
            break
        row = shown(row)
        runs = row.next_run_time is not None and row.next_run_time < end  # else it is paused
        if runs:
            rows.append(row)
    took: dict[str, float] = {}
    slots, no_history = None, None
    try:
        keys = [schedule_key(row.key) for row in rows if has_past(row)]
        durations = schedules.durations([*dict.fromkeys(keys)])
        took = {key: median(found) / 1000 for key, found in durations.items()}
        slots = sum(worker.slots for worker in schedules.live_workers())
    except (NotSupportedError, SchemaError) as error:
        no_history = str(error)
    made, broken = list[Coming](), list[tuple[str, str]]()
    for row in rows:
        try:
            made.append(coming_of(row, settings, start, took.get(schedule_key(row.key))))
        except InvalidError as error:
            broken.append((row.key, str(error)))
    return _Read(made, broken, slots, all_read, no_history)


# --- what is shown ---------------------------------------------------------------------------


def _show(read: _Read, load: Load, proposal: Proposal, per: str, redaction: Redaction) -> None:
    begin, end = (format_time(each) for each in (load.start, load.end))
    click.echo(
        f"{begin} to {end}: {counted(round(load.runs), 'run')} of"
        f" {counted(load.schedules, 'schedule')}"
    )
    for line in _remarks(read, load, redaction):
        click.echo(line)
    if not load.slots:
        return
    click.echo(_need(load, read.slots))
    click.echo()
    when: Column[Worst] = Column(
        per.upper(), lambda worst, view: short_time(worst.interval.start, view.now), is_time=True
    )
    print_table((when, *_COLUMNS), load.worst, View(load.start, redaction))
    click.echo()
    for line in _proposal(proposal, load):
        click.echo(line)


def _need(load: Load, slots: int | None) -> str:
    text = f"at the peak, {counted(load.slots_needed, 'slot')} would be occupied"
    if slots is None:
        return text
    if not slots:
        return f"{text}; no worker is known to be alive"
    wait = ", so runs will wait then" if load.slots_needed > slots else ""
    return f"{text}; the live workers have {slots}{wait}"


def _remarks(read: _Read, load: Load, redaction: Redaction) -> Iterator[str]:
    if read.no_history is not None:
        yield f"no durations are known, because there is no run history: {read.no_history}"
    elif load.unknown or load.guessed:
        parts = []
        if load.guessed:
            parts.append(f"{counted(load.guessed, 'schedule')} by the others of their type")
        if load.unknown:
            parts.append(f"{counted(load.unknown, 'schedule')} by {ASSUMED:g} s per run")
        yield f"without a past run, and estimated: {', '.join(parts)}"
    if not read.all_read:
        yield f"only the first {_MOST_SCHEDULES} schedules were read"
    if load.thinned:
        yield f"so frequent that their runs are averaged: {counted(len(load.thinned), 'schedule')}"
    if load.crowded:
        named = ", ".join(map(one_line, load.crowded[:_MOST_PROBLEMS]))
        yield f"runs take longer than the time until the next one: {_more(named, load.crowded)}"
    problems = [*read.broken, *load.broken.items()]
    for key, why in problems[:_MOST_PROBLEMS]:
        yield f"left out: {one_line(key)}: {one_line(redaction.text(why))}"
    if more := problems[_MOST_PROBLEMS:]:
        yield f"left out: {len(more)} more"


def _more(named: str, everything: Sequence[str]) -> str:
    more = len(everything) - _MOST_PROBLEMS
    return f"{named} and {more} more" if more > 0 else named


def _causes(worst: Worst, _view: View) -> str:
    named = (f"{one_line(each.key)} {format_duration(each.took)}" for each in worst.causes)
    number = len(worst.causes) + worst.more
    return f"{counted(number, 'schedule')}: {', '.join(named)}{', …' if worst.more else ''}"


_COLUMNS: Sequence[Column[Worst]] = (
    Column("RUNS", lambda worst, _: f"{worst.interval.runs:.0f}"),
    Column("SLOTS", lambda worst, _: str(slots_needed(worst.interval.slots))),
    Column("BUSY", lambda worst, _: format_duration(worst.interval.busy)),
    Column("WHO", _causes),
)


def _proposal(proposal: Proposal, load: Load) -> Iterator[str]:
    if not proposal.moves:
        if proposal.movable:
            yield f"no better times were found for the {proposal.movable} that could be moved"
        else:
            yield "no schedule could be moved: those with a time of day, or a jitter, stay"
        return
    yield (
        f"if {counted(len(proposal.moves), 'schedule')} were moved, the peak would be"
        f" {counted(slots_needed(proposal.slots), 'slot')} instead of {load.slots_needed}:"
    )
    for move in proposal.moves[:_SHOWN]:
        yield f"    {_command(move.key, move.after)}"
    if more := proposal.moves[_SHOWN:]:
        yield f"    and {len(more)} more; --commands prints all"
    if not proposal.complete:
        yield "the search took too long for all schedules; more may be possible"


def _command(key: str, trigger: str) -> str:
    words = [] if not key.startswith("-") else ["--"]
    return f"psched edit --cron {shlex.quote(trigger)} {shlex.join([*words, key])}"


def _yaml(key: str, trigger: str) -> str:
    return f"{json.dumps(key, ensure_ascii=False)}: {{cron: {json.dumps(trigger)}}}"


def _object(read: _Read, load: Load, proposal: Proposal) -> dict[str, Any]:
    return {
        "start": load.start,
        "end": load.end,
        "schedules": load.schedules,
        "runs": load.runs,
        "slots_needed": load.slots_needed,
        "slots": read.slots,
        "peak": load.slots,
        "guessed": load.guessed,
        "unknown": load.unknown,
        "averaged": load.thinned,
        "crowded": load.crowded,
        "left_out": dict([*read.broken, *load.broken.items()]),
        "all_read": read.all_read,
        "intervals": [asdict(each) for each in load.intervals if each.runs or each.busy],
        "worst": [
            {
                **asdict(each.interval),
                "at": each.at,
                "schedules": [cause._asdict() for cause in each.causes],
                "more": each.more,
            }
            for each in load.worst
        ],
        "proposal": {
            "peak": proposal.slots,
            "slots_needed": slots_needed(proposal.slots),
            "movable": proposal.movable,
            "complete": proposal.complete,
            "moves": [
                {**move._asdict(), "command": _command(move.key, move.after)}
                for move in proposal.moves
            ],
        },
    }
