"""Functions that check the columns of a row, and parse the JSON in ``data`` and ``options``.

A row is a documented interface, so any client may have written the row. An invalid column is
refused with an error that names the column; psched never guesses a value.
"""

import json
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from math import ceil, isfinite
from typing import Any, NoReturn

from psched.base import payload
from psched.base.compression import LARGEST, decompress
from psched.base.errors import InvalidError
from psched.base.quantities import DURATIONS, as_seconds
from psched.base.texts import brief, cut, visible
from psched.core.history.records import LARGEST_RESULT
from psched.core.model import Row

NAME_LENGTH = 255
"""The longest key or type, in characters."""

TEXT_LENGTH = 4000
"""The longest note, in characters."""

LONGEST_CRON = 2000
"""The largest number of characters in a trigger's text."""

LONGEST_REASON = 460
"""The number of characters to which a reason is cut; with the note on the cut, at most 500."""

_USUAL_LIMIT = 16 * 2**20
"""A payload up to this size in bytes is read even if ``data_limit`` is lower."""

LATEST_TIME = 253_402_300_799
"""The last second of the year 9999, in Unix seconds."""

DEEPEST = 100
"""The largest number of nesting levels of a payload; the payload itself is the first level."""

LARGEST_OPTIONS = 2**16
"""The largest size of decompressed ``options``, in bytes."""

MOST_VALUES = 1_000_000
"""The largest number of values in a JSON object that a process such as a worker reads.

The number is estimated: commas and opening brackets are counted.
"""

When = int | datetime
"""An instant: Unix seconds, or an aware datetime."""

Until = When | timedelta | str
"""The end of a pause, see `psched.core.schedule.Schedule.pause`."""

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def plain_reason(reason: str | None) -> str | None:
    """A reason in a form that any database can store and any terminal can show."""
    if reason is None:
        return None
    return cut(visible(cut(reason, LONGEST_REASON)), LONGEST_REASON)


def check_name(field: str, name: object) -> str:
    """Check a key or a type, and return it. Every store stores a valid name unchanged."""
    if not isinstance(name, str):
        raise InvalidError(field, f"must be a text, not {type(name).__name__}")
    if not name:
        raise InvalidError(field, "must not be empty")
    if len(name) > NAME_LENGTH:
        raise InvalidError(field, f"must not be longer than {NAME_LENGTH} characters")
    # We refuse U+FFFD, because it stands for bytes in the database that could not be decoded.
    if name != name.strip() or not name.isprintable() or "\ufffd" in name:
        raise InvalidError(
            field, f"{name!r} must be printable and must not begin or end with a blank"
        )
    return name


def check_text(field: str, text: object) -> str:
    """Check a text of one or several lines, and return it.

    Every store can store a valid text, and a terminal can show it.
    """
    if not isinstance(text, str):
        raise InvalidError(field, f"must be a text, not {type(text).__name__}")
    if not text.strip():
        raise InvalidError(field, "must not be empty")
    if len(text) > TEXT_LENGTH:
        raise InvalidError(field, f"must not be longer than {TEXT_LENGTH} characters")
    if "\ufffd" in text or not all(c.isprintable() or c in "\n\t" for c in text):
        raise InvalidError(field, "holds a character that cannot be printed")
    return text


def check_payload_form(field: str, form: object) -> str:
    """Check and return the option that says how ``data`` wraps what is no JSON object."""
    if not isinstance(form, str) or form not in payload.WRAPPED_IN:
        known = " or ".join(payload.WRAPPED_IN)
        raise InvalidError(field, f"must be {known}, not {form!r}; leave it out for an object")
    return form


def check_number(field: str, value: object, most: int) -> int:
    """Check that a value is a whole number from 0 to ``most``, and return it."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidError(field, f"must be a whole number, not {value!r}")
    if not 0 <= value <= most:
        raise InvalidError(field, f"must be from 0 to {most}, not {value}")
    return value


def instant(name: str, when: When) -> int:
    """Convert an instant to Unix seconds, rounded up so that nothing runs early."""
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise InvalidError(
                name, "is a datetime without a zone; give it one: tzinfo=ZoneInfo('Europe/Paris')"
            )
        when = ceil(when.timestamp())
    return check_number(name, when, LATEST_TIME)


def check_seconds(field: str, value: object) -> object:
    """Convert a duration to seconds, and return them; other numbers are returned unchanged."""
    seconds = as_seconds(value)
    if isinstance(seconds, str):
        raise InvalidError(
            field, f"must be whole seconds, or have a unit ({DURATIONS}), not {value!r}"
        )
    return seconds


def check_length(field: str, stored: str | bytes, most: int, unit: str = "bytes") -> None:
    """Refuse a column that is too long to be parsed."""
    if len(stored) > most:
        raise InvalidError(field, f"has {len(stored)} {unit}, and may have {most}")


def check_size(field: str, size: int, most: int) -> None:
    """Refuse a payload that is larger than the setting ``data_limit``."""
    if size > most:
        raise InvalidError(
            field,
            f"has {size} bytes as JSON, and data_limit is {most}; store such large data elsewhere"
            " and pass a reference to them, or raise data_limit",
        )


def parse_payload(stored: str | bytes | None, data_limit: int) -> dict[str, Any]:
    """Parse the payload of a row."""
    return decode("data", payload_text(stored, data_limit), values=None)


def payload_text(stored: str | bytes | None, data_limit: int) -> str:
    """The payload of a row as text, decompressed but not parsed."""
    return plain_text("data", stored, most=payload_limit(data_limit)) if stored else "{}"


def payload_limit(data_limit: int) -> int:
    """The largest size in bytes of a payload that is read, given the setting ``data_limit``."""
    return max(data_limit, _USUAL_LIMIT)


def parse_options(stored: str | bytes | None) -> dict[str, Any]:
    """Parse the column ``options``; an empty column gives an empty mapping."""
    return decode("options", stored, most=LARGEST_OPTIONS) if stored else {}


def payload_form(options: Mapping[str, Any]) -> str | None:
    """The option that tells how ``data`` wraps the payload; None if ``data`` is the payload."""
    form = options.get(payload.OPTION)
    try:
        return None if form is None else check_payload_form("options", form)
    except InvalidError as error:
        raise InvalidError("options", f"{payload.OPTION} {error.problem}") from None


def note_of(row: Row) -> str | None:
    """A row's ``note``; None if the row has none, or its options cannot be read."""
    try:
        found = parse_options(row.options).get("note")
    except InvalidError:
        return None
    return found if isinstance(found, str) else None


