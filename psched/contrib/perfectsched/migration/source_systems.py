"""What a row of an old table means: whether it may be leased, and which row replaces it in psched.

`PerfectSched` has one row for each schedule, `PerfectQueue` one for each task. In both, the only
sign of a lease is a ``timeout`` in the future.
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
"""Columns of a row, as the driver returns them."""

CLOCKS_DIFFER = 60
"""Seconds by which the clock of an old worker's host may be ahead of its database's."""

NOT_ENFORCED = ("resource", "max_running")
"""Columns of PerfectQueue that psched keeps in ``options`` and does not enforce."""

_HORIZON = 1_300_000_000
"""PerfectQueue never claims a task whose ``timeout`` is not after this."""

_OFFSET = 1_000_000_000
"""Seconds; PerfectQueue 0.8 writes the end of a finished task's retention less this offset."""


@dataclass(frozen=True, slots=True)
class OldRow:
    """A row of the old table.

    Attributes:
        key: the ``id`` as text.
        stored_id: the ``id`` as the table has it.
        values: the columns, ``id`` included.
        now: the old database's clock when it was read, Unix seconds.
    """

    key: str
    stored_id: str | bytes
    values: Values
    now: float

    def fingerprint(self, origin: str) -> str:
        """A text that differs for every other state of this row, and for rows of other origins."""
        state = repr((origin, sorted(self.values.items())))
        return sha256(state.encode(errors="backslashreplace")).hexdigest()[:40]


@dataclass(frozen=True, slots=True)
class Converted:
    """The row of psched's table that replaces an old row.

    Attributes:
        row: the row.
        overdue: whether it has waited so long that `SourceSystem.overdue_note` applies to it.
    """

    row: Row
    overdue: bool = False


class SourceSystem(Protocol):
    """An old system.

    Attributes:
        name: the name in messages and in the option ``--kind``.
        required_columns: the columns by which its tables are recognised.
        optional_columns: columns that its tables may have.
        marks: the values that mark a row as moved; earlier versions of psched wrote others.
        overdue_note: what happens to rows that are `Converted.overdue`, for people.
    """

    name: str
    required_columns: frozenset[str]
    optional_columns: frozenset[str]
    marks: Sequence[Values]
    overdue_note: str

    def mark(self, columns: Collection[str]) -> Values:
        """The mark for a table with these columns; one of `marks`."""
        ...

    def may_be_leased(self, old: OldRow, lease_time: int) -> bool:
        """Whether an old worker may hold a lease of the row."""
        ...

    def convert(self, old: OldRow, settings: Config) -> Converted:
        """Convert a row for psched's table.

        Raises:
            InvalidError: psched cannot hold the row; the ``field`` names the column.
        """
        ...


class PerfectSched(SourceSystem):
    """Schedules: ``timeout`` is the time of the next run, or the end of the lease.

    psched's own workers on such a table (``type: rdb_compat``) put rows at rest with `NEVER`.
    """

    name = "perfectsched"
    required_columns = frozenset({"id", "timeout", "next_time", "cron", "delay", "data"})
    optional_columns = frozenset({"timezone"})
    # PerfectSched's workers claim rows whose timeout has passed, and name next_time to extend or
    # finish.
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
            # A row without next_run_time counts as inserted by plain SQL without its times.
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
    before 0.8 write the end of the retention as it is; later ones subtract `_OFFSET` seconds. The
    column ``owner`` tells nothing: older workers on a newer table lease without writing it.
    """

    name = "perfectqueue"
    required_columns = frozenset({"id", "timeout", "data", "created_at"})
    optional_columns = frozenset({"resource", "max_running", "owner"})
    # Workers that write the owner compare only timeout: they ignore rows before the horizon.
    # They, and workers of 0.8, delete a row `_OFFSET` seconds after its timeout.
    _with_owner: Values = MappingProxyType({"timeout": _HORIZON - 1, "created_at": None})
    # Older workers ignore rows without created_at, but workers of 0.7 delete those that are due.
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
        # An overdue task must not expire because it was moved: the time to expire starts now.
        options = _options({**kept_options, "expire": own.expire + age}, form)
        return Converted(changed(row, options=options), overdue=age >= own.expire)


SYSTEMS: Mapping[str, SourceSystem] = {each.name: each for each in (PerfectSched(), PerfectQueue())}


def is_marked(system: SourceSystem, old: OldRow) -> bool:
    """Whether a row is marked as moved; then only its copy has its former values."""
    return any(
        all(old.values[name] == value for name, value in mark.items()) for mark in system.marks
    )


def _within_lease(old: OldRow, lease_time: int) -> bool:
    return 0 < _whole(old, "timeout") - old.now <= lease_time + CLOCKS_DIFFER


def _whole(old: OldRow, name: str) -> int:
    """A whole number, or 0; `SourceSystem.convert` refuses any other value."""
    value = old.values[name]
    return value if isinstance(value, int) else 0


def _schedule_data(old: OldRow) -> tuple[str, str, str | None]:
    """The type, the data without the type, and how they carry the payload; see `split_data`."""
    stored = old.values["data"]
    kind, data, form = split_data(check_name("id", old.key), stored)
    if form is not None:
        _refuse_unreadable(stored)
    return kind, data, form


def _task_data(old: OldRow) -> tuple[str, str, str | None]:
    """The type and the data of a task, and how these carry the payload.

    The data keep the type, because programs read the whole payload.
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
    """Refuse a JSON object that the old system can read and psched cannot.

    Raises:
        InvalidError: psched cannot read it; the text tells why.
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
    """The definition of a row, checked as strictly as for a row that a client declares.

    Raises:
        InvalidError: psched would refuse it; the ``field`` names the column.
    """
    check_size("data", len(data.encode()), settings.data_limit)
    return parse_row(row, settings)


def _rest(row: Row, time: int | None, reason: str) -> Row:
    return changed(
        row, next_time=time, next_run_time=None, created_at=None, status=FINISHED, reason=reason
    )
