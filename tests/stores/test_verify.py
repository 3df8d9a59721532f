"""Weeks of work in a real store, on a clock that the test moves: psched verify finds no violation.

Each occurrence is claimed, decided about and settled by the functions that a worker calls. Tasks
fail, are interrupted and die; schedules are changed, deleted and added again; nobody works for
days; clocks are changed. Then a record is deleted, and its absence is found.
"""

import json
import random
import sys
from dataclasses import replace as changed
from itertools import count

import pytest

from psched.client import verifier
from psched.client.collection import ScheduleCollection
from psched.client.verifier import Verifier
from psched.config import from_mapping
from psched.core.definition import history_setting
from psched.core.history.protocol import AuditSelection, RunSelection
from psched.core.history.recording import Recorder
from psched.core.history.recording import StoreClock as Estimate
from psched.core.history.records import Attempt, AuditRecord, Outcome
from psched.core.model import Finish, Release, Retry
from psched.core.policy import Run, after_claim
from psched.core.settling import Ending
from psched.stores.sql import raw_execute
from support.driven import SharedClock
from support.settling import settle
from support.store_clock import store_clock
from support.stores import Sql, make_store

pytestmark = pytest.mark.twins

MINUTE, HOUR, DAY = 60, 3600, 86_400

START = 1_806_145_200
"""2027-03-27T11:00:00Z: the day before summer time begins in Paris."""

SETTINGS = {"retry_wait": 30, "alive_time": 60, "max_attempts": 3, "history_keep_per_key": 0}

DEFINITIONS = (
    {"cron": "*/10 * * * *"},
    {"cron": "30 * * * *", "timezone": "Europe/Paris", "dst_policy": "wallclock"},
    {"cron": "30 2 * * *", "timezone": "Europe/Paris"},
    {"cron": "15 2,3 * * *", "timezone": "Europe/Berlin", "catchup": "latest"},
    {"cron": "@every 700", "delay": 100, "catchup": "skip"},
    {"cron": "0 * * * *", "jitter": 300, "catchup_limit": 5},
)

CLAIM = {"limit": 1, "alive_time": 60, "shortest": 6, "horizon": 0}

OUTCOMES = {Outcome.FINISHED: 12, Outcome.FAILED: 3, Outcome.RELEASED: 1, Outcome.LOST: 1}


