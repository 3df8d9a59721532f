"""The statements that `psched.stores.sql.store.SqlStore` sends, as SQL text.

The statements are text for two reasons: a reader sees what the database sees, and a batch of n rows
costs a dictionary lookup instead of building and hashing an expression tree of 10 n nodes. Only the
table's name, which the configuration restricts to a plain identifier, and the dialect's fragments
are interpolated; values are bound.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any

from sqlalchemy import Connection, TextClause, text

from psched.base.lease_times import LONGEST_ALIVE_TIME
from psched.core.model import MARKS, TOLD, ReasonCode, Row, Settlement, Token
from psched.stores.observations import MOST
from psched.stores.sql.batches import Insertion, numbered
from psched.stores.sql.conditions import Request, by_keys, conditional_text, fulfils
from psched.stores.sql.dialects import Dialect
from psched.stores.sql.pauses import unpaused
from psched.stores.sql.raw_execute import Columns
from psched.stores.sql.selecting import SelectingStatements
from psched.stores.sql.side_tables import rights_on

COLUMNS = (
    "id", "type", "data", "cron", "timezone", "delay", "next_time", "next_run_time", "leased_by",
    "fence", "settled_by", "attempt", "status", "reason", "version", "created_at", "alive_time",
    "options", "retain_until", "claimed_at", "held_by", "held_until",
    "decided_until", "moved_at", "local_time", "reason_code", "paused_at", "paused_until",
    "pause_note", "label", "lane", "run_as",
)  # fmt: skip
"""The columns, in the order of the fields of `psched.core.model.Row`.

``id`` is `Row.key`, and ``leased_by`` is `Row.owner`.
"""

KEY, DUE, OWNER, FENCE, ATTEMPT, VERSION, ALIVE_TIME, CLAIMED_AT, HELD_BY, HELD_UNTIL = map(
    COLUMNS.index,
    (
        *("id", "next_run_time", "leased_by", "fence", "attempt", "version", "alive_time"),
        *("claimed_at", "held_by", "held_until"),
    ),
)
"""The positions of some columns in a row that a query has returned."""

PLACE, NOW, READ_ONLY = range(len(COLUMNS), len(COLUMNS) + 3)
"""The positions of three values that `Statements.due` returns after the columns.

