"""The page of what happened in a span of time: runs, skips, alerts and changes, in order."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypedDict

from psched.base.errors import InvalidError, NotSupportedError, SchemaError
from psched.base.texts import visible
from psched.cli.history.alerts import alert_object, subject
from psched.cli.history.audit import audit_object
from psched.cli.output import one_line
from psched.cli.shown import run_object
from psched.cli.text_table import Column, View
from psched.cli.time_format import format_time, local_times, parse_time, short_time
from psched.core.operations.extra_runs import schedule_key
from psched.reports.redaction import Redaction
from psched.web.asked import (
    Asked,
    Page,
    more_link,
    run_link,
    schedule_link,
    table_of,
    with_icons,
)
from psched.web.fates import kind_of, told

_READ = 20_000  # the most records of each kind that are read; it takes about a second


class EventsDocument(TypedDict):
    """What happened: runs, skips, alerts and changes, the earliest first."""

    start: int
    end: int
    events: Sequence[Mapping[str, Any]]
    number: int
    more: bool
    cut: Sequence[str]


class _Event(NamedTuple):
    """Something that happened.

    Attributes:
        time: when, in Unix seconds.
        what: ``run``, ``skip``, ``alert`` or ``change``.
        kind: that of `psched.web.fates` whose icon is shown.
        key: the key of the schedule, or the host.
        text: what happened.
        schedule: the address of the schedule's page; empty for a host.
        href: the address of the page that says more.
        made: its JSON object.
    """

    time: float
    what: str
    kind: str
    key: str
    text: str
    schedule: str
    href: str
    made: Callable[[], Mapping[str, Any]]


_COLUMNS: Sequence[Column[_Event]] = (
    Column("WHEN", lambda of, view: short_time(int(of.time), view.now, seconds=True), is_time=True),
    Column("WHAT", lambda of, _: of.what),
    Column("KEY", lambda of, _: one_line(of.key)),
    Column("TEXT", lambda of, _: of.text),
)


def events_page(asked: Asked) -> Page:
    """The page of what happened between two times, the earliest first."""
    query, limit, now = asked.query, asked.limit(), asked.schedules.now()
    key = query.get("key") or None
    texts = {"from": query.get("from") or "-1h", "to": query.get("to") or "now"}
    start, end = (
        int(now) + 1 if text == "now" else parse_time(name, text, now, is_next=False) or 0
        for name, text in texts.items()
    )
    if end < start:
        raise InvalidError("to", f"{format_time(end)} is before {format_time(start)}")
    view = View(now, asked.redaction)
    found, cut = list[_Event](), list[str]()
    for name, read in ("runs", _runs), ("alerts", _alerts), ("changes", _changes):
        number = 0
        with suppress(NotSupportedError, SchemaError):
            for event in islice(read(asked, key, start, view), _READ):
                number += 1
                if event.time <= end:
                    found.append(event)
        if number == _READ:
            cut.append(name)
    # Each kind was read the newest first. Of one millisecond, what came first stays first.
    found.reverse()
    found.sort(key=lambda each: each.time)
    shown = found[:limit]
    table = table_of(_COLUMNS, shown, view, _links)
    table = with_icons(table, 1, (each.kind for each in shown))
    if len(found) > limit:
        table = table._replace(more=more_link("events", query, limit))
    values = {
        "title": "What happened",
        "fields": {**texts, "key": key or ""},
        "about": f"{format_time(start)} to {format_time(end)}",
        "number": f"{len(found):,}",
        "shown": f"{len(shown):,}" if len(shown) < len(found) else "",
        "cut": cut,
        "most": f"{_READ:,}",
        "table": table,
    }

    def document() -> EventsDocument:
        events = [{"time": each.time, "what": each.what, each.what: each.made()} for each in shown]
        return {
            "start": start,
            "end": end,
            "events": events,
            "number": len(found),
            "more": len(found) > limit,
            "cut": cut,
        }

    return Page("events", values, document)


def _links(event: _Event) -> Mapping[str, str]:
    return {"KEY": event.schedule, "WHEN": event.href}


def _runs(asked: Asked, key: str | None, start: int, view: View) -> Iterator[_Event]:
    """What has ended since a time, as of when it began."""
    for run in asked.schedules.runs(key, since=start):
        began = run.scheduled_time if run.outcome is None else run.record.began / 1000
        kind = kind_of(run)
        yield _Event(
            time=began,
            what="skip" if kind == "skipped" else "run",
            kind=kind,
            key=run.key,
            text=visible(told(run, None, view.redaction)),
            schedule=schedule_link(schedule_key(run.key)),
            href=run_link(run.key, run.scheduled_time),
            made=partial(run_object, run, view.redaction, large=False),
        )


def _alerts(asked: Asked, key: str | None, start: int, view: View) -> Iterator[_Event]:
    """The alerts that were raised since a time."""
    for alert in asked.schedules.alerts(key, only_open=False, since=start):
        page = schedule_link(schedule_key(alert.key)) if alert.key else ""
        yield _Event(
            time=alert.raised / 1000,
            what="alert",
            kind="late",
            key=subject(alert),
            text=one_line(local_times(view.redaction.text(f"{alert.rule}: {alert.text}"))),
            schedule=page,
            href="" if alert.scheduled_time is None else run_link(alert.key, alert.scheduled_time),
            made=partial(alert_object, alert, view.redaction),
        )


def _changes(asked: Asked, key: str | None, start: int, _view: View) -> Iterator[_Event]:
    """What people and programs have changed since a time."""
    redaction = Redaction.of_changes(asked.settings.redact)
    for record in asked.schedules.audit(key, start):
        note = f": {record.note}" if record.note else ""
        text = f"{record.action} by {record.user}@{record.host}, {record.program}{note}"
        yield _Event(
            time=(record.time or 0) / 1000,
            what="change",
            kind="",
            key=record.key,
            text=one_line(redaction.text(text)),
            schedule=schedule_link(schedule_key(record.key)),
            href="",
            made=partial(audit_object, record, redaction),
        )
