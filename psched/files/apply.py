"""Makes plans from the schedules in the store, and carries plans out.

All additions are one transaction; changes and removals follow one by one. It is safe to apply the
same declarations again, and on several hosts at once. Only the fields that still differ at the
time of the write are written, so that no host recomputes a time that another host has computed.
If two hosts add the same key, the second host gets an `AlreadyExistsError`, and must plan again.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from psched.base.errors import AlreadyExistsError, NotFoundError
from psched.client.collection import ScheduleCollection
from psched.config import Config
from psched.core.columns import annotation
from psched.core.model import Row
from psched.files.plan import Item, Plan, conflict, differences, has_label, plan

ReportChange = Callable[[str, str], None]
"""Is called with a result (``added``, ``changed``, ``removed`` or ``marked``) and a key.

``marked``: the schedule will be removed when its running task has stopped.
"""


def read_all(schedules: ScheduleCollection, label: str | None = None) -> list[Row]:
    """Every schedule, or every schedule of a label, including those that are running."""
    # The schedules are listed twice, because a listing may miss one whose lease ends meanwhile.
    keys = dict.fromkeys(each.key for _ in range(2) for each in schedules.list())
    rows = (metadata.row for metadata in schedules.read_many([*keys]).values())
    return [row for row in rows if label is None or has_label(row, label)]


def make_plan(
    schedules: ScheduleCollection,
    wanted: Iterable[Mapping[str, Any]],
    label: str | None,
    *,
    settings: Config,
    adopt: bool = False,
) -> Plan:
    """Compare the declared schedules with the store's; see `psched.files.plan.plan`."""
    declarations = list(wanted)
    found = schedules.read_many([str(each.get("key")) for each in declarations])
    existing = {key: metadata.row for key, metadata in found.items()}
    if label is not None:
        # The schedules read by key are added to the listed ones, because a listing may miss a
        # schedule that runs meanwhile.
        listed = (metadata.row for metadata in schedules.list())
        existing = {row.key: row for row in listed if has_label(row, label)} | existing
    return plan(declarations, existing.values(), label, settings=settings, adopt=adopt)


def apply_plan(
    made: Plan,
    schedules: ScheduleCollection,
    *,
    settings: Config,
    prune: bool = False,
    report: ReportChange = lambda _done, _key: None,
) -> None:
    """Carry out a plan; if a part of the plan is refused, change nothing.

    Args:
        made: the plan.
        schedules: the schedules of the store that the plan was made from.
        settings: the settings that the plan was made with.
        prune: whether to remove the schedules in ``left``. If one of them is running, its worker
            stops the task first.
        report: is called for each schedule after the change to it has been written.

    Raises:
        AlreadyExistsError: a key belongs to another label, or was added after the plan was made.
        NotFoundError: a schedule to be changed has been deleted since the plan was made.
    """
    if made.refused:
        raise AlreadyExistsError("; ".join(f"{key} {why}" for key, why in made.refused.items()))
    if made.added:
        schedules.add_many({"key": item.key, **item.fields} for item in made.added)
        for item in made.added:
            report("added", item.key)
    for item in made.changed:
        schedules.modify(item.key, partial(_remaining_changes, item, made, settings))
        report("changed", item.key)
    for item in made.left if prune else ():
        remove(item.key, made.label, schedules, report)


def _remaining_changes(item: Item, made: Plan, settings: Config, seen: Row) -> dict[str, Any]:
    """The new values of the fields in which a row, as just read, differs from the declaration."""
    before = annotation(item.found, "label") if item.found is not None else None
    # A schedule is adopted only from the label that the plan has shown to the user, not from a
    # label that it was given later.
    adopt = made.adopt and annotation(seen, "label") == before
    if why := conflict(seen, made.label, adopt=adopt):
        raise AlreadyExistsError(f"{item.key} {why}")
    if item.wanted is None:
        return {}
    return {change.field: change.new for change in differences(seen, item.wanted, settings)}


def remove(
    key: str, label: str | None, schedules: ScheduleCollection, report: ReportChange
) -> None:
    """Remove a schedule that is no longer declared, if the schedule still has this label."""
    now = schedules.read_many([key]).get(key)
    if now is None or not has_label(now.row, label):
        return  # another client has removed or adopted the schedule
    try:
        gone = schedules.delete(key)
    except NotFoundError:
        return
    report("removed" if gone else "marked", key)
