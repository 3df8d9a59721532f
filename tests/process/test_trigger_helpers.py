"""Triggers of users' own that do what no trigger should: only their own rows suffer from it."""

import errno
import json
import logging
import math
import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from textwrap import dedent

import pytest

from psched.app import make_store
from psched.application import Dispatch
from psched.base.errors import StoreUnavailableError
from psched.config import from_mapping
from psched.core.model import QUARANTINED, WAITING, Row
from psched.process import tree
from psched.worker import trigger_helpers
from psched.worker.lease_loop import LeaseLoop
from support.bench import CLOCK, Bench
from support.isolated import isolated
from support.misbehaving_handlers import HANDLERS
from support.stores import Sql
from support.waiting import PATIENCE
from support.worker import context

TRIGGERS = """
    import ctypes, os, subprocess, sys, threading, time

    class Hourly:
        def next_at(self, after):
            return (after // 3600 + 1) * 3600

    class Talking(Hourly):
        def next_at(self, after):
            print(after)
            return super().next_at(after)

    class Slow(Hourly):
        def next_at(self, after):
            time.sleep(0.5)
            return super().next_at(after)

    class Strange:
        @property
        def __class__(self):
            raise RuntimeError("no class")

    class Wild(Hourly):
        def __init__(self, how, number=0):
            self.how = how

        def next_at(self, after):
            return getattr(self, self.how)(after)

        def exits(self, after):
            os._exit(0)

        def interrupts(self, after):
            raise KeyboardInterrupt

        def leaves(self, after):
            sys.exit("enough")

        def hangs(self, after):
            while True:
                time.sleep(1000)

        def hangs_in_c(self, after):
            return sum(range(10**13))

        def crashes(self, after):
            ctypes.string_at(0)

        def grows(self, after):
            hoard = []
            while True:
                hoard.append(bytearray(2**24))

        def forks(self, after):
            os.fork()
            return super().next_at(after)

        def leaves_a_daemon(self, after):
            subprocess.Popen(["sleep", "1000"], start_new_session=True)
            return super().next_at(after)

        def leaves_a_thread(self, after):
            threading.Thread(target=time.sleep, args=(1000,)).start()
            return super().next_at(after)

        def prints(self, after):
            print("x" * 100_000)
            return super().next_at(after)

        def closes_everything(self, after):
            os.closerange(0, 1000)
            return super().next_at(after)

        def writes_everywhere(self, after):
            for number in range(3, 100):
                try:
                    os.write(number, b"garbage" * 10)
                except OSError:
                    pass
            return super().next_at(after)

        def spoils_the_process(self, after):
            sys.stdout.close()
            return super().next_at(after)

        def boolean(self, after):
            return True

        def huge(self, after):
            return 10**5000

        def minus_huge(self, after):
            return -10**5000

        def strange(self, after):
            return Strange()
"""


class Scene:
    """A lease loop over a real SQLite database, with real runners."""

    def __init__(self, hooks=None, **settings):
        Path("wild_triggers.py").write_text(dedent(TRIGGERS))
        given = {
            "url": "sqlite:///psched.db",
            "poll_interval": 0.05,
            "concurrency": 1,
            "load_path": str(Path.cwd()),
            **settings,
        }
        self.bench = Bench(HANDLERS, hooks=hooks, **given)
        self.store = make_store(from_mapping(given))
        self.store.init()
        shared = context(CLOCK, from_mapping(given), store=self.store, pool=self.bench.pool)
        self.loop = LeaseLoop(shared, self.bench.tasks)
        self.bench.pool.before_server_fork = self.store.disconnect

    def add(self, key, cron=None, how=None, type_="returns", next_time=0, **columns):
        """Insert a row as any SQL client could."""
        if cron is not None:
            cron = f"@call wild_triggers:{cron}"
        if how is not None:
            cron += f" {json.dumps(how)}"
        row = Row(key, type_, cron=cron, next_time=next_time, next_run_time=60, **columns)
        self.store.add([row], nonce=key)

    def row(self, key):
        return self.store.get(key)

    def has_run(self, key):
        row = self.row(key)
        return row.status == "finished" or (row.next_time or 0) > CLOCK.wall()

    def turn(self):
        timeout = self.loop.tick()
        self.bench.inbox.wait(min(timeout, 0.05), self.bench.tasks.links)

    def until(self, condition):
        end = CLOCK.monotonic() + PATIENCE
        while not condition():
            assert CLOCK.monotonic() < end, "waited in vain"
            self.turn()


