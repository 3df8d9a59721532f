"""The command audit."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import click

from psched.app import open_schedules
from psched.base.texts import cut
from psched.cli import options
from psched.cli.completion import complete_key
from psched.cli.exit_status import report_errors
from psched.cli.options import ConfigLocation, duration
from psched.cli.other_database import settings_to_read
from psched.cli.output import one_line
from psched.cli.time_format import format_time
from psched.core.history.records import AuditRecord

_LONGEST = 200
"""The maximum length of a value, in characters. A longer value is cut."""

_LONGEST_JSON = 100_000
"""The maximum length in characters of stored JSON that cannot be read, in the output of --json."""

_INSTANTS = frozenset({"next_time", "next_run_time"})


@click.command()
@click.argument("key", required=False, shell_complete=complete_key)
@click.option(
    "--since",
    type=duration(least=0),
    metavar="DURATION",
    help="Only changes of this last time: seconds, or with a unit, such as 30m, 12h, 7d.",
)
@click.option("--limit", metavar="N", type=click.IntRange(1, 10**9), help="Show at most N.")
@click.option("--utc", is_flag=True, help="Show times in UTC instead of your time zone.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@options.database
@click.pass_obj
@report_errors
def audit(
    location: ConfigLocation,
    key: str | None,
    *,
    since: float | None,
    limit: int | None,
    utc: bool,
    as_json: bool,
) -> None:
    """Show who changed which schedule.

    The newest change is first: when, who on which host, with which program, the key, what was done,
    and the old and new values of what has changed. With KEY, only the changes of this schedule are
    shown, even if it is deleted. Pushed tasks and runs are not shown.

    The words of the option -m of a command are shown in brackets at the end.
    """
    with open_schedules(settings_to_read(location)) as schedules:
        first = None if since is None else max(0, int(schedules.now() - since))
        found = False
        for record in schedules.audit(key, first, limit):
            found = True
            click.echo(json.dumps(_object(record)) if as_json else one_line(_line(record, utc=utc)))
        if not found and not as_json:
            click.echo("no changes are recorded", err=True)


def _line(record: AuditRecord, *, utc: bool) -> str:
    when = None if record.time is None else record.time // 1000
    parts = (
        format_time(when, local=not utc),
        f"{record.user}@{record.host}",
        record.program,
        record.key,
        record.action,
        "; ".join(_changes(record, utc=utc)),
        f"[{record.note}]" if record.note else "",
    )
    return "  ".join(part for part in parts if part)


def _changes(record: AuditRecord, *, utc: bool) -> Iterator[str]:
    """For each changed field, its name, and its old and new value."""
    before, after = _fields(record.before), _fields(record.after)
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        yield f"{_shown('', before, utc=utc)} -> {_shown('', after, utc=utc)}"
        return
    names = dict.fromkeys((*before, *after))
    if all(side.get("next_run_time") == side.get("next_time") for side in (before, after)):
        names.pop("next_run_time", None)
    for name in names:
        values = [_shown(name, side[name], utc=utc) for side in (before, after) if name in side]
        yield f"{name}: {' -> '.join(values)}"


def _fields(stored: str | None) -> Any:  # noqa: ANN401  # JSON, or a text that is none
    """The recorded values of the columns, by column; every shown value comes from here."""
    if stored is None:
        return {}
    try:
        return json.loads(stored)
    except (ValueError, RecursionError):
        return cut(stored, _LONGEST_JSON)


def _shown(name: str, value: Any, *, utc: bool) -> str:  # noqa: ANN401  # JSON
    if name in _INSTANTS and isinstance(value, int):
        return format_time(value, local=not utc)
    if isinstance(value, str):
        return cut(repr(value), _LONGEST)
    return "-" if value is None else cut(json.dumps(value, ensure_ascii=False), _LONGEST)


def _object(record: AuditRecord) -> dict[str, Any]:
    sides = {"before": record.before, "after": record.after}
    fields = {name: None if side is None else _fields(side) for name, side in sides.items()}
    return asdict(record) | fields
