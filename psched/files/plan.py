"""Compares declared schedules with existing ones, field by field, without a store or a clock."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from psched.base.errors import InvalidError
from psched.config import Config
from psched.core.declare import FIELDS, TIMES, describe
from psched.core.model import BEING_DELETED, DEFAULT_TYPE, MIGRATING, Row
from psched.core.operations.extra_runs import schedule_of
from psched.core.operations.rescheduled import fields_of, is_same

_REPEATING = frozenset({"cron", "every", "trigger"})
"""The fields that make a schedule repeat; one of them is enough."""

_DEFAULTS: Mapping[str, Any] = {"type": DEFAULT_TYPE, "data": {}, "delay": 0}
"""The defaults of fields; the time zone's default is the setting ``timezone``."""


@dataclass(frozen=True, slots=True)
class Change:
    """The change of one field of a schedule. None means the default, or no value."""

    field: str  # one of `FIELDS`; or ``next_time``, if the schedule runs once
    old: Any
    new: Any


@dataclass(frozen=True, slots=True)
class Item:
    """One schedule of a plan."""

    key: str
    wanted: Row | None = None  # as declared; None if it is declared no longer
    found: Row | None = None  # in the store; None if it is to be added
    changes: tuple[Change, ...] = ()
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
        elif item.changes:
            changed.append(item)
        else:
            unchanged.append(item)
    left = [
        Item(row.key, found=row)
        for row in rows.values()
        if row.key not in keys
        and has_label(row, label)
        and row.status not in {*BEING_DELETED, MIGRATING}
        and schedule_of(row.key) is None
    ]
    left.sort(key=lambda item: item.key)
    return Plan(label, added, changed, unchanged, left, refused, adopt)


def has_label(row: Row, label: str | None) -> bool:
    """Whether a row has this label; always False if the label is None."""
    return label is not None and row.label == label


def conflict(row: Row, label: str | None, *, adopt: bool) -> str | None:
    """The reason why a declaration with this label must not change a row; None if it can."""
    if row.status in BEING_DELETED:
        return "is being deleted; apply again when it has been deleted"
    if row.status == MIGRATING:
        return "is being moved here from another table"
    owner = row.label
    if owner == label or adopt:
        return None
    fix = "to take it over, adopt it (psched apply --adopt); else give one of the two another key"
    return f"belongs to {_named(owner)}, and is declared for {_named(label)}; {fix}"


def differences(found: Row, wanted: Row, settings: Config) -> tuple[Change, ...]:
    """The changes that make the row ``found`` equal to the row ``wanted``; empty if they agree."""
    old, new = fields_of(found, settings), fields_of(wanted, settings)
    names = FIELDS
    if wanted.cron is None and wanted.next_time:
        # Compare next_time only for a schedule that runs once, because every run of a repeating
        # schedule changes next_time.
        old["next_time"], new["next_time"] = found.next_time, wanted.next_time
        names += ("next_time",)
    return tuple(
        Change(name, old[name], new[name]) for name in names if not is_same(old[name], new[name])
    )


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
    changes = differences(found, wanted, settings) if found is not None else ()
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
