"""The pages of the command web: reads what each shows, and turns it into texts and links."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple, TypedDict

from psched.base.errors import NotFoundError
from psched.base.texts import visible
from psched.cli.history.alerts import sentence
from psched.cli.output import one_line
from psched.cli.schedules.listing import usual_columns
from psched.cli.schedules.show import (
    Details,
    details_object,
    durations_line,
    extra_run_lines,
    fields_of,
    fields_of_run,
    read_details,
)
from psched.cli.shown import Listed, overdue, row_object, run_object, shown_status
from psched.cli.text_table import View
from psched.cli.time_format import (
    format_distance,
    format_time,
    format_took,
    local_times,
    parse_since,
    reader_zone,
    short_time,
)
from psched.client.each_host import rows_of_hosts
from psched.core.history.records import WHOLE
from psched.core.history.run import Run
from psched.reports.hosts import Host
from psched.web.actions import links_for, links_for_many
from psched.web.asked import (
    KEY,
    LIMIT,
    SEARCH,
    Asked,
    Page,
    Parameter,
    Table,
    choosing,
    link,
    more_link,
    run_link,
    schedule_link,
    table_of,
    table_of_runs,
    with_icons,
)
from psched.web.drawing import timeline_page
from psched.web.events import EventsDocument, events_page
from psched.web.fates import KIND_OF_STATUS, kind_of, told
from psched.web.hosts import hosts_page
from psched.web.now import NowDocument, now_page
from psched.web.occurrence import OccurrenceDocument, occurrence_page
from psched.web.queue import QueueDocument, queue_page
from psched.web.search import HINTS, MOST_READ, QUALIFIERS, Found, parse_search
from psched.web.timeline import GROUPINGS, SORTS, SPANS, TimelineDocument

_STRIP = 30  # the last runs of a schedule that its strip shows
_STRIPS = 100  # the most strips of a page: each is a request to the store
_UPCOMING = 10  # the number of next runs of a schedule
_MOST_HOSTS = 500  # the most rows of hosts that the page of a template lists
_CHART = 50  # the most runs whose durations are drawn


class SchedulesDocument(TypedDict):
    """The schedules and tasks that a search finds, as by ``psched list --json``."""

    schedules: Sequence[Mapping[str, Any]]
    more: bool
    cut: bool


class ScheduleDocument(TypedDict):
    """A schedule, as by ``psched show --json``; and ``why``, as by ``psched why --json``."""

    key: str
    type: str
    status: str
    why: Mapping[str, Any]


class RunsDocument(TypedDict):
    """Runs, the newest first, as by ``psched history --json``."""

    runs: Sequence[Mapping[str, Any]]
    more: bool


class Step(NamedTuple):
    """A run in a strip or a chart: its kind, what it tells, and where it leads."""

    kind: str
    text: str
    href: str
    x: str
    height: str = ""


def _schedules(asked: Asked) -> Page:
    query, limit = asked.query, asked.limit()
    search, now = parse_search(query.get("q", "")), asked.schedules.now()
    found = Found(asked, search, now)
    listed = [*islice(found.rows, limit)]
    has_more = next(found.rows, None) is not None
    view = View(now, asked.redaction)
    table = table_of(usual_columns(found.find_last), listed, view, _link_of_row)
    statuses = (shown_status(row, now, last) for row, last in listed)
    table = with_icons(table, 1, (KIND_OF_STATUS.get(status, "") for status in statuses))
    if has_more:
        table = table._replace(more=more_link("schedules", query, limit))
    strips = list[Sequence[Step]]()
    if found.find_last is not None:
        strips = [_strip(asked, row.key, now) for row, _ in listed[:_STRIPS]]
        strips += [()] * (len(listed) - len(strips))
    values = {
        "title": "Schedules and tasks",
        "q": search.text,
        "hints": HINTS,
        "qualifiers": QUALIFIERS,
        "cut": f"{MOST_READ:,}" if found.is_cut else "",
        "timeline": link("./", q=search.text),
        "actions": links_for_many(asked, search.text),
        "table": table,
        "strips": strips,
    }

    def document() -> SchedulesDocument:
        made = []
        for row, last in listed:
            shown = row_object(row, now, asked.redaction, last)
            shown["last"] = None if last is None else run_object(last, asked.redaction, large=False)
            made.append(shown)
        return {"schedules": made, "more": has_more, "cut": found.is_cut}

    return Page("schedules", values, document)


def _strip(asked: Asked, key: str, now: float) -> Sequence[Step]:
    """The last runs of a schedule, the newest last."""
    runs = list[Run]()
    with suppress(NotFoundError):  # plain SQL can insert a key that no schedule can have
        runs = [*asked.schedules.runs(key, limit=_STRIP, extra_runs=False)]
    shift = _STRIP - len(runs)
    return [
        _step(asked, run, now, f"{100 * (shift + place) / _STRIP:.1f}%")
        for place, run in enumerate(reversed(runs))
    ]


def _step(asked: Asked, run: Run, now: float, x: str, height: str = "") -> Step:
    def clock(time: float) -> str:
        return short_time(int(time), now, seconds=True)

    text = visible(told(run, clock, asked.redaction))
    return Step(kind_of(run), text, run_link(run.key, run.scheduled_time), x, height)


def _schedule(asked: Asked) -> Page:
    key = asked.key()
    details = read_details(
        asked.schedules, asked.settings, key, asked.redaction, upcoming=_UPCOMING
    )
    view = View(details.now, asked.redaction)
    answer = asked.schedules.why(key, zone=reader_zone())
    last = details.last
    status = shown_status(details.row, details.now, last)
    values = {
        "title": visible(key),
        "key": key,
        "status": status,
        "kind": KIND_OF_STATUS.get(status, ""),
        "trigger": one_line(asked.redaction.text(details.row.cron or "runs once")),
        "type": one_line(details.row.type),
        "label": one_line(asked.redaction.text(details.row.label or "")),
        "why": asked.sentence(answer.sentence),
        "alerts": [visible(sentence(alert, asked.redaction)) for alert in details.alerts],
        "fields": fields_of(details, asked.redaction),
        "last": {} if last is None else fields_of_run(last, details.now, asked.redaction),
        "durations": None if details.durations is None else durations_line(details.durations),
        "chart": _chart(asked, details),
        "attempts": table_of_runs(details.attempts or (), key, view),
        "runs": link("runs", key=key),
        "timeline": link("./", q=f'"{key}"' if " " in key else key),
        "actions": links_for(asked, details.row, has_alerts=bool(details.alerts)),
        "extra_runs": [*extra_run_lines(details)],
        "upcoming": [] if details.row.each_host else [*_upcoming(details)],
        "hosts": _rows_of_hosts(asked, key, view) if details.row.each_host else None,
    }

    def document() -> Mapping[str, Any]:
        made = details_object(details, asked.redaction)
        return {**made, "why": asked.redaction.value(answer.to_json())}

    return Page("schedule", values, document)


def _rows_of_hosts(asked: Asked, key: str, view: View) -> Table:
    """The rows of the hosts of a template, which does not run itself."""
    found = rows_of_hosts(asked.schedules.access, key)
    rows: list[Listed] = [(row, None) for row in islice(found, _MOST_HOSTS)]
    table = table_of(usual_columns(None), rows, view, _link_of_row)
    has_more = next(found, None) is not None
    return table._replace(more=link("schedules", q=f"{key}@*") if has_more else "")


def _link_of_row(listed: Listed) -> Mapping[str, str]:
    return {"KEY": schedule_link(listed[0].key)}


def _upcoming(details: Details) -> Iterator[tuple[str, str, str]]:
    """The next runs: when, how far away, and what is odd. A retry can be later than the next."""
    row, now = details.row, details.now
    runs = ((each.time if each.run_at is None else each.run_at, each) for each in details.upcoming)
    for when, each in sorted(runs, key=lambda of: of[0]):
        distance = overdue(each, row, now) or format_distance(when - now)
        yield format_time(when), distance, local_times(each.note or "")


def _chart(asked: Asked, details: Details) -> Mapping[str, Any] | None:
    """How long the last runs took, with the median and what 95 % of them keep below."""
    if details.durations is None:
        return None
    found = asked.schedules.runs(details.row.key, outcome=[*WHOLE], limit=_CHART, extra_runs=False)
    runs = [(run, run.took) for run in found if run.took is not None]
    top = max((took for _, took in runs), default=0.0)
    if not top:
        return None
    top = max(top, details.durations.p95)
    part = 100 / len(runs)
    bars = [
        _step(asked, run, details.now, f"{place * part:.2f}%", f"{max(1.0, 100 * took / top):.1f}%")
        for place, (run, took) in enumerate(reversed(runs))
    ]
    marked = {"p50": details.durations.median, "p95": details.durations.p95}
    lines = [
        (name, format_took(seconds), f"{100 - 100 * seconds / top:.1f}%")
        for name, seconds in marked.items()
    ]
    width = f"{0.8 * part:.2f}%"
    return {"bars": bars, "width": width, "lines": lines, "top": format_took(top)}


def _runs(asked: Asked) -> Page:
    query, limit = asked.query, asked.limit()
    key, since = query.get("key") or None, query.get("since") or None
    found = asked.schedules.runs(
        key,
        type=query.get("type") or None,
        failed=bool(query.get("failed")),
        since=parse_since(since, asked.schedules.now()),
        limit=limit + 1,
    )
    read = [*found]
    runs, has_more = read[:limit], len(read) > limit
    more = more_link("runs", query, limit) if has_more else ""
    values = {
        "title": "Runs",
        "key": key or "",
        "type": query.get("type", ""),
        "since": since or "",
        "failed": bool(query.get("failed")),
        "table": table_of_runs(runs, key, asked.view())._replace(more=more),
    }

    def document() -> RunsDocument:
        return {
            "runs": [run_object(run, asked.redaction, large=False) for run in runs],
            "more": has_more,
        }

    return Page("runs", values, document)


class Shown(NamedTuple):
    """A page: what makes it, what its document is, and the fields of its query that it reads.

    The first line of the docstring of ``document`` says what it is.
    """

    make: Callable[[Asked], Page]
    document: Any
    fields: Sequence[Parameter] = ()


_TIME = "Such as 2026-11-22T02:30, yesterday 02:30, -1h, or Unix seconds."
_KEY = KEY._replace(is_needed=False)

PAGES: Mapping[str, Shown] = {
    "timeline": Shown(
        timeline_page,
        TimelineDocument,
        [
            SEARCH,
            choosing("span", "From the start to the end, with now in the middle.", SPANS),
            choosing("by", "What the lanes are.", GROUPINGS),
            choosing("sort", "The order of the lanes.", SORTS),
        ],
    ),
    "now": Shown(now_page, NowDocument),
    "schedules": Shown(_schedules, SchedulesDocument, [SEARCH, LIMIT]),
    "schedule": Shown(_schedule, ScheduleDocument, [KEY]),
    "queue": Shown(queue_page, QueueDocument, [SEARCH]),
    "runs": Shown(
        _runs,
        RunsDocument,
        [
            _KEY,
            Parameter("type", "The type of the schedules."),
            Parameter("since", "The earliest end of the runs: an age such as 1h, or a time."),
            choosing("failed", "Only what failed.", ["1"]),
            LIMIT,
        ],
    ),
    "events": Shown(
        events_page,
        EventsDocument,
        [Parameter("from", _TIME), Parameter("to", _TIME), _KEY, LIMIT],
    ),
    "occurrence": Shown(occurrence_page, OccurrenceDocument, [KEY, Parameter("time", _TIME)]),
    "hosts": Shown(hosts_page, Sequence[Host]),
}
"""The pages by their names."""