def beside_a_wild_one(how):
    trigger_helpers.DEADLINE = 5.0  # the others are to answer in time
    scene = Scene()
    server = scene.bench.server
    scene.add("wild", "Wild", {"how": how}, next_time=int(CLOCK.wall()) - 60)
    scene.add("good", "Hourly", next_time=int(CLOCK.wall()) - 60)
    scene.add("plain")
    scene.until(lambda: scene.has_run("plain") and scene.has_run("good"))
    scene.until(lambda: scene.has_run("wild") or scene.row("wild").status == QUARANTINED)
    scene.add("good again", "Talking", next_time=int(CLOCK.wall()) - 60)
    scene.until(lambda: scene.has_run("good again"))
    assert scene.bench.server == server
    # Nothing of it goes on beside the fork server and what waits for a task or a question.
    scene.until(lambda: len(tree.living_below(os.getpid())) <= 3)
    wild = scene.row("wild")
    return wild.status, wild.reason or ""


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ("exits", "has failed to answer 2 times: its process "),
        pytest.param(
            "interrupts",
            "has failed to answer 2 times: it raised 'KeyboardInterrupt'",
            marks=pytest.mark.extended,
        ),
        ("leaves", "raised SystemExit: enough"),
        ("hangs", "has failed to answer 2 times: it has not answered within"),
        pytest.param(
            "hangs_in_c",
            "has failed to answer 2 times: it has not answered within",
            marks=pytest.mark.extended,
        ),
        ("crashes", "has failed to answer 2 times: its process "),
        pytest.param("grows", "has failed to answer 2 times: it", marks=pytest.mark.extended),
        ("closes_everything", "has failed to answer 2 times: its process "),
        pytest.param(
            "writes_everywhere", "has failed to answer 2 times: it", marks=pytest.mark.extended
        ),
        pytest.param("boolean", "answered a value of type bool", marks=pytest.mark.extended),
        ("minus_huge", "answered a huge number, which is not later"),
        pytest.param("strange", "raised RuntimeError: no class", marks=pytest.mark.extended),
    ],
)
def test_a_trigger_that_misbehaves_is_quarantined_and_nothing_else_suffers(how, problem):
    status, reason = isolated(beside_a_wild_one, how)
    assert status == QUARANTINED
    assert problem in reason
    assert problem in reason


@pytest.mark.parametrize(
    "how", ["forks", "leaves_a_daemon", "leaves_a_thread", "prints", "spoils_the_process"]
)
def test_what_a_trigger_leaves_behind_is_killed_and_its_answer_counts(how):
    assert isolated(beside_a_wild_one, how) == [WAITING, ""]


class BrokenHooks(Dispatch):
    """Needs what is away."""

    def after_fork(self):
        raise OSError(errno.ECONNREFUSED, "no database")


def with_a_hook_that_raises():
    scene = Scene(BrokenHooks())
    scene.add("good", "Hourly", next_time=int(CLOCK.wall()) - 60, type_="unknown")
    scene.until(lambda: scene.row("good").reason)
    return scene.row("good").status, scene.row("good").reason


def test_a_hook_that_raises_costs_tasks_an_attempt_and_triggers_nothing():
    assert isolated(with_a_hook_that_raises)[0] == WAITING


