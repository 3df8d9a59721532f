"""The statements by which due rows are looked for and claimed; see `statements` for the others."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import Any

from sqlalchemy import TextClause, text

from psched.base.lease_times import LONGEST_ALIVE_TIME
from psched.stores.sql.dialects import Dialect
from psched.stores.sql.raw_execute import Columns

COLUMNS = (
    "id", "type", "data", "cron", "timezone", "delay", "next_time", "next_run_time", "owner",
    "fence", "settled_by", "attempt", "status", "reason", "version", "created_at", "alive_time",
    "options", "retain_until",
)  # fmt: skip
"""In the order of the fields of `psched.core.model.Row`."""

KEY, DUE, OWNER, FENCE, ATTEMPT, VERSION, ALIVE_TIME = map(
    COLUMNS.index,
    ("id", "next_run_time", "owner", "fence", "attempt", "version", "alive_time"),
)
"""Where they are in what a query returns."""

PLACE, NOW, READ_ONLY = range(len(COLUMNS), len(COLUMNS) + 3)
"""What the queries for due rows return after these: see `psched.stores.sql.dialects.Dialect`."""

_PAYLOADS = ("data", "options")

# The same as psched.timing.lease_time.
_OWN = "COALESCE(alive_time, :alive_time)"
_LEASE = (
    f"CASE WHEN {_OWN} < :shortest THEN :shortest"
    f" WHEN {_OWN} > {LONGEST_ALIVE_TIME} THEN {LONGEST_ALIVE_TIME} ELSE {_OWN} END"
)

# Plus nothing: a million other rows may have this time.
_AS_SEEN = "fence = :fence{0} AND version = :version{0} AND next_run_time + 0 = :due{0}"

AS_SEEN = f"id = :id AND {_AS_SEEN.format('')}"
"""One row is as it was read, see `as_seen`."""


class Taking:
    """The statements of every way to claim.

    Args:
        table: the table's name, quoted as the database wants it.
        dialect: the database's ways.
        only: the types that are taken; none: all.
    """

    def __init__(self, table: str, dialect: Dialect, only: Sequence[str] = ()) -> None:
        now, columns = dialect.now_floor, columns_of(dialect)
        self._place = dialect.place
        found = f"{columns}, {dialect.place}"
        types = {f"only{i}": type_ for i, type_ in enumerate(only)}
        placeholders = ", ".join(f":{name}" for name in types)
        ours = f" AND {dialect.exact.format('type')} IN ({placeholders})" if only else ""

        def of_ours(statement: str) -> TextClause:
            return text(statement).bindparams(**types)

        ahead = dialect.integer.format(":horizon")
        # Where leases may seem to have ended because somebody has set the clock.
        takeable = f" AND (owner IS NULL OR {_LEASE} < :even)" if dialect.host_clock else ""
        self.due = of_ours(
            f"SELECT {found}, {dialect.now}, {dialect.read_only} FROM {table}"
            f" WHERE next_run_time <= {now} + {ahead}{ours}{takeable}"
            " ORDER BY next_run_time LIMIT :limit"
        )
        # Not MIN: a planner that believes in few rows may read them all for it.
        next_due = (
            f"SELECT next_run_time FROM {table} WHERE next_run_time > {now}"
            f" AND next_run_time <= {now} + {ahead}{ours} ORDER BY next_run_time LIMIT 1"
        )
        taking = (
            "SET owner = :owner, fence = fence + 1, attempt = attempt + 1,"
            f" next_run_time = {lease_end(dialect)}"
        )
        first_due = f"next_run_time <= {now}{ours} ORDER BY next_run_time LIMIT"
        self._claim = f"UPDATE {table} {taking} WHERE "
        # A server that understands this, which changes nothing, understands `take_unlocked`.
        self.skip_locked_proof = (
            f"WITH due (key) AS MATERIALIZED (SELECT id FROM {table} WHERE 1 = 0 FOR UPDATE SKIP"
            f" LOCKED), taken AS (UPDATE {table} SET version = version FROM due WHERE id = key"
            " RETURNING id) SELECT id FROM taken"
        )
        # All in one: the clock, what was leased, and what is due next. A materialized WITH is
        # worked out once; a mere subquery may lock, and take, more rows than its limit.
        self.take_unlocked = of_ours(
            "WITH due (key, was, since) AS MATERIALIZED"
            f" (SELECT id, owner, next_run_time FROM {table} WHERE {first_due} :limit"
            " FOR UPDATE SKIP LOCKED),"
            f" taken AS (UPDATE {table} {taking} FROM due WHERE id = key"
            f" RETURNING {columns}, was, since),"
            f" next (due) AS (SELECT ({next_due}))"
            f" SELECT {dialect.now}, next.due, taken.* FROM next LEFT JOIN taken ON TRUE"
            " ORDER BY since"
        )

    def claim(self, owner: str, seen: Sequence[Columns]) -> tuple[TextClause, dict[str, Any]]:
        """Take rows that are still exactly as seen: a compare-and-swap."""
        names = _numbered((self._place, *_SEEN), len(seen))
        values = dict(zip(names, chain.from_iterable(map(_values_of, seen)), strict=True))
        values["owner"] = owner
        # What is at a row's place may have become another row.
        each = f"id = :id{{0}} AND {_AS_SEEN}"
        return each_of(self._claim, each, len(seen), self._place), values


_SEEN = ("id", "fence", "version", "due")
_values_of = itemgetter(PLACE, KEY, FENCE, VERSION, DUE)


def as_seen(columns: Columns) -> dict[str, Any]:
    """The values by which a due row is known to be as it was read."""
    return dict(zip(_SEEN, _values_of(columns)[1:], strict=True))


@lru_cache(maxsize=16)
def _numbered(names: Sequence[str], count: int) -> Sequence[str]:
    """The names of the values of ``count`` rows."""
    return [f"{name}{i}" for i in range(count) for name in names]


def columns_of(dialect: Dialect) -> str:
    """All columns, as they are read."""
    return ", ".join(dialect.payload.format(c) if c in _PAYLOADS else c for c in COLUMNS)


def lease_end(dialect: Dialect) -> str:
    """When a lease that begins, or is extended, now will end."""
    return f"{dialect.now_floor} + {_LEASE} + 1"


@lru_cache(maxsize=64)
def each_of(head: str, each: str, count: int, place: str = "id") -> TextClause:
    """A statement about ``count`` numbered rows, of each of which the same must be true."""
    return text(head + any_of(each, count, place))


def any_of(each: str, count: int, place: str = "id") -> str:
    """One of ``count`` numbered rows, of which the same must be true."""
    # Found by that alone, then compared: not every planner looks alternatives up one by one.
    cases = " ".join(f"WHEN :{place}{i} THEN {each.format(i)}" for i in range(count))
    return f"{one_of(count, place)} AND CASE {place} {cases} END"


def one_of(count: int, place: str = "id") -> str:
    """One of ``count`` numbered rows."""
    return f"{place} IN ({', '.join(f':{place}{i}' for i in range(count))})"
