"""The pages of the command web: reads what each shows, and turns it into texts and links."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from itertools import islice
from typing import Any, NamedTuple
from urllib.parse import urlencode

from psched.base.errors import InvalidError, NotFoundError, NotSupportedError
from psched.base.texts import visible
from psched.cli.history.alerts import OPEN_ALERTS, sentence
from psched.cli.history.live_output import SOON, find_live
from psched.cli.history.logs import PRINTED_NOTHING, about_output, why_not_kept
from psched.cli.schedules.listing import SHOWN_STATES, find_rows, last_runs_of, usual_columns
from psched.cli.schedules.show import (
    durations_line,
    extra_run_lines,
    fields_of,
    fields_of_run,
    read_details,
    upcoming_lines,
)
from psched.cli.shown import Listed, columns_for, result
from psched.cli.text_table import Column, Item, View, headings_of
from psched.cli.time_format import format_time, local_times, parse_since, reader_zone
from psched.cli.top.rendering import about_master, sections_of, summary
from psched.cli.top.snapshot import Reader
from psched.client.collection import ScheduleCollection
from psched.config import Config
from psched.core.alerts.alert import Alert
from psched.core.columns import LATEST_TIME
from psched.core.history.run import Run
from psched.core.model import Row
from psched.core.operations.extra_runs import schedule_key
from psched.core.selection import is_pattern
from psched.reports.redaction import Redaction

_REFRESH = 5  # seconds after which a browser reads a page of what happens now again
_ROWS = 100  # the rows of a table, unless the reader asks for more
_MOST_ROWS = 5000  # the most rows of a table
_MOST_READ = 20_000  # the most rows that a search reads; it takes less than a second
_ATTEMPTS = 100  # the most records of an occurrence that are shown
_NOT_YET = "No output yet."  # the output of an attempt is stored a moment after its record
PATIENCE = 2.0  # seconds in which the masters of this host must answer, while other requests wait
_OUTPUTS = 20  # the most attempts of an occurrence whose output is shown


class Asked(NamedTuple):
    """What a page is made from.

    ``is_gone`` returns whether the client has hung up, so that nobody will read the page.
    """

    schedules: ScheduleCollection
    settings: Config
    reader: Reader
    redaction: Redaction
    query: Mapping[str, str]
    is_gone: Callable[[], bool]

    def view(self) -> View:
        """How runs are shown."""
        return View(self.schedules.now(), self.redaction)

    def limit(self) -> int:
        """The most rows of a table."""
        text = self.query.get("limit", str(_ROWS))
        # The first digits suffice, and int() refuses thousands of them.
        number = int(text[:9]) if text.isascii() and text.isdecimal() else 0
        if 0 < number <= _MOST_ROWS:
            return number
        raise InvalidError("limit", f"{text!r} is no number from 1 to {_MOST_ROWS}")


class Page(NamedTuple):
    """A page, which a browser reads again after so many seconds; 0 means never."""

    name: str
    values: Mapping[str, Any]
    status: HTTPStatus = HTTPStatus.OK
    refresh: int = 0


class Cell(NamedTuple):
    """A cell of a table, with what it links to, and its style; both can be empty."""

    text: str
    href: str = ""
    style: str = ""


class Table(NamedTuple):
    """A table; ``more`` is what it links to if there are more rows."""

    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    more: str = ""


class Printed(NamedTuple):
    """What an attempt has printed, None if nothing is kept; and the error that has ended it."""

    heading: str
    error: str
    output: str | None


def _now(asked: Asked) -> Page:
    snapshot = asked.reader.read()
    now = snapshot.now or 0.0
    tables = []
    for section in sections_of(snapshot):
        rows = [
            [
                Cell(entry.cells[0], _schedule_link(entry.task.key), entry.style),
                *(Cell(text) for text in entry.cells[1:]),
            ]
            for entry in section.entries
        ]
        title = section.title(len(section.entries)).capitalize()
        tables.append((title, Table(section.headings, rows)))
    alerts = None
    if not snapshot.away:
        with suppress(NotSupportedError):
            alerts = _alerts(asked, now)
    values = {
        "title": "Now",
        "time": "" if snapshot.now is None else format_time(int(now)),
        "problems": [visible(each) for each in snapshot.problems],
        "summary": summary(snapshot),
        "hosts": [visible(about_master(master)) for master in snapshot.masters],
        "pauses": [visible(each) for each in snapshot.pauses],
        "alerts": alerts,
        "tables": tables,
    }
    return Page("now", values, refresh=_REFRESH)


def _alerts(asked: Asked, now: float) -> Table | None:
    """The open alerts; None if there are none."""
    alerts = [*islice(asked.schedules.alerts(), _ROWS)]

    def links(alert: Alert) -> Mapping[str, str]:
        return {"KEY": _schedule_link(alert.key)} if alert.key else {}

    return _table(OPEN_ALERTS, alerts, View(now, asked.redaction), links) if alerts else None


def _schedules(asked: Asked) -> Page:
    query, limit = asked.query, asked.limit()
    pattern, status, type_ = (query.get(name, "") for name in ("keys", "status", "type"))
    if status and status not in SHOWN_STATES:
        raise InvalidError(
            "status", f"{status!r} is unknown; choose from {', '.join(SHOWN_STATES)}"
        )
    now = asked.schedules.now()
    is_cut = False

    def watch(read: Iterator[Row]) -> Iterator[Row]:
        nonlocal is_cut
        for number, row in enumerate(read):
            if number == _MOST_READ or asked.is_gone():
                is_cut = True
                return
            yield row

    find_last = last_runs_of(asked.schedules)
    rows = find_rows(
        asked.schedules,
        [pattern if is_pattern(pattern) else f"{pattern}*"],
        states=[status] if status else [],
        types=[type_] if type_ else [],
        now=now,
        find_last=find_last,
        watch=watch,
    )

    def links(listed: Listed) -> Mapping[str, str]:
        return {"KEY": _schedule_link(listed[0].key)}

    view = View(now, asked.redaction)
    table = _table(usual_columns(find_last), islice(rows, limit), view, links)
    if next(rows, None) is not None:
        table = table._replace(more=_more("schedules", query, limit))
    values = {
        "title": "Schedules and tasks",
        "keys": pattern,
        "status": status,
        "type": type_,
        "states": SHOWN_STATES,
        "cut": f"{_MOST_READ:,}" if is_cut else "",
        "table": table,
    }
    return Page("schedules", values)


def _schedule(asked: Asked) -> Page:
    key = _key(asked)
    details = read_details(asked.schedules, asked.settings, key, asked.redaction)
    view = View(details.now, asked.redaction)
    answer = asked.schedules.why(key, zone=reader_zone())
    last = details.last
    values = {
        "title": visible(key),
        "key": key,
        "why": visible(local_times(asked.redaction.text(answer.sentence))),
        "alerts": [visible(sentence(alert, asked.redaction)) for alert in details.alerts],
        "fields": fields_of(details, asked.redaction),
        "last": {} if last is None else fields_of_run(last, details.now, asked.redaction),
        "durations": None if details.durations is None else durations_line(details.durations),
        "attempts": _runs_table(details.attempts or (), key, view),
        "runs": _link("runs", key=key),
        "extra_runs": [*extra_run_lines(details)],
        "upcoming": [*upcoming_lines(details)],
    }
    return Page("schedule", values)


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
    runs = [*found]
    more = _more("runs", query, limit) if len(runs) > limit else ""
    values = {
        "title": "Runs",
        "key": key or "",
        "type": query.get("type", ""),
        "since": since or "",
        "failed": bool(query.get("failed")),
        "table": _runs_table(runs[:limit], key, asked.view())._replace(more=more),
    }
    return Page("runs", values)


def _occurrence(asked: Asked) -> Page:
    key, time = _key(asked), asked.query.get("time") or None
    answer = asked.schedules.why(key, time, reader_zone())
    runs: Sequence[Run] = ()
    printed: Sequence[Printed] = ()
    row, live, no_output, view = None, None, None, asked.view()
    with suppress(NotFoundError):
        row = asked.schedules.read(key).row
    if answer.time is not None and 0 <= answer.time <= LATEST_TIME:
        with suppress(NotSupportedError):
            runs = [*asked.schedules.runs(key, time=answer.time, limit=_ATTEMPTS)]
        live = _live(asked, row, answer.time)
        printed = [*_printed(asked, key, answer.time, runs)]
    attempt = next((run for run in runs if run.outcome is not None), None)
    if attempt and live is None and all(each.output is None for each in printed):
        is_soon = view.now - attempt.ended <= SOON
        why = why_not_kept(row, attempt, asked.settings, view.now)
        no_output = _NOT_YET if is_soon and why == PRINTED_NOTHING else f"No output: {why}."
    values = {
        "title": visible(key),
        "key": key,
        "schedule": _schedule_link(schedule_key(key)),
        "time": time or "",
        "why": visible(local_times(asked.redaction.text(answer.sentence))),
        "attempts": _runs_table(runs, key, view),
        "live": live,
        "printed": printed,
        "no_output": no_output,
    }
    goes_on = live is not None or no_output == _NOT_YET
    return Page("occurrence", values, refresh=_REFRESH if goes_on else 0)


def _live(asked: Asked, row: Row | None, time: int) -> Printed | None:
    """What the running attempt of an occurrence has printed so far; None if it does not run."""
    if row is None or row.owner is None or row.next_time != time:
        return None
    live, _, _ = find_live(asked.settings, row.key, PATIENCE)
    if live is not None and live.is_collected and live.attempt.owner == row.owner:
        with suppress(OSError):  # its master has hung up, or hangs
            output = live.so_far()
            about = about_output(output, None, is_running=True)
            return Printed(about, "", _text(asked, output.text))
    return Printed(f"running; psched logs -f {visible(row.key)} shows what it prints", "", None)


def _printed(asked: Asked, key: str, time: int, runs: Iterable[Run]) -> Iterator[Printed]:
    """What the attempts of an occurrence have printed, and their errors, the newest first."""
    outputs = {}
    with suppress(NotSupportedError):
        found = asked.schedules.outputs(key, time=time, limit=_OUTPUTS)
        outputs = {output.record.owner: output for output in found}
    for run in runs:
        output = outputs.pop(run.record.owner, None) if run.outcome is not None else None
        if output is None and run.error is None:
            continue
        about, shown = f"attempt {run.attempt}: {result(run)}", None
        if output is not None:
            about, shown = about_output(output, run), _text(asked, output.text)
        yield Printed(about, _text(asked, run.error or ""), shown)
    for output in outputs.values():  # the setting history omits their records
        yield Printed(about_output(output, None), "", _text(asked, output.text))


def _text(asked: Asked, text: str) -> str:
    return visible(asked.redaction.text(text), lines=True)


def _runs_table(runs: Sequence[Run], key: str | None, view: View) -> Table:
    def links(run: Run) -> Mapping[str, str]:
        when = _link("occurrence", key=run.key, time=str(run.scheduled_time))
        return {"WHEN": when, "KEY": _schedule_link(schedule_key(run.key))}

    return _table(columns_for(runs, key), runs, view, links)


def _table(
    columns: Sequence[Column[Item]],
    items: Iterable[Item],
    view: View,
    links: Callable[[Item], Mapping[str, str]],
) -> Table:
    """A table of items; ``links`` are those of a row, by the heading of the column."""
    rows = []
    for item in items:
        of_row, cells = links(item), []
        for column in columns:
            text = column.text(item, view)
            href, style = of_row.get(column.heading, ""), column.colours.get(text, "")
            cells.append(Cell(text, href, style))
        rows.append(cells)
    return Table(headings_of(columns, view.now), rows)


def _key(asked: Asked) -> str:
    """The key that the query names."""
    if key := asked.query.get("key"):
        return key
    raise InvalidError("key", "is missing")


def _link(page: str, **query: str) -> str:
    # Relative to the other pages, so that they can be served below any path.
    return f"{page}?{urlencode(query, errors='replace')}"


def _schedule_link(key: str) -> str:
    return _link("schedule", key=key)


def _more(page: str, query: Mapping[str, str], limit: int) -> str:
    return _link(page, **{**query, "limit": str(min(10 * limit, _MOST_ROWS))})


PAGES: Mapping[str, Callable[[Asked], Page]] = {
    "/": _now,
    "/schedules": _schedules,
    "/schedule": _schedule,
    "/runs": _runs,
    "/occurrence": _occurrence,
}
"""What makes each page, by its path."""
