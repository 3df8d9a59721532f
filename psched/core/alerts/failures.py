"""Alerts about failed runs: found in the run history, over when the schedule has succeeded again.

Failures of a schedule that follow each other without a success between them are one incident, which
begins with the first of them. All monitors find the same beginning, because they read the same
records; so only one of them raises the alert.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import dropwhile
from typing import NamedTuple, Protocol

from psched.base.clock import Clock
from psched.base.texts import counted, cut, visible
from psched.config import Config
from psched.core.alerts.alert import Alert, Rule
from psched.core.alerts.protocol import AlertSelection, KeepsAlerts
from psched.core.alerts.raising import MOST_RAISED, HooksOf, Raising
from psched.core.columns import annotation
from psched.core.definition import settings_of
from psched.core.history.protocol import FindsLastRuns, FollowsFailures, KeepsHistory, RunSelection
from psched.core.history.records import Fate, Outcome, RunRecord
from psched.core.history.redaction import Redaction
from psched.core.model import ENDED, EXPIRED, FAILED, QUARANTINED, Row
from psched.core.store_protocol import Store

RULES = frozenset({Rule.FAILED, Rule.GAVE_UP, Rule.QUARANTINED, Rule.LOST})
"""The rules of the alerts that `Failures` raises and closes."""

_MOST_NEW = 1000
"""The most records of failures that one step reads."""

MOST_OPEN = 5000
"""While so many alerts about failures are open, no further ones are raised."""

_FULL = f"{MOST_OPEN} alerts about failures are open: no more are raised until some are over"

_CHECKED = 500
"""Of so many open alerts, one step finds out whether they are over."""

_OTHERS = 60.0
"""Seconds between two looks for alerts that other monitors have raised, while none is open."""

_MOST_TRIED = 30
"""Among so many of the newest records of a key, the first failure of an incident is searched."""

_LONGEST_TEXT = 400
"""The most characters of a reason in an alert's text."""


class FailureStore(Store, KeepsHistory, FollowsFailures, FindsLastRuns, KeepsAlerts, Protocol):
    """What `Failures` needs of a store."""


class Step(NamedTuple):
    """What one step has done.

    Attributes:
        raised: the alerts that it has raised.
        closed: the alerts that it has closed.
        notes: what is not judged, and why, in words for the log.
        wait: seconds until the next step; None means the usual time.
    """

    raised: Sequence[Alert] = ()
    closed: Sequence[Alert] = ()
    notes: Sequence[str] = ()
    wait: float | None = None


class Failures:
    """Raises and closes alerts about failed runs.

    Args:
        store: contains the history and the alerts.
        settings: the settings of the installation.
        hooks_of: tells which hooks are told.
        clock: decides when the open alerts are read although none is known.
    """

    def __init__(
        self, store: FailureStore, settings: Config, *, hooks_of: HooksOf, clock: Clock
    ) -> None:
        self._store = store
        self._settings = settings
        self._raising = Raising(store, hooks_of)
        self._redaction = Redaction(settings.redact)
        self._clock = clock
        self._place: str | None = None
        self._open: Sequence[Alert] = ()  # those that are still to be checked
        self._open_count = 0
        self._is_full = False
        self._read_open_at = clock.monotonic()

    def step(self) -> Step:
        """Raise alerts about failures that are new, and close those that are over.

        An incident that is over already is raised and closed at once, so that it is told. Only when
        the first step finds such an incident, it is left out: it may be long ago.

        Raises:
            StoreError: the store does not answer. The next step continues where this one began.
        """
        news = self._store.new_failures(self._place, _MOST_NEW)
        raised: Sequence[Alert] = ()
        was_full, self._is_full = self._is_full, self._open_count >= MOST_OPEN
        notes = [_FULL] if self._is_full and not was_full else []
        if news.records and not self._is_full:
            raised = self._raise(news.records, is_first=self._place is None)
        self._place = news.place
        return Step(raised, self._close(is_news=bool(raised)), notes)

    def _raise(self, records: Sequence[RunRecord], *, is_first: bool) -> Sequence[Alert]:
        latest: dict[tuple[str, Rule], RunRecord] = {}
        for record in records:  # the newest first
            if rule := rule_of(record):
                latest.setdefault((record.key, rule), record)
        wanted = [(rule, record) for (_, rule), record in latest.items()]
        rows = self._store.look([record.key for _, record in wanted]) if wanted else {}
        found = [
            self._alert(rule, record, rows.get(record.key)) for rule, record in reversed(wanted)
        ]
        if is_first:
            over = {alert.subject for alert, _ in self._over([alert for alert, _ in found])}
            found = [each for each in found if each[0].subject not in over]
        return [
            alert
            for start in range(0, len(found), MOST_RAISED)
            for alert in self._raising.raise_alerts(found[start : start + MOST_RAISED])
        ]

    def _alert(self, rule: Rule, record: RunRecord, row: Row | None) -> tuple[Alert, Config]:
        """The alert about a failure, and the settings of its schedule."""
        settings = self._settings if row is None else settings_of(row, self._settings)
        of_key = self._store.runs(RunSelection(key=record.key, limit=_MOST_TRIED))
        earlier = dropwhile(lambda other: other.lease != record.lease, of_key)
        alert = Alert(
            key=record.key,
            rule=rule,
            since=_began(rule, record, earlier, whole=settings.history == "all"),
            type=record.type,
            label=record.label if row is None else annotation(row, "label"),
            scheduled_time=record.scheduled_time,
            text=_text(record, self._redaction),
        )
        return alert, settings

    def _close(self, *, is_news: bool) -> Sequence[Alert]:
        """Close alerts that are over; of many, only some, and others by the next step."""
        now = self._clock.monotonic()
        if not self._open and (is_news or self._open_count or now >= self._read_open_at):
            selection = AlertSelection(rules=RULES, only_open=True, limit=MOST_OPEN)
            self._open = [*self._store.alerts(selection)]
            self._open_count = len(self._open)
            self._read_open_at = now + _OTHERS
        checked, self._open = self._open[:_CHECKED], self._open[_CHECKED:]
        return self._raising.close_alerts(self._over(checked))

    def _over(self, alerts: Sequence[Alert]) -> Iterator[tuple[Alert, str]]:
        """Those of some alerts that are over, and why."""
        keys = sorted({alert.key for alert in alerts})
        rows = self._store.look(keys) if keys else {}
        last = self._store.last_runs(keys) if keys else {}
        for alert in alerts:
            row = rows.get(alert.key)
            if row is None:
                yield alert, "the schedule was deleted"
            elif why := _why_over(alert, row, last.get(alert.key), self._settings):
                yield alert, why


