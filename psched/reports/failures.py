"""Alerts about failed runs: found in the run history, over when the schedule has succeeded again.

Failures of a schedule that follow each other without a success between them are one incident. An
incident is raised only if no alert of the same schedule and rule was raised since the last success
before it, or since the schedule was added, or runs again after its end. An extra run counts as a
run of its schedule. Each quarantine is an incident, because the row does not run until it is over.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from psched.base.clock import Clock
from psched.base.texts import counted, cut, visible
from psched.config import Config
from psched.core.alerts.alert import Alert, Rule
from psched.core.alerts.protocol import AlertSelection, KeepsAlerts
from psched.core.alerts.watching import light_rows
from psched.core.definition import settings_of
from psched.core.history.protocol import KeepsHistory, RunSelection
from psched.core.history.records import Fate, Outcome, RunRecord
from psched.core.model import ENDED, EXPIRED, FAILED, QUARANTINED, ReasonCode, Row
from psched.core.operations.extra_runs import schedule_key
from psched.core.store_protocol import Store
from psched.reports.expectations import LONGEST_TEXT
from psched.reports.raising import MOST_RAISED, Judged, Raising
from psched.reports.redaction import Redaction

RULES = frozenset({Rule.FAILED, Rule.GAVE_UP, Rule.QUARANTINED, Rule.LOST})
"""The rules of the alerts that `Failures` raises and closes."""

_MOST_NEW = 1000
"""The most records of failures that one step reads."""

_MOST_SEEN = 20_000
"""The most records that are remembered, because a store may return them again."""

MOST_OPEN = 5000
"""While so many alerts about failures are open, those of one-off tasks raise no further ones."""

_MOST_READ = 4 * MOST_OPEN
"""The most open alerts that are read."""

_CHECKED = 500
"""The most open alerts that one step compares with the store, to close those that are over."""

_EXTRA_CHECKED = 20
"""The most schedules whose extra runs one step reads, because each costs a query."""

_OTHERS = 60.0
"""Seconds between two looks for alerts that other monitors have raised, while none is open."""

_NEAREST = 30
"""So many records of a schedule are read to find the beginning of an incident."""


class Failures:
    """Raises and closes alerts about failed runs, which the history of the store tells.

    The clock decides when the open alerts are read although none is known.
    """

    def __init__(
        self,
        store: Store,
        history: KeepsHistory,
        alerts: KeepsAlerts,
        settings: Config,
        *,
        clock: Clock,
    ) -> None:
        self._store = store
        self._history = history
        self._alerts = alerts
        self._settings = settings
        self._raising = Raising(alerts, clock=clock)
        self._redaction = Redaction(settings.redact)
        self._clock = clock
        self._place: str | None = None
        self._seen: OrderedDict[tuple[str, int, str | None], None] = OrderedDict()
        self._open: Sequence[Alert] = ()  # those that are still to be checked
        self._open_count = 0
        self._is_full = False
        self._read_open_at = clock.monotonic()
        self._turn = 0

    def step(self) -> Judged:
        """Raise alerts about failures that are new, and close those that are over.

        An incident that is over already is raised and closed at once, so that it is told. Only when
        the first step finds such an incident, it is left out: it may be long ago.
        """
        news = self._history.new_failures(self._place, _MOST_NEW)
        records = [record for record in news.records if _identity(record) not in self._seen]
        raised: Sequence[Alert] = ()
        notes = list[str]()
        if records:
            raised = self._raise(records, is_first=self._place is None, notes=notes)
        for record in reversed(records):
            self._seen[_identity(record)] = None
        while len(self._seen) > _MOST_SEEN:
            self._seen.popitem(last=False)
        self._place = news.place
        return Judged(raised, self._close(is_news=bool(raised)), notes)

    # --- raising -------------------------------------------------------------------------

    def _raise(
        self, records: Sequence[RunRecord], *, is_first: bool, notes: list[str]
    ) -> Sequence[Alert]:
        latest: dict[tuple[str, Rule], RunRecord] = {}
        for record in records:  # the newest first
            if rule := rule_of(record):
                latest.setdefault((schedule_key(record.key), rule), record)
        rows = light_rows(self._store, sorted({key for key, _ in latest}))
        was_full, self._is_full = self._is_full, self._open_count >= MOST_OPEN
        if self._is_full:
            # Failed one-off tasks stay until somebody cares. They must not silence the schedules.
            if not was_full:
                notes.append(f"{MOST_OPEN} alerts are open: those of one-off tasks raise no more")
            latest = {
                (key, rule): record
                for (key, rule), record in latest.items()
                if key in rows and rows[key].cron is not None
            }
        found = [
            each
            for (key, rule), record in reversed(latest.items())
            if (each := self._incident(key, rule, record, rows.get(key)))
        ]
        if is_first:
            over = {alert.subject for alert, _ in self._over([alert for alert, _ in found])}
            found = [each for each in found if each[0].subject not in over]
        return [
            alert
            for start in range(0, len(found), MOST_RAISED)
            for alert in self._raising.raise_alerts(found[start : start + MOST_RAISED])
        ]

    def _incident(
        self, key: str, rule: Rule, record: RunRecord, row: Row | None
    ) -> tuple[Alert, Config] | None:
        """The alert about a failure, and the settings of its schedule; None if it was raised."""
        settings = settings_of(
            Row(key=key, type=record.type) if row is None else row, self._settings
        )
        began = record.ended
        if rule is not Rule.QUARANTINED:
            # A row that was added, or runs again, later says nothing about this failure.
            born = 0 if row is None or row.created_at is None else 1000 * row.created_at
            began, before = self._beginning(
                key,
                rule,
                record,
                born=born if born <= record.ended else 0,
                knows_successes=settings.history == "all",
            )
            [*last] = self._alerts.find_alerts(
                AlertSelection(key=key, rules=frozenset({rule}), limit=1)
            )
            if last and last[0].since > before:
                return None
        alert = Alert(
            key=key,
            rule=rule,
            since=began,
            type=record.type,
            label=record.label if row is None else row.label,
            scheduled_time=record.scheduled_time,
            text=_text(record, self._redaction),
        )
        return alert, settings

    def _beginning(
        self, key: str, rule: Rule, record: RunRecord, *, born: int, knows_successes: bool
    ) -> tuple[int, int]:
        """When the first failure of an incident ended, and the last success before it.

        If the history contains no successes, each occurrence is an incident of its own, because it
        cannot be seen which ones belong together. No incident is older than ``born``.

        Both are in milliseconds. Of very many failures, the first one is not looked for. The
        second value is ``born`` if there was no success since then.
        """
        began = record.ended
        nearest = RunSelection(key=key, with_extra_runs=True, limit=_NEAREST)
        for other in self._history.runs(nearest):
            if other.ended > record.ended or other.lease == record.lease:
                continue
            if other.ended < born:
                return began, born
            if _is_success(other):
                return began, other.ended
            if not knows_successes and other.scheduled_time != record.scheduled_time:
                return began, other.ended
            if rule_of(other) is rule:
                began = other.ended
        succeeded = RunSelection(
            key=key, with_extra_runs=True, fates=frozenset({Fate.FINISHED}), limit=_NEAREST
        )
        for other in self._history.runs(succeeded):
            if other.ended < record.ended:
                return began, max(other.ended, born)
        return began, born

    # --- closing -------------------------------------------------------------------------

    def _close(self, *, is_news: bool) -> Sequence[Alert]:
        """Close alerts that are over; of many, only some, and others by the next step."""
        now = self._clock.monotonic()
        if not self._open and (is_news or self._open_count or now >= self._read_open_at):
            selection = AlertSelection(rules=RULES, only_open=True, limit=_MOST_READ)
            self._open = [*self._alerts.find_alerts(selection)]
            self._open_count = len(self._open)
            self._read_open_at = now + _OTHERS
        checked, self._open = self._open[:_CHECKED], self._open[_CHECKED:]
        return self._raising.close_alerts(self._over(checked))

    def _over(self, alerts: Sequence[Alert]) -> Iterator[tuple[Alert, str]]:
        """Those of some alerts that are over, and why."""
        keys = sorted({alert.key for alert in alerts})
        rows = light_rows(self._store, keys)
        last = self._history.last_runs(keys) if keys else {}
        still: list[Alert] = []
        for alert in alerts:
            row = rows.get(alert.key)
            if row is None:
                yield alert, "the schedule was deleted"
            elif why := _why_over(alert, row, last.get(alert.key), self._settings):
                yield alert, why
            elif row.cron is not None and alert.rule != Rule.QUARANTINED:
                still.append(alert)
        # Of many, each step looks at others.
        begin = self._turn % len(still) if still else 0
        for alert in (still[begin:] + still[:begin])[:_EXTRA_CHECKED]:
            self._turn += 1
            newest = RunSelection(key=alert.key, with_extra_runs=True, limit=1)
            for record in self._history.runs(newest):
                if _is_success(record) and record.ended >= alert.since:
                    yield alert, "an extra run has succeeded"


def rule_of(record: RunRecord) -> Rule | None:
    """The rule of the alert about a record of the history; None if it raises no alert."""
    match record.fate, record.outcome:
        case (Fate.QUARANTINED, _):
            return Rule.QUARANTINED
        case (Fate.GAVE_UP | Fate.EXPIRED, _):
            return Rule.GAVE_UP
        case (_, Outcome.FAILED | Outcome.TIMED_OUT):
            return Rule.GAVE_UP if _has_paused(record) else Rule.FAILED
        case (_, Outcome.LOST | Outcome.PREEMPTED):
            return Rule.LOST
        case _:
            return None


def _identity(record: RunRecord) -> tuple[str, int, str | None]:
    # A lost attempt can get another outcome later, which is news.
    return f"{record.key}\0{record.lease}", record.scheduled_time, record.outcome


def _why_over(alert: Alert, row: Row, last: RunRecord | None, settings: Config) -> str | None:
    """Why an alert is over; None if it is not."""
    if alert.rule == Rule.QUARANTINED:
        return None if row.status == QUARANTINED else "it is not quarantined any more"
    if last is not None and last.ended >= alert.since and _is_success(last):
        return f"it has succeeded, attempt {last.attempt}"
    if row.status in ENDED - {FAILED, EXPIRED}:
        return f"it is {row.status}"
    if settings_of(row, settings).history == "all":
        return None
    # Without records of successes, a later settle that has left no record of a failure is one.
    failed = alert.scheduled_time if last is None else last.scheduled_time
    settled = last is None or row.settled_by != last.lease
    if settled and row.attempt == 0 and (row.next_time or 0) > (failed or 0):
        return "a later run has succeeded"
    return None


def _has_paused(record: RunRecord) -> bool:
    return record.reason_code == ReasonCode.PAUSED_AFTER_FAILURES


def _is_success(record: RunRecord) -> bool:
    return record.fate == Fate.FINISHED or record.outcome == Outcome.FINISHED


def _text(record: RunRecord, redaction: Redaction) -> str:
    match record.fate, record.outcome:
        case (Fate.QUARANTINED, _):
            what = "it was quarantined"
        case (Fate.EXPIRED, _):
            what = "it has expired"
        case (Fate.GAVE_UP, _):
            # Nothing ran if a worker has given it up when it claimed it; the reason says more then.
            after = f" after {counted(record.attempt, 'attempt')}" if record.attempt else ""
            what = f"it was given up{after}"
        case _ if _has_paused(record):
            what = "it does not run any more"
        case (_, Outcome.TIMED_OUT):
            what = f"attempt {record.attempt} was stopped at its time limit"
        case (_, Outcome.LOST):
            what = f"attempt {record.attempt} was lost"
        case (_, Outcome.PREEMPTED):
            what = f"attempt {record.attempt} has lost its lease"
        case _:
            what = f"attempt {record.attempt} has failed"
    if record.key != schedule_key(record.key):
        what = f"extra run {record.key}: {what}"
    reason = redaction.text(record.reason or "").removeprefix("gave up: ")
    reason = cut(visible(reason), LONGEST_TEXT)
    is_new = not what.endswith(reason)  # the reason of a time limit says the same
    return f"{what}: {reason}" if is_new else what
