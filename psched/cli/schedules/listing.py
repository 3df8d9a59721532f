"""The command list."""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace as changed
from itertools import islice
from typing import Any

import click

from psched.app import open_schedules
from psched.base.errors import NotSupportedError, SchemaError
from psched.base.texts import counted
from psched.cli import options
from psched.cli.opening import settings_to_read
from psched.cli.shown import (
    DUE,
    FAILING,
    LONGEST_DATA,
    SCHEDULES,
    STOPPED_AS,
    TEMPLATE,
    USUAL,
    Listed,
    cell_of,
    payload_beginning,
    row_object,
    run_object,
    shown_status,
)
from psched.cli.text_table import Column, View, print_table
from psched.cli.time_format import format_time
from psched.client.collection import ScheduleCollection
from psched.core.history.run import Run
from psched.core.model import (
    CANCELLED,
    ENDED,
    EXPIRED,
    FAILED,
    PAUSED,
    QUARANTINED,
    RUNNING,
    STATUSES,
    STOPPING,
    WAITING,
    Row,
)
from psched.core.operations.extra_runs import ID_LENGTH, prefix_of_extra_runs
from psched.core.operations.pauses import UTC
from psched.core.schedule import ListOrder
from psched.core.selection import find, is_pattern
from psched.reports.redaction import Redaction

_HEADINGS = (
    "key", "type", "cron", "delay", "timezone", "next_time", "next_run_time", "data",
)  # fmt: skip
_WIDTHS = (30, 15, 18, 7, 11, 28, 28)
"""The widths of all columns but the last, in characters; they are the same as in PerfectSched."""


def print_legacy_table(rows: Iterable[Row], redaction: Redaction) -> None:
    """Print rows while they are read, and then their number."""
    number = 0
    for number, row in enumerate(rows, start=1):
        if number == 1:  # no headings before, because reading the first row can fail
            click.echo(_line(_HEADINGS))
        click.echo(_line(_cells(row, redaction)))
    if not number:
        click.echo(_line(_HEADINGS))
    click.echo(f"{number} entries.")


def _cells(row: Row, redaction: Redaction) -> Iterable[str]:
    resting = row.next_run_time is None or row.status != WAITING
    yield row.key
    yield row.type
    yield redaction.text(row.cron or "")
    yield str(row.delay)
    yield row.timezone or ""
    yield format_time(row.next_time, UTC)
    yield row.status if resting else format_time(row.next_run_time, UTC)
    data = payload_beginning(row.data, LONGEST_DATA, redaction) or "{}"
    yield f"{data}  # {redaction.text(row.reason)}" if row.reason else data


def _line(cells: Iterable[str]) -> str:
    *columns, last = map(cell_of, cells)
    padded = (cell.rjust(width) for cell, width in zip(columns, _WIDTHS, strict=True))
    return "".join(f"{cell} " for cell in padded) + f" {last}"


SHOWN_STATES = (
    *(WAITING, DUE, FAILING, RUNNING, STOPPING, TEMPLATE),
    *sorted(ENDED),
    *sorted(STATUSES - ENDED - {WAITING, STOPPING}),
)
"""The statuses that people see; see `find_rows`."""

_STORED = {DUE: (WAITING, RUNNING), FAILING: (WAITING,), STOPPING: STOPPED_AS, TEMPLATE: (WAITING,)}
"""The values of `Row.state` of rows with a shown status, if they differ from it."""

_INCLUDED = {WAITING: (DUE, FAILING), **dict.fromkeys(STOPPED_AS, (STOPPING,))}
"""Further shown statuses of rows with a status."""

_BAD = (QUARANTINED, FAILED, FAILING, DUE, EXPIRED, STOPPING, PAUSED, CANCELLED)
"""The statuses of what may be wrong, the worst first; ``due`` only if it is late."""

_LATE = 60  # seconds after which what is due is late


_BATCH = 100  # the number of schedules whose last runs are read in one request

FindLast = Callable[[Sequence[str]], Mapping[str, Run]]
"""Finds the last runs of keys, see `Schedules.last_runs`."""

_BY_HEADING = {column.heading: column for column in SCHEDULES}