def raw_data(row: Row) -> bytes:
    """A row's payload as it was submitted, byte for byte; see `psched.base.payload`."""
    form = payload_form(parse_options(row.options))
    if not row.data:
        return b"{}"
    decode("data", row.data, values=None)
    return payload.unwrap(plain_text("data", row.data), form)


def encode(field: str, value: Mapping[str, Any], *, most: int | None = None) -> str:
    """Convert a mapping to JSON text."""
    if not isinstance(value, Mapping):
        raise InvalidError(field, f"must be a mapping, not {type(value).__name__}")
    plain = dict(value)
    text, size = _json_text(field, plain)
    _refuse_other_keys(field, plain)
    if most is not None:
        check_size(field, size, most)
    _refuse_deep(field, text, value)
    return text


def encode_result(value: Any) -> str:  # noqa: ANN401  # any value that a task assigns
    """Convert the result of a task to JSON text."""
    text, size = _json_text("result", value)
    if size > LARGEST_RESULT:
        raise InvalidError(
            "result",
            f"has {size} bytes as JSON, and may have {LARGEST_RESULT}; store such a large result"
            " elsewhere, and set a reference to it",
        )
    _refuse_deep("result", text, value)
    return text


def decode(
    field: str, stored: str | bytes, *, most: int = LARGEST, values: int | None = MOST_VALUES
) -> dict[str, Any]:
    """Parse the JSON object in a column."""
    text = plain_text(field, stored, most=most)
    try:
        if values is not None:
            _refuse_many(field, text, values)
        # Deep nesting is safe to parse: the parser raises RecursionError long before the stack
        # overflows.
        value = DECODER.decode(text)
        # We search the text for the pattern only if it has escapes, which most texts do not have:
        # the search makes a runner copy memory pages.
        if "\\u" in text and _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()  # raises unless surrogates come in pairs
    except RecursionError:
        raise InvalidError(field, f"is nested more than {DEEPEST} levels deep") from None
    except InvalidError:
        raise
    except ValueError as error:
        raise InvalidError(field, f"is not JSON: {brief(str(error))}") from None
    if not isinstance(value, dict):
        raise InvalidError(field, f"must be a JSON object, not {type(value).__name__}")
    _refuse_deep(field, text, value)
    return value


def plain_text(field: str, stored: str | bytes, *, most: int = LARGEST) -> str:
    """A column as text, decompressed if necessary."""
    check_length(field, stored, most)
    try:
        plain = decompress(stored, most)
    except ValueError as error:
        raise InvalidError(field, str(error)) from None
    try:
        return plain.decode() if isinstance(plain, bytes) else plain
    except UnicodeDecodeError as error:
        raise InvalidError(field, f"is not JSON: {error}") from None


def _json_text(field: str, value: Any) -> tuple[str, int]:  # noqa: ANN401
    """A value as JSON text, and the size of the text in bytes."""
    try:
        text = _encode(value)
        return text, len(text.encode())  # raises if the text has half of a surrogate pair
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidError(field, f"cannot be written as JSON: {brief(str(error))}") from None


def _refuse_other_keys(field: str, value: dict[str, Any]) -> None:
    """Refuse keys that are no texts: JSON has turned them into texts without an error."""
    pending: list[Any] = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            for key in each:
                if not isinstance(key, str):
                    shown = brief(repr(key))
                    raise InvalidError(
                        field, f"cannot be written as JSON: the key {shown} is not a text"
                    )
            each = each.values()
        # JSON can hold no other containers. Most values are none, so they are left out here.
        pending += [inner for inner in each if isinstance(inner, (dict, list, tuple))]


def _refuse_many(field: str, text: str, values: int) -> None:
    if sum(map(text.count, "[{,")) > values:
        raise InvalidError(field, f"holds more than {values} values, too many to be read here")


def _refuse_deep(field: str, text: str, value: Any) -> None:  # noqa: ANN401  # of JSON
    """Refuse a value with more than `DEEPEST` levels, because not every process can read it."""
    if text.count("[") + text.count("{") <= DEEPEST:
        return
    level = [value]
    for _ in range(DEEPEST):
        children = (c for v in level for c in (v.values() if isinstance(v, Mapping) else v))
        level = [child for child in children if isinstance(child, Mapping | list | tuple)]
        if not level:
            return
    raise InvalidError(field, f"is nested more than {DEEPEST} levels deep")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not isfinite(number):
        raise ValueError(f"{digits} is too large a number")
    return number


DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
"""Parses JSON, and nothing that JSON does not contain.

It is created once, because json.loads with these arguments would create one in each call."""

# Created once, too.
_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode
