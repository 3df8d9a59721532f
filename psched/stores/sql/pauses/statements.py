"""SQL about the standing rules that pause types, and how rows of ``<table>_info`` contain a rule.

The columns of that table are two short texts, and psched does not change it, so that a table of the
previous version needs no upgrade. A rule is several rows:

====================================  ==========================================================
name                                  value
====================================  ==========================================================
``paused type UNTIL ID``              the type, if the rule is about one type
``paused every UNTIL ID``             ``*``, if the rule is about every type
``paused about ID NUMBER``            a part of the rule as JSON, in ASCII
====================================  ==========================================================

UNTIL has 13 digits: the Unix time of the rule's end plus `_OFFSET`, so that such texts are in the
order of time. Thus one range of names contains the rules that hold.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from sqlalchemy import text

from psched.core.operations.pauses import PauseRule
from psched.stores.sql.dialects import Dialect
from psched.stores.sql.raw_execute import Columns

_OFFSET = 10**12
_NEVER = 8 * 10**12
"""Stands for the end of a rule that only `psched resume` ends."""

_TYPE, _EVERY, _ABOUT = "paused type ", "paused every ", "paused about "
_AFTER = "~"
"""This character follows all digits and letters in the order of texts."""

_PART = 250
"""The most characters of a part of a rule; the column ``value`` holds 255."""


def unpaused(info: str, dialect: Dialect) -> str:
    """SQL that begins with AND: no rule pauses the row's type now.

    The subqueries do not depend on the row, so the database executes them once for a statement.

    Args:
        info: the name of the table ``<table>_info``, quoted for the database.
        dialect: contains the SQL fragments that differ between databases.
    """
    soon = f"{dialect.now_floor} + {_OFFSET + 1}"  # the rule must hold for one more second
    in_range = f"FROM {info} WHERE name >= {{0}} AND name < {{1}}"
    types = in_range.format(dialect.joined.format(f"'{_TYPE}'", soon), f"'{_TYPE}{_AFTER}'")
    every = in_range.format(dialect.joined.format(f"'{_EVERY}'", soon), f"'{_EVERY}{_AFTER}'")
    exact = dialect.exact.format
    return (
        f" AND {exact('type')} NOT IN (SELECT {exact('value')} {types})"
        f" AND NOT EXISTS (SELECT 1 {every})"
    )


class PauseStatements:
    """The statements about rules.

    Args:
        table: the table's name, not quoted.
        quote: quotes a name for the database.
    """

    def __init__(self, table: str, quote: Callable[[str], str]) -> None:
        info = quote(f"{table}_info")
        self.select = text(
            f"SELECT name, value FROM {info}"  # noqa: S608  # quoted
            f" WHERE name >= '{_ABOUT}' AND name < '{_ABOUT}{_AFTER}' ORDER BY name"
        )
        self.select_names = text(
            f"SELECT name FROM {info}"  # noqa: S608  # quoted
            f" WHERE name >= 'paused ' AND name < 'paused {_AFTER}'"
        )
        self.delete = text(f"DELETE FROM {info} WHERE name = :name")  # noqa: S608  # quoted
        self.insert = text(
            f"INSERT INTO {info} (name, value) VALUES (:name, :value)"  # noqa: S608  # quoted
        )


def id_of(name: str) -> str | None:
    """The id of the rule of which a row with this name is a part; None if it is of no rule."""
    if name.startswith(_ABOUT):
        return name.removeprefix(_ABOUT).partition(" ")[0]
    for prefix in (_TYPE, _EVERY):
        if name.startswith(prefix):
            return name.removeprefix(prefix).partition(" ")[2]
    return None


def rows_of(rule: PauseRule) -> list[Mapping[str, str]]:
    """The rows that contain a rule."""
    until = (_NEVER if rule.until is None else rule.until) + _OFFSET
    kind, value = (_EVERY, "*") if rule.type is None else (_TYPE, rule.type)
    about = json.dumps(rule.to_json(), separators=(",", ":"))
    parts = [about[start : start + _PART] for start in range(0, len(about), _PART)]
    return [
        {"name": f"{kind}{until} {rule.id}", "value": value},
        *(
            {"name": f"{_ABOUT}{rule.id} {number:02}", "value": part}
            for number, part in enumerate(parts)
        ),
    ]


def rules_in(rows: Iterable[Columns]) -> Sequence[PauseRule]:
    """The rules in the result of `PauseStatements.select`."""
    parts = defaultdict[str, list[str]](list)
    for name, value in rows:
        parts[id_of(name) or ""].append(value)
    found = (PauseRule.from_json(_decoded("".join(each))) for each in parts.values())
    return [rule for rule in found if rule is not None]


def _decoded(stored: str) -> object:
    try:
        return json.loads(stored)
    except (ValueError, RecursionError):
        return None
