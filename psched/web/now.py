"""The page Now: one sentence, and what needs a person; what merely goes on is folded."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple, TypedDict

from psched.base.errors import NotSupportedError, SchemaError
from psched.base.texts import visible
from psched.cli.history.alerts import OPEN_ALERTS, alert_object
from psched.cli.output import one_line
from psched.cli.shown import run_object, shown_reason
from psched.cli.text_table import Column, View
from psched.cli.time_format import format_distance, format_time, local_times, short_time
from psched.cli.top.rendering import WARNING, Section, about_master, sections_of
from psched.cli.top.snapshot import Snapshot
from psched.core.alerts.alert import Alert
from psched.core.history.records import Fate
from psched.core.history.run import Run
from psched.core.model import EXPIRED, FAILED, PAUSED, QUARANTINED, RUNNING, WAITING, Row
from psched.core.operations.extra_runs import schedule_key
from psched.core.operations.overview import DUE, MOST_COUNTED
from psched.web.asked import (
    REFRESH,
    Asked,
    Cell,
    Page,
    Table,
    link,
    run_link,
    schedule_link,
    table_of,
)

_SHOWN = 10  # the most rows of a list
_ALERTS = 100  # the most open alerts that are read
_SINCE = 7 * 86_400  # what has failed before so many seconds is no news
_SOON = 12 * 3600  # of what comes in so many seconds, the time of day tells when that is
_AMONG = 10_000  # among so many of the newest records, failures are searched
_FAILED = {Fate.GAVE_UP, Fate.EXPIRED}
_MATTERS = {WAITING, PAUSED, RUNNING, FAILED, EXPIRED}


class NowDocument(TypedDict):
    """What goes on, as by ``psched top --json``; and what fails, and open alerts."""

    now: float | None
    counts: Mapping[str, int]
    problems: Sequence[str]
    away: bool
    slots: int
    free: int
    failing: Sequence[Mapping[str, Any]]
    alerts: Sequence[Mapping[str, Any]]


class Part(NamedTuple):
    """A list of the page; ``kind`` is that of its icon, and ``more`` leads to the whole list."""

    title: str
    kind: str
    table: Table
    more: str = ""


def _reason(text: str | None, view: View) -> str:
    return one_line(local_times(view.redaction.text(text or "")))


_FAILING: Sequence[Column[Run]] = (
    Column("KEY", lambda run, _: one_line(run.key)),
    Column("LAST RUN", lambda run, view: format_distance(run.ended - view.now)),
    Column("RESULT", lambda run, _: one_line(run.fate)),
    Column("REASON", lambda run, view: _reason(run.reason, view)),
)

_QUARANTINED: Sequence[Column[Row]] = (
    Column("KEY", lambda row, _: one_line(row.key)),
    Column("TYPE", lambda row, _: one_line(row.type)),
    Column("REASON", lambda row, view: _reason(shown_reason(row, view.now), view)),
)


def now_page(asked: Asked) -> Page:
    """The page Now."""
    snapshot = asked.reader.read()
    view = View(snapshot.now or 0.0, asked.redaction)
    failing: Sequence[Run] | None = None
    alerts: Sequence[Alert] = ()
    parts = list[Part]()
    if not snapshot.away:
        failing = _failing(asked, view.now)
        with suppress(NotSupportedError, SchemaError):
            alerts = [*islice(asked.schedules.alerts(), _ALERTS)]
        parts += _parts_of_store(asked, snapshot, view, failing, alerts)
    sections = {section.name: section for section in sections_of(snapshot)}
    if late := sections.get("LATE"):
        parts.append(_part(late, "late", link("schedules", q="state:due")))
    if running := sections.get("RUNNING"):
        hung = [each for each in running.entries if each.style == WARNING]
        longer = running._replace(name="LONGER THAN USUAL", entries=hung, total=len(hung))
        parts += [_part(longer, "running", "")] if hung else []
    if paused := sections.get("PAUSED"):
        parts.append(_part(paused, "paused", link("schedules", q="state:paused")))
    folded = [
        _part(sections[name], kind, more)
        for name, kind, more in (
            ("RUNNING", "running", link("schedules", q="state:running")),
            ("NEXT", "planned", link("schedules", q="state:waiting")),
            ("FAILED", "retried", link("runs", failed="1", since="1h")),
        )
        if name in sections
    ]
    values = {
        "title": "Now",
        "time": "" if snapshot.now is None else format_time(int(snapshot.now)),
        "problems": [visible(each) for each in snapshot.problems],
        "summary": _sentence(snapshot, failing),
        "is_alive": bool(snapshot.masters) or snapshot.now is None,
        "hosts": [visible(about_master(master)) for master in snapshot.masters],
        "pauses": [visible(each) for each in snapshot.pauses],
        "parts": parts,
        "folded": folded,
    }

    def document() -> Mapping[str, Any]:
        return {
            **snapshot.as_object(),
            "failing": [run_object(run, asked.redaction, large=False) for run in failing or ()],
            "alerts": [alert_object(alert, asked.redaction) for alert in alerts],
        }

    return Page("now", values, document, refresh=REFRESH, is_away=snapshot.away)


def _sentence(snapshot: Snapshot, failing: Sequence[Run] | None) -> str:
    """What goes on, in a sentence; ``failing`` is None if there is no history that tells."""
    counts = snapshot.counts
    if snapshot.masters:
        parts = [f"{snapshot.slots - snapshot.free} of {snapshot.slots} slots busy"]
    else:
        parts = [f"{_number(counts.get(RUNNING, len(snapshot.running)))} running"]
    parts.append(f"{_number(counts.get(DUE, 0))} late")
    if failing is not None:
        parts.append(f"{_number(len(failing))} failing")
    for status in PAUSED, QUARANTINED:
        if counts.get(status):
            parts.append(f"{_number(counts[status])} {status}")
    coming = next((task for task in snapshot.coming if task.status != PAUSED), None)
    if coming is not None:
        now = snapshot.now or 0.0
        when = short_time(coming.at, now, seconds=True)
        is_soon = coming.at - now < _SOON
        parts.append(f"next at {when.rpartition(' ')[2] if is_soon else when}")
    return ", ".join(parts)


def _number(count: int) -> str:
    return f"{count} or more" if count >= MOST_COUNTED else str(count)


def _part(section: Section, kind: str, more: str) -> Part:
    """A section of the command top, at most `_SHOWN` of its rows."""
    shown = section.entries[:_SHOWN]
    rows = [
        [
            Cell(entry.cells[0], schedule_link(entry.task.key), entry.style),
            *map(Cell, entry.cells[1:]),
        ]
        for entry in shown
    ]
    more = more if section.total > len(shown) else ""
    title = section.title(len(shown)).capitalize()
    return Part(title, kind, Table(section.headings, rows), more)


def _parts_of_store(
    asked: Asked,
    snapshot: Snapshot,
    view: View,
    failing: Sequence[Run] | None,
    alerts: Sequence[Alert],
) -> Iterator[Part]:
    """What fails, is quarantined, or has an alert."""
    if failing:
        of_runs = table_of(_FAILING, failing[:_SHOWN], view, _links_of_run)
        more = link("schedules", q="state:failing") if len(failing) > _SHOWN else ""
        yield Part(_title("Failing", len(failing)), "failed", of_runs, more)
    if snapshot.counts.get(QUARANTINED):
        read = asked.schedules.list(status=QUARANTINED, limit=_SHOWN)
        rows = [each.row for each in read]
        number = max(len(rows), snapshot.counts[QUARANTINED])
        table = table_of(_QUARANTINED, rows, view, lambda row: {"KEY": schedule_link(row.key)})
        more = link("schedules", q="state:quarantined") if number > _SHOWN else ""
        yield Part(_title("Quarantined", number), "failed", table, more)
    if alerts:
        table = table_of(
            OPEN_ALERTS,
            alerts[:_SHOWN],
            view,
            lambda alert: {"KEY": schedule_link(alert.key)} if alert.key else {},
        )
        title = _title("Alerts", len(alerts))
        yield Part(title if len(alerts) < _ALERTS else f"{title} or more", "late", table)


def _title(name: str, number: int) -> str:
    return f"{name} {_SHOWN} of {number}" if number > _SHOWN else f"{name} {number}"


def _links_of_run(run: Run) -> Mapping[str, str]:
    time = run_link(run.key, run.scheduled_time)
    return {"KEY": schedule_link(schedule_key(run.key)), "RESULT": time}


def _failing(asked: Asked, now: float) -> Sequence[Run] | None:
    """The last runs of schedules that were given up, as far as the newest records tell.

    None if there is no history.
    """
    schedules = asked.schedules
    with suppress(NotSupportedError, SchemaError):
        found = schedules.failures(int(now) - _SINCE, among=_AMONG, limit=MOST_COUNTED)
        keys = [*dict.fromkeys(run.key for run in found)]
        last = schedules.last_runs(keys)
        rows = schedules.read_many(keys)
        # Of a schedule that is gone, or a task that was requeued, nothing needs to be done.
        return [
            run
            for key in keys
            if (run := last.get(key)) is not None and run.fate in _FAILED
            if key in rows and rows[key].row.status in _MATTERS
        ]
    return None
