"""From a stored row to a definition one can act on, and back.

A row is a documented interface: any client may have written it. What cannot be understood is
refused with the name of the column, here and nowhere else; nothing is guessed.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from typing import Any, NoReturn

from psched.base import payload
from psched.base.compression import LARGEST, decompress
from psched.base.errors import ConfigError, InvalidError
from psched.base.stable_hash import stable_hash
from psched.base.texts import brief, visible
from psched.config import OVERRIDES, Config
from psched.core.model import Occurrence, Row
from psched.triggers import trigger as triggers
from psched.triggers.trigger import Trigger
from psched.triggers.zone import find_zone

NAME_LENGTH = 255
"""Characters of a key or a type at most."""

LONGEST_KEY = 1000
"""Characters of the key of a row that plain SQL has inserted: not every database has a limit."""

TEXT_LENGTH = 4000
"""Characters of a note at most."""

_USUAL_LIMIT = 16 * 2**20
"""Bytes; a payload of so many can be read also by those whose ``data_limit`` has been lowered."""

LATEST_TIME = 253_402_300_799
"""The last second of the year 9999."""

LONGEST_DELAY = 366 * 86_400
"""Seconds."""

DEEPEST = 100
"""Levels of a payload, which is the first itself."""

LARGEST_OPTIONS = 2**16
"""Bytes of ``options``, unpacked."""

LONGEST_CRON = 2000
"""Characters of a trigger's text."""

MOST_VALUES = 1_000_000
"""Of a payload that is read by a process with other things to do, such as a worker or a listing;
counted are commas and opening brackets."""

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """What a person declared about a schedule, understood.

    Attributes:
        key: unique name.
        type: which handler runs it.
        cron: trigger text; None for a one-shot.
        timezone: the zone in which ``cron`` is read.
        trigger: ``cron`` as a function of an instant; None for a one-shot.
        delay: seconds.
        settings: the installation's, with those of its type, and its own.
        payload: how ``data`` carries what is not a JSON object, see `psched.base.payload`.
    """

    key: str
    type: str
    cron: str | None
    timezone: str
    trigger: Trigger | None
    delay: int
    settings: Config
    payload: str | None = None

    def first_run(self, scheduled_time: int) -> int:
        """When an occurrence may first be run: after ``delay`` and its share of ``jitter``.

        The share is a matter of the occurrence alone: the same on every host, whoever asks.
        """
        jitter = 0 if self.trigger is None else self.settings.jitter
        share = stable_hash(str(Occurrence(self.key, scheduled_time)), jitter + 1)
        return scheduled_time + self.delay + share


def parse_row(row: Row, settings: Config) -> Definition:
    """Read a row, all of it but its payload.

    A worker does this with every row that it claims, and does nothing else meanwhile. So this
    function measures the payload only; `parse_payload` reads it, in the process that runs the task.
    Every other column is bounded before it is parsed. The worst row costs less than 0.05 s of CPU
    time.

    Raises:
        NotLoadedError: the trigger is a class that cannot be imported in this process.
        InvalidError: a column cannot be understood; its ``field`` names the column.
    """
    if visible(row.key) != row.key:
        # Not as strict as for a new key: what was inserted by SQL has been run since.
        raise InvalidError("key", f"{brief(repr(row.key))} holds characters that cannot be seen")
    _refuse_long("key", row.key, LONGEST_KEY, "characters")
    check_name("type", row.type)
    options = parse_options(row.options)
    own = _with_overrides(options, row.type, settings)
    timezone = row.timezone or settings.timezone
    find_zone(check_name("timezone", timezone))
    if row.data is not None:
        _refuse_long("data", row.data, payload_limit(settings.data_limit))
    if isinstance(row.cron, str):
        _refuse_long("cron", row.cron, LONGEST_CRON, "characters")
    return Definition(
        key=row.key,
        type=row.type,
        cron=row.cron,
        timezone=timezone,
        trigger=_trigger(row.cron, timezone, own),
        delay=check_number("delay", row.delay, LONGEST_DELAY),
        settings=own,
        payload=_form(options),
    )


