"""Makes plans from the schedules in the store, and carries plans out.

All additions are one transaction. Changes follow, a hundred in a transaction, and then removals one
by one. Each change is conditional on the row as the plan has seen it; if the row has changed since,
the schedule is read and changed again by itself. It is safe to apply the same declarations again,
and on several hosts at once. A change writes only those fields that still
differ at the time of the write, so that no host recomputes a time that another host has computed.
If two hosts add the same key, the second host gets an `AlreadyExistsError`, and must plan again.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from types import MappingProxyType
from typing import Any, TypeVar

from psched.base.errors import AlreadyExistsError, InvalidError, NotFoundError
from psched.client.access import insert
from psched.client.collection import ScheduleCollection
from psched.client.verbs.editing import try_to_modify
from psched.config import Config
from psched.core.declare import restart
from psched.core.model import Row
from psched.files.document import Track, untracked
from psched.files.plan import Item, Plan, conflict, differences, has_label, plan

T = TypeVar("T")

_TRANSACTION = 100
"""The number of schedules that one transaction changes; workers may have to wait for its end."""

_CHUNK = 500
"""The number of schedules that are read in one step; progress is shown between two steps."""

ReportChange = Callable[[str, str], None]
"""A function that is called with a result and with the key of the schedule that was changed.

The result is ``added``, ``changed``, ``removed`` or ``marked``. ``marked`` means that the schedule
will be removed when its running task has stopped.
"""


def read_all(
    schedules: ScheduleCollection, label: str | None = None, *, track: Track = untracked
) -> list[Row]:
    """All schedules with this label, including running ones; None means all schedules."""
    # List the schedules twice, because a listing can miss a schedule whose lease ends meanwhile.
    keys = dict.fromkeys(row.key for _ in range(2) for row in _list(schedules, label, track))
    rows = _read([*keys], schedules, track).values()
    return [row for row in rows if label is None or has_label(row, label)]


def make_plan(
    schedules: ScheduleCollection,
    wanted: Iterable[Mapping[str, Any]],
    label: str | None,
    *,
    settings: Config,
    adopt: bool = False,
    declared: Mapping[str, Row] = MappingProxyType({}),
    track: Track = untracked,
) -> Plan:
    """Compare the declared schedules with the store's; see `psched.files.plan.plan`."""
    declarations = list(wanted)
    existing = _read([str(each.get("key")) for each in declarations], schedules, track)
    if label is not None:
        # Add the schedules that were read by key, because a listing can miss a schedule that runs
        # meanwhile.
        existing = {row.key: row for row in _list(schedules, label, track)} | existing
    compared = track(declarations, "comparing")
    return plan(
        compared,
        existing.values(),
        label,
        settings=settings,
        now=cache(schedules.now),
        adopt=adopt,
        declared=declared,
    )


def _list(schedules: ScheduleCollection, label: str | None, track: Track) -> Iterable[Row]:
    """List the schedules with this label; None means all schedules."""
    return (metadata.row for metadata in track(schedules.list(label=label), "listing"))


def _read(keys: Sequence[str], schedules: ScheduleCollection, track: Track) -> dict[str, Row]:
    """Read the rows with these keys; keys without a row are left out."""
    found = (schedules.read_many(chunk) for chunk in track(_split(keys, _CHUNK), "reading"))
    return {key: metadata.row for chunk in found for key, metadata in chunk.items()}


def _split(items: Sequence[T], size: int) -> Sequence[Sequence[T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def apply_plan(
    made: Plan,
    schedules: ScheduleCollection,
    *,
    settings: Config,
    prune: bool = False,
    report: ReportChange = lambda _done, _key: None,
    track: Track = untracked,
) -> None:
    """Carry out a plan; if a part of the plan is refused, change nothing."""
    if made.refused:
        raise AlreadyExistsError("; ".join(f"{key} {why}" for key, why in made.refused.items()))
    if made.added:
        insert(schedules.access, _new_rows(made.added, schedules, settings, track))
        for item in made.added:
            report("added", item.key)
    for items in track(_split(made.changed, _TRANSACTION), "changing"):
        seen = [(item.found, item) for item in items if item.found is not None]
        wanted = [(row, _remaining_changes(item, made, settings, row)) for row, item in seen]
        done = try_to_modify(schedules.access, wanted)
        for (_, item), is_done in zip(seen, done, strict=True):
            if not is_done:
                schedules.modify(item.key, partial(_remaining_changes, item, made, settings))
            report("changed", item.key)
    with schedules.access.auditor.together():
        for item in track(made.left if prune else (), "deleting"):
            remove(item.key, made.label, schedules, report)


def _new_rows(
    added: Sequence[Item], schedules: ScheduleCollection, settings: Config, track: Track
) -> Sequence[Row]:
    """The rows of the schedules to be added, with their first times from now on."""
    now = cache(schedules.now)
    rows = []
    # Equal triggers follow each other, so that each of them is parsed only once.
    for item in track(sorted(added, key=_trigger_of), "adding"):
        if item.wanted is None:
            continue
        try:
            rows.append(restart(item.wanted, item.fields, settings, now))
        except InvalidError as error:
            raise InvalidError(f"{item.key}.{error.field}", error.problem) from None
    return rows


def _trigger_of(item: Item) -> tuple[str, str]:
    row = item.wanted
    return ("", "") if row is None else (row.cron or "", row.timezone or "")


def _remaining_changes(item: Item, made: Plan, settings: Config, seen: Row) -> dict[str, Any]:
    """The declared values of the fields in which the row ``seen`` still differs from them."""
    before = item.found.label if item.found is not None else None
    # Adopt the schedule only if it still has the label that the plan has shown to the user.
    adopt = made.adopt and seen.label == before
    if why := conflict(seen, made.label, adopt=adopt):
        raise AlreadyExistsError(f"{item.key} {why}")
    if item.wanted is None:
        return {}
    found = differences(seen, item.wanted, settings)
    return {name: change.new for name, change in found.items()}


def remove(
    key: str, label: str | None, schedules: ScheduleCollection, report: ReportChange
) -> None:
    """Remove a schedule that is no longer declared, if the schedule still has this label."""
    now = schedules.read_many([key]).get(key)
    if now is None or not has_label(now.row, label):
        return  # Leave the schedule alone: another client has removed or adopted it.
    try:
        gone = schedules.delete(key)
    except NotFoundError:
        return
    report("removed" if gone else "marked", key)
