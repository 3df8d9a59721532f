"""The judge of expectations: raises alerts if they fail, and closes the alerts that are over.

Each monitor has a judge, and all of them judge the same store. They need not agree: an alert is
identified by what the store says, so the store lets one judge raise it, and one close it.

**The fast pass** reads the rows that run or are due, and the open alerts, every few seconds. It
judges ``late``, ``longest`` and ``unusual``, and closes alerts. Its cost does not grow with the
number of rows. It is left out while nothing of that is expected, and no alert is open.

**The sweep** reads all rows, page by page, and begins again some time after it has ended. It judges
``silent``, and finds the rows that have expectations of their own.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from psched.base.clock import Clock
from psched.config import Config
from psched.config.monitoring import Expectations
from psched.core.alerts.alert import Alert, Rule
from psched.core.alerts.protocol import AlertSelection, KeepsAlerts
from psched.core.alerts.watching import ActiveRows, Place, active_rows, light_rows, row_page
from psched.core.definition import settings_of
from psched.core.history.protocol import KeepsHistory, RunSelection
from psched.core.history.records import Fate, Outcome, RunRecord
from psched.core.model import Row
from psched.core.operations.extra_runs import schedule_of
from psched.core.operations.overview import DURATIONS
from psched.core.operations.pauses import PauseRule
from psched.core.store_protocol import Store
from psched.reports.expectations import (
    EXPECTED,
    SHORTEST_UNUSUAL,
    Watched,
    after_success,
    is_forgotten,
    late,
    longest,
    runs_since,
    should_succeed,
    silent,
    silent_since,
    unusual,
    why_over,
)
from psched.reports.raising import Judged, Raising


def last_successes(history: KeepsHistory, keys: Sequence[str]) -> Mapping[str, int]:
    """When each schedule has last succeeded, in milliseconds; keys without a success are left out.

    One request tells it of all schedules whose last run has succeeded. Each other one costs a
    request of its own.
    """
    found = dict[str, int]()
    last = history.last_runs(keys) if keys else {}
    for key, end in last.items():
        record = end if _is_success(end) else _newest(history, key, Fate.FINISHED)
        if record is not None:
            found[key] = record.ended
    return found


def covered_since(history: KeepsHistory, key: str, settings: Config, now: float) -> int:
    """Since when no record of a schedule was deleted, in milliseconds; 0 if none ever was.

    Workers delete records that are older than ``history_keep``, and the oldest ones of a key that
    has more than ``history_keep_per_key``. It costs a request for each 200 records of the schedule.
    """
    keep, most = settings.history_keep, settings.history_keep_per_key
    since = max(0, round(1000 * (now - keep))) if keep else 0
    if not most:
        return since
    number, oldest = 0, 0
    for record in history.runs(RunSelection(key=key, limit=most)):
        if record.ended < since:
            return since
        number, oldest = number + 1, record.ended
    return max(since, oldest) if number >= most else since


def last_resumption(history: KeepsHistory, key: str) -> int | None:
    """When a pause of a schedule has last ended that has skipped an occurrence, in milliseconds."""
    record = _newest(history, key, Fate.SKIPPED_PAUSED)
    return None if record is None else record.ended


def _is_success(record: RunRecord) -> bool:
    return record.fate == Fate.FINISHED and record.outcome in {None, Outcome.FINISHED}


def _newest(history: KeepsHistory, key: str, fate: Fate) -> RunRecord | None:
    selection = RunSelection(key=key, fates=frozenset({fate}), limit=1)
    return next(iter(history.runs(selection)), None)


PASS_INTERVAL = 5.0
"""Seconds from one fast pass to the next."""

PAGE_INTERVAL = 1.0
"""Seconds from one page of a sweep to the next, and between fast passes over many due rows."""

LONGEST_PAGE_INTERVAL = 5.0
"""The longest pause between two pages, however long the database takes for a page."""

_REST = 50
"""How many times as long as the last page took a sweep pauses before the next page.

