"""The standing rules that pause types, in rows of ``<table>_info``.

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
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, text
from typing_extensions import override

from psched.base.errors import AlreadyExistsError, StoreBusyError
from psched.core.operations.pauses import PauseRule, PausesTypes
from psched.stores.sql import raw_execute
from psched.stores.sql.connector import Connector
from psched.stores.sql.dialects import Dialect
from psched.stores.sql.raw_execute import Columns
from psched.stores.sql.side_tables import rights_on, try_rights

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
    """
    exact, holds = dialect.exact.format, f"FROM {info} WHERE {{}}".format
    return (
        f" AND {exact('type')} NOT IN (SELECT {exact('value')} {holds(_holding(_TYPE, dialect))})"
        f" AND NOT EXISTS (SELECT 1 {holds(_holding(_EVERY, dialect))})"
    )


def _holding(kind: str, dialect: Dialect) -> str:
    """An SQL condition that selects the rules of a kind that hold."""
    soon = f"{dialect.now_floor} + {_OFFSET + 1}"  # the rule must hold for one more second
    first = dialect.joined.format(f"'{kind}'", soon)
    return f"name >= {first} AND name < '{kind}{_AFTER}'"


class HeldBack(NamedTuple):
    """What the rules that hold at a time hold back.

    Attributes:
        names: the names of their rows in ``<table>_info``.
        types: the paused types.
        everything: whether everything is paused.
        now: that time, in whole Unix seconds of the store's clock; 0 if no rule holds.
    """

    names: frozenset[str]
    types: frozenset[str]
    everything: bool
    now: int


def held_back_by(found: Iterable[Columns]) -> HeldBack:
    """What the rules hold back that `SqlPauses.select_holding` has found."""
    names, types, everything, now = set[str](), set[str](), False, 0
    for name, value, read_at in found:
        names.add(name)
        now = int(read_at)
        if name.startswith(_TYPE):
            types.add(value)
        else:
            everything = True
    return HeldBack(frozenset(names), frozenset(types), everything, now)


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
    """The rules in the rows that are about them."""
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


class SqlPauses(PausesTypes):
    """Keeps rules in ``<table>_info``, as `PausesTypes` describes."""

    def __init__(self, table: str, connector: Connector) -> None:
        self._connector = connector
        self._table = f"{table}_info"
        info = connector.quote(self._table)
        rights = rights_on(info, "name, value", "value")
        self._rights = {right: rights[right] for right in ("INSERT", "DELETE")}
        dialect = connector.dialect
        holding = " OR ".join(f"({_holding(kind, dialect)})" for kind in (_TYPE, _EVERY))
        self.select_holding = text(
            f"SELECT name, value, {dialect.now_floor} FROM {info} WHERE {holding}"
        )
        self._select = text(
            f"SELECT name, value FROM {info}"
            f" WHERE name >= '{_ABOUT}' AND name < '{_ABOUT}{_AFTER}' ORDER BY name"
        )
        self._select_names = text(
            f"SELECT name FROM {info} WHERE name >= 'paused ' AND name < 'paused {_AFTER}'"
        )
        self._delete = text(f"DELETE FROM {info} WHERE name = :name")
        self._insert = text(f"INSERT INTO {info} (name, value) VALUES (:name, :value)")

    def try_rights(self) -> None:
        """Check that the user may do to the table what psched does; see `Store.try_rights`."""
        try_rights(self._connector, self._rights, self._table)

    @override
    def pause_rules(self) -> Sequence[PauseRule]:
        return rules_in(self._connector.query(self._select, {}))

    @override
    def change_pause_rules(self, *, drop: Sequence[str], store: Sequence[PauseRule]) -> None:
        replaced = {*drop, *(rule.id for rule in store)}

        def write(connection: Connection) -> None:
            for (name,) in raw_execute.rows(connection, self._select_names, {}):
                if id_of(name) in replaced:
                    self._connector.renew()
                    raw_execute.count(connection, self._delete, {"name": name})
            for rule in store:
                for values in rows_of(rule):
                    self._connector.renew()
                    raw_execute.count(connection, self._insert, values)

        try:
            self._connector.transact(write)
        except AlreadyExistsError as error:
            # Somebody else has stored the same rule at the same time.
            raise StoreBusyError(str(error)) from None
