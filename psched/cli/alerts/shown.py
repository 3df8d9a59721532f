"""How alerts are shown: as rows of a table, as sentences, and as JSON objects."""

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from psched.base.errors import NotSupportedError
from psched.base.quantities import format_duration
from psched.cli.output import one_line
from psched.cli.text_table import TableRow
from psched.cli.time_format import format_span, format_time, local_times, short_time
from psched.client.collection import ScheduleCollection
from psched.config.monitoring.expect import Expectations
from psched.core.alerts.alert import Alert, Rule
from psched.core.history.redaction import Redaction

COLUMNS = ("SINCE", "RULE", "KEY", "OPEN FOR", "CLOSED", "TEXT")
"""The columns of the table, in their order."""

OF_OPEN = tuple(name for name in COLUMNS if name != "CLOSED")
"""The columns of a table that shows only open alerts."""

_MILLISECONDS = ("since", "raised", "closed", "next_try")
"""The fields that are milliseconds; as JSON they are seconds, like the times of other commands."""

_INTERNAL = ("owner", "fence")


def open_alerts(schedules: ScheduleCollection, key: str) -> Sequence[Alert]:
    """The open alerts about a schedule; none if the store keeps no alerts."""
    try:
        return [*schedules.alerts(key)]
    except NotSupportedError:
        return []


def subject(alert: Alert) -> str:
    """The key of the schedule that an alert is about, or ``host NAME``."""
    return alert.key or f"host {alert.host}"


def open_for(alert: Alert, now: float) -> str:
    """For how long an alert has been open, or was."""
    end = now if alert.closed is None else alert.closed / 1000
    return format_duration(max(0.0, end - alert.raised / 1000))


def table_row(alert: Alert, columns: tuple[str, ...], now: float, redaction: Redaction) -> TableRow:
    """A row of the table."""
    closed = ""
    if alert.closed is not None:
        closed = short_time(alert.closed // 1000, now)
    text = alert.text if alert.closed_text is None else f"{alert.text}; over: {alert.closed_text}"
    cells = {
        "SINCE": short_time(alert.since // 1000, now),
        "RULE": alert.rule,
        "KEY": one_line(subject(alert)),
        "OPEN FOR": open_for(alert, now),
        "CLOSED": closed,
        "TEXT": one_line(local_times(redaction.text(text))),
    }
    return TableRow([cells[name] for name in columns])


def sentence(alert: Alert, redaction: Redaction) -> str:
    """An open alert in one line, below what another command shows about its schedule."""
    raised = format_time(alert.raised // 1000)
    return f"{alert.rule}, raised at {raised}: {one_line(local_times(redaction.text(alert.text)))}"


def alert_object(alert: Alert, redaction: Redaction) -> dict[str, Any]:
    """The JSON object of an alert; docs/alerts.md describes it."""
    names = [each.name for each in fields(alert) if each.name not in _INTERNAL]
    made: dict[str, Any] = {name: getattr(alert, name) for name in names}
    for name in _MILLISECONDS:
        made[name] = None if made[name] is None else made[name] / 1000
    made |= {"key": alert.key or None, "host": alert.host or None}
    made["deliveries"] = {
        name: asdict(each) | {"next_try": None if each.next_try is None else each.next_try / 1000}
        for name, each in alert.deliveries.items()
    }
    shown: dict[str, Any] = redaction.value(made)
    return shown


def expected_text(expect: Expectations) -> str:
    """What is expected of a schedule: ``late 5m, unusual 3``; empty if nothing is."""
    found = ((name, value) for name, value in expect.items() if value is not None)
    return ", ".join(f"{name} {_limit(name, value)}" for name, value in found)


def _limit(name: str, value: float) -> str:
    return f"{value:g}" if name == Rule.UNUSUAL or value % 1 else format_span(int(value))