So it takes the database at most 2 % of the time, up to `LONGEST_PAGE_INTERVAL`. A page of a million
long rows, few of which are in the database's memory, took MariaDB 16 to 40 ms.
"""

SWEEP_INTERVAL = 60.0
"""Seconds from the end of a sweep to the next sweep; so long a new expectation can be unknown."""

PAGE = 500
"""About how many rows a page of a sweep covers."""

MENTIONING_PAGE = 5000
"""About how many rows a page covers if the store returns only those with own expectations."""

SILENT_INTERVAL = 4.0
"""Seconds from one page of a sweep to the next, if all rows are read and their successes looked up:
that takes the database 30 to 100 ms for a page."""

MOST_DUE = 1000
"""The most due rows that one fast pass reads; the next pass continues after them."""

MOST_OPEN = 1000
"""While so many alerts of expectations are open, no further ones are raised."""

MOST_CHECKED = 200
"""The most open alerts that one fast pass compares with their rows, to close what is over."""

_MOST_COVERED = 20_000
"""The most schedules without a recorded success of which is remembered how far their records reach.
"""

_JITTER = 0.1

_OF_PASS = (Rule.LATE, Rule.LONGEST, Rule.UNUSUAL)
"""The rules that the fast pass judges."""

_MENTIONED = "expect"
"""What the options of a row with expectations of its own contain."""


class Judge:
    """Judges the expectations of all schedules in a store, whose object nobody else uses.

    The clock decides when a pass is due; the store's clock decides everything else. The random
    numbers keep several judges from asking the store at the same time.
    """

    def __init__(
        self,
        store: Store,
        alerts: KeepsAlerts,
        settings: Config,
        *,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._store = store
        self._alerts = alerts
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._raising = Raising(alerts, clock=clock)
        self._pass_at = self._page_at = clock.monotonic()
        self._after: Place | None = None
        self._checked = 0
        self._durations = dict[tuple[str, int], Sequence[int]]()
        self._covered = dict[str, int]()
        self._begin: object = None  # where the next page of the sweep begins
        # Whether rows have expectations of their own that the fast pass judges: as the last sweep
        # has found, and the one that goes on.
        self._owns = self._sweep_owns = False
        self._open: Sequence[Alert] = ()
        self._said = set[str]()
        self._notes = list[str]()
        declared = [settings.expect, *(own.get("expect") for own in settings.types.values())]
        by_setting = [each for each in declared if isinstance(each, Expectations)]
        self._expects = any(_judged_in_pass(each) for each in by_setting)
        self._expects_silent = any(each.silent is not None for each in by_setting)

    def step(self) -> Judged:
        """Do what is due: a fast pass, a page of a sweep, or both."""
        raised, closed = list[Alert](), list[Alert]()
        now = self._clock.monotonic()
        if now >= self._pass_at:
            # It is set first, so that a fault does not make the next step begin with this again.
            self._pass_at = now + self._soon(PASS_INTERVAL)
            selection = AlertSelection(rules=frozenset(EXPECTED), only_open=True, limit=MOST_OPEN)
            self._open = [*self._alerts.find_alerts(selection)]
            if self._expects or self._owns or self._open:
                self._pass(raised, closed)
            else:
                self._pass_at = now + self._soon(SWEEP_INTERVAL)
        if now >= self._page_at:
            interval = SILENT_INTERVAL if self._expects_silent else PAGE_INTERVAL
            self._page_at = now + self._soon(interval)
            begun = self._clock.monotonic()
            self._page(raised)
            ended = self._clock.monotonic()
            rest = min(_REST * (ended - begun), LONGEST_PAGE_INTERVAL)
            self._page_at = max(self._page_at, ended + rest)
        wait = min(self._pass_at, self._page_at) - self._clock.monotonic()
        return Judged(raised=raised, closed=closed, notes=self._told(), wait=max(0.0, wait))

    # --- the fast pass ---

    def _pass(self, raised: list[Alert], closed: list[Alert]) -> None:
        active = active_rows(self._store, self._after, MOST_DUE)
        rules = self._pause_rules() if active.due or self._open else ()
        over = [*self._over(rules, active.now)]
        if over:
            closed += self._raising.close_alerts(over)
            ended = {(alert.subject, alert.since) for alert, _ in over}
            self._open = [a for a in self._open if (a.subject, a.since) not in ended]
        found = self._wrong(active, rules)
        self._raise(found, raised)
        self._after = None
        if len(active.due) == MOST_DUE:
            last = active.due[-1]
            self._after = last.next_run_time or 0, last.key
            self._pass_at = self._clock.monotonic() + PAGE_INTERVAL

    def _wrong(
        self, active: ActiveRows, rules: Sequence[PauseRule]
    ) -> Iterator[tuple[Alert, Config]]:
        """What is wrong with rows that run or are due."""
        now = active.now
        for row in active.due:
            watched = self._watched(row)
            alert = late(watched, rules, now)
            if alert is not None:
                yield alert, watched.settings
        running = [self._watched(row) for row in active.leased if runs_since(row, now) is not None]
        durations = self._usual(running, now)
        for watched in running:
            for alert in (
                longest(watched, now),
                unusual(watched, durations.get(_run(watched.row), ()), now),
            ):
                if alert is not None:
                    yield alert, watched.settings

    def _usual(
        self, running: Sequence[Watched], now: float
    ) -> Mapping[tuple[str, int], Sequence[int]]:
        """How long the last runs took of each schedule whose run may be unusual, by run.

        The history is asked once for each run, when the run is long enough to be unusual.
        """
        runs = {_run(watched.row) for watched in running}
        known = {run: took for run, took in self._durations.items() if run in runs}
        asked = {
            _run(watched.row): schedule_of(watched.row.key) or watched.row.key
            for watched in running
            if watched.settings.expect.unusual is not None
            and now - (watched.row.claimed_at or now) > SHORTEST_UNUSUAL
            and _run(watched.row) not in known
        }
        history = self._history("unusual") if asked else None
        if history is not None:
            found = history.durations([*dict.fromkeys(asked.values())], DURATIONS)
            known |= {run: found.get(key, ()) for run, key in asked.items()}
        self._durations = known
        return known

    def _over(self, rules: Sequence[PauseRule], now: float) -> Iterator[tuple[Alert, str]]:
        """The open alerts that are over; of many, only of some, and of others at the next pass."""
        if self._checked >= len(self._open):
            self._checked = 0
        checked = self._open[self._checked : self._checked + MOST_CHECKED]
        self._checked += MOST_CHECKED
        rows = light_rows(self._store, [*dict.fromkeys(alert.key for alert in checked)])
        silent_ones = list[Alert]()
        for alert in checked:
            row = rows.get(alert.key)
            text = why_over(alert, None if row is None else self._watched(row), rules, now)
            if text is not None:
                yield alert, text
            elif alert.rule == Rule.SILENT:
                silent_ones.append(alert)
        history = self._history("silent") if silent_ones else None
        if history is not None:
            found = last_successes(history, [alert.key for alert in silent_ones])
            for alert in silent_ones:
                last = found.get(alert.key)
                if last is not None and last > alert.since:
                    yield alert, after_success(last)

    # --- the sweep ---

    def _page(self, raised: list[Alert]) -> None:
        # If whole types are expected to succeed, every row can matter.
        limit, mentioning = PAGE, None
        if not self._expects_silent:
            limit, mentioning = MENTIONING_PAGE, _MENTIONED
        page = row_page(self._store, self._begin, limit, mentioning)
        candidates = list[Watched]()
        for row in page.rows:
            watched = self._watched(row)
            expect = watched.settings.expect
            self._sweep_owns |= bool(row.options) and _judged_in_pass(expect)
            if expect.silent is not None and not row.each_host:
                candidates.append(watched)
        if self._sweep_owns and not self._owns:
            self._owns, self._pass_at = True, self._clock.monotonic()
        self._begin = page.following
        if page.following is None:
            self._owns, self._sweep_owns = self._sweep_owns, False
            self._page_at = self._clock.monotonic() + self._soon(SWEEP_INTERVAL)
        if candidates:
            self._raise(self._silent(candidates), raised)

    def _silent(self, candidates: Sequence[Watched]) -> Iterator[tuple[Alert, Config]]:
        """The schedules that have not succeeded for too long."""
        if any(watched.settings.history != "all" for watched in candidates):
            self._say("expect.silent is not judged where history is not all")
        history, now, rules = self._history("silent"), self._store.now(), self._pause_rules()
        told = {alert.key for alert in self._open if alert.rule == Rule.SILENT}
        judged = [
            watched
            for watched in candidates
            if watched.row.key not in told and should_succeed(watched, rules, now)
        ]
        if history is None or not judged:
            return
        found = last_successes(history, [watched.row.key for watched in judged])
        for watched in judged:
            row, last, covered = watched.row, found.get(watched.row.key), 0
            since = silent_since(row, rules, now, last)
            if last is not None:
                self._covered.pop(row.key, None)
            if silent(watched, since, now, last) is None:
                continue
            # Only now, because each of these costs a request.
            resumed = last_resumption(history, row.key)
            if last is None:
                covered = self._covered_since(history, row.key, now)
            forgotten = is_forgotten(row, covered)
            since = silent_since(row, rules, now, covered if forgotten else last, resumed)
            alert = silent(watched, since, now, last, covered)
            if alert is not None:
                found_alert = self._raising.begun_before(alert) if forgotten else alert
                yield found_alert, watched.settings

    def _covered_since(self, history: KeepsHistory, key: str, now: float) -> int:
        """Since when a schedule surely has no success, as the records say, in milliseconds.

        The first answer stays true until a success is found: the sweeps would find one before its
        record is deleted. So a schedule can be silent for longer than its records are kept.
        """
        if key not in self._covered:
            if len(self._covered) >= _MOST_COVERED:
                self._covered.clear()
            self._covered[key] = covered_since(history, key, self._settings, now)
        return self._covered[key]

    # --- what both need ---

    def _raise(self, found: Iterator[tuple[Alert, Config]], raised: list[Alert]) -> None:
        is_open = {alert.subject for alert in self._open}
        new = ((alert, own) for alert, own in found if alert.subject not in is_open)
        first = next(new, None)
        if first is None:
            return
        if len(self._open) >= MOST_OPEN:
            self._say(
                f"expect: {MOST_OPEN} alerts are open, so no more are raised until some are over"
            )
            return
        done = self._raising.raise_alerts(chain([first], new))
        raised += done
        self._open = [*self._open, *done]
        self._pass_at = min(self._pass_at, self._clock.monotonic() + PASS_INTERVAL)

    def _watched(self, row: Row) -> Watched:
        return Watched(row, settings_of(row, self._settings))

    def _pause_rules(self) -> Sequence[PauseRule]:
        return () if self._store.pauses is None else self._store.pauses.pause_rules()

    def _history(self, part: str) -> KeepsHistory | None:
        """The run history, if it is kept, which a part of the setting needs."""
        history = self._store.history
        if history is None:
            self._say(f"expect.{part} is not judged: this store keeps no run history")
            return None
        if problem := history.problem():
            self._say(f"expect.{part} is not judged: {problem}")
            return None
        return history

    def _soon(self, seconds: float) -> float:
        return seconds * (1 + self._rng.uniform(-_JITTER, _JITTER))

    def _say(self, note: str) -> None:
        if note not in self._said:
            self._said.add(note)
            self._notes.append(note)

    def _told(self) -> Sequence[str]:
        notes, self._notes = self._notes, []
        return notes


def _judged_in_pass(expect: Expectations) -> bool:
    return any(expect.get(rule) is not None for rule in _OF_PASS)


def _run(row: Row) -> tuple[str, int]:
    """What tells a run from every other run."""
    return row.key, row.claimed_at or 0
