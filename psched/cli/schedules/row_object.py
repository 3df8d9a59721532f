"""Rows of schedules as JSON objects, for programs that read the output of commands."""

from typing import Any

from psched.base.errors import InvalidError
from psched.cli.schedules.columns import payload_beginning
from psched.cli.schedules.status import shown_status
from psched.core.columns import decode
from psched.core.history.redaction import Redaction
from psched.core.history.run import Run
from psched.core.model import NO_PAUSE, Row

LONGEST_SHOWN = 100_000
"""The maximum length of a column in the command show, and of invalid JSON in the output of --json,
in bytes or characters; this depends on how the column is stored."""


def row_object(
    row: Row, now: float, redaction: Redaction, last: Run | None = None
) -> dict[str, Any]:
    """Return every column of a row; ``status``, also as ``state``, is the one that people see."""
    columns = {name: getattr(row, name) for name in Row.__slots__}
    columns["status"] = columns["state"] = shown_status(row, now, last)
    for name in ("data", "options"):
        try:
            columns[name] = redaction.value(decode(name, columns[name]) if columns[name] else {})
        except InvalidError:
            columns[name] = payload_beginning(columns[name], LONGEST_SHOWN, redaction)
    for name in ("cron", "reason", "pause_note", "label"):
        if columns[name]:
            columns[name] = redaction.text(columns[name])
    # A row that is not paused can have the columns of an earlier pause.
    return columns if row.pause is not None else {**columns, **NO_PAUSE}
