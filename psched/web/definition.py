"""The definition of a schedule as a text in a form: shown, changed, and changed back."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

from psched.base.errors import ConfigError, InvalidError
from psched.cli.operate.edit import change_to, row_of_text
from psched.client.access import ChangedMeanwhileError
from psched.client.verbs.editing import Edit
from psched.core.columns import decode, encode
from psched.core.model import Row
from psched.files.export import document_of
from psched.reports.redaction import HIDDEN, Redaction
from psched.web.asked import Asked

_FILE = Path("the text")  # what errors about the text call it
_PAYLOADS = ("data", "options")
_UNDONE = ("type", "cron", "timezone", "delay", "alive_time", "label", *_PAYLOADS)
"""The columns that an edit changes, and that are changed back."""


def edit(asked: Asked, key: str) -> tuple[Edit | None, Row, Mapping[str, str]]:
    """What changes a schedule as a text says, its row, and the fields of the form.

    There is nothing to change before somebody has sent a text.
    """
    row = asked.schedules.read(key).row
    if row.cron is None:
        raise InvalidError("key", f"{key!r} runs only once; use psched edit with options")
    shown = _without_hidden(row, asked.redaction)
    seen = asked.query.get("version")
    fixed = {"version": str(row.version)}
    if (text := asked.query.get("text")) is None:
        start = _former(asked, row) if asked.query.get("undo") else row
        text = document_of(_without_hidden(start, asked.redaction), asked.settings)
        return None, row, {**fixed, "text": text}
    text = text.replace("\r\n", "\n")
    if seen is not None and seen != str(row.version):
        raise ChangedMeanwhileError(f"{key!r} was changed meanwhile; edit it again")
    try:
        wanted = row_of_text(text, _FILE, key, asked.settings)
    except ConfigError as error:
        raise InvalidError("text", str(error)) from None
    wanted = _with_hidden(wanted, shown, row)
    decide = change_to(wanted, asked.schedules, row, asked.settings)
    return Edit(decide), row, {**fixed, "text": text}


def _former(asked: Asked, row: Row) -> Row:
    """The row as it was before the last edit, as far as the audit trail has it."""
    for record in asked.schedules.audit(row.key, limit=1):
        if record.action != "edit":
            break
        before = {
            name: value
            for name, value in json.loads(record.before or "{}").items()
            if name in _UNDONE
        }
        for name in _PAYLOADS:
            if isinstance(before.get(name), dict):
                before[name] = encode(name, before[name])
        return changed(row, **before)
    raise ChangedMeanwhileError(
        f"the last change of {row.key!r} is no edit; psched audit {row.key} shows all of them"
    )


# --- what is hidden ----------------------------------------------------------------------


def _data(row: Row) -> Any:  # noqa: ANN401  # JSON
    return decode("data", row.data) if row.data else {}


def _without_hidden(row: Row, redaction: Redaction) -> Row:
    """A row without the values that the setting ``redact`` hides."""
    if not redaction:
        return row
    data = encode("data", redaction.value(_data(row)))
    return changed(row, data=data, cron=_cron_without_hidden(row.cron or "", redaction) or None)


def _cron_without_hidden(cron: str, redaction: Redaction) -> str:
    """What the form shows of a cron line; the arguments of a class of the user's remain JSON."""
    name, brace, rest = cron.partition("{")
    if brace:
        with suppress(InvalidError):
            return name + encode("cron", redaction.value(decode("cron", brace + rest)))
    return redaction.text(cron)


def _with_hidden(wanted: Row, shown: Row, stored: Row) -> Row:
    """The wanted row; where it has what was shown in place of a hidden value, with that value."""
    if shown is stored:
        return wanted
    data = _restored(_data(wanted), _data(shown), _data(stored))
    cron = stored.cron if wanted.cron == shown.cron else wanted.cron
    if HIDDEN in json.dumps(data) or (cron != stored.cron and HIDDEN in (cron or "")):
        raise InvalidError("text", f"{HIDDEN} stands for a value; move or change it elsewhere")
    return changed(wanted, data=encode("data", data), cron=cron)


def _restored(wanted: Any, shown: Any, stored: Any) -> Any:  # noqa: ANN401  # JSON
    if wanted == shown:
        return stored
    if all(isinstance(each, dict) for each in (wanted, shown, stored)):
        return {
            name: _restored(value, shown[name], stored[name])
            if name in shown and name in stored
            else value
            for name, value in wanted.items()
        }
    return wanted
