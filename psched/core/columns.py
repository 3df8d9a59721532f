"""The columns of a row: the checks of their values, and the JSON in ``data`` and ``options``.

A row is a documented interface: any client may have written it. An invalid column is refused with
an error that names the column; psched never guesses a value.
"""

import json
import re
from collections.abc import Mapping
from math import isfinite
from typing import Any, NoReturn

from psched.base import payload
from psched.base.compression import LARGEST, decompress
from psched.base.errors import InvalidError
from psched.base.texts import brief
from psched.core.model import Row

NAME_LENGTH = 255
"""The longest key or type, in characters."""

TEXT_LENGTH = 4000
"""The longest note, in characters."""

_USUAL_LIMIT = 16 * 2**20
"""A payload up to this size in bytes is read even if ``data_limit`` is lower."""

LATEST_TIME = 253_402_300_799
"""The last second of the year 9999, in Unix seconds."""

DEEPEST = 100
"""The largest number of nesting levels of a payload; the payload itself is the first level."""

LARGEST_OPTIONS = 2**16
"""The largest size of decompressed ``options``, in bytes."""

MOST_VALUES = 1_000_000
"""The largest number of values in a JSON object that a shared process reads, such as a worker.

The number is estimated: commas and opening brackets are counted.
"""

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def check_name(field: str, name: object) -> str:
    """A key or a type that every store keeps unchanged.

    Raises:
        InvalidError: it is empty, too long, not printable, or has blanks at its ends.
    """
    if not isinstance(name, str):
        raise InvalidError(field, f"must be a text, not {type(name).__name__}")
    if not name:
        raise InvalidError(field, "must not be empty")
    if len(name) > NAME_LENGTH:
        raise InvalidError(field, f"must not be longer than {NAME_LENGTH} characters")
    # U+FFFD is refused, because it replaces bytes of a database that are not text.
    if name != name.strip() or not name.isprintable() or "\ufffd" in name:
        raise InvalidError(
            field, f"{name!r} must be printable and must not begin or end with a blank"
        )
    return name


def check_text(field: str, text: object) -> str:
    """A text of one or several lines that every store keeps and a terminal can show.

    Raises:
        InvalidError: it is empty, too long, not printable, or not a text.
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
    """Check the option that tells how ``data`` wraps a payload that is not a JSON object.

    Raises:
        InvalidError: the option is not one of the keys of `psched.base.payload.WRAPPED_IN`.
    """
    if not isinstance(form, str) or form not in payload.WRAPPED_IN:
        known = " or ".join(payload.WRAPPED_IN)
        raise InvalidError(field, f"must be {known}, not {form!r}; leave it out for an object")
    return form


def check_number(field: str, value: object, most: int) -> int:
    """A whole number from 0 to ``most``.

    Raises:
        InvalidError: it is something else.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidError(field, f"must be a whole number, not {value!r}")
    if not 0 <= value <= most:
        raise InvalidError(field, f"must be from 0 to {most}, not {value}")
    return value


def check_length(field: str, stored: str | bytes, most: int, unit: str = "bytes") -> None:
    """Refuse a column that is too long to be parsed.

    Raises:
        InvalidError: it is longer than ``most``.
    """
    if len(stored) > most:
        raise InvalidError(field, f"has {len(stored)} {unit}, and may have {most}")


def check_size(field: str, size: int, most: int) -> None:
    """Refuse a payload that is larger than the setting ``data_limit``.

    Args:
        field: its name, for an error.
        size: its size in bytes as JSON.
        most: the setting.

    Raises:
        InvalidError: it is larger.
    """
    if size > most:
        raise InvalidError(
            field,
            f"has {size} bytes as JSON, and data_limit is {most}; store such large data elsewhere"
            " and pass a reference to them, or raise data_limit",
        )


def parse_payload(stored: str | bytes | None, data_limit: int) -> dict[str, Any]:
    """The payload of a row.

    Args:
        stored: the column ``data``, which any client may have written.
        data_limit: the setting.

    Raises:
        InvalidError: it is not a JSON object, or too large.
    """
    return decode("data", payload_text(stored, data_limit), values=None)


