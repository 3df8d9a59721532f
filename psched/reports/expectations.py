"""The rules of expectations: which alerts are on, and when they are over. Pure functions.

Each function says what is wrong with one row, or why nothing is wrong any more. The instant since
when something is wrong comes from the row or from the run history, so all monitors compute the
same, and the store lets only one of them raise the alert.

An alert is over when its incident is over: the occurrence has started, the run has ended, or the
schedule has succeeded. A limit that is raised meanwhile does not end it, because the incident could
not be told of a second time.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from psched.base.quantities import format_duration
from psched.base.texts import cut, visible
from psched.config import Config
from psched.core.alerts.alert import Alert, Rule
from psched.core.catchup import iso
from psched.core.columns import LATEST_TIME
from psched.core.model import BEING_DELETED, ENDED, PAUSED, QUARANTINED, WAITING, Row
from psched.core.operations.pauses import PauseRule, active_rules, past_pauses

EXPECTED = (Rule.LATE, Rule.LONGEST, Rule.SILENT, Rule.UNUSUAL)
"""The rules of the parts of the setting ``expect``, which have the same names."""

FEWEST_RUNS = 5
"""The fewest runs from which the usual duration of a schedule is computed."""

SHORTEST_UNUSUAL = 1.0
"""A run that takes less than so many seconds is not unusual, however short the others are."""

LONGEST_TEXT = 400
"""The most characters of what is quoted in an alert's text."""

_JUDGED = frozenset({WAITING, QUARANTINED})
"""The statuses of recurring schedules that should succeed again and again."""


@dataclass(frozen=True, slots=True)
class Watched:
    """A row without its data, and the settings that apply to it."""

    row: Row
    settings: Config

    def alert(self, rule: Rule, since: int, text: str) -> Alert:
        """An alert about the row."""
        return Alert(
            key=self.row.key,
            rule=rule,
            since=since,
            type=self.row.type,
            label=self.row.label,
            scheduled_time=self.row.next_time,
            text=cut(visible(text), LONGEST_TEXT),
        )


# --- what is wrong ---------------------------------------------------------------------


def due_since(row: Row, rules: Iterable[PauseRule], now: float) -> int | None:
    """Since when a worker could have claimed a row, in Unix seconds; None if none can claim it.

    A row whose lease has ended is due since then. A paused row with a time is due at the end of its
    pause. If its type was paused while it was due, it is due since the end of that pause.
    """
    since = row.next_run_time
    if since is None or since > now or row.status not in {WAITING, PAUSED}:
        return None
    rules = [*rules]
    if active_rules(rules, row.type, now):
        return None
    for pause in past_pauses(rules, row.type, now):
        since = max(since, pause.until)
    # Plain SQL can write any number. A time before 1970 is as late as 1970.
    return max(since, 0)


def late(watched: Watched, rules: Iterable[PauseRule], now: float) -> Alert | None:
    """The alert about a row that has been due for too long; None if it is not late."""
    limit = watched.settings.expect.late
    since = None if limit is None else due_since(watched.row, rules, now)
    if limit is None or since is None or now - since <= limit:
        return None
    row = watched.row
    when = f"for {format_duration(now - since)}, since {_iso(since)}"
    if row.owner is not None and row.status == WAITING:
        text = f"its worker has lost the lease, and it has waited for another worker {when}"
    elif row.status == PAUSED:
        text = f"its pause has ended, and no worker has resumed it {when}"
    else:
        text = f"has been due {when}, and has not started"
    return watched.alert(Rule.LATE, 1000 * since, f"{text} (late: {format_duration(limit)})")


def runs_since(row: Row, now: float) -> int | None:
    """Since when a row has been running, in Unix seconds; None if it does not run."""
    is_leased = row.owner is not None and (row.next_run_time or 0) > now
    return row.claimed_at if is_leased else None


def longest(watched: Watched, now: float) -> Alert | None:
    """The alert about a run that takes longer than it may; None if it does not."""
    limit, since = watched.settings.expect.longest, runs_since(watched.row, now)
    if limit is None or since is None or now - since <= limit:
        return None
    text = (
        f"has been running for {format_duration(now - since)}, since {_iso(since)}"
        f" (longest: {format_duration(limit)})"
    )
    return watched.alert(Rule.LONGEST, 1000 * since, text)


def usual_limit(factor: float, durations: Sequence[int]) -> float | None:
    """How long a run may take before it is unusual, in seconds; None if nothing is usual yet."""
    if len(durations) < FEWEST_RUNS:
        return None
    return max(SHORTEST_UNUSUAL, factor * median(durations) / 1000)