def parse_payload(stored: str | bytes | None, data_limit: int) -> dict[str, Any]:
    """The payload of a row, however large the setting allows it to be.

    Args:
        stored: the column ``data``, which any client may have written.
        data_limit: the setting.

    Raises:
        InvalidError: it is not a JSON object, or too large.
    """
    return decode("data", payload_text(stored, data_limit), values=None)


def payload_text(stored: str | bytes | None, data_limit: int) -> str:
    """The payload of a row as text, not parsed; for the arguments see `parse_payload`.

    Raises:
        InvalidError: it is too large, cannot be unpacked, or is not UTF-8.
    """
    return plain_text("data", stored, most=payload_limit(data_limit)) if stored else "{}"


def payload_limit(data_limit: int) -> int:
    """Bytes of a payload that is read while the setting ``data_limit`` is this."""
    return max(data_limit, _USUAL_LIMIT)


def parse_options(stored: str | bytes | None) -> dict[str, Any]:
    """The column ``options``, as it was declared.

    Raises:
        InvalidError: it is not a JSON object, or too large.
    """
    return decode("options", stored, most=LARGEST_OPTIONS) if stored else {}


def check_name(field: str, name: object) -> str:
    """A key or a type, if it is one that every store keeps as it is.

    Raises:
        InvalidError: it is empty, too long, or has blanks at its ends or unprintable characters.
    """
    if not isinstance(name, str):
        raise InvalidError(field, f"must be a text, not {type(name).__name__}")
    if not name:
        raise InvalidError(field, "must not be empty")
    if len(name) > NAME_LENGTH:
        raise InvalidError(field, f"must not be longer than {NAME_LENGTH} characters")
    # U+FFFD stands where a database had something that is no text.
    if name != name.strip() or not name.isprintable() or "\ufffd" in name:
        raise InvalidError(
            field, f"{name!r} must be printable and must not begin or end with a blank"
        )
    return name


def check_text(field: str, words: object) -> str:
    """A text for people, of one line or several, that every store keeps and a terminal can show.

    Raises:
        InvalidError: it is something else, empty, or too long.
    """
    if not isinstance(words, str):
        raise InvalidError(field, f"must be a text, not {type(words).__name__}")
    if not words.strip():
        raise InvalidError(field, "must not be empty")
    if len(words) > TEXT_LENGTH:
        raise InvalidError(field, f"must not be longer than {TEXT_LENGTH} characters")
    if "\ufffd" in words or not all(c.isprintable() or c in "\n\t" for c in words):
        raise InvalidError(field, "holds a character that cannot be printed")
    return words


def check_payload_form(field: str, form: object) -> str:
    """How ``data`` carries a payload that is not a JSON object.

    Raises:
        InvalidError: it is not one of the words in `psched.base.payload.WRAPPED_IN`.
    """
    if not isinstance(form, str) or form not in payload.WRAPPED_IN:
        known = " or ".join(payload.WRAPPED_IN)
        raise InvalidError(field, f"must be {known}, not {form!r}; leave it out for an object")
    return form


def annotation(row: Row, name: str) -> str | None:
    """A row's ``label`` or ``note``; None if it has none that can be read."""
    try:
        said = parse_options(row.options).get(name)
    except InvalidError:
        return None
    return said if isinstance(said, str) else None


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