def payload_text(stored: str | bytes | None, data_limit: int) -> str:
    """The payload of a row as text, which is not parsed.

    Args:
        stored: the column ``data``, which any client may have written.
        data_limit: the setting.

    Raises:
        InvalidError: it is too large, cannot be decompressed, or is not UTF-8.
    """
    return plain_text("data", stored, most=payload_limit(data_limit)) if stored else "{}"


def payload_limit(data_limit: int) -> int:
    """The largest size in bytes of a payload that is read, given the setting ``data_limit``."""
    return max(data_limit, _USUAL_LIMIT)


def parse_options(stored: str | bytes | None) -> dict[str, Any]:
    """The column ``options``.

    Raises:
        InvalidError: it is not a JSON object, or too large.
    """
    return decode("options", stored, most=LARGEST_OPTIONS) if stored else {}


def payload_form(options: Mapping[str, Any]) -> str | None:
    """The option that tells how ``data`` wraps the payload; None: ``data`` is the payload.

    Raises:
        InvalidError: the option is invalid.
    """
    form = options.get(payload.OPTION)
    try:
        return None if form is None else check_payload_form("options", form)
    except InvalidError as error:
        raise InvalidError("options", f"{payload.OPTION} {error.problem}") from None


def annotation(row: Row, name: str) -> str | None:
    """A row's ``label`` or ``note``; None if it is missing or cannot be read."""
    try:
        found = parse_options(row.options).get(name)
    except InvalidError:
        return None
    return found if isinstance(found, str) else None


def raw_data(row: Row) -> bytes:
    """A row's payload as it was submitted, byte for byte; see `psched.base.payload`.

    Raises:
        InvalidError: the payload or the options are not a JSON object.
    """
    form = payload_form(parse_options(row.options))
    if not row.data:
        return b"{}"
    decode("data", row.data, values=None)
    return payload.unwrap(plain_text("data", row.data), form)


def encode(field: str, value: Mapping[str, Any], *, most: int | None = None) -> str:
    """A mapping as JSON.

    Args:
        field: its name, for an error.
        value: the mapping.
        most: the setting ``data_limit``; None: any size.

    Raises:
        InvalidError: it is not a mapping that JSON can represent, or too large.
    """
    if not isinstance(value, Mapping):
        raise InvalidError(field, f"must be a mapping, not {type(value).__name__}")
    try:
        text = json.dumps(dict(value), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        size = len(text.encode())  # raises if the text has half of a surrogate pair
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidError(field, f"cannot be written as JSON: {error}") from None
    if most is not None:
        check_size(field, size, most)
    _refuse_deep(field, text, value)
    return text


def decode(
    field: str, stored: str | bytes, *, most: int = LARGEST, values: int | None = MOST_VALUES
) -> dict[str, Any]:
    """The JSON object in a column.

    Args:
        field: its name, for an error.
        stored: the column; any client may have written it, and it may be compressed.
        most: the largest size in bytes that is decompressed.
        values: how many values it may hold, about; None: any number.

    Raises:
        InvalidError: it is not a JSON object, or too large.
    """
    text = plain_text(field, stored, most=most)
    try:
        if values is not None:
            _refuse_many(field, text, values)
        # Deep nesting is safe to parse: the parser raises RecursionError long before the stack
        # overflows.
        value = _decoder.decode(text)
        # The pattern is used only if the text has escapes, because its use makes a runner copy
        # memory pages, and most texts have none.
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
    """A column as text, decompressed if necessary.

    Args:
        field: its name, for an error.
        stored: the column; any client may have written it.
        most: the largest size in bytes that is decompressed.

    Raises:
        InvalidError: it is too large, cannot be decompressed, or is not UTF-8.
    """
    check_length(field, stored, most)
    try:
        plain = decompress(stored, most)
    except ValueError as error:
        raise InvalidError(field, str(error)) from None
    try:
        return plain.decode() if isinstance(plain, bytes) else plain
    except UnicodeDecodeError as error:
        raise InvalidError(field, f"is not JSON: {error}") from None


def _refuse_many(field: str, text: str, values: int) -> None:
    if sum(map(text.count, "[{,")) > values:
        raise InvalidError(field, f"holds more than {values} values, too many to be read here")


def _refuse_deep(field: str, text: str, value: Any) -> None:  # noqa: ANN401  # of JSON
    """Refuse a value whose nesting this process can read, but perhaps no other process."""
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


# The decoder is created once, because json.loads with these arguments creates one in each call.
_decoder = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