def rule_of(record: RunRecord) -> Rule | None:
    """The rule of the alert about a record of the history; None if it raises no alert."""
    match record.fate, record.outcome:
        case (Fate.QUARANTINED, _):
            return Rule.QUARANTINED
        case (Fate.GAVE_UP | Fate.EXPIRED, _):
            return Rule.GAVE_UP
        case (_, Outcome.FAILED | Outcome.TIMED_OUT):
            return Rule.FAILED
        case (_, Outcome.LOST | Outcome.PREEMPTED):
            return Rule.LOST
        case _:
            return None


def _why_over(alert: Alert, row: Row, last: RunRecord | None, settings: Config) -> str | None:
    """Why an alert is over; None if it is not.

    Args:
        alert: the alert, which is open.
        row: the row of its schedule.
        last: the newest record of the schedule that is the end of a run.
        settings: the settings of the installation.
    """
    if alert.rule == Rule.QUARANTINED:
        return None if row.status == QUARANTINED else "it is not quarantined any more"
    if last is not None and last.ended >= alert.since and _is_success(last):
        return f"it has succeeded, attempt {last.attempt}"
    if row.status in ENDED - {FAILED, EXPIRED}:
        return f"it is {row.status}"
    # Without records of successes, a later settle that has left no record of a failure is one.
    if (
        last is not None
        and settings_of(row, settings).history == "failures"
        and row.settled_by != last.lease
        and (row.next_time or 0) > last.scheduled_time
        and row.attempt == 0
    ):
        return "a later run has succeeded"
    return None


def _is_success(record: RunRecord) -> bool:
    return record.fate == Fate.FINISHED or record.outcome == Outcome.FINISHED


def _began(rule: Rule, record: RunRecord, earlier: Iterable[RunRecord], *, whole: bool) -> int:
    """When the incident began to which a failure belongs, in milliseconds.

    Args:
        rule: the rule of the failure.
        record: the failure.
        earlier: the records of its key from this one on, the newest first.
        whole: whether the history contains successes. If it does not, each occurrence is an
            incident of its own, because it cannot be seen which ones belong together.
    """
    began = record.ended
    for other in earlier:
        if _is_success(other) or (not whole and other.scheduled_time != record.scheduled_time):
            break
        if rule_of(other) is rule:
            began = other.ended
    return began


def _text(record: RunRecord, redaction: Redaction) -> str:
    match record.fate, record.outcome:
        case (Fate.QUARANTINED, _):
            what = "it was quarantined"
        case (Fate.EXPIRED, _):
            what = "it has expired"
        case (Fate.GAVE_UP, _):
            what = f"it was given up after {counted(record.attempt, 'attempt')}"
        case (_, Outcome.TIMED_OUT):
            what = f"attempt {record.attempt} was stopped at its time limit"
        case (_, Outcome.LOST):
            what = f"attempt {record.attempt} was lost"
        case (_, Outcome.PREEMPTED):
            what = f"attempt {record.attempt} has lost its lease"
        case _:
            what = f"attempt {record.attempt} has failed"
    reason = cut(visible(redaction.text(record.reason or "")), _LONGEST_TEXT)
    return f"{what}: {reason}" if reason else what