def unusual(watched: Watched, durations: Sequence[int], now: float) -> Alert | None:
    """The alert about a run that takes much longer than usual; None if it does not."""
    factor, since = watched.settings.expect.unusual, runs_since(watched.row, now)
    if factor is None or since is None:
        return None
    limit = usual_limit(factor, durations)
    if limit is None or now - since <= limit:
        return None
    text = (
        f"has been running for {format_duration(now - since)}, since {_iso(since)}; the median of"
        f" its last {len(durations)} runs is {format_duration(median(durations) / 1000)}"
        f" (unusual: {factor:g})"
    )
    return watched.alert(Rule.UNUSUAL, 1000 * since, text)


def should_succeed(watched: Watched, rules: Iterable[PauseRule], now: float) -> bool:
    """Whether a row is that of a recurring schedule whose successes the run history records."""
    row = watched.row
    return (
        row.cron is not None
        and row.status in _JUDGED
        and watched.settings.history == "all"
        and not active_rules(rules, row.type, now)
    )


def is_forgotten(row: Row, covered: int) -> bool:
    """Whether a schedule can have succeeded at a time of which the run history has no records."""
    return covered > 1000 * (row.created_at or 0)


def silent_since(
    row: Row, rules: Iterable[PauseRule], now: float, last: int | None, resumed: int | None = None
) -> int | None:
    """Since when a schedule has been without a success, in milliseconds; None if not known."""
    created = None if row.created_at is None else 1000 * row.created_at
    if created is None and last is None:
        return None
    pauses = past_pauses(rules, row.type, now)
    # A schedule that was added, or runs again, after its last success begins anew.
    return max(created or 0, last or 0, resumed or 0, *(1000 * pause.until for pause in pauses))


def silent(
    watched: Watched, since: int | None, now: float, last: int | None, covered: int = 0
) -> Alert | None:
    """The alert about a schedule that has not succeeded for too long; None if it has."""
    limit = watched.settings.expect.silent
    if limit is None or since is None or now - since / 1000 <= limit:
        return None
    if last is None and is_forgotten(watched.row, covered):
        text = (
            f"has not succeeded for {format_duration(now - covered / 1000)} or longer; the records"
            " of earlier runs are deleted"
        )
    elif last is None:
        text = "has never succeeded since it was added"
    else:
        ago = format_duration(now - last / 1000)
        text = f"has last succeeded {ago} ago, at {_iso(last / 1000)}"
    if watched.row.status == QUARANTINED:
        text += "; it is quarantined"
    return watched.alert(Rule.SILENT, since, f"{text} (silent: {format_duration(limit)})")


# --- why nothing is wrong any more -----------------------------------------------------


def why_over(
    alert: Alert, watched: Watched | None, rules: Iterable[PauseRule], now: float
) -> str | None:
    """Why an open alert is over, as far as the row tells; None if it is not.

    Whether a schedule has succeeded since, the row does not tell: see `after_success`.
    """
    if watched is None:
        return "the schedule does not exist any more"
    if watched.row.status in BEING_DELETED:
        return "the schedule is being deleted"
    if watched.settings.expect.get(alert.rule) is None:
        return f"expect.{alert.rule} does not apply any more"
    rules = [*rules]
    if alert.rule == Rule.SILENT:
        return None if should_succeed(watched, rules, now) else _unjudged(watched, rules, now)
    if alert.rule == Rule.LATE:
        return _why_not_late(alert, watched.row, rules, now)
    since = runs_since(watched.row, now)
    return None if since is not None and 1000 * since == alert.since else "the run has ended"


def after_success(last: int) -> str:
    """Why an alert of the rule ``silent`` is over after a success."""
    return f"it has succeeded at {_iso(last / 1000)}"


def _why_not_late(alert: Alert, row: Row, rules: Sequence[PauseRule], now: float) -> str | None:
    since = due_since(row, rules, now)
    if since is not None and 1000 * since == alert.since:
        return None
    if row.owner is not None and (row.next_run_time or 0) > now:
        return "it has started"
    return _at_rest(row, rules, now)


def _unjudged(watched: Watched, rules: Sequence[PauseRule], now: float) -> str:
    """Why a schedule without a success is not judged, see `should_succeed`."""
    if watched.row.cron is None:
        return "it does not recur any more"
    if watched.row.status == WAITING and watched.settings.history != "all":
        return f"its successes are not recorded any more (history: {watched.settings.history})"
    return _at_rest(watched.row, rules, now)


def _at_rest(row: Row, rules: Sequence[PauseRule], now: float) -> str:
    if row.status == PAUSED:
        return "it is paused"
    if row.status in ENDED:
        return f"it has ended: {row.status}"
    if row.status != WAITING:
        return f"it is {row.status}"
    if active := active_rules(rules, row.type, now):
        return f"{active[0].what} is paused"
    return "it is not due any more"


def _iso(instant: float) -> str:
    return iso(int(min(max(instant, 0), LATEST_TIME)))
