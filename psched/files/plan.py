"""Compares declared schedules with existing ones, field by field, without a store or a clock.

Also computes the next runs before and after a plan.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from types import MappingProxyType
from typing import Any, NamedTuple

from psched.base.errors import InvalidError
from psched.config import Config
from psched.core.declare import TIMES, TRIGGER_FIELDS, describe
from psched.core.definition import parse_row
from psched.core.model import (
    BEING_DELETED,
    DEFAULT_TYPE,
    MIGRATING,
    QUARANTINED,
    STOPPING,
    WAITING,
    Row,
)
from psched.core.operations.extra_runs import schedule_of
from psched.core.operations.rescheduled import SHOWN, Changed, changes_of, fields_of, is_same
from psched.triggers import trigger as triggers

_REPEATING = frozenset({"cron", "every", "trigger"})
"""The fields that make a schedule repeat; one of them is enough."""

_DEFAULTS: Mapping[str, Any] = {"type": DEFAULT_TYPE, "data": {}, "delay": 0, "each_host": False}
"""The defaults of fields; the time zone's default is the setting ``timezone``."""


_RESTARTING = TRIGGER_FIELDS | {"next_time"}
"""Changing one of these fields recomputes the next run; see `psched.core.declare.redeclare`."""


@dataclass(frozen=True, slots=True)
class Item:
    """One schedule of a plan."""

    key: str
    wanted: Row | None = None  # as declared; None if it is declared no longer
    found: Row | None = None  # in the store; None if it is to be added
    changes: Mapping[str, Changed] = field(default_factory=dict)  # by the names of the fields
    # What was declared, and the label.
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps that make the schedules of one label equal to their declarations.

    Schedules that are ``left`` are declared no longer; only pruning removes them. Extra runs are
    not among them, and without a label there are none. ``refused`` has the reasons by keys.
    """

    label: str | None
    added: Sequence[Item] = ()
    changed: Sequence[Item] = ()
    unchanged: Sequence[Item] = ()
    left: Sequence[Item] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    adopt: bool = False

    def is_pending(self, *, prune: bool) -> bool:
        """Whether applying this plan would change anything."""
        return bool(self.added or self.changed or (prune and self.left))


def plan(
    wanted: Iterable[Mapping[str, Any]],
    existing: Iterable[Row],
    label: str | None,
    *,
    settings: Config,
    now: Callable[[], float],
    adopt: bool = False,
    declared: Mapping[str, Row] = MappingProxyType({}),
) -> Plan:
    """Compare declared schedules with existing ones."""

    def describe_once(key: str, fields: Mapping[str, Any]) -> Row:
        return declared.get(key) or _describe(key, fields, settings, now)

    rows = {row.key: row for row in existing}
    added, changed, unchanged = list[Item](), list[Item](), list[Item]()
    refused: dict[str, str] = {}
    keys = set[str]()
    for declaration in wanted:
        item = _item(declaration, rows, label, settings, describe_once)
        if item.key in keys:
            raise InvalidError(item.key, "is declared twice")
        keys.add(item.key)
        if item.found is None:
            added.append(item)
        elif reason := conflict(item.found, label, adopt=adopt):
            refused[item.key] = reason
        elif "each_host" in item.changes:
            refused[item.key] = "each_host cannot be changed; delete it, and apply again"
        elif item.changes:
            changed.append(item)
        else:
            unchanged.append(item)
    left = [
        Item(row.key, found=row)
        for row in rows.values()
        if row.key not in keys and has_label(row, label) and may_be_declared(row)
    ]
    left.sort(key=lambda item: item.key)
    return Plan(label, added, changed, unchanged, left, refused, adopt)


def may_be_declared(row: Row) -> bool:
    """Whether a file or a program may have declared a row; rows that psched makes are none."""
    return (
        row.status not in {*BEING_DELETED, MIGRATING}
        and schedule_of(row.key) is None
        and row.template is None
    )


def has_label(row: Row, label: str | None) -> bool:
    """Whether a row has this label; always False if the label is None."""
    return label is not None and row.label == label


def conflict(row: Row, label: str | None, *, adopt: bool) -> str | None:
    """The reason why a declaration with this label must not change a row; None if it can."""
    if row.status in BEING_DELETED:
        return "is being deleted; apply again when it has been deleted"
    if row.template is not None:
        return f"is the row of a host for {row.template}; give it another key"
    if row.status == MIGRATING:
        return "is being moved here from another table"
    owner = row.label
    if owner == label or adopt:
        return None
    fix = "to take it over, adopt it (psched apply --adopt); else give one of the two another key"
    return f"belongs to {_named(owner)}, and is declared for {_named(label)}; {fix}"


def differences(found: Row, wanted: Row, settings: Config) -> Mapping[str, Changed]:
    """The changes that make the row ``found`` equal to the row ``wanted``; empty if they agree."""
    changes = changes_of(found, wanted, settings)
    if not wanted.next_time:
        changes.pop("next_time", None)  # the declaration names no time
    return changes


def non_defaults(row: Row, settings: Config) -> dict[str, Any]:
    """The fields of a row whose values are not the defaults."""
    defaults = {**_DEFAULTS, "timezone": settings.timezone}
    return {
        name: value
        for name, value in fields_of(row, settings).items()
        if not is_same(value, defaults.get(name))
    }


def _item(
    declaration: Mapping[str, Any],
    rows: Mapping[str, Row],
    label: str | None,
    settings: Config,
    row_of: Callable[[str, Mapping[str, Any]], Row],
) -> Item:
    fields = {name: value for name, value in declaration.items() if value is not None}
    key = fields.pop("key", None)
    if not isinstance(key, str):
        raise InvalidError("key", "is missing, or not a text")
    if fields.setdefault("label", label) != label:
        raise InvalidError(f"{key}.label", f"is not {_named(label)}")
    wanted = row_of(key, fields)
    found = rows.get(key)
    changes = differences(found, wanted, settings) if found is not None else {}
    return Item(key, wanted, found, changes, fields)


def _describe(
    key: str, fields: Mapping[str, Any], settings: Config, now: Callable[[], float]
) -> Row:
    ignored = {*TIMES} if _REPEATING & {*fields} else {"next_run_time"}
    given = {name: value for name, value in fields.items() if name not in ignored}
    try:
        # That the trigger has a time in the future is checked when the schedule is added.
        return describe(key, given, settings, now)
    except InvalidError as error:
        raise InvalidError(f"{key}.{error.field}", error.problem) from None


def _named(label: str | None) -> str:
    return "nobody (it has no label)" if label is None else f"the label {label!r}"


# --- the next runs that are shown with a plan ------------------------------------------------


class NextRuns(NamedTuple):
    """The next runs of a schedule in Unix seconds, or why there are none."""

    instants: Sequence[int]
    problem: str = ""


def next_before(item: Item, settings: Config) -> NextRuns | None:
    """The next runs of an existing schedule; None if the schedule does not exist yet."""
    row = item.found
    if row is None:
        return None
    if row.status not in {WAITING, STOPPING} or row.next_time is None:
        return NextRuns([], "none: it is " + row.state)
    return _next_runs(row, row.next_time, settings)


def next_after(item: Item, settings: Config, now: float) -> NextRuns | None:
    """The next runs after a plan has been applied; None if the schedule is no longer declared."""
    wanted, found = item.wanted, item.found
    if wanted is None:
        return None
    restarts = not _RESTARTING.isdisjoint(item.changes)
    if found is not None and not restarts:
        if found.status == QUARANTINED and item.changes and found.next_time is not None:
            # Show runs from the stored time on, because the change ends the quarantine.
            return _next_runs(wanted, found.next_time, settings)
        return next_before(item, settings)
    start = item.fields.get("next_time", ceil(now)) if found is None else ceil(now)
    if wanted.cron is None and wanted.next_time is not None:
        start = wanted.next_time
    if not isinstance(start, int):
        start = ceil(start.timestamp())
    return _next_runs(wanted, start, settings)


def _next_runs(row: Row, start: int, settings: Config) -> NextRuns:
    """The next runs at or after ``start``, in Unix seconds; at most `SHOWN` runs."""
    try:
        definition = parse_row(row, settings)
    except InvalidError as error:
        return NextRuns([], f"unknown: {error}")
    trigger = definition.trigger
    if trigger is None:
        return NextRuns([start])
    instants = list[int]()
    instant = triggers.first(trigger, start)
    while instant is not None and len(instants) < SHOWN:
        instants.append(instant)
        instant = trigger.next_after(instant)
    return NextRuns(instants, "none")