`dialects.dialect.Dialect` describes these values: ``place``, ``now`` and ``read_only``.
"""

_PAYLOADS = ("data", "options")
_PLACES_OF_PAYLOADS = tuple(map(COLUMNS.index, _PAYLOADS))

# SQL that computes the length of a row's lease, as psched.base.lease_times.lease_time does in
# Python.
_OWN = "COALESCE(alive_time, :alive_time)"
_LEASE = (
    f"CASE WHEN {_OWN} < :shortest THEN :shortest"
    f" WHEN {_OWN} > {LONGEST_ALIVE_TIME} THEN {LONGEST_ALIVE_TIME} ELSE {_OWN} END"
)

# Here and below, `+ 0` keeps the planner from using the index of times. Using it would be slow,
# because a million rows can have the same time.
_AS_SEEN = "fence = :fence{0} AND version = :version{0} AND next_run_time + 0 = :due{0}"

# A hold changes neither the fence nor the version, see `Statements.hold`. So a claim compares the
# end of the hold, which grows when the hold is extended.
_HELD_AS_SEEN = "COALESCE(held_until, -1) = :held_until{0}"

_FREE = "held_by = NULL, held_until = NULL"

# SQL that is true if a row was never held, or is held no more at the time ``{}``: at `_NEVER`, no
# hold has ended. Another client might have set only one of the two columns.
_NOT_HELD = "(held_by IS NULL OR held_until IS NULL OR held_until <= {})"

_NEVER = "-1"

# Only rows without a next run are purged. ``retain_until`` does not suffice to find them, because a
# client that reschedules a row by plain SQL might not clear ``retain_until``.
_AT_REST = "next_run_time + 0 IS NULL"

_HELD = "leased_by = :owner{0} AND fence = :fence{0}"
# The status is compared, too, because a client that changes the status by plain SQL might not
# increase the version.
_HELD_AS_DEFINED = (
    _HELD + " AND version = :version{0} AND status = COALESCE(:seen_status{0}, status)"
)

_QUARANTINE = (
    f"status = 'quarantined', reason = :reason, reason_code = '{ReasonCode.INVALID}',"
    " next_run_time = NULL, leased_by = NULL"
)


class Statements:
    """Every statement that psched sends about one table.

    The names of the table and of ``<table>_info`` are quoted already. If ``only`` is not empty,
    only rows of these types are claimed. Those of a host are claimed after `serve` has named its
    lanes. ``lane_index`` is the quoted name of the index of lanes.

    If ``observed``, no statement but `ended` asks whether a lease or a hold has ended. Those that
    need it take only rows that nobody holds, and `psched.stores.observations` decides the rest. A
    lease is held until another owner, or none, is written.

    Attributes:
        observed: the argument.
        checks_clock: whether callers tell how long ago this host's clock, which is the store's, was
            last set: as ``since_step``, and to some statements the time as ``expired_at``.
    """

    def __init__(
        self,
        table: str,
        dialect: Dialect,
        only: Sequence[str] = (),
        *,
        info: str,
        lane_index: str,
        observed: bool = False,
    ) -> None:
        now = dialect.now_floor
        self.observed = observed
        self.checks_clock = dialect.host_clock and not observed
        self._end = _NEVER if observed else now
        columns = ", ".join(dialect.payload.format(c) if c in _PAYLOADS else c for c in COLUMNS)
        self.selecting = partial(SelectingStatements, table, columns, dialect)
        self.now = text(f"SELECT {dialect.now}")
        self.get = text(f"SELECT {columns} FROM {table} WHERE id = :id")
        self.count = text(f"SELECT COUNT(*) FROM {table}")
        self._select = f"SELECT {columns} FROM {table} WHERE "
        self.held = text(
            f"SELECT {columns} FROM {table} WHERE leased_by = :owner"
            f" AND next_run_time > {self._end}"
        )
        self.dead = text(
            f"SELECT {columns} FROM {table} WHERE leased_by > :dot AND leased_by < :after_dot"
            f" AND next_run_time + 0 > {self._end}"
            f" AND next_run_time + 0 <= {now} + :alive_time + 1"
        )
        marks = ", ".join(f"'{mark}'" for mark in MARKS)
        self._marked = f"SELECT id, status FROM {table} WHERE status IN ({marks}) AND "
        extended = _later if observed else _plain
        lease_end = extended(_lease_end(dialect), "next_run_time")
        self._extend = f"UPDATE {table} SET next_run_time = {lease_end} WHERE "
        self.rights = rights_on(table, "id", "version")
        self._unpaused = unpaused(info, dialect)
        self._build = partial(self._build_claims, table, columns, dialect, only)
        by_index = dialect.by_index.format(lane_index)
        self._lane_index = table + by_index
        self.lane_probe = (
            text(f"SELECT 1 FROM {self._lane_index} WHERE 1 = 0") if by_index else None
        )
        self.serve((), indexed=False)
        # Which lanes there are, one after the other; see `psched.stores.lanes`.
        self.any_lane = text(f"SELECT MIN(lane) FROM {table}")
        self.next_lane = text(
            f"SELECT MIN(lane) FROM {table} WHERE lane > :after AND lane < :before"
        )
        self.lane_waits = text(
            f"SELECT 1 FROM {table} WHERE lane = :lane AND next_run_time > :ever LIMIT 1"
        )
        self._build_holds(table, extended(_lease_end(dialect), "held_until"))
        self._build_quarantine(table, dialect)
        self._build_definition(table, dialect)
        self._build_settlement(table, dialect)

    def _build_claims(
        self,
        table: str,
        columns: str,
        dialect: Dialect,
        only: Sequence[str],
        *,
        lanes: Sequence[str],
        source: str | None,
    ) -> None:
        now, ahead = dialect.now_floor, dialect.integer.format(":horizon")
        self._place = dialect.place
        extra = f"{table}.{dialect.place}, {dialect.now}, {dialect.read_only}"
        types = {f"only{i}": type_ for i, type_ in enumerate(only)}
        placeholders = ", ".join(f":{name}" for name in types)
        ours = f" AND {dialect.exact.format('type')} IN ({placeholders})" if only else ""
        ours += self._unpaused
        types |= {f"lane{i}": lane for i, lane in enumerate(lanes)}
        self._types = types
        served = _Served(table, len(lanes), dialect, source)
        # See `psched.stores.sql.claim_range`.
        after = dialect.after.format(
            "next_run_time",
            "id",
            dialect.integer.format(":after"),
            dialect.text.format(":after_id"),
        )
        between = f" AND next_run_time <= {dialect.integer.format(':until')} AND {after}"
        # After a user has set the host's clock, a lease can seem to have expired although it has
        # not. So a leased row is claimed only if its lease is shorter than the time since then.
        # The same holds for a hold, which lasts as long as a lease.
        not_held = _NOT_HELD.format(self._end)
        claimable = over = f" AND {not_held}"
        # A held row that is not due yet tells when to claim again, because the hold may end before.
        later = f"next_run_time + 0 > {now}"
        near = f" AND ({later} OR {not_held})"
        if self.observed:
            claimable += " AND leased_by IS NULL"
            near += f" AND ({later} OR leased_by IS NULL)"
        elif dialect.host_clock:
            claimable += f" AND (leased_by IS NULL AND held_by IS NULL OR {_LEASE} < :since_step)"
            free_or_later = f"leased_by IS NULL AND (held_by IS NULL OR {later})"
            near += f" AND ({free_or_later} OR {_LEASE} < :since_step)"
        due = f"next_run_time <= {now} + {ahead}{between}{ours}{near}"
        self.due = text(served.select(f"{columns}, {extra}", due)).bindparams(**types)
        # The same, but each row has its payloads and all other values in an array; see `unpacked`.
        self.due_packed = None
        if dialect.array is not None:
            others = ", ".join(name for name in COLUMNS if name not in _PAYLOADS)
            array = dialect.array.format(f"{others}, {extra}")
            payloads = ", ".join(map(dialect.payload.format, _PAYLOADS))
            self.due_packed = text(served.select(f"{payloads}, {array}", due)).bindparams(**types)
        self._due_among, self._over_among = (
            f"SELECT {columns}, {extra} FROM {table}"
            f" WHERE next_run_time + 0 <= {now}{ours}{free} AND {served.condition} AND "
            for free in (claimable, over)
        )
        # What this host does not claim must not hide what it takes over.
        self.ended = text(
            f"SELECT id, leased_by, fence, next_run_time, alive_time FROM {table}"
            f" WHERE leased_by IS NOT NULL AND {_NOT_HELD.format(_NEVER)}"
            f" AND next_run_time + 0 <= {now}{ours} AND {served.condition} UNION ALL"
            f" SELECT id, held_by, NULL, held_until, alive_time FROM {table}"
            f" WHERE held_by IS NOT NULL AND held_until <= {now}"
            f" LIMIT {MOST}"
        ).bindparams(**types)
        # `psched.stores.sql.claim_range` reads the due rows slice by slice with these.
        slice_ = (
            f"SELECT {dialect.payload.format('id')}, next_run_time, id, type, lane FROM {table}"
            f" WHERE next_run_time <= {dialect.integer.format(':until')}"
        )
        in_time = "ORDER BY next_run_time, id LIMIT :limit"
        key = dialect.text.format(":id")
        self.first_overdue = text(f"{slice_} {in_time}")
        self.overdue = text(
            f"{slice_} AND {dialect.after.format('next_run_time', 'id', ':time', key)} {in_time}"
        )
        # Rows of expired leases are not counted if the store's clock is the host's, because after a
        # user has set that clock, a running lease can seem to have expired.
        free = f" AND {not_held}"
        if dialect.host_clock or self.observed:
            free = " AND leased_by IS NULL AND held_by IS NULL"
        self.backlog = text(
            served.select(
                f"next_run_time, {dialect.now}", f"next_run_time <= {now} AND {after}{ours}{free}"
            )
        ).bindparams(**types)
        lease = (
            "SET leased_by = :owner, fence = fence + 1, attempt = attempt + 1,"
            f" next_run_time = {_lease_end(dialect)}, claimed_at = {now}, {_FREE}"
        )
        self._claim = f"UPDATE {table} {lease} WHERE "
        # This query does not use MIN, because for MIN, a planner that expects few rows might read
        # all rows. It is not run if more rows may be due already.
        soon = f"next_run_time > {now} AND next_run_time <= {now} + {ahead}{ours}"
        next_due = (
            f"CASE WHEN (SELECT COUNT(*) FROM due) < :limit THEN ({served.first_time(soon)}) END"
        )
        # One statement reads the clock, claims rows, and finds the next due time. The WITH is
        # materialized, so that it is computed only once. Otherwise the database might compute it
        # repeatedly, and lock and claim more rows than the limit. The keys are an array, because a
        # planner that expects no row might find the rows of a join by reading all keys.
        locked = served.lock(
            "id, leased_by, next_run_time, claimed_at",
            f"next_run_time <= {now}{between}{ours}{claimable}",
        )
        self.claim_unlocked = text(
            f"WITH due (key, was, since, before) AS MATERIALIZED ({locked}),"
            f" claimed AS (UPDATE {table} {lease} WHERE id = ANY(ARRAY(SELECT key FROM due))"
            f" RETURNING {columns}),"
            f" next (due) AS (SELECT {next_due})"
            f" SELECT {dialect.now}, next.due, claimed.*, was, since, before FROM next"
            " LEFT JOIN (claimed JOIN due ON id = key) ON TRUE ORDER BY since, id"
        ).bindparams(**types)
        # The probe changes nothing. A server that accepts the probe also accepts `claim_unlocked`.
        self.skip_locked_probe = text(
            f"WITH due (key) AS MATERIALIZED (SELECT id FROM {table} WHERE 1 = 0 FOR UPDATE SKIP"
            f" LOCKED), claimed AS (UPDATE {table} SET version = version"
            " WHERE id = ANY(ARRAY(SELECT key FROM due)) RETURNING id) SELECT id FROM claimed"
        )

    def _build_holds(self, table: str, lease_end: str) -> None:
        # A hold and a claim exclude each other, because each of them is one UPDATE of the row that
        # they both change, whose condition the database checks while it has locked the row: a hold
        # requires that the row has no owner, and a claim that no hold lasts (or, if it has read the
        # row before, that the hold is still the one that had ended). So the second one of two
        # simultaneous statements sees what the first one has written, and changes nothing.
        self._hold = f"UPDATE {table} SET held_until = {lease_end}, held_by = "
        not_held = _NOT_HELD.format(self._end)
        if self.checks_clock:
            # As in `_build_claims`, after a user has set the host's clock.
            not_held = (
                f"(held_by IS NULL OR {_NOT_HELD.format(':expired_at')} AND {_LEASE} < :since_step)"
            )
        marks = ", ".join(f"'{mark}'" for mark in MARKS)
        free = f"status NOT IN ({marks}) AND {not_held}"
        self._can_hold = f"leased_by IS NULL AND (held_by = :holder{{0}} OR {free})"
        self._release = f"UPDATE {table} SET {_FREE} WHERE "
        self.release_over = text(
            f"UPDATE {table} SET {_FREE} WHERE id = :key AND held_by = :owner AND held_until = :end"
        )
        self.release_dead = text(
            f"UPDATE {table} SET {_FREE} WHERE held_by > :dot AND held_by < :after_dot"
        )

    def _build_quarantine(self, table: str, dialect: Dialect) -> None:
        now, hexadecimal = dialect.now_floor, dialect.hex.format("id")
        self.quarantine = text(
            f"UPDATE {table} SET {_QUARANTINE} WHERE id = :id AND {_AS_SEEN.format('')}"
        )
        self.due_keys = text(f"SELECT {hexadecimal} FROM {table} WHERE next_run_time <= {now}")
        self.quarantine_by_hex = text(
            f"UPDATE {table} SET {_QUARANTINE}"
            f" WHERE {hexadecimal} = :hex AND next_run_time <= {now}"
        )

    def _build_definition(self, table: str, dialect: Dialect) -> None:
        now = dialect.now_floor
        self._insertion = Insertion(
            table, _INSERTED, {"settled_by": ":nonce", "created_at": now}, dialect
        )
        told = ", ".join(f"{name} = :{name}" for name in TOLD)
        self.replace = text(
            f"UPDATE {table} SET {told},"
            " type = :type, data = :data, cron = :cron, timezone = :timezone,"
            " delay = :delay, next_time = :next_time, status = :status, reason = :reason,"
            " attempt = :attempt, alive_time = :alive_time, options = :options,"
            " label = :label, lane = :lane, run_as = :run_as,"
            " created_at = COALESCE(:created_at, created_at), retain_until = :retain_until,"
            " next_run_time ="
            " CASE WHEN leased_by IS NULL THEN :next_run_time ELSE next_run_time END,"
            " version = version + 1"
            " WHERE id = :id AND version = :seen_version AND fence = :seen_fence"
            " AND status = COALESCE(:seen_status, status)"
            " AND COALESCE(leased_by, '') = :seen_owner"
            # The next_run_time of a leased row is the end of its lease, which its worker may have
            # extended since the row was read. So next_run_time is compared only in free rows.
            " AND (leased_by IS NOT NULL OR COALESCE(next_run_time, -1) = :seen_next_run_time)"
        )
        self.update_data = text(
            f"UPDATE {table} SET data = :data, version = version + 1"
            " WHERE id = :id AND leased_by = :owner AND fence = :fence"
        )
        # If the store's clock is this host's clock, somebody may have set the clock. So
        # `SqlStore.delete` decides which leases have expired, and passes a time.
        expired_at = ":expired_at" if self.checks_clock else self._end
        self.delete = text(
            f"DELETE FROM {table} WHERE id = :id"
            f" AND (leased_by IS NULL OR next_run_time IS NULL OR next_run_time <= {expired_at})"
            f" AND {_NOT_HELD.format(expired_at)}"
        )
        # A row that is held becomes due, so that it is claimed and removed after the hold.
        later = f"leased_by IS NULL AND COALESCE(next_run_time, {now} + 1) > {now}"
        self.mark_deleting = text(
            f"UPDATE {table} SET version = version + CASE status WHEN 'deleting' THEN 0 ELSE 1 END,"
            f" next_run_time = CASE WHEN {later} THEN {now} ELSE next_run_time END,"
            " status = 'deleting' WHERE id = :id AND (leased_by IS NOT NULL OR held_by IS NOT NULL)"
            f" AND (status <> 'deleting' OR {later})"
        )
        rests = f"{_AT_REST} AND {_NOT_HELD.format(self._end)}"
        self.purgeable = text(
            f"SELECT id, retain_until FROM {table}"
            f" WHERE retain_until >= :since AND retain_until <= {now} AND {rests}"
            " ORDER BY retain_until LIMIT :limit"
        )
        self._purge = f"DELETE FROM {table} WHERE retain_until + 0 <= {now} AND {rests} AND "

    def _build_settlement(self, table: str, dialect: Dialect) -> None:
        now, integer = dialect.now_floor, dialect.integer.format
        # Settling sets ``created_at`` if it is NULL, as in a row that was inserted by plain SQL.
        self._settle = (
            f"UPDATE {table} SET leased_by = NULL, claimed_at = NULL,"
            f" created_at = COALESCE(created_at, {now}), "
        )
        not_before, wait = integer(":not_before{not_before}"), integer(":wait{wait}")
        next_run_time = (
            f"CASE WHEN {not_before} > {now} + {wait} THEN {not_before} ELSE {now} + {wait} END"
        )
        self._settled = (
            ("next_time", integer(":next_time{next_time}")),
            ("attempt", integer(":attempt{attempt}")),
            ("status", ":status{status}"),
            ("reason", ":reason{reason}"),
            *((name, _bound(name, integer)) for name in TOLD),
            ("settled_by", ":settled_by{settled_by}"),
            ("retain_until", f"{now} + {integer(':retain{retain}')}"),
            # If the settlement leaves the row without a next run, ``not_before`` and ``wait`` are
            # NULL, and so this value is NULL.
            ("next_run_time", next_run_time),
        )
        self._remove = f"DELETE FROM {table} WHERE "
        self._all_or_fail = dialect.all_or_fail

    def serve(self, lanes: Sequence[str], *, indexed: bool) -> None:
        """From now on, claim the rows of these lanes besides those of every host.

        Without ``indexed``, the rows are found in the index of times, as is best while few rows of
        other hosts are due.
        """
        self.served = lanes, indexed
        self._build(lanes=lanes, source=self._lane_index if indexed else None)

    def select(self, keys: Sequence[str]) -> Request:
        """A request that reads the rows with these keys."""
        return by_keys(self._select, keys)

    def marked(self, keys: Sequence[str]) -> Request:
        """A request that reads key and status of each given row whose status is one of `MARKS`."""
        return by_keys(self._marked, keys)

    def purge(self, keys: Sequence[str]) -> Request:
        """A request that deletes each given row whose retention has ended."""
        return by_keys(self._purge, keys)

    def insert(self, rows: Sequence[Row], nonce: str) -> Request:
        """A request that inserts new rows, all or none."""
        return self._insertion.request([*map(_inserted_of, rows)], nonce=nonce)

    def send_insert(self, connection: Connection, rows: Sequence[Row], nonce: str) -> None:
        """Insert new rows, all or none, by the connection's driver; there must be one."""
        self._insertion.send(connection, [*map(_inserted_of, rows)], nonce=nonce)

    def claim(self, owner: str, seen: Sequence[Columns]) -> Request:
        """A request that claims each given row that is still as `due` has returned it."""
        names = numbered((self._place, *_SEEN), len(seen))
        values = dict(zip(names, chain.from_iterable(map(_values_of, seen)), strict=True))
        values["owner"] = owner
        for i, columns in enumerate(seen):
            until = columns[HELD_UNTIL]
            values[f"held_until{i}"] = -1 if until is None else until
        # The row is found by the column ``place``. The key is compared, because another row might
        # have this value by now.
        condition = f"id = :id{{0}} AND {_AS_SEEN} AND {_HELD_AS_SEEN}"
        return conditional_text(self._claim, condition, len(seen), self._place), values

    def due_among(self, keys: Sequence[str]) -> Request:
        """A request like `due` for those of the given rows that are due."""
        statement, values = by_keys(self._due_among, keys)
        return statement, {**values, **self._types}

    def over_among(self, keys: Sequence[str]) -> Request:
        """A request like `due_among` that also returns rows that are leased."""
        statement, values = by_keys(self._over_among, keys)
        return statement, {**values, **self._types}

    def extend(self, leases: Mapping[str, Token]) -> Request:
        """A request that extends each given lease that is still held."""
        values: dict[str, Any] = {}
        for i, (key, token) in enumerate(leases.items()):
            values |= {f"id{i}": key, f"owner{i}": token.owner, f"fence{i}": token.fence}
        return conditional_text(self._extend, _HELD, len(leases)), values

    def hold(self, holds: Mapping[str, str]) -> Request:
        """A request that holds each given row that is free, or held by the same holder."""
        return _hold_text(self._hold, self._can_hold, len(holds)), _holders(holds)

    def release(self, holds: Mapping[str, str]) -> Request:
        """A request that ends the given holds."""
        text_ = conditional_text(self._release, "held_by = :holder{0}", len(holds))
        return text_, _holders(holds)

    def settle(self, ends: Sequence[Settlement]) -> Request:
        """A request that ends each lease that is still held, unless its row was redefined."""
        given = {name: [value(end) for end in ends] for name, value in _DECIDED.items()}
        # If all rows have the same value, it is bound only once.
        same = frozenset(name for name, each in given.items() if each.count(each[0]) == len(each))
        values = _held_values(ends)
        for name, each in given.items():
            values |= {f"{name}{i}": v for i, v in enumerate(each[:1] if name in same else each)}
        return _settle_text(self._settle, self._settled, len(ends), same), values

    def settle_or_fail(self, ends: Sequence[Settlement]) -> list[Request]:
        """Requests like `settle` or `remove`, whatever the first one needs.

        They raise an error if the lease of a row is not held, or its row was redefined.
        """
        statement, values = self.remove(ends) if ends[0].remove else self.settle(ends)
        given = {**values, "wanted": len(ends)}
        return [(_or_fail(part, statement), given) for part in self._all_or_fail]

    def remove(self, ends: Sequence[Settlement]) -> Request:
        """A request that deletes each row whose lease is still held, unless it was redefined."""
        return conditional_text(self._remove, _HELD_AS_DEFINED, len(ends)), _held_values(ends)


