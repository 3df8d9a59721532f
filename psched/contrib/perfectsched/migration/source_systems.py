"""Interprets rows of old tables: which may be leased, and which rows replace them in psched.

`PerfectSched` stores one row for each schedule, `PerfectQueue` one for each task. In both systems,
the only sign of a lease is a ``timeout`` in the future.
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
"""The values of a row's columns, by name, as the driver returns them."""

CLOCKS_DIFFER = 60
"""Seconds by which the clock of an old worker's host may be ahead of its database's."""

NOT_ENFORCED = ("resource", "max_running")
"""Columns of PerfectQueue that psched keeps in ``options`` and does not enforce."""

_HORIZON = 1_300_000_000
"""Unix seconds; PerfectQueue claims a task only if its ``timeout`` is later than this."""

_OFFSET = 1_000_000_000
"""Seconds that PerfectQueue 0.8 subtracts from the end of a finished task's retention."""


@dataclass(frozen=True, slots=True)
class OldRow:
    """A row of the old table.

    Attributes:
        key: the ``id`` as text.
        stored_id: the ``id`` as the driver returns it.
        values: the values of the columns, including ``id``.
        now: the time of the old database's clock when the row was read, Unix seconds.
    """

    key: str
    stored_id: str | bytes
    values: Values
    now: float

    def fingerprint(self, origin: str) -> str:
        """A hash of the row's values and of ``origin``; it changes if any of these changes."""
        state = repr((origin, sorted(self.values.items())))
        return sha256(state.encode(errors="backslashreplace")).hexdigest()[:40]


@dataclass(frozen=True, slots=True)
class Converted:
    """The row of psched's table that replaces an old row.

    Attributes:
        row: the row for psched's table.
        overdue: whether the row has waited so long that `SourceSystem.overdue_note` applies to it.
    """

    row: Row
    overdue: bool = False


class SourceSystem(Protocol):
    """An old system.

    Attributes:
        name: the system's name in messages and in the option ``--kind``.
        required_columns: the columns by which the system's tables are recognised.
        optional_columns: columns that only some of the system's tables have.
        marks: the marks; a row that has the values of one of them was moved.
        overdue_note: a text that says what happens to rows that are `Converted.overdue`.
    """

    name: str
    required_columns: frozenset[str]
    optional_columns: frozenset[str]
    marks: Sequence[Values]
    overdue_note: str

    def mark(self, columns: Collection[str]) -> Values:
        """The mark to write into a table with these columns; one of `marks`."""
        ...

    def may_be_leased(self, old: OldRow, lease_time: int) -> bool:
        """Whether an old worker may hold a lease of the row."""
        ...

    def convert(self, old: OldRow, settings: Config) -> Converted:
        """Convert a row for psched's table.

        Raises:
            InvalidError: psched cannot store the row; the error's ``field`` names the column.
        """
        ...


class PerfectSched(SourceSystem):
    """Schedules: ``timeout`` is the time of the next run, or the end of the lease.

    psched's workers on such a table (``type: rdb_compat``) write `NEVER` as the ``timeout`` of a
    row without a next run.
    """

    name = "perfectsched"
    required_columns = frozenset({"id", "timeout", "next_time", "cron", "delay", "data"})
    optional_columns = frozenset({"timezone"})
    # No PerfectSched worker can use a marked row: its `timeout` never passes, so none claims it;
    # and extend and finish match on `next_time`, which is -1, so a worker that still holds it
    # changes nothing.
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
            # A time is set, because psched may take a row without ``created_at`` for one that plain
            # SQL has inserted without a ``next_run_time``.
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
    """Tasks: ``timeout`` is the time to run, the end of the lease, or the end of the retention.

    ``created_at`` is NULL in a finished task, and 0 in a task that is to be cancelled. Versions
    before 0.8 write the end of the retention unchanged; later versions subtract `_OFFSET` seconds
    from it. The column ``owner`` is not read, because older workers lease rows of a newer table
    without writing it.
    """

    name = "perfectqueue"
    required_columns = frozenset({"id", "timeout", "data", "created_at"})
    optional_columns = frozenset({"resource", "max_running", "owner"})
    # Workers that write ``owner`` look only at ``timeout`` when they claim, and ignore rows before
    # the horizon. So this mark's ``timeout`` is before the horizon. These workers,
    # and workers of 0.8, delete a row `_OFFSET` seconds after its ``timeout``: in the year 2042.
    _with_owner: Values = MappingProxyType({"timeout": _HORIZON - 1, "created_at": None})
    # Older workers never claim a row without ``created_at``, but workers of 0.7 delete such a row
    # when its ``timeout`` has passed. So this mark's ``timeout`` never passes.
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
        # The age of the task is added to its ``expire``, because an overdue task must not expire
        # as a result of the move.
        options = _options({**kept_options, "expire": own.expire + age}, form)
        return Converted(changed(row, options=options), overdue=age >= own.expire)


SYSTEMS: Mapping[str, SourceSystem] = {each.name: each for each in (PerfectSched(), PerfectQueue())}


def is_marked(system: SourceSystem, old: OldRow) -> bool:
    """Whether a row is marked as moved; the mark replaced values that only the copy still holds."""
    return any(
        all(old.values[name] == value for name, value in mark.items()) for mark in system.marks
    )


def _within_lease(old: OldRow, lease_time: int) -> bool:
    return 0 < _whole(old, "timeout") - old.now <= lease_time + CLOCKS_DIFFER


def _whole(old: OldRow, name: str) -> int:
    """A column's whole number; 0 for any other value, which `SourceSystem.convert` refuses."""
    value = old.values[name]
    return value if isinstance(value, int) else 0


def _schedule_data(old: OldRow) -> tuple[str, str, str | None]:
    """The type of a schedule, its data without the type, and the form of `split_data`."""
    stored = old.values["data"]
    kind, data, form = split_data(check_name("id", old.key), stored)
    if form is not None:
        _refuse_unreadable(stored)
    return kind, data, form


def _task_data(old: OldRow) -> tuple[str, str, str | None]:
    """The type of a task, its data, and the form of `split_data`.

    The type is not removed from the data, because programs read the whole payload.
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
    """Refuse a JSON object that the old system can read but psched cannot.

    Raises:
        InvalidError: psched cannot read the object; the error's text gives the reason.
    """
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
    """The definition of a row, checked as strictly as the rows that clients declare.

    Raises:
        InvalidError: psched would refuse the row; the error's ``field`` names the column.
    """
    check_size("data", len(data.encode()), settings.data_limit)
    return parse_row(row, settings)


def _rest(row: Row, time: int | None, reason: str) -> Row:
    return changed(
        row, next_time=time, next_run_time=None, created_at=None, status=FINISHED, reason=reason
    )