class Installation:
    """A store, a client and a worker.

    Attributes:
        settings: the worker's settings; a test can replace them.
        outcomes: how tasks end, with weights.
    """

    def __init__(self, url, database_clock, seed):
        self.url = url
        self.clock = SharedClock(database_clock)
        self.settings = from_mapping({"url": url, **SETTINGS})
        self.store = make_store(url, clock=self.clock)
        self.store.init()
        nonces = map("nonce{}".format, count())
        self.schedules = ScheduleCollection(
            self.store, self.settings, clock=self.clock, draw_nonce=lambda: next(nonces)
        )
        self.random = random.Random(seed)  # noqa: S311  # repeatable
        self.outcomes = dict(OUTCOMES)
        self._owners = map("w.{}".format, count())
        self._recorder = Recorder(host="h", generation=1, clock=Estimate(self.clock))

    def change(self, action, key, *arguments, **fields):
        """Change a schedule, with a record in the audit trail."""
        seen = [*self.store.history.audits(AuditSelection(key=key))]
        before = self.store.get(key)
        method = getattr(self.schedules if action == "add" else self.schedules[key], action)
        method(*((key,) if action == "add" else ()), *arguments, **fields)
        after = self.store.get(key)
        if len([*self.store.history.audits(AuditSelection(key=key))]) > len(seen):
            return  # the client has written it
        names = ("cron", "timezone", "next_time", "status", "options")
        old, new = (
            None
            if row is None
            else {**{name: getattr(row, name) for name in names}, "options": options_of(row)}
            for row in (before, after)
        )
        if old is not None and new is not None:
            old, new = ({n: v[n] for n in names if old[n] != new[n]} for v in (old, new))
        self.store.history.audit(
            [
                AuditRecord(
                    key=key,
                    action=action,
                    user="u",
                    host="h",
                    program="p",
                    before=None if old is None else json.dumps(old),
                    after=None if new is None else json.dumps(new),
                )
            ]
        )

    def work(self, during=lambda: None):
        """Run what is due, as a worker does, until nothing is."""
        while True:
            sent = self.clock.boottime()
            claimed = self.store.claim(next(self._owners), **CLAIM)
            if claimed.now is not None:
                self._recorder.clock.read(claimed.now, sent, self.clock.boottime())
            if not claimed.rows:
                return
            self._handle(claimed.rows[0], claimed.now, during)

    def _handle(self, row, now, during):
        verdict = after_claim(row, self.settings, now)
        history = history_setting(row, self.settings)
        if not isinstance(verdict, Run):
            verdict.records = self._recorder.records_of(verdict, row, None, history=history)
            self.store.settle([verdict])
            return
        started = self._recorder.clock.milliseconds()
        self.clock.advance(self.random.choice([0.2, 3, 20]))
        during()
        how = self.random.choices([*self.outcomes], [*self.outcomes.values()])[0]
        if how is Outcome.LOST:
            self.clock.advance(90)  # the lease expires
            return
        decision = {
            Outcome.FINISHED: Finish(),
            Outcome.FAILED: Retry(reason="no"),
            Outcome.RELEASED: Release(),
        }[how]
        ended = self._recorder.clock.milliseconds()
        attempt = Attempt(outcome=how, ended=ended, pid=1, started=started)
        ending = Ending(row, decision, attempt=attempt, history=history)
        settle(self.store, [ending], self.settings, recorder=self._recorder)

    def verify(self, since=30 * DAY):
        return Verifier(self.store, self.settings).verify(since)

    def sql(self, statement, **values):
        return Sql(self.url)(statement, **values)


@pytest.fixture
def install(tmp_path):
    """A function that makes an installation whose random events follow from a number."""
    url = f"sqlite:///{tmp_path}/psched.db"
    milliseconds = "(SELECT CAST(round(now * 1000) AS INTEGER) FROM store_clock)"
    with store_clock(url, start=START, now_milliseconds=milliseconds) as database_clock:
        made = []

        def install(seed=0):
            made.append(Installation(url, database_clock, seed))
            return made[-1]

        yield install
        made[-1].store.disconnect()


def options_of(row):
    """The options of a row, as the audit trail shows them."""
    return None if row.options is None else json.loads(row.options)


def live_through(psched, days, during=lambda: None):
    """Let days pass, in which the worker is at work most of the time."""
    end = psched.clock.wall() + days * DAY
    while psched.clock.wall() < end:
        away = psched.random.choices([MINUTE, HOUR, 9 * HOUR], [30, 3, 1])[0]
        psched.clock.advance(away * psched.random.uniform(0.5, 1.5))
        psched.work(during)


@pytest.mark.parametrize("at_once", [True, False])
def test_weeks_of_work_are_clean_and_each_record_that_is_missing_is_missed(
    install, at_once, monkeypatch
):
    """A small history is read at once, a large one key by key."""
    if not at_once:
        monkeypatch.setattr(verifier, "_MOST_KEPT", 0)
    psched = install(int(at_once))
    for number, fields in enumerate(DEFINITIONS):
        psched.change("add", f"s{number}", "t", **fields)
    psched.change("add", "first", "t", cron="0 12 * * *", next_time=START + DAY)
    for number in range(20):
        psched.schedules.push(f"once{number}", "t", run_at=START + number * HOUR)
    live_through(psched, 2)

    found = psched.verify()

    assert found.violations == []
    assert found.unknown == {}
    assert found.schedules == len(DEFINITIONS) + 21
    assert found.instants > 2 * DAY / 700

    fates = [each for each in psched.store.history.runs() if each.fate is not None]
    known = {"s0", "s1", "s4", "once3"}
    for record in psched.random.sample([each for each in fates if each.key in known], 5):
        psched.sql("DELETE FROM psched_runs WHERE id = :id", id=record.id)
        missed = psched.verify().violations
        assert {(each.kind, each.key) for each in missed} == {("missing", record.key)}
        [only] = missed
        last = only.instant if only.until is None else only.until
        assert only.instant <= record.scheduled_time <= last or record.until is not None
        psched.store.history.record([changed(record, id=None)])
    assert psched.verify().violations == []