def _lease_end(dialect: Dialect) -> str:
    """SQL for the end of a lease that a statement grants or extends."""
    # One second is added, because ``now`` is rounded down.
    return f"{dialect.now_floor} + {_LEASE} + 1"


def _plain(end: str, _column: str) -> str:
    return end


def _later(end: str, column: str) -> str:
    """SQL for an end that is later than the one in a column, also if the clock stands still."""
    return f"CASE WHEN COALESCE({column}, 0) < {end} THEN {end} ELSE {column} + 1 END"


class _Served:
    """Builds queries for rows that one host runs, in the order in which they fall due.

    Each lane is a range of the index of lanes. If ``source``, the table read by this index, is
    None, they read the index of times instead.
    """

    def __init__(self, table: str, lanes: int, dialect: Dialect, source: str | None) -> None:
        self._table = table
        # It uses no index, because it is for rows that are named by their keys. No lane is '*'.
        named = ", ".join(("'*'", *(f":lane{i}" for i in range(lanes))))
        self.condition = f"COALESCE(lane, '*') IN ({named})"
        if source is None:
            self._source, self._order = table, "next_run_time, id"
            self._lanes: Sequence[str] = [self.condition if lanes else dialect.no_lane]
        else:
            self._source, self._order = source, dialect.lane_order
            self._lanes = ["lane IS NULL", *(f"lane = :lane{i}" for i in range(lanes))]

    def _of_each(self, columns: str, condition: str, end: str) -> Sequence[str]:
        return [
            f"SELECT {columns} FROM {self._source} WHERE {lane} AND {condition}"
            f" ORDER BY {self._order} LIMIT {end}"
            for lane in self._lanes
        ]

    def select(self, columns: str, condition: str) -> str:
        """A query for the first ``:limit`` rows."""
        if len(self._lanes) == 1:
            return self._of_each(columns, condition, ":limit")[0]
        keys = _together(self._of_each("id AS served", condition, ":limit"))
        return (
            # SQLite does not change the order of a CROSS JOIN, so it finds the keys only once.
            f"SELECT {columns} FROM ({keys}) AS mine CROSS JOIN {self._table} WHERE id = served"
            " ORDER BY next_run_time, id LIMIT :limit"
        )

    def lock(self, columns: str, condition: str) -> str:
        """A query for the first ``:limit`` rows that no other session has locked; it locks them."""
        parts = self._of_each(columns, condition, ":limit FOR UPDATE SKIP LOCKED")
        if len(parts) == 1:
            return parts[0]
        return f"{_together(parts)} ORDER BY next_run_time, id LIMIT :limit"

    def first_time(self, condition: str) -> str:
        """A query for the time of the first row."""
        parts = self._of_each("next_run_time", condition, "1")
        if len(parts) == 1:
            return parts[0]
        return f"{_together(parts)} ORDER BY next_run_time LIMIT 1"