def beside_ten_that_hang(how):
    trigger_helpers.DEADLINE = 1000.0  # whoever waits for it waits for longer than the test
    scene = Scene(catchup="latest", alive_time=20)
    for number in range(10):
        scene.add(f"wild {number}", "Wild", {"how": how, "number": number})
    scene.until(lambda: sum(row.fence > 0 for row in scene.store.rows()) == 10)
    for key in ("first", "second"):
        scene.add(key)
        scene.add(f"{key} of its own", "Hourly")
        scene.until(lambda key=key: scene.has_run(key) and scene.has_run(f"{key} of its own"))
    return [row.status for row in scene.store.rows() if row.key.startswith("wild")]


def test_no_other_schedule_waits_for_ten_triggers_that_hang():
    # All of them are still being asked, or are to be asked again.
    assert isolated(beside_ten_that_hang, "hangs") == [WAITING] * 10


def beside_one_whose_task_is_over(how):
    trigger_helpers.DEADLINE = 5.0
    # What is on time is run without a question to its trigger.
    scene = Scene(alive_time=20, catchup="skip", catchup_grace=3600)
    scene.add("wild", "Wild", {"how": how}, next_time=int(CLOCK.wall()))
    scene.until(lambda: any(task.empty for task in scene.bench.tasks.running.values()))
    scene.add("plain")
    scene.until(lambda: scene.has_run("plain"))
    before = scene.row("wild").status
    scene.until(lambda: scene.row("wild").status == QUARANTINED)
    wild = scene.row("wild")
    return before, wild.next_time, wild.reason


@pytest.mark.parametrize(
    ("how", "problem"),
    [("hangs", "has failed to answer 2 times"), ("boolean", "answered a value of type bool")],
)
def test_an_occurrence_that_has_run_is_over_whatever_its_trigger_does_then(how, problem):
    before, next_time, reason = isolated(beside_one_whose_task_is_over, how)
    assert next_time is None
    assert problem in reason
    assert how == "boolean" or before == WAITING


