"""Interprets old tables: which rows may be leased, and which rows replace them in psched.

`PerfectSched` stores one row for each schedule, `PerfectQueue` one for each task. In both systems,
the only sign that a worker holds a lease of a row is a ``timeout`` in the future.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from hashlib import sha256
from math import floor
from types import MappingProxyType
from typing import Any, Protocol

from typing_extensions import override

from psched.base import payload
from psched.base.compression import TooLargeError, decompress
from psched.base.errors import InvalidError
from psched.config import Config
from psched.contrib.perfectsched.store.rows import NEVER, split_data
from psched.core.catchup import oldest_kept
from psched.core.columns import (
    LATEST_TIME,
    check_name,
    check_number,
    check_size,
    decode,
    encode,
    parse_payload,
    plain_text,
)
from psched.core.definition import Definition, parse_row
from psched.core.model import FINISHED, Row
from psched.triggers.chrono import rewritten

Values = Mapping[str, Any]
"""The values of a row's columns, by the columns' names, as the database driver returns them."""

CLOCKS_DIFFER = 60
"""Seconds by which an old worker's clock can be ahead of the old database's clock."""

NOT_ENFORCED = ("resource", "max_running")
"""Columns of PerfectQueue for limits that psched stores in ``options``, but does not enforce."""

_HORIZON = 1_300_000_000
"""PerfectQueue claims a task only if its ``timeout`` is later than this time, in Unix seconds."""

_OFFSET = 1_000_000_000
"""PerfectQueue 0.8 stores the end of a finished task's retention minus this number of seconds."""


@dataclass(frozen=True, slots=True)
class OldRow:
    """A row of the old table."""

    key: str  # the row's ``id``, as text
    stored_id: str | bytes  # the row's ``id``, as the database driver returns it
    values: Values  # the values of the columns, including ``id``
    now: float  # the time of the old database's clock when the row was read, Unix seconds

    def fingerprint(self, origin: str) -> str:
        """A hash of the row's values and ``origin``; it changes if any of them changes."""
        state = repr((origin, sorted(self.values.items())))
        return sha256(state.encode(errors="backslashreplace")).hexdigest()[:40]


@dataclass(frozen=True, slots=True)
class Converted:
    """The row of psched's table that replaces an old row."""

    row: Row
    # Whether the old row is so late that `SourceSystem.overdue_note` applies to it.
    overdue: bool = False


class SourceSystem(Protocol):
    """A system whose tables psched can migrate."""

    name: str  # the system's name in messages and in the option ``--kind``
    required_columns: frozenset[str]  # the columns by which the system's tables are recognised
    optional_columns: frozenset[str]  # columns that only some of the system's tables have
    # All marks, each as values of columns; a row that has all values of a mark was moved.
    marks: Sequence[Values]
    overdue_note: str  # a text that says what happens to rows with `Converted.overdue`

    def mark(self, columns: Collection[str]) -> Values:
        """The one of `marks` that is written to rows of a table with these columns."""
        ...

    def may_be_leased(self, old: OldRow, lease_time: int) -> bool:
        """Whether an old worker, with leases of so many seconds, might hold one of the row."""
        ...

    def convert(self, old: OldRow, settings: Config) -> Converted:
        """Convert an old row; an `InvalidError` names the column that psched cannot store."""
        ...


