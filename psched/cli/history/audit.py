"""The command audit."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import click

from psched.app import open_schedules
from psched.base.texts import cut
from psched.cli import options
from psched.cli.completion import complete_key
from psched.cli.opening import settings_to_read
from psched.cli.output import one_line
from psched.cli.shown import KEY_WIDTH, LONGEST_SHOWN
from psched.cli.text_table import Column, View, print_table
from psched.cli.time_format import format_time, local_times, parse_since
from psched.core.history.records import AuditRecord
from psched.reports.redaction import Redaction

_LONGEST = 200
"""The maximum length of a value of a change, in characters. A longer value is cut."""

_COLUMNS: Sequence[Column[AuditRecord]] = (
    Column(
        "WHEN",
        lambda of, _: format_time(None if of.time is None else of.time // 1000, named=False),
        is_time=True,
    ),
    Column("WHO", lambda of, _: one_line(f"{of.user}@{of.host}")),
    Column("PROGRAM", lambda of, _: one_line(of.program)),
    Column("KEY", lambda of, _: one_line(of.key), least=KEY_WIDTH),
    Column("ACTION", lambda of, _: one_line(of.action)),
    Column("NOTE", lambda of, _: one_line(of.note)),
)
"""The columns of a table of changes."""

_INSTANTS = frozenset(
    {"next_time", "next_run_time", "paused_at", "paused_until", "run_at", "first", "last"}
)


def _lines(record: AuditRecord, redaction: Redaction) -> Iterator[str]:
    """A line for each changed field, with its old and new value."""
    before, after = (_fields(each, redaction) for each in (record.before, record.after))
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        both = " -> ".join(_value("", side) for side in (before, after))
        yield f"    {one_line(both)}"
        return
    names = dict.fromkeys((*before, *after))
    if all(side.get("next_run_time") == side.get("next_time") for side in (before, after)):
        names.pop("next_run_time", None)
    for name in names:
        values = " -> ".join(_value(name, side[name]) for side in (before, after) if name in side)
        yield f"    {one_line(f'{name}: {values}')}"


def audit_object(record: AuditRecord, redaction: Redaction) -> dict[str, Any]:
    """The JSON object of a change."""
    sides = {"before": record.before, "after": record.after}
    known = {
        name: None if side is None else _fields(side, redaction) for name, side in sides.items()
    }
    # In seconds, like the times that the other commands show as JSON.
    when = None if record.time is None else record.time / 1000
    return asdict(record) | known | {"time": when}


def _fields(stored: str | None, redaction: Redaction) -> Any:  # noqa: ANN401  # JSON, or a text
    """The recorded values of the columns, by column."""
    if stored is None:
        return {}
    try:
        return redaction.value(json.loads(stored))
    except (ValueError, RecursionError):
        return redaction.text(cut(stored, LONGEST_SHOWN))


def _value(name: str, value: Any) -> str:  # noqa: ANN401  # JSON
    if name in _INSTANTS and isinstance(value, int):
        return format_time(value)
    if isinstance(value, str):
        return cut(repr(local_times(value) if name == "reason" else value), _LONGEST)
    return "-" if value is None else cut(json.dumps(value, ensure_ascii=False), _LONGEST)


@click.command()
@click.argument("key", required=False, shell_complete=complete_key)
@options.since("Only what was changed")
@options.limit()
@options.zone()
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@options.database
@click.pass_obj
def audit(
    location: options.ConfigLocation,
    key: str | None,
    *,
    since: str | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """Show who changed which schedule.

    The newest change is first: when, who on which host, with which program, the key, what was done,
    and why: the words of the option -m. Below are the old and new values of what has changed. With
    KEY, only the changes of this schedule are shown, even if it is deleted. Pushed tasks and runs
    are not shown.
    """
    settings = settings_to_read(location)
    redaction = Redaction.of_changes(settings.redact)
    with open_schedules(settings) as schedules:
        now = schedules.now()
        found = schedules.audit(key, parse_since(since, now), limit)
        if as_json:
            for record in found:
                click.echo(json.dumps(audit_object(record, redaction)))
            return
        details = partial(_lines, redaction=redaction)
        if not print_table(_COLUMNS, found, View(now, redaction), details):
            click.echo("no changes are recorded", err=True)