def _together(queries: Sequence[str]) -> str:
    # Only a query within a FROM can have an ORDER BY and a LIMIT of its own in every database.
    return " UNION ALL ".join(
        f"SELECT * FROM ({query}) AS lane_{i}" for i, query in enumerate(queries)
    )


_INSERTED = {
    "id": "TEXT",
    "type": "TEXT",
    "data": "TEXT",
    "cron": "TEXT",
    "timezone": "TEXT",
    "delay": "BIGINT",
    "next_time": "BIGINT",
    "next_run_time": "BIGINT",
    "alive_time": "BIGINT",
    "options": "TEXT",
    "local_time": "TEXT",
    "label": "TEXT",
    "lane": "TEXT",
    "run_as": "TEXT",
}
"""The columns of a new row that differ between rows, and their types in PostgreSQL."""

_inserted_of = attrgetter("key", *[*_INSERTED][1:])


def unpacked(found: Sequence[Columns]) -> Sequence[Columns] | None:
    """The rows that `Statements.due_packed` has returned, as those of `Statements.due`.

    None if the server could not make their arrays: a client has made a column binary, or a row has
    more text than the server returns in one value.
    """
    try:
        return [*map(_unpacked, found)]
    except ValueError:
        return None


_BINARY = "base64:type"
"""With this, MySQL begins the text that stands for a binary value."""