class PerfectSched(SourceSystem):
    """PerfectSched's tables, which contain schedules.

    ``timeout`` is the time of the next run or, if a worker holds a lease, the end of the lease.
    psched's workers on such a table (``type: rdb_compat``) write `NEVER` as the ``timeout`` of a
    row without a next run.
    """

    name = "perfectsched"
    required_columns = frozenset({"id", "timeout", "next_time", "cron", "delay", "data"})
    optional_columns = frozenset({"timezone"})
    # No PerfectSched worker can change a marked row. No worker claims the row, because its
    # `timeout` never passes. A worker that has claimed the row before cannot extend or finish it,
    # because these requests change only a row with the former `next_time`, and it is now -1.
    marks: Sequence[Values] = (MappingProxyType({"timeout": NEVER, "next_time": -1}),)
    overdue_note = (
        "schedules have missed more occurrences than catchup, catchup_limit and catchup_window"
        " keep: the first worker that claims such a schedule drops the oldest, and logs it"
    )

    @override
    def mark(self, columns: Collection[str]) -> Values:
        return self.marks[0]

    @override
    def may_be_leased(self, old: OldRow, lease_time: int) -> bool:
        waits_until = _whole(old, "next_time") + _whole(old, "delay")
        return _whole(old, "timeout") != waits_until and _within_lease(old, lease_time)

    @override
    def convert(self, old: OldRow, settings: Config) -> Converted:
        values = old.values
        kind, data, form = _schedule_data(old)
        timezone = values.get("timezone")
        if timezone == "":
            raise InvalidError("timezone", "must not be empty; use NULL or 'UTC'")
        if not isinstance(values["cron"], str):
            raise InvalidError("cron", "must be a text")
        same_policy = settings.dst_policy == "wallclock"
        next_time = check_number("next_time", values["next_time"], LATEST_TIME)
        row = Row(
            key=old.key,
            type=kind,
            data=data,
            cron=rewritten(values["cron"]),
            timezone=timezone or "UTC",
            delay=0 if values["delay"] is None else values["delay"],
            next_time=next_time,
            next_run_time=check_number("timeout", values["timeout"], LATEST_TIME),
            # ``created_at`` is set, because psched can mistake a row without ``created_at`` for one
            # that somebody has inserted by SQL without a ``next_run_time``.
            created_at=int(old.now),
            options=_options({} if same_policy else {"dst_policy": "wallclock"}, form),
        )
        definition = _understood(row, data, settings)
        parse_payload(row.data, settings.data_limit)
        if row.next_run_time == NEVER:
            return Converted(_rest(row, row.next_time, "it was at rest"))
        assert definition.trigger is not None  # noqa: S101  # it has a cron line
        oldest = oldest_kept(definition.trigger, next_time, definition, old.now)
        return Converted(row, overdue=oldest != next_time)


class PerfectQueue(SourceSystem):
    """PerfectQueue's tables, which contain tasks.

    ``timeout`` is the time to run a task; the end of the lease while a worker runs the task; and
    the end of the retention once the task is finished. ``created_at`` is NULL in a finished task,
    and 0 in a task that is to be cancelled. Versions before 0.8 write the end of the retention
    unchanged; later versions subtract `_OFFSET` seconds from the end. The column ``owner`` does not
    show whether a row is leased, because older workers do not write ``owner``.
    """

    name = "perfectqueue"
    required_columns = frozenset({"id", "timeout", "data", "created_at"})
    optional_columns = frozenset({"resource", "max_running", "owner"})
    # Workers that write ``owner`` claim any row whose ``timeout`` has passed and is later than
    # `_HORIZON`. So the ``timeout`` of this mark is earlier than `_HORIZON`. These workers, and
    # workers of 0.8, delete a row `_OFFSET` seconds after its ``timeout``: here in the year 2042.
    _with_owner: Values = MappingProxyType({"timeout": _HORIZON - 1, "created_at": None})
    # Workers that do not write ``owner`` never claim a row without ``created_at``, but workers of
    # 0.7 delete such a row once its ``timeout`` has passed. So this mark's ``timeout`` is `NEVER`.
    _without_owner: Values = MappingProxyType({"timeout": NEVER, "created_at": None})
    marks: Sequence[Values] = (_with_owner, _without_owner)
    overdue_note = (
        "tasks are overdue by more than the setting expire: they are run all the same, because"
        " that time counts from the move (it is an option of each of these tasks)"
    )

    @override
    def mark(self, columns: Collection[str]) -> Values:
        return self._with_owner if "owner" in columns else self._without_owner

    @override
    def may_be_leased(self, old: OldRow, lease_time: int) -> bool:
        return _whole(old, "created_at") > 0 and _within_lease(old, lease_time)

    @override
    def convert(self, old: OldRow, settings: Config) -> Converted:
        values = old.values
        kind, data, form = _task_data(old)
        kept_options = {n: values[n] for n in NOT_ENFORCED if values.get(n) is not None}
        time = check_number("timeout", values["timeout"], LATEST_TIME)
        created_at = values["created_at"]
        if created_at is None and time <= _HORIZON:
            time += _OFFSET
        row = Row(
            key=old.key,
            type=kind,
            data=data,
            next_time=time,
            next_run_time=time,
            created_at=created_at,
            options=_options(kept_options, form),
        )
        own = _understood(row, data, settings).settings
        parse_payload(row.data, settings.data_limit)
        if created_at is None:
            ended = _rest(row, time, "it was finished in PerfectQueue")
            return Converted(changed(ended, retain_until=time))
        if created_at <= 0:
            ended = _rest(row, time, "cancel was requested in PerfectQueue")
            return Converted(changed(ended, retain_until=floor(old.now) + own.retention_time))
        if time <= _HORIZON:
            raise InvalidError("timeout", f"is {time}, which PerfectQueue never runs; set another")
        age = floor(old.now) - max(created_at, time)
        if age <= 0 or not own.expire:
            return Converted(row)
        # The time that the task has waited is added to its ``expire``, because a task that was
        # overdue before the move must not expire as a result of the move.
        options = _options({**kept_options, "expire": own.expire + age}, form)
        return Converted(changed(row, options=options), overdue=age >= own.expire)


