"""What programs and `psched top` read about the present, and what it costs them."""

import contextlib
import re
import sqlite3
from dataclasses import dataclass
from dataclasses import replace as changed

import pytest

import psched
from psched.base.clock import SystemClock
from psched.base.errors import NotSupportedError, StoreUnavailableError
from psched.cli.time_format import short_time
from psched.cli.top.snapshot import Reader
from psched.core.history.records import Fate, Outcome, WorkerRecord
from psched.core.operations.overview import RUNNING
from psched.testing import ManualClock
from support.run_records import run_record
from support.tables import fill_sqlite

LATER = 4_000_000_000


@pytest.fixture
def url(tmp_path):
    return fill_sqlite(tmp_path / "psched.db")


@pytest.fixture
def schedules(url):
    with psched.open({"url": url}) as opened:
        yield opened


def reader_of(schedules, *, masters=(), clock=None):
    return Reader(
        schedules,
        schedules._settings,
        ask_masters=lambda: masters,
        clock=clock or SystemClock(),
        host="here",
    )


def claim(schedules, owner, limit=10):
    claimed = schedules._store.claim(owner, limit=limit, alive_time=60, shortest=6, horizon=0)
    return claimed.rows


def beat(schedules, nonce, **fields):
    given = {"host": "there", "pid": 7, "number": 0, "generation": 1, "slots": 4, "busy": 0}
    worker = WorkerRecord(nonce=nonce, types=None, started=0, seen=0, **{**given, **fields})
    schedules._store.history.beat(worker)


def master(**fields):
    return 99, {
        "phase": "serving",
        "generation": 3,
        "uptime": 5.0,
        "slots": 2,
        "free": 1,
        "workers": [],
        **fields,
    }


def test_the_clock_of_another_host_is_that_of_its_newest_record(schedules, url):
    now = int(schedules.now())
    beat(schedules, "new", clock_offset=-1500)
    beat(schedules, "older version", host="unknown")
    for nonce, ago, offset in ("old", 50, 9000), ("older version too", 0, None):
        beat(schedules, nonce, clock_offset=offset)
        with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as database:
            values = now - ago, nonce
            database.execute("UPDATE psched_workers SET seen = ? WHERE nonce = ?", values)
            database.commit()
    there, unknown = reader_of(schedules).read().masters
    assert (there.host, there.workers, there.clock) == ("there", 3, -1.5)
    assert (unknown.host, unknown.clock) == ("unknown", None)


def test_a_snapshot_puts_together_what_the_store_and_the_masters_know(schedules):
    schedules.add("runs", "t", next_time=1_000_000_000)
    schedules.add("here", "t", next_time=1_000_000_000)
    beat(schedules, "there-1")
    rows = claim(schedules, "there-1.1")
    assert len(rows) == 2
    task = {
        "occurrence": "here.1000000000",
        "type": "t",
        "attempt": 1,
        "running_for": 12.5,
        "progress": {"percent": 50.0, "text": "half"},
    }
    answer = master(workers=[{"pid": 5, "tasks": [task]}])
    schedules._store.history.record(
        [
            run_record("runs", owner=f"w.{n}", started=1000, ended=1000 + took)
            for n, took in enumerate([1000, 2000, 9000])
        ]
    )
    seen = reader_of(schedules, masters=[answer]).read()
    assert not seen.problems
    found = {each.key: each for each in seen.running}
    assert (found["here"].host, found["here"].elapsed, found["here"].percent) == ("here", 12.5, 50)
    assert (found["runs"].host, found["runs"].usual, found["runs"].percent) == ("there", 2.0, None)
    here, there = seen.masters
    assert (here.pid, here.free, here.slots) == (99, 1, 2)
    assert abs(here.clock) < 60
    # Two rows are leased by this worker, although its record says that it is not busy.
    assert (there.host, there.free, there.slots, there.clock) == ("there", 2, 4, None)


def test_workers_of_a_master_that_answers_are_not_counted_twice(schedules):
    beat(schedules, "here-1", host="here", pid=5)
    answer = master(workers=[{"pid": 5, "tasks": []}])
    seen = reader_of(schedules, masters=[answer]).read()
    assert [each.pid for each in seen.masters] == [99]
    assert (seen.free, seen.slots) == (1, 2)


def test_failures_of_the_last_hour_stay_known(schedules):
    now = int(schedules.now()) * 1000
    failed = {"outcome": Outcome.FAILED, "fate": Fate.GAVE_UP, "reason": "why"}
    schedules._store.history.record(
        [
            run_record("new", owner="w.1", ended=now - 1000, **failed),
            run_record("old", owner="w.2", ended=now - 4_000_000, **failed),
            run_record("good", owner="w.3", ended=now - 500),
        ]
    )
    reader = reader_of(schedules)
    seen = reader.read()
    assert [(each.key, each.result, each.reason) for each in seen.failed] == [
        ("new", "gave_up", "why")
    ]
    schedules._store.history.record(
        [run_record(f"x{n}", owner=f"x.{n}", ended=now) for n in range(3000)]
    )
    schedules._store.history.record([run_record("newer", owner="w.4", ended=now, **failed)])
    assert [each.key for each in reader.read().failed] == ["newer", "new"]


