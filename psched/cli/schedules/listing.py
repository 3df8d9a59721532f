"""The commands list and show."""

import heapq
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace as changed
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any

import click

from psched.app import open_schedules
from psched.base.errors import InvalidError
from psched.cli import options
from psched.cli.completion import complete_key
from psched.cli.exit_status import report_errors
from psched.cli.options import ConfigLocation
from psched.cli.other_database import settings_to_read
from psched.cli.schedules.legacy_table import print_legacy_table
from psched.cli.schedules.status import DUE, shown_status
from psched.cli.schedules.table import CELLS, COLUMNS, payload_beginning, print_table
from psched.cli.time_format import format_both
from psched.core.columns import decode
from psched.core.model import ENDED, RUNNING, STATUSES, WAITING, Row
from psched.core.schedule import ListOrder, ScheduleMetadata, Schedules
from psched.core.selection import selection_of

_LONGEST_SHOWN = 100_000
"""The maximum length of a column in the command show, and of invalid JSON in the output of --json,
in bytes or characters; this depends on how the column is stored."""

_STATES = (WAITING, DUE, RUNNING, *sorted(ENDED), *sorted(STATUSES - ENDED - {WAITING}))

_STORED = {DUE: (WAITING, RUNNING)}
"""The values of `Row.state` of rows with a shown status, if they differ from it."""

_INSTANTS = frozenset({"next_time", "next_run_time", "created_at", "retain_until"})


def _split_columns(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> Sequence[str] | None:
    if value is None:
        return None
    chosen = [name.strip().upper() for name in value.split(",")]
    for name in chosen:
        if name not in CELLS:
            raise click.BadParameter(f"{name!r} is no column; choose from {', '.join(CELLS)}")
    return chosen


@click.command("list")
@click.argument("keys", nargs=-1)
@click.option(
    "--status",
    "states",
    type=click.Choice(_STATES),
    metavar="STATUS",
    multiple=True,
    help=f"Only those with this status; may be repeated. One of {', '.join(_STATES)}."
    " waiting includes those that are due.",
)
@click.option(
    "--type",
    "types",
    metavar="TYPE",
    multiple=True,
    help="Only those of this type; may be repeated.",
)
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
@click.option("--limit", metavar="N", type=click.IntRange(1, 10**9), help="Show at most N.")
@click.option(
    "--columns",
    metavar="KEY,TYPE,…",
    callback=_split_columns,
    help=f"Columns to show. Default: {','.join(COLUMNS)}. All: {', '.join(CELLS)}.",
)
@click.option("--utc", is_flag=True, help="Show times in UTC instead of your time zone.")
@click.option("--legacy", is_flag=True, help="Use PerfectSched's layout.")
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object per line, with every column."
)
@options.database
@click.pass_obj
@report_errors
def list_(
    location: ConfigLocation,
    *,
    keys: Sequence[str],
    states: Collection[str],
    types: Collection[str],
    labels: Collection[str],
    due: bool,
    sort: str,
    limit: int | None,
    columns: Sequence[str] | None,
    utc: bool,
    legacy: bool,
    as_json: bool,
) -> None:
    """List schedules and tasks.

    KEYS are keys or patterns; without any, all are listed. In a pattern, * stands for any
    characters and ? for one. Quote patterns: psched list 'mail-*'.

    The list is in the order of the next runs. Those that have no next run are last. NEXT shows the
    time of the next run; for a running task, the scheduled time of this run; for a task that is
    due, how late it is. Times are in your time zone: the variable TZ, else that of the system.
    """
    if (columns is not None or utc) and (legacy or as_json):
        raise click.UsageError("--columns and --utc are for the table, not for --legacy or --json")
    # A row that is due is waiting, too; or its task has lost its lease.
    shown = {*states, DUE} if WAITING in states else {*states}
    stored = {each for state in states for each in _STORED.get(state, (state,))}
    due = due or shown == {DUE}
    with open_schedules(settings_to_read(location)) as schedules:
        now = schedules.now()
        conditions = {
            "status": stored if stored and shown != {DUE} else None,
            "type": types or None,
            "label": labels or None,
            "due": due,
        }
        order: ListOrder = "key" if sort == "key" else "next"
        rows = _find(schedules, keys, conditions, order)
        rows = (row for row in rows if not shown or shown_status(row, now) in shown)
        if sort in {"status", "type"}:
            keeps_data = as_json or legacy or "DATA" in (columns or ())
            rows = _sorted_by(sort, rows, now, keeps_data=keeps_data)
        limited = islice(rows, limit)
        if as_json:
            for row in limited:
                click.echo(json.dumps(_object(row, now)))
        elif legacy:
            print_legacy_table(limited)
        else:
            number = print_table(limited, columns or COLUMNS, now, utc=utc)
            more = number == limit and next(rows, None) is not None
            is_all = not (keys or states or types or labels or due)
            click.echo(_closing(number, more=more, is_all=is_all))