def beside_one_that_cannot_be_loaded_here():
    # What is on time is run without a question to its trigger.
    scene = Scene(catchup="skip", catchup_grace=9999, load_path=[])
    scheduled = int(CLOCK.wall()) - 7200
    scene.add("tide", "Hourly", next_time=scheduled)
    scene.until(lambda: scene.row("tide").settled_by not in {None, "tide"})
    left = scene.row("tide")
    other = Scene()
    scene.store.disconnect()
    Sql("sqlite:///psched.db")("UPDATE psched SET next_run_time = 0 WHERE id = 'tide'")
    other.until(lambda: other.row("tide").next_time)
    return left.next_time, other.row("tide").next_time - (scheduled // 3600 + 1) * 3600


def test_the_next_time_follows_the_task_that_another_host_has_run():
    assert isolated(beside_one_that_cannot_be_loaded_here) == [None, 0]


def asked_while_the_store_is_away():
    trigger_helpers.DEADLINE = 1.0
    scene = Scene(alive_time=20, catchup="skip", catchup_grace=3600)
    scene.add("wild", "Wild", {"how": "hangs"}, next_time=int(CLOCK.wall()))
    scene.until(lambda: any(not task.empty for task in scene.bench.tasks.running.values()))
    scene.loop.pause()
    backoff = scene.loop.execution.gateway.backoff
    with suppress(StoreUnavailableError):
        backoff.ask(gone)
    backoff.not_before, scene.loop._next_marks = 0, math.inf
    # The store is not asked for anything: it is not known yet what to write.
    scene.until(lambda: scene.loop.asks)
    return scene.loop.execution.gateway.backoff.away


def gone():
    raise StoreUnavailableError("gone")


def test_a_store_is_not_back_because_there_is_nothing_to_ask_it_yet():
    assert isolated(asked_while_the_store_is_away) == "gone"


def told_to_go():
    trigger_helpers.DEADLINE = 2.0
    scene = Scene(alive_time=20, catchup="skip", catchup_grace=3600, concurrency=2)
    scene.add("over", "Wild", {"how": "hangs"}, next_time=int(CLOCK.wall()))
    scene.until(lambda: scene.loop.asks)
    scene.add("due", "Wild", {"how": "hangs", "number": 1})
    scene.until(lambda: scene.row("due").owner)
    scene.loop.stop(None)
    scene.until(lambda: scene.loop.idle)
    scene.bench.until(lambda: len(tree.living_below(os.getpid())) <= 1)
    return [(row.status, row.owner, row.next_time) for row in map(scene.row, ("over", "due"))]


def test_a_worker_that_leaves_gives_back_what_is_asked_and_settles_what_has_run():
    over, due = isolated(told_to_go)
    assert over == [QUARANTINED, None, None]
    assert due[:2] == [WAITING, None]


def a_slow_one_with_a_short_lease():
    scene = Scene(alive_time=20, catchup="latest")
    scene.add("slow", "Slow")
    scene.until(lambda: scene.has_run("slow"))
    return scene.row("slow").fence


def test_a_lease_is_held_while_a_slow_trigger_is_asked():
    assert isolated(a_slow_one_with_a_short_lease) <= 2


def without_a_process():
    scene = Scene(catchup="latest")
    prepare = scene.bench.pool.prepare
    log = []
    logging.getLogger().addHandler(handler := logging.Handler())
    handler.emit = lambda record: log.append(record.getMessage())
    tries = 0

    def refused(count=1, *, unused=False):
        nonlocal tries
        tries += unused
        if unused:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        prepare(count)

    scene.bench.pool.prepare = refused
    scene.add("row", "Hourly")
    scene.until(lambda: tries >= 2)
    scene.until(lambda: scene.row("row").owner is None)
    told = [line for line in log if "cannot fork" in line]
    attempt = scene.row("row").attempt
    scene.bench.pool.prepare = prepare
    scene.until(lambda: scene.has_run("row"))
    return told, attempt, tries


def test_a_row_whose_trigger_no_process_can_be_asked_is_left_to_others_and_told_once():
    told, attempt, tries = isolated(without_a_process)
    assert told == ["cannot fork: [Errno 11] Resource temporarily unavailable"]
    assert attempt == 0
    assert tries <= 4


def with_long_texts():
    scene = Scene(catchup="latest")
    scene.add("row", "Hourly")
    with closing(sqlite3.connect("psched.db", isolation_level=None)) as client:
        client.execute(
            "UPDATE psched SET reason = :long, settled_by = :long", {"long": "x" * 2**20}
        )
    scene.until(lambda: scene.has_run("row") or scene.row("row").status == QUARANTINED)
    return scene.row("row").status


def test_a_row_is_judged_whatever_stands_in_columns_that_are_for_people():
    assert isolated(with_long_texts) == WAITING


def outside(triggers, cron):
    scene = Scene(triggers=triggers, retry_wait=3600)
    Path("secret.py").write_text("open('imported', 'w')")
    scene.store.add([Row("row", "returns", cron=cron, next_time=60, next_run_time=60)], nonce="n")
    scene.until(lambda: scene.row("row").reason)
    row = scene.row("row")
    return row.status, row.attempt, row.next_time, row.reason, Path("imported").exists()


@pytest.mark.parametrize(
    ("triggers", "cron", "reason"),
    [
        (None, "@call test.__main__:x", "there is no module 'test.__main__' on the load path"),
        (None, "@call os:x", "there is no module 'os' on the load path"),
        (
            ["other"],
            "@call secret:x",
            "'secret' is not one that the setting triggers allows (other",
        ),
        (["secrets"], "@call secret:x", "is not one that the setting triggers allows (secrets)"),
        ([], "@call secret:x", "is not one that the setting triggers allows (none)"),
    ],
)
def test_a_module_that_is_not_allowed_is_not_imported_and_left_to_others(triggers, cron, reason):
    status, attempt, next_time, told, imported = isolated(outside, triggers, cron)
    assert (status, attempt, next_time, imported) == (WAITING, 0, 60, False)
    assert reason in told
    assert "triggers" in told
