"""What a row of an old table means: is it being run, and what does psched hold in its place?

`PerfectSched` has one row for each schedule, `PerfectQueue` one for each task. Both write down
a lease only as a ``timeout`` in the future.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from hashlib import sha256
from math import floor
from types import MappingProxyType
from typing import Any, Protocol

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
"""Columns of a row, as the driver gives them."""

CLOCKS_DIFFER = 60
"""Seconds by which the clock of an old worker's host may be ahead of its database's."""

NOT_ENFORCED = ("resource", "max_running")
"""Of PerfectQueue: kept in ``options``, and not acted upon."""

_HORIZON = 1_300_000_000
"""A task whose ``timeout`` is not after this is never taken by PerfectQueue."""

_OFFSET = 1_000_000_000
"""PerfectQueue 0.8 puts the end of a finished task's retention so many seconds back."""


@dataclass(frozen=True, slots=True)
class Old:
    """A row of the old table.

    Attributes:
        key: its ``id``, as text.
        at: its ``id``, as it is stored.
        values: its columns.
        now: the old database's clock when it was read, Unix seconds.
    """

    key: str
    at: str | bytes
    values: Values
    now: float

    def fingerprint(self, origin: str) -> str:
        """A text that no other state of this row has, nor a row of another origin."""
        state = repr((origin, sorted(self.values.items())))
        return sha256(state.encode(errors="backslashreplace")).hexdigest()[:40]


@dataclass(frozen=True, slots=True)
class New:
    """What psched's table is to hold in the place of an old row.

    Attributes:
        row: the row.
        late: whether it has waited so long that its `Kind.late` concerns it.
    """

    row: Row
    late: bool = False


class Kind(Protocol):
    """An old system.

    Attributes:
        name: for people, and for the option ``--kind``.
        needed: columns by which its table is known.
        optional: columns that it may have.
        marks: what may have been written into a row to take it from its workers for good.
        late: what becomes of rows that are `New.late`, for people.
    """

    name: str
    needed: frozenset[str]
    optional: frozenset[str]
    marks: Sequence[Values]
    late: str

    def mark(self, columns: Collection[str]) -> Values:
        """What is written into a row of a table with these columns to take it; one of the marks."""
        ...

    def may_be_leased(self, old: Old, lease_time: int) -> bool:
        """Whether a worker may be running it now."""
        ...

    def convert(self, old: Old, settings: Config) -> New:
        """What psched's table is to hold in its place.

        Raises:
            InvalidError: psched cannot hold it; its ``field`` names the column.
        """
        ...


class PerfectSched:
    """Schedules: ``timeout`` is the next run, or the lease's end.

    psched's own workers on such a table (``type: rdb_compat``) put a row at rest with `NEVER`.
    """

    name = "perfectsched"
    needed = frozenset({"id", "timeout", "next_time", "cron", "delay", "data"})
    optional = frozenset({"timezone"})
    # Its workers take what has timed out, and name next_time when they extend or finish.
    marks: Sequence[Values] = (MappingProxyType({"timeout": NEVER, "next_time": -1}),)
    late = (
        "schedules have missed more occurrences than catchup, catchup_limit and catchup_window"
        " keep: the first worker that takes one drops the oldest of these, and logs it"
    )

    def mark(self, columns: Collection[str]) -> Values:
        """See `Kind.mark`: the same whatever the columns are."""
        del columns
        return self.marks[0]

    def may_be_leased(self, old: Old, lease_time: int) -> bool:
        """See `Kind.may_be_leased`."""
        waits_until = _whole(old, "next_time") + _whole(old, "delay")
        return _whole(old, "timeout") != waits_until and _within_lease(old, lease_time)

    def convert(self, old: Old, settings: Config) -> New:
        """See `Kind.convert`."""
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
            # Without it a row is taken for one that plain SQL has inserted without its times.
            created_at=int(old.now),
            options=_options({} if same_policy else {"dst_policy": "wallclock"}, form),
        )
        definition = _understood(row, data, settings)
        parse_payload(row.data, settings.data_limit)
        if row.next_run_time == NEVER:
            return New(_rest(row, row.next_time, "it was at rest"))
        assert definition.trigger is not None  # noqa: S101  # it has a cron line
        oldest = oldest_kept(definition.trigger, next_time, definition, old.now)
        return New(row, late=oldest != next_time)


