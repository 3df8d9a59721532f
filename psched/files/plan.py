"""What is wanted and what there is, compared field by field. Pure: no store, no clock."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from psched.base.errors import InvalidError
from psched.config import Config
from psched.core.columns import annotation, decode, parse_options
from psched.core.declare import FIELDS, TIMES, alive_time_of, declare
from psched.core.model import DEFAULT_TYPE, DELETING, MIGRATING, Row

_REPEATING = frozenset({"cron", "every", "trigger"})
"""What says that a schedule runs again and again."""

_DEFAULTS: Mapping[str, Any] = {"type": DEFAULT_TYPE, "data": {}, "delay": 0}
"""Of the fields that have one; the zone's is a setting."""


@dataclass(frozen=True, slots=True)
class Change:
    """A field of a schedule that is to be another.

    Attributes:
        field: its name, one of `psched.core.declare.FIELDS`; or ``next_time``, of what runs once.
        old: what it is; None: the default, or nothing.
        new: what it is to be; the same.
    """

    field: str
    old: Any
    new: Any


@dataclass(frozen=True, slots=True)
class Item:
    """A schedule, and what is to become of it.

    Attributes:
        wanted: the row as it would be added; None: it is not wanted any more.
        found: the row as it stands; None: it is to be added.
        changes: the fields that differ.
        fields: what was declared of the wanted row, with the label, and its times if they were.
    """

    key: str
    wanted: Row | None = None
    found: Row | None = None
    changes: tuple[Change, ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """What would have to be done so that the schedules of one label are those that are wanted.

    Attributes:
        label: whose they are; None: nobody's.
        added: those that there are not.
        changed: those of which some fields differ.
        unchanged: those that are as they should be.
        left: those of this label that are not wanted any more. They stay unless they are pruned;
            nobody's never count as left.
        refused: why nothing can be done about others, by their keys.
        adopt: whether schedules of others are taken over.
    """

    label: str | None
    added: Sequence[Item] = ()
    changed: Sequence[Item] = ()
    unchanged: Sequence[Item] = ()
    left: Sequence[Item] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    adopt: bool = False

    def is_pending(self, *, prune: bool) -> bool:
        """Whether applying it would change anything."""
        return bool(self.added or self.changed or (prune and self.left))


def plan(
    wanted: Iterable[Mapping[str, Any]],
    existing: Iterable[Row],
    label: str | None,
    *,
    settings: Config,
    adopt: bool = False,
) -> Plan:
    """Compare.

    Args:
        wanted: for each schedule its ``key`` and any of the fields of `declare.FIELDS`, but
            for the label; ``next_time`` and ``next_run_time`` count only for those that are added,
            but the one time of what runs once counts always.
        existing: every schedule under one of these keys, and every one of this label; others may
            be among them.
        label: whose the wanted ones are; None: nobody's.
        settings: the installation's.
        adopt: take over schedules of another label, or of none.

    Raises:
        InvalidError: a value makes no sense, or a key is there twice; its ``field`` names both the
            key and the field: ``nightly.cron``.
    """
    rows = {row.key: row for row in existing}
    added, changed, unchanged = list[Item](), list[Item](), list[Item]()
    refused: dict[str, str] = {}
    keys = set[str]()
    for declaration in wanted:
        item = _item(declaration, rows, label, settings)
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
        if row.key not in keys and is_of(row, label) and row.status not in {DELETING, MIGRATING}
    ]
    left.sort(key=lambda item: item.key)
    return Plan(label, added, changed, unchanged, left, refused, adopt)


def is_of(row: Row, label: str | None) -> bool:
    """Whether a row carries this label; one without any is nobody's, and so never is."""
    return label is not None and annotation(row, "label") == label


def conflict(row: Row, label: str | None, *, adopt: bool) -> str | None:
    """Why a row must not be touched by those who want one of this label under its key."""
    if row.status == DELETING:
        return "is being deleted; apply again when it is gone"
    if row.status == MIGRATING:
        return "is being moved here from another table"
    owner = annotation(row, "label")
    if owner == label or adopt:
        return None
    mend = "to take it over, adopt it (--adopt); else give one of the two another key"
    return f"belongs to {_named(owner)}, and is declared for {_named(label)}; {mend}"


def differences(found: Row, wanted: Row, settings: Config) -> tuple[Change, ...]:
    """The fields in which a row is not as wanted."""
    old, new = declared(found, settings), declared(wanted, settings)
    names = FIELDS
    if wanted.cron is None and wanted.next_time:
        # The one time of what runs once is what was declared; of others it is where they are.
        old["next_time"], new["next_time"] = found.next_time, wanted.next_time
        names += ("next_time",)
    return tuple(
        Change(name, old[name], new[name]) for name in names if not _same(old[name], new[name])
    )


def declared(row: Row, settings: Config) -> dict[str, Any]:
    """What was declared about a row: every one of the fields, defaults filled in.

    What cannot be read is there as it is stored.
    """
    options = _options(row)
    fields = {name: getattr(row, name, options.get(name)) for name in FIELDS}
    fields["data"] = _readable("data", row.data)
    fields["timezone"] = row.timezone or settings.timezone
    if row.alive_time == alive_time_of(row.type, settings):
        fields["alive_time"] = None
    return fields


def differing(row: Row, settings: Config) -> dict[str, Any]:
    """What was declared about a row and is not the default."""
    defaults = {**_DEFAULTS, "timezone": settings.timezone}
    return {
        name: value
        for name, value in declared(row, settings).items()
        if not _same(value, defaults.get(name))
    }


def _item(
    declaration: Mapping[str, Any],
    rows: Mapping[str, Row],
    label: str | None,
    settings: Config,
) -> Item:
    fields = {name: value for name, value in declaration.items() if value is not None}
    key = fields.pop("key", None)
    if not isinstance(key, str):
        raise InvalidError("key", "is missing, or no text")
    if fields.setdefault("label", label) != label:
        raise InvalidError(f"{key}.label", f"is not {_named(label)}")
    ignored = {*TIMES} if _REPEATING & {*fields} else {"next_run_time"}
    said = {name: value for name, value in fields.items() if name not in ignored}
    try:
        # Whether it fires from now on is known when it is added: here, that it ever does.
        wanted = declare(key, said, settings, lambda: 0)
    except InvalidError as error:
        raise InvalidError(f"{key}.{error.field}", error.problem) from None
    found = rows.get(key)
    changes = differences(found, wanted, settings) if found is not None else ()
    return Item(key, wanted, found, changes, fields)


def _options(row: Row) -> Mapping[str, Any]:
    try:
        return parse_options(row.options)
    except InvalidError:
        return {}


def _readable(name: str, stored: str | bytes | None) -> dict[str, Any] | str | bytes:
    try:
        return decode(name, stored) if stored else {}
    except InvalidError:
        return stored or {}


def _same(one: object, other: object) -> bool:
    """Whether two values are one and the same in JSON, where true is not 1."""
    return _canonical(one) == _canonical(other)


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=repr)


def _named(label: str | None) -> str:
    return "nobody (it has no label)" if label is None else f"the label {label!r}"