def test_further_schedules_cost_no_further_requests(install, monkeypatch):
    psched = install()
    psched.outcomes = {Outcome.FINISHED: 1}
    sent = []
    read = raw_execute.rows

    def counted(*request):
        sent.append(request)
        return read(*request)

    monkeypatch.setattr(raw_execute, "rows", counted)
    numbers = []
    for name in "ab":
        for number in range(30):
            psched.change("add", f"{name}{number}", "t", cron="@hourly", next_time=START)
        psched.work()
        sent.clear()
        found = psched.verify()
        assert (found.violations, found.runs) == ([], found.schedules)
        numbers.append(len(sent))
    assert numbers[1] < numbers[0] + 10  # a longer search, or another page


class Client:
    """Somebody who changes, deletes and adds schedules now and then.

    Args:
        psched: the installation.
        keys: those of the schedules.
    """

    RESTING = frozenset({"cancelled", "finished", "failed", "expired", "quarantined"})

    def __init__(self, psched, keys):
        self._psched = psched
        self._keys = keys

    def act(self):
        """Do something, or more often nothing."""
        psched = self._psched
        if psched.random.random() > 0.02:
            return
        key = psched.random.choice(self._keys)
        row = psched.store.get(key)
        if row is None:
            psched.change("add", key, "t", **psched.random.choice(DEFINITIONS))
        elif row.status in self.RESTING:
            psched.change("requeue", key)
        elif row.status == "waiting":
            psched.random.choice([self._modify, self._move, self._write, self._stop])(key)

    def _modify(self, key):
        fields = self._psched.random.choice(DEFINITIONS)
        self._psched.change(
            "modify", key, cron=fields["cron"], timezone=fields.get("timezone", "UTC")
        )

    def _move(self, key):
        ahead = self._psched.random.randrange(-5 * HOUR, 5 * HOUR)
        self._psched.change("modify", key, next_time=int(self._psched.clock.wall()) + ahead)

    def _write(self, key):
        self._psched.change("modify", key, data={"a": self._psched.random.random()})

    def _stop(self, key):
        self._psched.change(self._psched.random.choice(["delete", "cancel"]), key)


@pytest.mark.parametrize("seed", range(3))
def test_changes_of_schedules_are_no_violations(install, seed):
    psched = install(seed)
    keys = ["a", "b", "c"]
    for key, fields in zip(keys, DEFINITIONS, strict=False):
        psched.change("add", key, "t", **fields)
    client = Client(psched, keys)
    checked = 0

    for _ in range(3):
        end = psched.clock.wall() + DAY
        while psched.clock.wall() < end:
            psched.clock.advance(psched.random.choice([MINUTE, 10 * MINUTE, HOUR]))
            client.act()
            psched.work(during=client.act)
        found = psched.verify()
        assert found.violations == []
        assert psched.verify(DAY / 2).violations == []
        checked += found.instants

    actions = {each.action for each in psched.store.history.audits(AuditSelection())}
    assert actions >= {"add", "modify"}
    assert len([*psched.store.history.runs(RunSelection(key="a"))]) > 20
    assert checked > 20


TIDES = """
class Tides:
    def next_at(self, after):
        return (after // 600 + 1) * 600
"""
"""A trigger with a time every ten minutes."""


