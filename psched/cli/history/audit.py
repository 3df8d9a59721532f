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
from psched.cli.options import ConfigLocation
from psched.cli.other_database import settings_to_read
from psched.cli.output import one_line
from psched.cli.text_table import TableRow, print_table, with_zone
from psched.cli.time_format import format_time, local_times, parse_since
from psched.core.history.records import AuditRecord
from psched.core.history.redaction import Redaction

_LONGEST = 200
"""The maximum length of a value, in characters. A longer value is cut."""

_LONGEST_JSON = 100_000
"""The maximum length in characters of stored JSON that cannot be read, in the output of --json."""

_COLUMNS = ("WHEN", "WHO", "PROGRAM", "KEY", "ACTION", "NOTE")

_INSTANTS = frozenset(
    {"next_time", "next_run_time", "paused_at", "paused_until", "run_at", "first", "last"}
)


@click.command()
@click.argument("key", required=False, shell_complete=complete_key)
@click.option(
    "--since",
    metavar="AGE|TIME",
    help="Only changes that are at most this old (30s, 5m, 1h, 30d), or after this time.",
)
@click.option("--limit", metavar="N", type=click.IntRange(1, 10**9), help="Show at most N.")
@options.zone()
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@options.database
@click.pass_obj
@report_errors
def audit(
    location: ConfigLocation,
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
    shown = _Shown(Redaction.of_changes(settings.redact))
    with open_schedules(settings) as schedules:
        now = schedules.now()
        found = schedules.audit(key, parse_since(since, now), limit)
        if as_json:
            for record in found:
                click.echo(json.dumps(shown.object(record)))
        elif not print_table(with_zone(_COLUMNS, now), map(shown.row, found)):
            click.echo("no changes are recorded", err=True)


class _Shown:
    """How changes are shown.

    Args:
        redaction: hides the values of fields.
    """

    def __init__(self, redaction: Redaction) -> None:
        self._redaction = redaction

    def row(self, record: AuditRecord) -> TableRow:
        """A row of the table; below it, a line for each field that has changed."""
        when = None if record.time is None else record.time // 1000
        cells = (
            format_time(when, named=False),
            f"{record.user}@{record.host}",
            record.program,
            record.key,
            record.action,
            record.note,
        )
        lines = [f"    {one_line(each)}" for each in self._changes(record)]
        return TableRow([one_line(cell) for cell in cells], lines)

    def object(self, record: AuditRecord) -> dict[str, Any]:
        """The JSON object of a change."""
        sides = {"before": record.before, "after": record.after}
        fields = {
            name: None if side is None else self._fields(side) for name, side in sides.items()
        }
        # In seconds, like the times that the other commands show as JSON.
        when = None if record.time is None else record.time / 1000
        return asdict(record) | fields | {"time": when}

    def _changes(self, record: AuditRecord) -> Iterator[str]:
        """For each changed field, its name, and its old and new value."""
        before, after = self._fields(record.before), self._fields(record.after)
        if not isinstance(before, Mapping) or not isinstance(after, Mapping):
            yield f"{self._value('', before)} -> {self._value('', after)}"
            return
        names = dict.fromkeys((*before, *after))
        if all(side.get("next_run_time") == side.get("next_time") for side in (before, after)):
            names.pop("next_run_time", None)
        for name in names:
            values = [self._value(name, side[name]) for side in (before, after) if name in side]
            yield f"{name}: {' -> '.join(values)}"

    def _fields(self, stored: str | None) -> Any:  # noqa: ANN401  # JSON, or a text that is none
        """The recorded values of the columns, by column."""
        if stored is None:
            return {}
        try:
            return self._redaction.value(json.loads(stored))
        except (ValueError, RecursionError):
            return self._redaction.text(cut(stored, _LONGEST_JSON))

    def _value(self, name: str, value: Any) -> str:  # noqa: ANN401  # JSON
        if name in _INSTANTS and isinstance(value, int):
            return format_time(value)
        if isinstance(value, str):
            return cut(repr(local_times(value) if name == "reason" else value), _LONGEST)
        return "-" if value is None else cut(json.dumps(value, ensure_ascii=False), _LONGEST)