def _split_columns(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> Sequence[str] | None:
    if value is None:
        return None
    chosen = [name.strip().upper() for name in value.split(",")]
    for name in chosen:
        if name not in _BY_HEADING:
            all_of_them = ", ".join(_BY_HEADING)
            raise click.BadParameter(f"{name!r} is no column; choose from {all_of_them}")
    return chosen


@click.command("list")
@click.argument("keys", nargs=-1)
@options.one_of(
    SHOWN_STATES,
    "--status states",
    "Only those with this status",
    " waiting includes those that are due or failing.",
)
@options.types
@click.option(
    "--label",
    "labels",
    metavar="LABEL",
    multiple=True,
    help="Only those with this label; may be repeated.",
)
@click.option("--due", is_flag=True, help="Only those that are due: a worker may start them now.")
@click.option(
    "--sort",
    type=click.Choice(["next", "key", "status", "type"]),
    default="next",
    show_default=True,
    help="Order. By status or type, nothing is shown before all that match have been read.",
)
@click.option(
    "--bad",
    is_flag=True,
    help="What is wrong comes first: quarantined, failed, failing, with an alert, late.",
)
@options.limit()
@click.option(
    "--columns",
    metavar="KEY,TYPE,…",
    callback=_split_columns,
    help=f"Columns to show. Default: {','.join(column.heading for column in USUAL)}. All:"
    f" {', '.join(_BY_HEADING)}.",
)
@options.zone()
@click.option("--legacy", is_flag=True, help="Use PerfectSched's layout.")
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object per line, with every column."
)
@options.database
@click.pass_obj
def list_(
    location: options.ConfigLocation,
    *,
    keys: Sequence[str],
    states: Collection[str],
    types: Collection[str],
    labels: Collection[str],
    due: bool,
    sort: str,
    bad: bool,
    limit: int | None,
    columns: Sequence[str] | None,
    legacy: bool,
    as_json: bool,
) -> None:
    """List schedules and tasks.

    KEYS are keys or patterns; without any, all are listed. In a pattern, * stands for any
    characters and ? for one. Quote patterns: psched list 'mail-*'.

    With a KEY, its extra runs are listed, too (psched trigger, psched backfill).

    A schedule that each host runs (--each-host) is one line, and STATUS says on how many of its
    hosts all is well. psched list 'KEY@*' lists the rows of its hosts.

    The list is in the order of the next runs. Those that have no next run are last. NEXT shows the
    time of the next run; for a running task, the scheduled time of this run; for a task that is
    due, how late it is. STATUS is failing if a schedule waits, and its last run was given up. LAST
    says how the last run ended, how long ago, and how long it took; without a run history, the
    column is left out. The head of the table names the zone of the times: yours, that is the
    variable TZ, else that of the system.
    """
    if columns is not None and (legacy or as_json):
        raise click.UsageError("--columns is for the table, not for --legacy or --json")
    settings = settings_to_read(location)
    with open_schedules(settings) as schedules:
        now = schedules.now()
        # A status can depend on the last run.
        needs = columns is None or states or bad or sort == "status" or "STATUS" in columns
        find_last = last_runs_of(schedules) if needs else None
        if columns is not None and "LAST" in columns:
            find_last = schedules.last_runs
        named = [key for key in keys if not is_pattern(key)]
        folds = not (keys or states or due or bad or legacy or as_json)
        rows = find_rows(
            schedules,
            [*keys, *(f"{prefix_of_extra_runs(key)}{'?' * ID_LENGTH}" for key in named)],
            states=states,
            types=types,
            labels=labels,
            due=due,
            order="key" if sort == "key" else "next",
            now=now,
            find_last=find_last,
        )
        if folds:
            rows = _folded(rows, schedules, find_last, now)
        keeps_data = as_json or legacy or "DATA" in (columns or ())
        orders: Mapping[str, Callable[[Listed], Any]] = {
            "type": lambda each: each[0].type,
            "status": lambda each: shown_status(each[0], now, each[1]),
        }
        if sort in orders:
            rows = _sorted_by(orders[sort], rows, keeps_data)
        if bad:
            rows = _sorted_by(_badness(schedules, now), rows, keeps_data)
        limited = islice(rows, limit)
        redaction = Redaction(settings.redact)
        if as_json:
            for row, last in limited:
                made = row_object(row, now, redaction, last)
                made["last"] = None if last is None else run_object(last, redaction, large=False)
                click.echo(json.dumps(made))
        elif legacy:
            print_legacy_table((row for row, _ in limited), redaction)
        else:
            chosen = usual_columns(find_last)
            if columns is not None:
                chosen = [_BY_HEADING[heading] for heading in columns]
            number = print_table(chosen, limited, View(now, redaction))
            more = number == limit and next(rows, None) is not None
            is_all = not (keys or states or types or labels or due)
            click.echo(_closing(number, more=more, is_all=is_all))


def _folded(
    rows: Iterator[Listed], schedules: ScheduleCollection, find_last: FindLast | None, now: float
) -> Iterator[Listed]:
    """Put one line in place of each template and of the rows of its hosts, where the first stands.

    The line has the status ``3 of 4 hosts``, the next run of any host, and the newest last run.
    """
    seen, as_shown = set[str](), schedules.shown_as_paused()
    for row, last in rows:
        key = row.key if row.each_host else row.template
        if key is None:
            yield row, last
        elif key not in seen:
            seen.add(key)
            template = schedules.read_many([key]).get(key)
            from psched.client.each_host import rows_of_hosts  # noqa: PLC0415  # rarely needed

            found = map(as_shown, rows_of_hosts(schedules.access, key))
            of_hosts = [*_with_last_runs(found, find_last)]
            yield from [_fold(template.row, of_hosts, now)] if template else of_hosts