def _unpacked(packed: Columns) -> Columns:
    *payloads, array = packed
    # If one column is binary, MariaDB's array is binary, too, and its other texts can be garbled.
    if not isinstance(array, str) or _BINARY in array:
        raise ValueError("no array of texts")
    columns: list[Any] = json.loads(array)
    for place, payload in zip(_PLACES_OF_PAYLOADS, payloads, strict=True):
        columns.insert(place, payload)
    return columns


_SEEN = ("id", "fence", "version", "due")
_values_of = itemgetter(PLACE, KEY, FENCE, VERSION, DUE)


def as_seen(columns: Columns) -> dict[str, Any]:
    """The values with which `Statements.quarantine` checks that a row is still as it was read."""
    return dict(zip(_SEEN, _values_of(columns)[1:], strict=True))


_REPLACED = (
    "type", "data", "cron", "timezone", "delay", "next_time", "next_run_time", "status", "reason",
    "attempt", "alive_time", "options", "created_at", "retain_until",
    "label", "lane", "run_as", *TOLD,
)  # fmt: skip


def replace_values(seen: Row, new: Row) -> dict[str, Any]:
    """The values of `Statements.replace`: the new ones, and the old ones that are compared."""
    return {
        **{name: getattr(new, name) for name in _REPLACED},
        "id": new.key,
        "seen_version": seen.version,
        "seen_fence": seen.fence,
        "seen_owner": seen.owner or "",
        "seen_status": seen.known_status,
        "seen_next_run_time": -1 if seen.next_run_time is None else seen.next_run_time,
    }


