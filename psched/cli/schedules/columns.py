"""The columns of the command list, and the colours of statuses."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from psched.base.compression import beginning
from psched.base.errors import InvalidError
from psched.base.texts import cut
from psched.cli.history.run_text import last_in_short
from psched.cli.output import one_line
from psched.cli.schedules.status import DUE, FAILING, shown_reason, shown_status
from psched.cli.text_table import Colours
from psched.cli.time_format import format_span, format_time, local_times, short_time
from psched.core.columns import decode, note_of
from psched.core.history.redaction import Redaction
from psched.core.history.run import Run
from psched.core.model import PAUSED, RUNNING, STOPPING, Row

LAST = "LAST"

COLUMNS = ("KEY", "STATUS", "SCHEDULE", "NEXT", LAST, "REASON")
"""The columns that are shown unless the user chooses others; `LAST` only with a run history."""

LONGEST_CELL = 30_000
"""The maximum length of a cell, in characters."""

LONGEST_DATA = 2000
"""The maximum length of a payload, in bytes or characters, depending on how it is stored."""

_BATCH = 100
"""The number of schedules whose last runs are read in one request."""

_COLOURS = {
    RUNNING: "green",
    DUE: "yellow",
    "failed": "red",
    FAILING: "red",
    STOPPING: "yellow",
    "quarantined": "red",
    "expired": "magenta",
    "cancelled": "magenta",
    "paused": "cyan",
    "finished": "bright_black",
}

_EVERY = re.compile(r"@every ([0-9]{1,12})( \+[0-9]+)?")
_CALL = re.compile(r"@call (\S+)")

FindLast = Callable[[Sequence[str]], Mapping[str, Run]]
"""Finds the last runs of keys, see `Schedules.last_runs`."""


class Shown(NamedTuple):
    """A row of the table, and how it is shown.

    Attributes:
        row: the row.
        now: the time of the store's clock, in Unix seconds.
        redaction: hides the values of fields.
        last: the last run; None if there is none.
    """

    row: Row
    now: float
    redaction: Redaction
    last: Run | None


Cell = Callable[[Shown], str]
"""Returns a cell's text for a row."""


def _attribute(name: str) -> Cell:
    return lambda shown: one_line_of(getattr(shown.row, name))


def _text(name: str) -> Cell:
    return lambda shown: one_line_of(shown.redaction.text(getattr(shown.row, name) or ""))


def _time(name: str) -> Cell:
    return lambda shown: format_time(getattr(shown.row, name), named=False)


def _payload(name: str) -> Cell:
    return lambda shown: payload_beginning(getattr(shown.row, name), LONGEST_DATA, shown.redaction)


def payload_beginning(stored: str | bytes | None, most: int, redaction: Redaction) -> str:
    """Return the beginning of a payload as one line; a whole payload can be megabytes long."""
    if not stored:
        return ""
    if redaction:
        # Only a whole payload can be parsed, so that every value that is to be hidden is found.
        try:
            value = redaction.value(decode("data", stored, values=None))
        except InvalidError:
            pass
        else:
            text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
            return one_line(text[:most]) + (" …" if len(text) > most else "")
    plain, more = beginning(stored, most)
    if isinstance(plain, bytes) and (more or redaction):
        plain = plain.decode(errors="ignore")  # drops the rest of a character that was cut in two
    if redaction and isinstance(plain, str):
        plain = redaction.text(plain)
    return one_line(plain) + (" …" if more else "")


def one_line_of(value: object) -> str:
    """The text of any value of a column as one line; empty for None."""
    if value is None:
        return ""
    return one_line(cut(value, LONGEST_CELL)) if isinstance(value, str) else str(value)


def _schedule_in_short(shown: Shown) -> str:
    """When a schedule runs: its cron line and zone, ``every 1h``, a class, or ``once``."""
    row = shown.row
    if row.cron is None:
        return "once"
    if found := _EVERY.fullmatch(row.cron):
        return f"every {format_span(int(found[1]))}"
    if found := _CALL.match(row.cron):
        return one_line_of(found[1])
    cron = shown.redaction.text(row.cron)
    return one_line_of(cron if row.timezone is None else f"{cron} {row.timezone}")


def _next_in_short(shown: Shown) -> str:
    """When a schedule runs next.

    For a running row, this is the scheduled time of the occurrence that is running: its
    ``next_run_time`` is the end of its lease.
    """
    row, now = shown.row, shown.now
    status = shown_status(row, now)
    if status == DUE and row.next_run_time is not None:
        late = int(now) - row.next_run_time
        # A row that was inserted by plain SQL can have the time 0, which means at once.
        return f"{format_span(late, most=2)} late" if late and row.next_run_time > 0 else "now"
    if status == PAUSED:
        return "-"  # its next_run_time is the end of the pause
    instant = row.next_run_time if row.owner is None else row.next_time
    return "-" if instant is None else short_time(instant, now)


CELLS: Mapping[str, Cell] = {
    "KEY": _attribute("key"),
    "STATUS": lambda shown: one_line_of(shown_status(shown.row, shown.now, shown.last)),
    "SCHEDULE": _schedule_in_short,
    "NEXT": _next_in_short,
    LAST: lambda shown: last_in_short(shown.last, shown.now),
    "REASON": lambda shown: one_line_of(
        local_times(shown.redaction.text(shown_reason(shown.row, shown.now)))
    ),
    "TYPE": _attribute("type"),
    "LABEL": _text("label"),
    "NOTE": lambda shown: one_line(shown.redaction.text(note_of(shown.row) or "")),
    "DATA": _payload("data"),
    "CRON": _text("cron"),
    "TIMEZONE": _attribute("timezone"),
    "DELAY": _attribute("delay"),
    "NEXT_TIME": _time("next_time"),
    "NEXT_RUN_TIME": _time("next_run_time"),
    "CREATED_AT": _time("created_at"),
    "RETAIN_UNTIL": _time("retain_until"),
    "ATTEMPT": _attribute("attempt"),
    "ALIVE_TIME": _attribute("alive_time"),
    "OPTIONS": _payload("options"),
    "OWNER": _attribute("owner"),
    "FENCE": _attribute("fence"),
    "SETTLED_BY": _attribute("settled_by"),
    "VERSION": _attribute("version"),
}
"""What each column shows, by its heading."""


COLOURS = Colours("STATUS", _COLOURS)


def columns_with(find_last: FindLast | None) -> Sequence[str]:
    """The columns that are shown unless the user chooses others."""
    return [column for column in COLUMNS if column != LAST or find_last is not None]


def table_rows(
    rows: Iterable[tuple[Row, Run | None]],
    columns: Sequence[str],
    now: float,
    redaction: Redaction,
) -> Iterator[tuple[Row, Sequence[str]]]:
    """Yield each row with its cells in the table, while the rows are read."""
    for row, last in rows:
        shown = Shown(row, now, redaction, last)
        yield row, [CELLS[column](shown) for column in columns]


def with_last_runs(
    rows: Iterable[Row], find_last: FindLast | None
) -> Iterator[tuple[Row, Run | None]]:
    """Yield each row with its last run, which is found by one request for many rows."""
    left = iter(rows)
    while batch := [*islice(left, _BATCH)]:
        last = {} if find_last is None else find_last([row.key for row in batch])
        yield from ((row, last.get(row.key)) for row in batch)