def test_what_waits_for_a_paused_type_says_so(schedules):
    schedules.add("late", "mail", next_time=1_000_000_000)
    with schedules.audited("the disk is full"):
        schedules.pause_type("mail")
    seen = reader_of(schedules).read()
    for text in seen.pauses[0], seen.late[0].reason:
        assert text.endswith("(type mail): the disk is full")
        assert text.count("paused") == 1
        assert text.startswith("paused since ")


def test_a_pause_is_shown_with_short_times(schedules):
    for key in "by a person", "by sql":
        schedules.add(key, "t", cron="@daily")
    with schedules.audited("deploy"):
        schedules["by a person"].pause(LATER)
    store = schedules._store
    row = store.get("by sql")
    store.replace(row, changed(row, status="paused", reason="ask ann", next_run_time=None))
    shown = {task.key: task.reason for task in reader_of(schedules).read().paused}
    assert shown["by sql"] == "ask ann"
    until = short_time(LATER, 0)
    assert re.fullmatch(rf"since \S+ \S+ \S+ until {until} by \S+: deploy", shown["by a person"])


def test_a_mark_on_a_running_task_is_shown(schedules):
    schedules.add("k", "t", next_time=1_000_000_000)
    claim(schedules, "w.1")
    schedules["k"].cancel()
    assert [each.status for each in reader_of(schedules).read().running] == ["cancelling"]


@dataclass
class Away:
    """Replaces a method of a part of a store by one that fails."""

    store: object
    name: str

    def __enter__(self):
        def fail(*_arguments, **_options):
            raise StoreUnavailableError("connection refused: password=hunter2")

        setattr(self.store, self.name, fail)

    def __exit__(self, *_error):
        delattr(self.store, self.name)


@pytest.mark.parametrize("name", ["overview", "workers", "durations", "failures"])
def test_a_store_that_is_away_leaves_what_was_known_and_what_the_masters_say(url, name):
    with psched.open({"url": url, "redact": ["password"]}) as schedules:
        schedules._send = lambda request: request()  # without repetitions
        schedules.add("k", "t", next_time=1_000_000_000)
        schedules.add("next", cron="0 * * * *", next_time=LATER)
        claim(schedules, "w.1")
        task = {"occurrence": "k.1000000000", "type": "t", "attempt": 1, "running_for": 3.0}
        reader = reader_of(schedules, masters=[master(workers=[{"pid": 5, "tasks": [task]}])])
        store = schedules._store
        part = store.light_reads if name == "overview" else store.history
        if name != "durations":  # else it is known already
            reader.read()
        before = reader.read() if name != "durations" else None
        with Away(part, name):
            seen = reader.read()
        assert seen.away
        assert seen.problems[0].startswith("the store does not answer: ")
        assert "hunter2" not in seen.problems[0]
        assert [(each.key, each.elapsed) for each in seen.running] == [("k", 3.0)]
        if before is not None:
            assert seen.coming == before.coming
        again = reader.read()
        assert (again.away, again.problems) == (False, ())


def test_no_run_history_is_a_problem_that_is_told(schedules):
    with psched.open({"url": schedules._settings.url, "table": "psched"}) as plain:
        plain._store.history.problem = lambda: "its tables do not exist"
        plain._store.history.missing = "its tables do not exist"
        schedules.add("k", "t", next_time=1_000_000_000)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(plain, "live_workers", fails)
            seen = reader_of(plain).read()
    assert "no run history" in seen.problems[0]
    assert not seen.away
    assert [each.key for each in seen.late] == ["k"]


def fails():
    raise NotSupportedError("this store keeps no run history")


@pytest.mark.slow
def test_one_screen_needs_few_requests_however_many_schedules_there_are(schedules):
    sent, store = [], schedules._store

    def counting(statement, values):
        sent.append(statement)
        return store._connector.query(statement, values)

    def cost():
        sent.clear()
        reader.read()
        return len(sent)

    for part in store, store.history, store.light_reads:
        part._query = counting
    clock = ManualClock()
    reader = reader_of(schedules, clock=clock)
    reader.read()
    few = cost()
    schedules.add_many(
        {"key": f"s{n}", "cron": "0 * * * *", "next_time": LATER + n} for n in range(3000)
    )
    schedules.push_many({"key": f"late{n}", "type": "t"} for n in range(3000))
    assert cost() == few
    assert few <= 12
    claim(schedules, "w.1", limit=200)
    assert cost() <= few + 2  # how long the runs of the running schedules take
    assert cost() == few


def test_the_collection_says_what_runs_and_how_long_runs_take(schedules):
    schedules.add("k", "t", next_time=1_000_000_000)
    claim(schedules, "w.1")
    schedules._store.history.record([run_record("k", owner="w.0", started=1000, ended=3500)])
    assert schedules.overview().counts[RUNNING] == 1
    assert schedules.durations(["k", "none"]) == {"k": [2500]}
    beat(schedules, "a")
    beat(schedules, "b", ended=0)
    assert [each.nonce for each in schedules.live_workers()] == ["a"]
