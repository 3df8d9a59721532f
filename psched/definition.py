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

from psched import payload
from psched import trigger as triggers
from psched.config import OVERRIDES, Config
from psched.draw import draw
from psched.errors import ConfigError, InvalidError
from psched.model import Occurrence, Row
from psched.packing import LARGEST, unpacked
from psched.trigger import Trigger
from psched.zone import find_zone

NAME_LENGTH = 255
"""Characters of a key or a type at most."""

WORDS_LENGTH = 4000
"""Characters of a note at most."""

_USUAL_LIMIT = 16 * 2**20
"""Bytes; a payload of so many can be read also by those whose ``data_limit`` has been lowered."""

LATEST_TIME = 253_402_300_799
"""The last second of the year 9999."""

LONGEST_DELAY = 366 * 86_400
"""Seconds."""

DEEPEST = 100
"""Levels of a payload, which is the first itself."""

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """What a person declared about a schedule, understood.

    Attributes:
        key: unique name.
        type: which handler runs it.
        data: the handler's payload.
        cron: trigger text; None for a one-shot.
        timezone: the zone in which ``cron`` is read.
        trigger: ``cron`` as a function of an instant; None for a one-shot.
        delay: seconds.
        settings: the installation's, with those of its type, and its own.
        payload: how ``data`` carries a payload that is not a JSON object, see `psched.payload`.
    """

    key: str
    type: str
    data: Mapping[str, Any]
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
        share = draw(str(Occurrence(self.key, scheduled_time)), jitter + 1)
        return scheduled_time + self.delay + share


def understand(row: Row, settings: Config) -> Definition:
    """Read a row.

    Raises:
        NotLoadedError: the trigger is a class that cannot be imported in this process.
        InvalidError: a column cannot be understood; its ``field`` names the column.
    """
    check_name("type", row.type)
    options = _object("options", row.options)
    own = _with_overrides(options, row.type, settings)
    timezone = row.timezone or settings.timezone
    find_zone(check_name("timezone", timezone))
    return Definition(
        key=row.key,
        type=row.type,
        data=_object("data", row.data, max(settings.data_limit, _USUAL_LIMIT)),
        cron=row.cron,
        timezone=timezone,
        trigger=_trigger(row.cron, timezone, own),
        delay=check_number("delay", row.delay, LONGEST_DELAY),
        settings=own,
        payload=_form(options),
    )


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


def check_words(field: str, words: object) -> str:
    """A text for people, of one line or several, that every store keeps and a terminal can show.

    Raises:
        InvalidError: it is something else, empty, or too long.
    """
    if not isinstance(words, str):
        raise InvalidError(field, f"must be a text, not {type(words).__name__}")
    if not words.strip():
        raise InvalidError(field, "must not be empty")
    if len(words) > WORDS_LENGTH:
        raise InvalidError(field, f"must not be longer than {WORDS_LENGTH} characters")
    if "\ufffd" in words or not all(c.isprintable() or c in "\n\t" for c in words):
        raise InvalidError(field, "holds a character that cannot be printed")
    return words


def check_form(field: str, form: object) -> str:
    """How ``data`` carries a payload that is not a JSON object.

    Raises:
        InvalidError: it is not one of the words in `psched.payload.CARRIED_IN`.
    """
    if not isinstance(form, str) or form not in payload.CARRIED_IN:
        known = " or ".join(payload.CARRIED_IN)
        raise InvalidError(field, f"must be {known}, not {form!r}; leave it out for an object")
    return form


def said_about(row: Row, name: str) -> str | None:
    """A row's ``label`` or ``note``; None if it has none that can be read."""
    try:
        said = _object("options", row.options).get(name)
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


def decode(field: str, stored: str | bytes, *, most: int = LARGEST) -> dict[str, Any]:
    """A payload as it was declared.

    Args:
        field: its name, for an error.
        stored: what any client may have written; JSON, which may be compressed.
        most: bytes; no more than that is unpacked.

    Raises:
        InvalidError: it is not a JSON object.
    """
    text = plain_text(field, stored, most=most)
    try:
        value = _decoder.decode(text)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()  # in pairs they are characters
    except (ValueError, RecursionError) as error:
        raise InvalidError(field, f"is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidError(field, f"must be a JSON object, not {type(value).__name__}")
    _refuse_deep(field, text, value)
    return value


def plain_text(field: str, stored: str | bytes, *, most: int = LARGEST) -> str:
    """A payload as text, as it was written, whether or not it is compressed.

    Raises:
        InvalidError: it cannot be unpacked, or is not UTF-8.
    """
    try:
        plain = unpacked(stored, most)
    except ValueError as error:
        raise InvalidError(field, str(error)) from None
    try:
        return plain.decode() if isinstance(plain, bytes) else plain
    except UnicodeDecodeError as error:
        raise InvalidError(field, f"is not JSON: {error}") from None


def raw_data(row: Row) -> bytes:
    """A row's payload as it was submitted, byte for byte; see `psched.payload`.

    Raises:
        InvalidError: the payload or the options are not a JSON object.
    """
    form = _form(_object("options", row.options))
    if not row.data:
        return b"{}"
    decode("data", row.data)
    return payload.raw(plain_text("data", row.data), form)


def _form(options: Mapping[str, Any]) -> str | None:
    form = options.get(payload.OPTION)
    try:
        return None if form is None else check_form("options", form)
    except InvalidError as error:
        raise InvalidError("options", f"{payload.OPTION} {error.problem}") from None


def _object(field: str, stored: str | bytes | None, most: int = LARGEST) -> dict[str, Any]:
    return decode(field, stored, most=most) if stored else {}


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