_DECIDED: Mapping[str, Callable[[Settlement], object]] = {
    "settled_by": lambda end: str(end.token),
    "next_time": lambda end: end.next_time,
    "not_before": lambda end: None if end.rest else end.not_before or 0,
    # One second is added, because the clock is rounded down: the wait would otherwise end early.
    "wait": lambda end: None if end.rest else end.wait + 1 if end.wait else 0,
    "attempt": lambda end: end.attempt,
    "retain": lambda end: end.retain,
    "status": lambda end: end.status,
    "reason": lambda end: end.reason,
    **{name: attrgetter(name) for name in TOLD},
}
"""The functions that compute the values that `Statements.settle` binds, by the values' names."""


def _bound(name: str, integer: Callable[[str], str]) -> str:
    value = f":{name}{{{name}}}"
    return value if name in {"local_time", "reason_code", "pause_note"} else integer(value)


def _holders(holds: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for i, (key, holder) in enumerate(holds.items()):
        values |= {f"id{i}": key, f"holder{i}": holder}
    return values


@lru_cache(maxsize=64)
def _hold_text(head: str, condition: str, count: int) -> TextClause:
    holders = " ".join(f"WHEN :id{i} THEN :holder{i}" for i in range(count))
    return text(f"{head}CASE id {holders} END WHERE {fulfils(condition, count)}")


def _held_values(ends: Sequence[Settlement]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for i, end in enumerate(ends):
        values |= {
            f"id{i}": end.key,
            f"owner{i}": end.token.owner,
            f"fence{i}": end.token.fence,
            f"version{i}": end.version,
            f"seen_status{i}": end.seen_status,
        }
    return values


@lru_cache(maxsize=64)
def _or_fail(part: str, statement: TextClause) -> TextClause:
    return text(part.format(statement.text))


@lru_cache(maxsize=64)  # few, because the text for 200 rows takes 0.8 MB
def _settle_text(
    head: str, settled: tuple[tuple[str, str], ...], count: int, same: frozenset[str]
) -> TextClause:
    """A statement that settles ``count`` rows; all rows share the values named in ``same``."""
    numbers = [{name: 0 if name in same else i for name in _DECIDED} for i in range(count)]

    def assigned(value: str) -> str:
        given = [value.format_map(number) for number in numbers]
        if given.count(given[0]) == count:
            return given[0]
        return f"CASE id {' '.join(f'WHEN :id{i} THEN {v}' for i, v in enumerate(given))} END"

    assignments = ", ".join(f"{name} = {assigned(value)}" for name, value in settled)
    return text(f"{head}{assignments} WHERE {fulfils(_HELD_AS_DEFINED, count)}")
