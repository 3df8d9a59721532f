"""Notifications: what a hook tells, and what all kinds of hook have in common."""

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from typing import Any, NamedTuple

from psched.base.errors import PschedError
from psched.base.texts import brief, cut, storable, visible
from psched.config.monitoring import MOST_TRIES
from psched.core.alerts.alert import Alert
from psched.reports.redaction import Redaction
from psched.triggers.zone import Zone, find_zone

RAISED = "raised"
CLOSED = "closed"

VERSION = 1
"""The version of the body. It changes only if a field is removed, or changes its meaning."""

_LONGEST_TITLE = 200
_LONGEST_KEY = 1000
_ID_LENGTH = 32

_NOTHING = Redaction(())

UTC_ZONE = find_zone("UTC")


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What people want to know besides the alert, as it was shortly before it is told."""

    note: str | None = None  # the note of the schedule; None if it has none
    # When the schedule runs next, in Unix seconds; None if it does not, or not known.
    next_run: int | None = None
    output: str = ""  # the last lines that the failed attempt has printed
    failed: str | None = None  # how the run has failed whose end is told; None if it has not


class Told(NamedTuple):
    """An event that is told: ``raised`` or ``closed``, the alert, and what else is known."""

    event: str
    alert: Alert
    context: Context = Context()


@dataclass(frozen=True, kw_only=True)
class Notification:
    """One event of an alert, as a hook tells it.

    The texts of the alert come from rows and from tasks, so they can contain anything. The
    properties of a notification are safe to show: control characters are visible, values of the
    fields that the setting ``redact`` names are hidden, and texts are cut.
    """

    event: str  # ``raised`` or ``closed``
    alert: Alert
    installation: str  # the name of the table
    host: str  # the host that tells it
    test: bool = False  # whether this is only a test of the hook
    redaction: Redaction = _NOTHING  # hides values in texts
    context: Context = Context()  # what else is known
    zone: Zone = UTC_ZONE  # the time zone of times for people

    @cached_property
    def alert_id(self) -> str:
        """The id of the alert: its two events have the same one, and no other alert has it.

        The tables of two databases can have the same name, and the same schedule can be late in
        both since the same second. The instants at which the alerts were raised tell them apart.
        The url does not: one database can have other urls on other hosts.
        """
        alert = self.alert
        numbers = (str(alert.since), str(alert.raised))
        parts = (self.installation, alert.key, alert.host, alert.rule, *numbers)
        return sha256("\0".join(map(storable, parts)).encode()).hexdigest()[:_ID_LENGTH]

    @cached_property
    def id(self) -> str:
        """The id of the event: each try of each delivery repeats it, and no other event has it."""
        return f"{self.alert_id}-{self.event}"

    @cached_property
    def subject(self) -> str:
        """What the alert is about: a schedule or a host."""
        alert = self.alert
        return _line(alert.key, _LONGEST_KEY) if alert.key else f"host {_line(alert.host)}"

    @cached_property
    def title(self) -> str:
        """One line for people."""
        test = "TEST: " if self.test else ""
        return cut(f"psched: {test}{self.what}: {self.subject}", _LONGEST_TITLE)

    @cached_property
    def what(self) -> str:
        """What has happened, in few words."""
        rule = _line(self.alert.rule).replace("_", " ")
        if self.event != CLOSED:
            return rule
        return f"{rule}, ended without success" if self.context.failed else f"recovered from {rule}"

    @cached_property
    def text(self) -> str:
        """What is wrong, or why it is over: one line for people."""
        closed = self.event == CLOSED and (self.context.failed or self.alert.closed_text)
        return brief(self.redaction.text(closed or self.alert.text))

    @cached_property
    def explain(self) -> str:
        """The command that tells more."""
        alert = self.alert
        return f"psched why {shlex.quote(_line(alert.key))}" if alert.key else "psched status"

    @cached_property
    def since(self) -> str:
        """When the incident began."""
        return _instant(self.alert.since)

    @property
    def body(self) -> Mapping[str, Any]:
        """The notification as JSON."""
        alert = self.alert
        closed = self.event == CLOSED
        return {
            "version": VERSION,
            "id": self.id,
            "event": self.event,
            "test": self.test,
            "title": self.title,
            "text": self.text,
            "installation": self.installation,
            "host": self.host,
            "explain": self.explain,
            "note": self._note,
            "next_run": _seconds(self.context.next_run),
            "output": self.output,
            "alert": {
                "id": self.alert_id,
                "rule": alert.rule,
                "key": _field(alert.key),
                "host": _field(alert.host),
                "type": _field(alert.type),
                "label": _field(alert.label),
                "scheduled_time": _seconds(alert.scheduled_time),
                "since": self.since,
                "raised": _instant(alert.raised) if alert.raised else None,
                "closed": _instant(alert.closed) if closed and alert.closed is not None else None,
                "text": brief(self.redaction.text(alert.text)),
            },
        }

    @property
    def facts(self) -> Iterator[tuple[str, str]]:
        """What there is to know besides the text, for people: pairs of a name and a value."""
        alert = self.alert
        if alert.type is not None:
            yield "type", _line(alert.type)
        if alert.label is not None:
            yield "label", _line(alert.label)
        if self._note is not None:
            yield "note", self._note
        if alert.scheduled_time is not None:
            yield "scheduled time", self._shown(alert.scheduled_time, "seconds")
        yield "since", self._shown(alert.since / 1000, "milliseconds")
        if self.context.next_run is not None:
            yield "next run", self._shown(self.context.next_run, "seconds")
        yield "installation", f"{self.installation} (told by {self.host})"
        yield "to see more", self.explain

    @cached_property
    def output(self) -> str:
        """The last lines that the failed attempt has printed; empty if none are known."""
        return visible(storable(self.redaction.text(self.context.output)), lines=True)

    @property
    def _note(self) -> str | None:
        note = self.context.note
        return None if note is None else _line(self.redaction.text(note), _LONGEST_KEY)

    def _shown(self, instant: float, precision: str) -> str:
        if self.zone.name == UTC_ZONE.name:
            return _time(instant, precision)
        try:
            local = self.zone.at(int(instant)).isoformat(timespec="seconds")
        except (OverflowError, ValueError, OSError):
            return _time(instant, precision)
        return f"{local} ({self.zone.name})"


@dataclass(frozen=True, kw_only=True)
class Digest(Notification):
    """Several events in one message for people. Its event and alert are those of the first."""

    members: Sequence[Notification]  # a notification for each event

    @cached_property
    def alert_id(self) -> str:
        """The id of the message: another choice of events has another one."""
        return sha256("\0".join(each.id for each in self.members).encode()).hexdigest()[:_ID_LENGTH]

    @cached_property
    def title(self) -> str:
        """How much has happened: one line for people."""
        numbers = Counter(each.what for each in self.members).most_common()
        listed = ", ".join(f"{number} {what}" for what, number in numbers)
        return cut(f"psched: {len(self.members)} events: {listed}", _LONGEST_TITLE)

    @cached_property
    def text(self) -> str:
        """Why this is one message."""
        return "There are too many to tell each in a message of its own."

    @cached_property
    def explain(self) -> str:
        """The command that tells more."""
        return "psched alerts --all"

    @property
    def facts(self) -> Iterator[tuple[str, str]]:
        """Each event: what has happened, and why."""
        for each in self.members:
            yield f"{each.what}: {each.subject}", each.text
        yield "installation", f"{self.installation} (told by {self.host})"
        yield "to see more", self.explain


def _line(text: str, most: int = _LONGEST_TITLE) -> str:
    return visible(cut(storable(text), most))


def _field(text: str | None) -> str | None:
    """A text of a row, as it is in the row, as far as it has a usual length."""
    return None if text is None else cut(storable(text), _LONGEST_KEY)


def _instant(milliseconds: int) -> str:
    return _time(milliseconds / 1000, "milliseconds")


def _seconds(time: int | None) -> str | None:
    return None if time is None else _time(time, "seconds")


def _time(seconds: float, precision: str) -> str:
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):  # the row cannot be understood
        return f"{seconds:.0f}"
    return f"{moment.replace(tzinfo=None).isoformat(timespec=precision)}Z"


_FIRST_PAUSE = 60
_LONGEST_PAUSE = 3600


class DeliveryError(PschedError):
    """A notification was not delivered; the text says why, in one line without secrets."""

    def __init__(self, problem: str, *, retry: bool) -> None:
        super().__init__(problem)
        self.problem = problem
        self.retry = retry  # whether another try may succeed


Deliver = Callable[[Notification], None]
"""Delivers a notification by one hook, within its time limit, or raises `DeliveryError`. Several
threads may call it at the same time."""


def next_wait(tries: int, most: int = MOST_TRIES) -> int | None:
    """The seconds from a failed try to the next one; None if there is none.

    1, 2, 4, 8, 16 and 32 minutes, then an hour each: after the 12th try, 6 hours have passed.
    """
    if tries >= most:
        return None
    return min(_LONGEST_PAUSE, _FIRST_PAUSE << min(tries - 1, 32))