def encode(field: str, value: Mapping[str, Any], *, most: int | None = None) -> str:
    """A payload as JSON.

    Args:
        field: its name, for an error.
        value: the payload.
        most: the setting ``data_limit``; None: any size.

    Raises:
        InvalidError: it is not a mapping that JSON can hold, or too large.
    """
    if not isinstance(value, Mapping):
        raise InvalidError(field, f"must be a mapping, not {type(value).__name__}")
    try:
        text = json.dumps(dict(value), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        size = len(text.encode())  # half a surrogate pair is not text
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidError(field, f"cannot be written as JSON: {error}") from None
    if most is not None:
        check_size(field, size, most)
    _refuse_deep(field, text, value)
    return text


def check_size(field: str, size: int, most: int) -> None:
    """Refuse a payload that is larger than the setting ``data_limit``.

    Args:
        field: its name, for an error.
        size: its bytes as JSON.
        most: the setting.

    Raises:
        InvalidError: it is larger.
    """
    if size > most:
        raise InvalidError(
            field,
            f"has {size} bytes as JSON, and data_limit is {most}; keep what is so large in another"
            " place and pass on where that is, or raise data_limit",
        )


def decode(
    field: str, stored: str | bytes, *, most: int = LARGEST, values: int | None = MOST_VALUES
) -> dict[str, Any]:
    """A payload as it was declared.

    Args:
        field: its name, for an error.
        stored: what any client may have written; JSON, which may be compressed.
        most: bytes; no more than that is unpacked.
        values: how many it may hold, about; None: any number.

    Raises:
        InvalidError: it is not a JSON object, or too large.
    """
    text = plain_text(field, stored, most=most)
    try:
        if values is not None:
            _refuse_many(field, text, values)
        # The parser itself gives up at a depth that is far from the end of the stack.
        value = _decoder.decode(text)
        # Mostly there is none, and a runner pays for each page of a pattern's that it touches.
        if "\\u" in text and _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()  # in pairs they are characters
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
    """A payload as text, as it was written, whether or not it is compressed.

    Args:
        field: its name, for an error.
        stored: what any client may have written.
        most: bytes; no more than that is unpacked.

    Raises:
        InvalidError: it is too large, cannot be unpacked, or is not UTF-8.
    """
    _refuse_long(field, stored, most)
    try:
        plain = decompress(stored, most)
    except ValueError as error:
        raise InvalidError(field, str(error)) from None
    try:
        return plain.decode() if isinstance(plain, bytes) else plain
    except UnicodeDecodeError as error:
        raise InvalidError(field, f"is not JSON: {error}") from None


def raw_data(row: Row) -> bytes:
    """A row's payload as it was submitted, byte for byte; see `psched.base.payload`.

    Raises:
        InvalidError: the payload or the options are not a JSON object.
    """
    form = _form(parse_options(row.options))
    if not row.data:
        return b"{}"
    decode("data", row.data, values=None)
    return payload.unwrap(plain_text("data", row.data), form)


def _form(options: Mapping[str, Any]) -> str | None:
    form = options.get(payload.OPTION)
    try:
        return None if form is None else check_payload_form("options", form)
    except InvalidError as error:
        raise InvalidError("options", f"{payload.OPTION} {error.problem}") from None


def _refuse_many(field: str, text: str, values: int) -> None:
    if sum(map(text.count, "[{,")) > values:
        raise InvalidError(field, f"holds more than {values} values, too many to be read here")


def _refuse_long(field: str, stored: str | bytes, most: int, unit: str = "bytes") -> None:
    if len(stored) > most:
        raise InvalidError(field, f"has {len(stored)} {unit}, and may have {most}")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not isfinite(number):
        raise ValueError(f"{digits} is too large a number")
    return number


# Each json.loads with such arguments would make one of its own.
_decoder = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)


def _refuse_deep(field: str, text: str, value: Any) -> None:  # noqa: ANN401  # of JSON
    """What can be read here must not be too deep to be read in another process."""
    if text.count("[") + text.count("{") <= DEEPEST:
        return
    level = [value]
    for _ in range(DEEPEST):
        children = (c for v in level for c in (v.values() if isinstance(v, Mapping) else v))
        level = [child for child in children if isinstance(child, Mapping | list | tuple)]
        if not level:
            return
    raise InvalidError(field, f"is nested more than {DEEPEST} levels deep")


def _trigger(cron: str | None, timezone: str, settings: Config) -> Trigger | None:
    if cron is None:
        return None
    reading = "perfectsched" if settings.type == "rdb_compat" else "crontab"
    return triggers.parse(
        cron,
        timezone,
        dst_policy=settings.dst_policy,
        reading=reading,
        load_path=settings.load_path,
        allowed=settings.triggers,
    )


def _with_overrides(options: Mapping[str, Any], of_type: str, settings: Config) -> Config:
    # An option that is not known here may be a newer psched's: it is left to that one.
    own = {**settings.types.get(of_type, {}), **options}
    known = {name: own[name] for name in OVERRIDES if name in own}
    if not known:
        return settings
    try:
        return _merged(tuple(known.items()), settings)
    except (ConfigError, TypeError) as error:
        raise InvalidError("options", str(error)) from None


@lru_cache(maxsize=1024)
def _merged(overrides: tuple[tuple[str, Any], ...], settings: Config) -> Config:
    return settings.with_settings(**dict(overrides))