def _fold(template: Row, of_hosts: Sequence[Listed], now: float) -> Listed:
    badly = {
        row.key: status
        for row, last in of_hosts
        if (status := shown_status(row, now, last)) not in {WAITING, RUNNING, DUE}
        or (status == DUE and (row.next_run_time or 0) <= now - _LATE)
    }
    reasons = [f"{key.rpartition('@')[2]}: {status}" for key, status in badly.items()]
    # While a row runs, its next_run_time is the end of its lease.
    times = [
        row.next_run_time if row.owner is None else row.next_time
        for row, _ in of_hosts
        if row.key not in badly
    ]
    runs = [last for _, last in of_hosts if last is not None]
    folded = changed(
        template,
        status=f"{len(of_hosts) - len(badly)} of {counted(len(of_hosts), 'host')}",
        next_run_time=min(filter(None, times), default=None),
        reason=", ".join(reasons) or template.reason,
    )
    return folded, max(runs, key=lambda run: run.ended, default=None)


def find_rows(
    schedules: ScheduleCollection,
    keys: Sequence[str],
    *,
    states: Collection[str] = (),
    types: Collection[str] = (),
    labels: Collection[str] = (),
    due: bool = False,
    order: ListOrder = "next",
    now: float,
    find_last: FindLast | None,
    watch: Callable[[Iterator[Row]], Iterator[Row]] = iter,
) -> Iterator[Listed]:
    """Read rows, as people see them, with their last runs: those that fulfil all conditions."""
    # A row that is due is waiting, too; or its task has lost its lease.
    shown = {*states, *(more for state in states for more in _INCLUDED.get(state, ()))}
    stored = {each for state in states for each in _STORED.get(state, (state,))}
    due = due or shown == {DUE}
    as_shown = schedules.shown_as_paused()
    if PAUSED in states and as_shown.rules:
        stored.add(WAITING)  # rows of paused types are stored as waiting
    conditions = {
        "status": stored if stored and shown != {DUE} else None,
        "type": types or None,
        "label": labels or None,
        "due": due,
    }
    found = find(schedules, keys, conditions, order, watch)
    rows = (as_shown(row) for row in found)
    rows = (row for row in rows if not due or _is_due(row, now))
    listed = _with_last_runs(rows, find_last)
    return (
        (row, last) for row, last in listed if not shown or shown_status(row, now, last) in shown
    )


def found_as(row: Row, status: str) -> list[str]:
    """The statuses for which people find a row that is shown with a status."""
    wider = (each for each, more in _INCLUDED.items() if status in more and each != status)
    # A row whose task has lost its lease is due, but stored as running, not as waiting.
    return [status, *(each for each in wider if row.state in _STORED.get(each, (each,)))]


def last_runs_of(schedules: ScheduleCollection) -> FindLast | None:
    """The function that finds the last runs; None if there is no run history."""
    try:
        schedules.last_runs([])
    except NotSupportedError:
        return None
    return schedules.last_runs


def usual_columns(find_last: FindLast | None) -> Sequence[Column[Listed]]:
    """The columns that are shown unless the user chooses others; LAST only with a run history."""
    return [column for column in USUAL if column.heading != "LAST" or find_last is not None]


def _with_last_runs(rows: Iterator[Row], find_last: FindLast | None) -> Iterator[Listed]:
    """Yield each row with its last run, which is found by one request for many rows."""
    while batch := [*islice(rows, _BATCH)]:
        last = {} if find_last is None else find_last([row.key for row in batch])
        yield from ((row, last.get(row.key)) for row in batch)


def _is_due(row: Row, now: float) -> bool:
    """Whether a row that the store has found to be due is shown as due."""
    return row.status != PAUSED and (row.next_run_time is None or row.next_run_time <= now)


def _sorted_by(
    value: Callable[[Listed], Any],
    listed: Iterable[Listed],
    keeps_data: bool,  # noqa: FBT001
) -> Iterator[Listed]:
    kept = ((row if keeps_data else changed(row, data=None), last) for row, last in listed)
    return iter(sorted(kept, key=value))


def _badness(schedules: ScheduleCollection, now: float) -> Callable[[Listed], int]:
    """Return a function that says how bad the state of a row is; 0 is the worst."""
    alarming = set[str]()
    with suppress(NotSupportedError, SchemaError):  # psched init has not added their table yet
        alarming = {alert.key for alert in schedules.alerts()}

    def badness(listed: Listed) -> int:
        row, last = listed
        status = shown_status(row, now, last)
        is_late = status == DUE and (row.next_run_time or 0) <= now - _LATE
        rank = _BAD.index(status) if status in _BAD and (status != DUE or is_late) else len(_BAD)
        return min(rank, _BAD.index(FAILING)) if row.key in alarming else rank

    return badness


def _closing(number: int, *, more: bool, is_all: bool) -> str:
    """The last line: how many schedules were shown, or what to do if there are none."""
    if not number and is_all:
        return (
            "no schedules; add one: psched add KEY TYPE 'CRON' [DATA], or a task that runs once:"
            " psched push KEY TYPE DATA"
        )
    if not number:
        return "no schedule matches"
    count = counted(number, "schedule")
    return f"{count}; --limit omits the others" if more else count