SYSTEMS: Mapping[str, SourceSystem] = {each.name: each for each in (PerfectSched(), PerfectQueue())}


def is_marked(system: SourceSystem, old: OldRow) -> bool:
    """Whether a row is marked as moved: its columns have all values of one of the marks."""
    return any(
        all(old.values[name] == value for name, value in mark.items()) for mark in system.marks
    )


def _within_lease(old: OldRow, lease_time: int) -> bool:
    return 0 < _whole(old, "timeout") - old.now <= lease_time + CLOCKS_DIFFER


def _whole(old: OldRow, name: str) -> int:
    """The whole number in a column; 0 if the column contains anything else, such as NULL."""
    value = old.values[name]
    return value if isinstance(value, int) else 0


def _schedule_data(old: OldRow) -> tuple[str, str, str | None]:
    """The type of a schedule, its data without the type, and the form that `split_data` returns."""
    stored = old.values["data"]
    kind, data, form = split_data(check_name("id", old.key), stored)
    if form is not None:
        _refuse_unreadable(stored)
    return kind, data, form


def _task_data(old: OldRow) -> tuple[str, str, str | None]:
    """The type of a task, its data, and the form that `split_data` returns.

    The data still contain the type, because the programs that run tasks read the whole payload.
    """
    stored = old.values["data"]
    kind, data, form = split_data(check_name("id", old.key), stored)
    if form is None and stored:
        return kind, plain_text("data", stored), None
    if stored:
        _refuse_unreadable(stored)
        return kind, data, form
    carried, form = payload.wrap(b"")
    return kind, encode("data", carried), form


def _refuse_unreadable(stored: str | bytes) -> None:
    """Refuse a JSON object that the old system can read but psched cannot."""
    try:
        text = decompress(stored)
        value = json.loads(text.decode() if isinstance(text, bytes) else text)
    except TooLargeError as error:
        raise InvalidError("data", str(error)) from None
    except (ValueError, RecursionError):
        return
    if isinstance(value, dict):
        decode("data", stored)


def _options(own: Mapping[str, Any], form: str | None) -> str | None:
    options = {**own, **({} if form is None else {payload.OPTION: form})}
    return encode("options", options) if options else None


def _understood(row: Row, data: str, settings: Config) -> Definition:
    """The definition of a row, checked as strictly as a schedule that a client declares."""
    check_size("data", len(data.encode()), settings.data_limit)
    return parse_row(row, settings)


def _rest(row: Row, time: int | None, reason: str) -> Row:
    return changed(
        row, next_time=time, next_run_time=None, created_at=None, status=FINISHED, reason=reason
    )