class PerfectQueue:
    """Tasks: ``timeout`` is the time to run, the lease's end, or the end of the retention.

    ``created_at`` is NULL in a finished task, and 0 in one that is to be cancelled. Versions before
    0.8 write the end of the retention as it is; later ones write it `_OFFSET` seconds earlier.
    The column ``owner`` is not looked at: older workers on a newer table lease without writing it.
    """

    name = "perfectqueue"
    needed = frozenset({"id", "timeout", "data", "created_at"})
    optional = frozenset({"resource", "max_running", "owner"})
    # Workers that write the owner look at timeout alone: they ignore a row before the horizon.
    # They, and those of 0.8, delete a row `_OFFSET` seconds after its timeout.
    _with_owner: Values = MappingProxyType({"timeout": _HORIZON - 1, "created_at": None})
    # Older workers ignore a row without created_at, but those of 0.7 delete it when it is due.
    _without_owner: Values = MappingProxyType({"timeout": NEVER, "created_at": None})
    marks: Sequence[Values] = (_with_owner, _without_owner)
    late = (
        "tasks are overdue by more than the setting expire: they are run all the same, because"
        " that time counts from the move (written as an option of each task)"
    )

    def mark(self, columns: Collection[str]) -> Values:
        """See `Kind.mark`."""
        return self._with_owner if "owner" in columns else self._without_owner

    def may_be_leased(self, old: Old, lease_time: int) -> bool:
        """See `Kind.may_be_leased`."""
        return _whole(old, "created_at") > 0 and _within_lease(old, lease_time)

    def convert(self, old: Old, settings: Config) -> New:
        """See `Kind.convert`."""
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
            return New(changed(ended, retain_until=time))
        if created_at <= 0:
            ended = _rest(row, time, "cancel was requested in PerfectQueue")
            return New(changed(ended, retain_until=floor(old.now) + own.retention_time))
        if time <= _HORIZON:
            raise InvalidError("timeout", f"is {time}, and PerfectQueue never runs such; set it")
        age = floor(old.now) - max(created_at, time)
        if age <= 0 or not own.expire:
            return New(row)
        # An overdue task must not expire because it was moved: its time to expire begins now.
        options = _options({**kept_options, "expire": own.expire + age}, form)
        return New(changed(row, options=options), late=age >= own.expire)


KINDS: Mapping[str, Kind] = {kind.name: kind for kind in (PerfectSched(), PerfectQueue())}


def is_marked(kind: Kind, old: Old) -> bool:
    """Whether we have taken this row: what it was is in its copy."""
    return any(
        all(old.values[name] == value for name, value in mark.items()) for mark in kind.marks
    )


def _within_lease(old: Old, lease_time: int) -> bool:
    return 0 < _whole(old, "timeout") - old.now <= lease_time + CLOCKS_DIFFER


def _whole(old: Old, name: str) -> int:
    """A number; what is none is refused when it is converted."""
    value = old.values[name]
    return value if isinstance(value, int) else 0


def _schedule_data(old: Old) -> tuple[str, str, str | None]:
    """The type, the data without it, and how these carry the payload, see `split_data`."""
    stored = old.values["data"]
    kind, data, form = split_data(check_name("id", old.key), stored)
    if form is not None:
        _refuse_unreadable(stored)
    return kind, data, form


def _task_data(old: Old) -> tuple[str, str, str | None]:
    """The type and the data of a task; the data keep the type, because programs read them whole."""
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
        InvalidError: tells what is wrong with it.
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
    """The definition of a row that psched would have added, too.

    Raises:
        InvalidError: it would not; its ``field`` names the column.
    """
    check_size("data", len(data.encode()), settings.data_limit)
    return parse_row(row, settings)


def _rest(row: Row, time: int | None, reason: str) -> Row:
    return changed(
        row, next_time=time, next_run_time=None, created_at=None, status=FINISHED, reason=reason
    )