@click.command()
@click.argument("key", shell_complete=complete_key)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, with every column.")
@options.database
@click.pass_obj
@report_errors
def show(location: ConfigLocation, key: str, *, as_json: bool) -> None:
    """Show everything about one schedule or task.

    Each field is on a line of its own; fields without a value are left out. Times are in your time
    zone (that of the variable TZ, else of the system) and, if that differs, in UTC.
    """
    with open_schedules(settings_to_read(location)) as schedules:
        metadata = schedules[key].metadata()
        now = schedules.now()
    row = metadata.row
    if as_json:
        click.echo(json.dumps(_object(row, now)))
        return
    known = {name: getattr(row, name) for name in Row.__slots__}
    known |= {"status": shown_status(row, now)}
    known |= {"label": metadata.label, "note": metadata.note}
    known = {name: value for name, value in known.items() if value is not None}
    width = max(map(len, known)) + 1
    for name, value in known.items():
        click.echo(f"{name + ':':{width}} {_shown(name, value)}")


def _find(
    schedules: Schedules, patterns: Sequence[str], conditions: dict[str, Any], order: ListOrder
) -> Iterator[Row]:
    """Read the rows that fulfil the conditions, and whose keys match one of the patterns, if any.

    Rows are read by the beginnings of the patterns, which the database finds through an index.
    """
    beginnings = {_before_wildcard(pattern) for pattern in patterns or ("",)}
    globs = [pattern.replace("[", "[[]") for pattern in patterns]  # a bracket is no wildcard
    # A beginning is dropped if it is longer than another one that its keys have as well.
    prefixes = [p for p in beginnings if not any(p != q and p.startswith(q) for q in beginnings)]
    found = [schedules.list(**conditions, prefix=prefix, order=order) for prefix in prefixes]
    if selection_of(status=conditions["status"], order=order).sorted_by_key:
        merged = heapq.merge(*found, key=_key_of)
    else:
        merged = heapq.merge(*found, key=_time_of)
    rows = (metadata.row for metadata in merged)
    return (row for row in rows if not globs or any(fnmatchcase(row.key, glob) for glob in globs))


def _before_wildcard(pattern: str) -> str:
    return pattern[: min((pattern.find(c) for c in "*?" if c in pattern), default=len(pattern))]


def _key_of(metadata: ScheduleMetadata) -> str:
    return metadata.key


def _time_of(metadata: ScheduleMetadata) -> tuple[bool, int, str]:
    time = metadata.next_run_time
    return time is None, time or 0, metadata.key


def _sorted_by(sort: str, rows: Iterable[Row], now: float, *, keeps_data: bool) -> Iterator[Row]:
    value: Callable[[Row], str] = (
        (lambda row: row.type) if sort == "type" else lambda row: shown_status(row, now)
    )
    kept = (row if keeps_data else changed(row, data=None) for row in rows)
    return iter(sorted(kept, key=value))


def _closing(number: int, *, more: bool, is_all: bool) -> str:
    """The last line: how many schedules were shown, or what to do if there are none."""
    if not number and is_all:
        return (
            "no schedules; add one: psched add KEY TYPE 'CRON' [DATA], or a task that runs once:"
            " psched push KEY TYPE DATA"
        )
    if not number:
        return "no schedule matches"
    count = f"{number} schedule" if number == 1 else f"{number} schedules"
    return f"{count}; --limit omits the others" if more else count


def _shown(name: str, value: Any) -> str:  # noqa: ANN401  # a column of any type
    if name in _INSTANTS:
        return format_both(value)
    if isinstance(value, (str, bytes)):
        return payload_beginning(value, _LONGEST_SHOWN)
    return str(value)


def _object(row: Row, now: float) -> dict[str, Any]:
    """Return every column of a row; ``status``, also as ``state``, is the one that people see."""
    columns = {name: getattr(row, name) for name in Row.__slots__}
    columns["status"] = columns["state"] = shown_status(row, now)
    for name in ("data", "options"):
        try:
            columns[name] = decode(name, columns[name]) if columns[name] else {}
        except InvalidError:
            columns[name] = payload_beginning(columns[name], _LONGEST_SHOWN)
    return columns
