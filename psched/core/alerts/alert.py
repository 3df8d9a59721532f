"""Alerts, as data, and the JSON texts in which stores keep the fields that are no plain values."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from types import MappingProxyType, NoneType
from typing import Any

from psched.base.texts import storable


class Rule(StrEnum):
    """What an alert is about."""

    LATE = "late"
    """An occurrence has not started in time (``expect: {late: …}``)."""
    LONGEST = "longest"
    """A run takes longer than it may (``expect: {longest: …}``)."""
    SILENT = "silent"
    """A schedule has not succeeded for too long (``expect: {silent: …}``)."""
    UNUSUAL = "unusual"
    """A run takes much longer than the schedule's runs usually do (``expect: {unusual: …}``). It is
    judged while it runs."""
    FAILED = "failed"
    """An attempt has failed."""
    GAVE_UP = "gave_up"
    """The last allowed attempt has failed, or a one-off task has expired."""
    QUARANTINED = "quarantined"
    """The row cannot be understood, so it does not run."""
    LOST = "lost"
    """The worker or the host has died while the task ran."""
    WORKER_DIED = "worker_died"
    """Workers of a host have died."""
    NO_SLOT = "no_slot"
    """Rows are due, but the workers of a host have no free slot."""
    UNREACHABLE = "unreachable"
    """The monitor of a host cannot reach the store. No store contains such an alert: the hooks are
    told at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What has become of the delivery of one event of an alert by one hook.

    Attributes:
        tries: how often it was tried.
        next_try: when it is tried again, in milliseconds of the store's clock; None if it is not.
        done: whether it has succeeded.
        problem: why the last try has failed, in one line; None if it did not.
    """

    tries: int = 0
    next_try: int | None = None
    done: bool = False
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert; its fields are the columns of ``<table>_alerts``.

    ``key``, ``host``, ``rule`` and ``since`` identify an alert. ``since`` is computed from what the
    store says, and not from the time at which a monitor notices it. So all monitors compute the
    same, and only one of them can raise the alert. Of the alerts with the same key, host and rule,
    at most one is open.

    Attributes:
        key: the key of the schedule; empty if the alert is about a host.
        host: the name of the host; empty if the alert is about a schedule.
        rule: what the alert is about, see `Rule`.
        since: the instant at which the incident began, in milliseconds of the store's clock. For
            example, the scheduled time of the occurrence that is late.
        type: the type of the schedule; None if the alert is about a host.
        label: the label of the schedule; None if it has none.
        scheduled_time: the scheduled time of the occurrence, in Unix seconds; None if the alert is
            not about an occurrence.
        text: what is wrong, in one line, for people.
        raised: when the alert was raised, in milliseconds of the store's clock; 0 before it is
            stored.
        closed: when it was over, in milliseconds; None if the alert is open.
        closed_text: why it was over, in one line; None if the alert is open.
        on_raise: the names of the hooks that are told that the alert was raised.
        on_close: the names of the hooks that are told that it was closed.
        deliveries: what has become of the deliveries, by ``raised/`` or ``closed/`` and the name of
            the hook. A delivery that was not tried yet is missing.
        next_try: when the next delivery is due, in milliseconds; None if there is none.
        owner: the monitor that delivers now; None if none does.
        fence: how often a monitor has taken the alert to deliver it.
    """

    key: str
    rule: str
    since: int
    host: str = ""
    type: str | None = None
    label: str | None = None
    scheduled_time: int | None = None
    text: str
    raised: int = 0
    closed: int | None = None
    closed_text: str | None = None
    on_raise: tuple[str, ...] = ()
    on_close: tuple[str, ...] = ()
    deliveries: Mapping[str, Delivery] = field(default_factory=lambda: MappingProxyType({}))
    next_try: int | None = None
    owner: str | None = None
    fence: int = 0

    @property
    def subject(self) -> tuple[str, str, str]:
        """Key, host and rule: of the alerts with the same ones, at most one is open."""
        return self.key, self.host, self.rule


_TYPES: Mapping[str, tuple[type, ...]] = {
    "tries": (int,),
    "next_try": (int, NoneType),
    "done": (bool,),
    "problem": (str, NoneType),
}
"""The types of the values of a delivery's fields."""


def names_text(names: Iterable[str]) -> str:
    """The names of hooks, as a JSON list."""
    return _text([*names])


def names_in(text: str) -> tuple[str, ...]:
    """The names in a text of `names_text`; none if somebody has written another text."""
    found = _value(text)
    if not isinstance(found, list):
        return ()
    return tuple(name for name in found if isinstance(name, str))


def deliveries_text(deliveries: Mapping[str, Delivery]) -> str:
    """Deliveries, as a JSON object."""
    return _text({name: asdict(delivery) for name, delivery in deliveries.items()})


def deliveries_in(text: str) -> Mapping[str, Delivery]:
    """The deliveries in a text of `deliveries_text`.

    A delivery that somebody has written in another form is left out, so that it is tried again.
    """
    found = _value(text)
    if not isinstance(found, dict):
        return MappingProxyType({})
    read = {name: _delivery(each) for name, each in found.items()}
    return MappingProxyType({name: each for name, each in read.items() if each is not None})


def _delivery(found: Any) -> Delivery | None:  # noqa: ANN401  # any JSON value
    if not isinstance(found, dict):
        return None
    # Another version of psched may have written more fields than this one knows.
    values = {name: found[name] for name in _TYPES if name in found}
    are_valid = all(type(value) in _TYPES[name] for name, value in values.items())
    return Delivery(**values) if are_valid else None


def _text(value: object) -> str:
    return storable(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _value(text: str) -> Any:  # noqa: ANN401  # any JSON value
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