class Coast:
    """An installation with a trigger that not every host can load.

    Attributes:
        psched: the installation, with one schedule.
        able: the settings of a host that can load the trigger.
        unable: the settings of a host that cannot.
    """

    KEY = "tide"

    def __init__(self, psched, folder, **fields):
        (folder / "psched_tides.py").write_text(TIDES)
        self.psched = psched
        self.unable = psched.settings
        self.able = psched.settings.with_settings(load_path=[str(folder)])
        psched.outcomes = {Outcome.FINISHED: 1}
        psched.schedules = ScheduleCollection(
            psched.store,
            self.able,
            clock=psched.clock,
            draw_nonce=map("n{}".format, count()).__next__,
        )
        psched.change("add", self.KEY, "t", cron="@call psched_tides:Tides", **fields)

    def finish(self):
        """Run the next occurrence, which is settled where the trigger cannot be loaded."""
        self.wait(max(self.row.next_time - self.psched.clock.wall(), 0))
        self.work(during=self.forget)

    def forget(self):
        """Let the host that runs the task forget the trigger."""
        self.psched.settings = self.unable

    def work(self, during=lambda: None):
        """Let a host work that can load the trigger."""
        self.psched.settings = self.able
        self.psched.work(during)

    def work_elsewhere(self):
        """Let a host work that cannot load the trigger."""
        self.forget()
        self.psched.work()

    def wait(self, seconds):
        self.psched.clock.advance(seconds)

    @property
    def row(self):
        return self.psched.store.get(self.KEY)

    def fates(self):
        """The fates of each time that was due, in the order of the times."""
        covering = [each for each in self.psched.store.history.runs() if each.fate is not None]
        first = min(each.scheduled_time for each in covering)
        times = range(first, int(self.psched.clock.wall()) + 1, 600)
        return [[str(each.fate) for each in covering if each.covers(time)] for time in times]

    def violations(self):
        return Verifier(self.psched.store, self.able).verify(30 * DAY).violations


@pytest.fixture
def coast(install, tmp_path, monkeypatch):
    """A function that makes a `Coast`."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield lambda **fields: Coast(install(), tmp_path, **fields)
    sys.modules.pop("psched_tides", None)


class TestTriggersThatAHostCannotLoad:
    """A task finishes on a host that cannot load the trigger; nothing may be lost meanwhile."""

    @pytest.mark.parametrize(
        ("catchup", "missed"),
        [
            ("all", [["finished"]] * 4),
            ("latest", [["coalesced"]] * 3 + [["finished"]]),
            ("skip", [["skipped_catchup"]] * 4),
        ],
    )
    def test_each_time_that_passes_until_another_host_takes_over_has_one_fate(
        self, coast, catchup, missed
    ):
        here = coast(catchup=catchup, catchup_grace=5)
        here.finish()
        assert (here.row.next_time, here.row.owner) == (None, None)
        assert here.violations() == []
        here.wait(45 * MINUTE)
        here.work_elsewhere()  # which changes nothing
        assert here.row.next_time is None
        here.wait(MINUTE)

        here.work()

        assert here.fates() == [["finished"], *missed]
        assert here.violations() == []

    def test_workers_that_release_the_row_or_die_before_they_settle_it_lose_nothing(self, coast):
        here = coast()
        here.finish()
        here.wait(45 * MINUTE)
        (row,) = here.psched.store.claim("dying.1", **CLAIM).rows
        here.wait(2 * MINUTE)
        (row,) = here.psched.store.claim("stopped.1", **CLAIM).rows
        settle(here.psched.store, [Ending(row, Release())], here.able)

        here.work()

        assert here.fates() == [["finished"]] * 5
        assert here.violations() == []

    def test_a_change_of_something_else_and_a_pause_lose_nothing(self, coast):
        here = coast()
        here.finish()
        here.wait(25 * MINUTE)
        here.psched.sql("UPDATE psched SET status = 'paused' WHERE id = 'tide'")
        here.work()
        here.wait(10 * MINUTE)
        here.psched.change("requeue", here.KEY)
        here.finish()
        here.wait(25 * MINUTE)
        here.psched.change("modify", here.KEY, data={"a": 1})

        here.work()

        assert here.fates() == [["finished"]] * len(here.fates())
        assert len(here.fates()) == 7
        assert here.violations() == []
