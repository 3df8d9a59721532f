"""The fields of a schedule's definition, as people write them, and comparisons of them."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from psched.base.errors import InvalidError
from psched.config import Config
from psched.core.columns import decode, parse_options
from psched.core.declare import FIELDS, alive_time_of
from psched.core.model import Row


class Changed(NamedTuple):
    """The change of a field of a schedule's definition; None means the default, or no value."""

    old: Any
    new: Any


def changes_of(old: Row, new: Row, settings: Config) -> dict[str, Changed]:
    """The fields in which two rows of a schedule differ, by their names.

    ``next_time`` is among them if the schedule runs only once.
    """
    before, after = fields_of(old, settings), fields_of(new, settings)
    if new.cron is None:
        before["next_time"], after["next_time"] = old.next_time, new.next_time
    return {
        name: Changed(before.get(name), value)
        for name, value in after.items()
        if not is_same(before.get(name), value)
    }


def fields_of(row: Row, settings: Config) -> dict[str, Any]:
    """All fields of a row; a field without a value has its default.

    Data that cannot be decoded are returned as they are stored.
    """
    options = _options(row)
    fields = {name: getattr(row, name, options.get(name)) for name in FIELDS}
    fields["data"] = _readable("data", row.data)
    fields["timezone"] = row.timezone or settings.timezone
    if row.alive_time == alive_time_of(row.type, settings):
        fields["alive_time"] = None
    return fields


def _options(row: Row) -> Mapping[str, Any]:
    try:
        return parse_options(row.options)
    except InvalidError:
        return {}


def _readable(name: str, stored: str | bytes | None) -> dict[str, Any] | str | bytes:
    try:
        return decode(name, stored) if stored else {}
    except InvalidError:
        return stored or {}


def is_same(one: object, other: object) -> bool:
    """Whether two values are equal as JSON. Python's == is not used, because True == 1 there."""
    return _canonical(one) == _canonical(other)


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=repr)
