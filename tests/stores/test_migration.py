"""Tests of migrating tables of PerfectSched and PerfectQueue, also while workers run."""

import contextlib
import gzip
import itertools
import json
import random
from pathlib import Path

import pytest

from psched import config
from psched.base.clock import SystemClock
from psched.base.errors import SchemaError, StoreUnavailableError, UnknownOutcomeError
from psched.base.payload import WRAPPED_IN
from psched.contrib.perfectsched.migration.migrator import open_migrator
from psched.contrib.perfectsched.migration.tables import PAGE
from psched.core.columns import raw_data
from psched.core.model import MIGRATING, Row
from psched.core.policy import Run, after_claim
from support.isolated import say, started_isolated
from support.old_tables import OldTable, new_worker, old_worker, runs, schedule, task
from support.stores import make_store
from support.waiting import HANG_TIMEOUT, wait_until

pytestmark = pytest.mark.twins

LATER = 2_000_000_000
LEASE = 300
DOCUMENT = Path(__file__).resolve().parents[2] / "docs/migration.md"


def migration_of(table, settings, url=None, **options):
    rng = random.Random()  # noqa: S311  # jitter
    return open_migrator(settings, table, url=url, clock=SystemClock(), rng=rng, **options)


@pytest.fixture
def store(open_store):
    return open_store()


@pytest.fixture
def now(store):
    return int(store.now())


@pytest.fixture
def make_old(database):
    with contextlib.ExitStack() as opened:

        def make_old(name="schedules", **how):
            table = OldTable(database.url, name)
            opened.callback(table.close)
            table.create(**how)
            return table

        yield make_old


@pytest.fixture
def old(make_old):
    return make_old()


@pytest.fixture
def make_migration(settings):
    """A function that opens a migration of a table into the test's database."""
    with contextlib.ExitStack() as opened:

        def make_migration(old, **changes):
            into = settings.with_settings(**changes)
            return opened.enter_context(migration_of(old.name, into, old.url))

        yield make_migration


@pytest.fixture
def migrate(make_migration):
    """A function that migrates a table, and returns the report."""
    return lambda old, wait=0, **changes: make_migration(old, **changes).run(wait)


def moved(store, *keys):
    rows = store.look(keys)
    assert rows.keys() == {*keys}
    assert all(row.status != MIGRATING and row.owner is None for row in rows.values())
    return [rows[key] for key in keys]


PAYLOADS = {
    b'{"type":"a","b":{"c":[1]}}': ("a", {"b": {"c": [1]}}),
    gzip.compress(b'{"type":"a","b":2}'): ("a", {"b": 2}),
    b'{"b":2}': ("", {"b": 2}),
    b"": ("", {}),
    b"{broken": ("", {"data": "{broken"}),
    b"\x1f\x8bbroken": ("", {"data_base64": "H4ticm9rZW4="}),
    b"[1]": ("", {"data": "[1]"}),
}
"""By payload, the type and the data of the new row; "" stands for the type in the key."""

SHAPES = {
    "text": b"hello world",
    "list": b"[1,2,3]",
    "quoted": b'"x"',
    "bytes": b"\x00\xff\x01",
    "NUL": b"a\x00b",
    "empty": b"",
    "blanks": b" \t\r\n",
    "BOM": b'\xef\xbb\xbf{"any":"data"}',
    "half an object": b"{broken",
    "half a character": b"\xc3",
    "UTF-16": '{"any":"data"}'.encode("utf-16"),
    "replacement": "\ufffd\u2028\U0001f600".encode(),
    "compressed text": gzip.compress(b"hello"),
    "cut gzip": gzip.compress(b'{"any":"data"}')[:-9],
    "in base64": b"H4sIAAAA",
    "depth": b"[" * 1000,
    "object": b'{"any":"data"}',
    "object as written": b' {"type": "k", "any": "d\\u00e9", "n": 1.10, "n": 1e2}\n'.lstrip(),
    "object like ours": b'{"data":"hello"}',
    "object like ours in base64": b'{"data_base64":"AP8="}',
}
"""Payloads that a row of PerfectQueue 0.7 can contain."""

WINDOWS_ZONE = "Pacific Time (US & Canada)"
REFUSED = [
    ("id: must not be longer", {"id": "k" * 256}),
    ("id: 'k ' must be printable", {"id": "k "}),
    ("cron: ", {"cron": "61 * * * *"}),
    ("cron: ", {"cron": "0 0 30 2 *"}),
    (f"timezone: {WINDOWS_ZONE!r} is not a zone", {"timezone": WINDOWS_ZONE}),
    ("timezone: must not be empty", {"timezone": ""}),
    ("delay: must be from 0", {"delay": -1}),
    ("next_time: must be from 0", {"next_time": -1}),
    ("timeout: must be from 0", {"timeout": -1}),
    ("data: is not JSON", {"data": b'{"n": 1e999}'}),
    ("type: ", {"data": b'{"type": " padded "}'}),
]


@pytest.mark.usefixtures("store")
def test_it_shows_how_many_of_the_rows_are_done(old, settings):
    old.insert(*(schedule(f"key {number:04}", at=LATER) for number in range(PAGE + 1)))
    shown = []

    @contextlib.contextmanager
    def meter(what, total):
        shown.append((what, total))
        yield shown.append

    with migration_of(old.name, settings, old.url, meter=meter) as migration:
        migration.run_pass(dry=True)
        migration.run_pass()
    total = PAGE + 1
    assert shown == [("reading", total), PAGE, total, ("moving", total), PAGE, total]


class TestPerfectSched:
    def test_a_schedule_keeps_its_meaning(self, old, store, migrate, now):
        old.insert(
            schedule("plain", at=LATER),
            schedule("due", at=now - 100, delay=40, timeout=now - 60, cron="*/5 * * * *"),
            schedule("tokyo", at=LATER, cron="0 9 * * *", timezone="Asia/Tokyo"),
            schedule("retried", at=now - 9000, timeout=now + 9000),
        )
        assert migrate(old).remaining == 0
        assert old.keys == []
        plain, due, tokyo, retried = moved(store, "plain", "due", "tokyo", "retried")
        assert (plain.type, json.loads(plain.data)) == ("t.x", {"n": 1})
        assert (plain.cron, plain.timezone, plain.status) == ("* * * * *", "UTC", "waiting")
        assert json.loads(plain.options) == {"dst_policy": "wallclock"}
        assert (plain.next_time, plain.next_run_time, plain.reason) == (LATER, LATER, None)
        assert (due.next_time, due.next_run_time, due.delay) == (now - 100, now - 60, 40)
        assert tokyo.timezone == "Asia/Tokyo"
        assert (retried.next_time, retried.next_run_time) == (now - 9000, now + 9000)
        claimed = store.claim("w.1", limit=9, alive_time=60, shortest=6, horizon=0)
        assert [row.key for row in claimed.rows] == ["due"]

    def test_what_rests_in_the_old_table_rests(self, old, store, migrate):
        old.insert(schedule("k", at=LATER, timeout=2**31 - 1))
        assert migrate(old).remaining == 0
        (row,) = moved(store, "k")
        assert (row.status, row.next_run_time, row.next_time) == ("finished", None, LATER)

    def test_no_option_says_what_the_settings_say(self, old, store, migrate):
        old.insert(schedule("k", at=LATER))
        migrate(old, dst_policy="wallclock")
        (row,) = moved(store, "k")
        assert row.options is None

    def test_a_line_that_psched_reads_otherwise_is_rewritten(self, old, store, migrate):
        old.insert(schedule("k", at=LATER, cron="5/15 * * * *"))
        migrate(old)
        (row,) = moved(store, "k")
        assert row.cron == "5 * * * *"

    def test_the_type_is_taken_out_of_the_data_and_what_is_no_object_is_carried(
        self, old, store, migrate
    ):
        old.insert(*(schedule(f"k{n}.1", at=LATER, data=data) for n, data in enumerate(PAYLOADS)))
        assert migrate(old).remaining == 0
        for number, (kind, data) in enumerate(PAYLOADS.values()):
            (row,) = moved(store, f"k{number}.1")
            assert (row.type, json.loads(row.data)) == (kind or f"k{number}", data)
            form = next((form for form, name in WRAPPED_IN.items() if name in data), None)
            wanted = {"dst_policy": "wallclock", **({"payload": form} if form else {})}
            assert json.loads(row.options) == wanted

    def test_what_psched_cannot_hold_stays_and_is_told(self, old, store, migrate):
        bad = [schedule(f"k{n}", at=LATER, **columns) for n, (_, columns) in enumerate(REFUSED)]
        old.insert(schedule("good", at=LATER), *bad, schedule("z", at=LATER))
        left = migrate(old)
        assert old.keys == sorted(row["id"] for row in bad)
        assert left.refused == left.remaining == len(bad)
        for row, (reason, _) in zip(bad, REFUSED, strict=True):
            assert left.reasons[row["id"]].startswith(reason)
        moved(store, "good", "z")
        assert len([*store.rows()]) == 2

    def test_what_may_be_running_is_left_until_it_is_not(self, old, store, migrate, now):
        old.insert(
            schedule("leased", at=now - 60, timeout=now + LEASE - 1),
            # A worker whose clock is ahead holds this lease.
            schedule("ahead", at=now - 60, timeout=now + LEASE + 50),
            schedule("waiting", at=now + 60),
            schedule("delayed", at=now + 60, delay=30, timeout=now + 90),
            schedule("expired", at=now - 600, timeout=now - 1),
        )
        left = migrate(old)
        assert old.keys == ["ahead", "leased"]
        assert (left.running, left.refused) == (2, 0)
        old("UPDATE schedules SET next_time = :at, timeout = :at", at=LATER)
        assert migrate(old).remaining == 0
        assert [row.next_time for row in moved(store, "ahead", "leased")] == [LATER, LATER]

    def test_it_waits_for_what_is_running(self, old, make_migration, now):
        old.insert(schedule("k", at=now - 60, timeout=now + 60))
        migration = make_migration(old)
        sleep = migration._clock.sleep

        class Clock(SystemClock):
            def sleep(self, seconds):
                old("UPDATE schedules SET next_time = :at, timeout = :at", at=LATER)
                sleep(seconds / 100)

        migration._clock = Clock()
        assert migration.run(20).remaining == 0
        assert old.keys == []

    def test_a_key_that_psched_has_is_not_touched(self, old, store, migrate):
        store.add([Row(key="k", next_time=LATER, next_run_time=LATER)], nonce="n")
        old.insert(schedule("k", at=LATER))
        left = migrate(old)
        assert left.reasons == {"k": "psched has a schedule with this key already"}
        assert old.keys == ["k"]
        assert store.get("k").settled_by == "n"

    def test_an_occurrence_that_a_worker_takes_first_is_the_workers(
        self, old, store, make_migration, now
    ):
        old.insert(*(schedule(f"k{n}", at=now - 60 * n - 60) for n in range(5)))
        migration = make_migration(old)
        mark, taken = migration._source.mark, []

        def late(seen):
            taken.append(old.claim(now)["id"])
            return mark(seen)

        migration._source.mark = late
        left = migration.run(0)
        assert old.keys == sorted(taken)
        assert left.running == len(taken)
        assert not store.look(taken)
        moved(store, *({f"k{n}" for n in range(5)} - {*taken}))

    def test_what_is_changed_or_deleted_meanwhile_is_so(self, old, store, make_migration):
        old.insert(*(schedule(key, at=LATER) for key in "abcdef"))
        migration = make_migration(old)
        changes = [
            "UPDATE schedules SET cron = '0 * * * *' WHERE id = 'a'",
            "UPDATE schedules SET timezone = 'UTC' WHERE id = 'b'",
            "UPDATE schedules SET data = '{\"n\": 2}' WHERE id = 'c'",
            "UPDATE schedules SET delay = 5 WHERE id = 'd'",
            "DELETE FROM schedules WHERE id = 'e'",
        ]
        mark = migration._source.mark

        def late(seen):
            while changes:
                old(changes.pop())
            return mark(seen)

        migration._source.mark = late
        assert migration.run(0).remaining == 0
        a, _, c, d, _ = moved(store, *"abcdf")
        assert (a.cron, json.loads(c.data), d.delay) == ("0 * * * *", {"n": 2}, 5)
        assert store.get("e") is None

    def test_many_pages_move_and_there_is_nothing_to_do_again(self, old, store, migrate):
        number = 2 * PAGE + 7
        old.insert(*(schedule(f"k{n}", at=LATER + n) for n in range(number)))
        assert migrate(old).remaining == 0
        assert old.keys == []
        rows = [*store.rows()]
        assert [row.next_run_time for row in rows] == [LATER + n for n in range(number)]
        assert migrate(old).seen == 0
        assert [*store.rows()] == rows

    def test_a_backlog_that_catch_up_will_cut_is_told(self, old, make_migration, now):
        old.insert(
            schedule("cut", at=now - 9000),
            schedule("short", at=now - 540),
            schedule("later", at=LATER),
            schedule("at rest", at=now - 9000, timeout=2**31 - 1),
        )
        migration = make_migration(old, catchup_limit=100)
        assert migration.run_pass(dry=True).overdue == migration.overdue == 1
        assert (
            "the first worker that claims such a schedule drops the oldest"
            in migration.overdue_note
        )
        assert make_migration(old).run_pass(dry=True).overdue == 0

    def test_a_dry_run_changes_nothing(self, old, store, make_migration, now):
        old.insert(schedule("a", at=LATER), schedule("b", at=now - 9, timeout=now + 9))
        old.insert(schedule("c", at=LATER, cron="nonsense"))
        before = old.rows
        left = make_migration(old).run_pass(dry=True)
        assert (left.ready, left.running, left.refused) == (1, 1, 1)
        assert old.rows == before
        assert not [*store.rows()]


class TestPerfectQueue:
    @pytest.mark.parametrize("newer", [True, False])
    def test_a_task_is_a_schedule_that_runs_once(self, make_old, store, migrate, now, newer):
        old = make_old("tasks", newer=newer)
        old.insert(
            task("a.due", at=now - 100, created_at=now - 200),
            task("later", at=LATER, data=gzip.compress(b'{"x":[1]}')),
            task("broken", at=now - 1, data=b"\xff"),
        )
        assert migrate(old).remaining == 0
        assert old.keys == []
        due, later, broken = moved(store, "a.due", "later", "broken")
        assert (due.cron, due.type, due.created_at) == (None, "t.x", now - 200)
        assert due.next_time == due.next_run_time == now - 100
        assert (later.type, json.loads(later.data)) == ("later", {"x": [1]})
        assert (later.next_run_time, later.options) == (LATER, None)
        assert (broken.type, json.loads(broken.data)) == ("broken", {"data_base64": "/w=="})
        claimed = store.claim("w.1", limit=9, alive_time=60, shortest=6, horizon=0)
        assert [row.key for row in claimed.rows] == ["a.due", "broken"]

    def test_one_that_is_done_or_cancelled_keeps_its_key(self, make_old, store, migrate, now):
        old = make_old("tasks")
        old.insert(
            task("done", at=now - 1_000_000_000 + 300, created_at=None),
            task("cancelled", at=now + 100, created_at=0),
        )
        assert migrate(old).remaining == 0
        done, cancelled = moved(store, "done", "cancelled")
        for row in (done, cancelled):
            assert (row.status, row.next_run_time) == ("finished", None)
        assert done.next_time == now + 300
        assert cancelled.reason == "cancel was requested in PerfectQueue"

    @pytest.mark.parametrize("offset", [0, 1_000_000_000], ids=["0.7", "0.8"])
    def test_a_finished_one_frees_its_key_when_it_would_have_in_perfectqueue(
        self, make_old, store, migrate, now, offset
    ):
        old = make_old("tasks", newer=bool(offset))
        ends = {"over": now - 5, "soon": now + 3600}
        old.insert(*(task(key, at=at - offset, created_at=None) for key, at in ends.items()))
        assert migrate(old).remaining == 0
        rows = moved(store, *ends)
        assert [row.retain_until for row in rows] == [*ends.values()]
        assert [row.next_time for row in rows] == [*ends.values()]
        assert store.purge(10) == 1
        assert [row.key for row in store.rows()] == ["soon"]

    def test_one_that_was_to_be_cancelled_keeps_its_key_for_retention_time(
        self, make_old, store, migrate, now
    ):
        old = make_old("tasks")
        old.insert(task("k", at=now + 100, created_at=0))
        migrate(old, retention_time=1000)
        (row,) = moved(store, "k")
        assert now + 1000 <= row.retain_until <= now + 1100

    def test_a_backlog_older_than_expire_is_run_all_the_same(
        self, make_old, store, make_migration, settings, now
    ):
        old = make_old("tasks")
        age = 5 * 86_400
        old.insert(
            task("old", at=now - age, created_at=now - 2 * age),
            task("due", at=now - 60, created_at=now - age),
            task("later", at=LATER, created_at=now - age),
        )
        migration = make_migration(old)
        assert migration.run_pass(dry=True).overdue == migration.overdue == 1
        assert "they are run all the same" in migration.overdue_note
        assert make_migration(old, expire=0).run_pass(dry=True).overdue == 0
        assert migration.run(0).remaining == 0
        assert moved(store, "later")[0].options is None
        rows = store.claim("w.1", limit=9, alive_time=60, shortest=6, horizon=0).rows
        assert {row.key for row in rows} == {"old", "due"}
        for row in rows:
            assert isinstance(after_claim(row, settings, now + 60), Run)
            # The task expires as late as one that is pushed now.
            last = store.now() + settings.expire
            assert after_claim(row, settings, last).status == "expired"
            assert row.created_at < now - 86_400

    def test_a_payload_of_any_shape_survives_byte_for_byte(self, make_old, store, migrate):
        old = make_old("tasks", newer=False)
        old.insert(*(task(shape, at=LATER, data=raw) for shape, raw in SHAPES.items()))
        assert migrate(old).remaining == 0
        for row, (shape, raw) in zip(moved(store, *SHAPES), SHAPES.items(), strict=True):
            assert raw_data(row) == raw, shape
            # The payload is never mistaken for an object that looks the same.
            carries = row.options is not None and "payload" in json.loads(row.options)
            assert carries is (not raw.startswith(b"{") or raw == b"{broken"), shape

    @pytest.mark.parametrize(
        ("raw", "why"),
        [
            (b'{"n": 1e999}', "data: is not JSON: "),
            (b'{"a":' * 101 + b"1" + b"}" * 101, "data: is nested more than 100 levels"),
            (b"x" * 3000, "data: has 3011 bytes as JSON, and data_limit is 2000"),
            (b"\xff" * 1600, "data: has 2154 bytes as JSON, and data_limit is 2000"),
            (gzip.compress(b" " * (2**26 + 1)), "data: is compressed, and has more than"),
            (b'{"type": " padded "}', "type: "),
        ],
    )
    def test_a_payload_that_psched_cannot_hold_stays_and_is_counted(
        self, make_old, store, migrate, raw, why
    ):
        old = make_old("tasks")
        old.insert(task("k", at=LATER, data=raw))
        before = old.rows
        left = migrate(old, data_limit=2000)
        assert left.refused == left.remaining == 1
        assert left.reasons["k"].startswith(why)
        assert old.rows == before
        assert not [*store.rows()]

    def test_resources_are_kept_and_told(self, make_old, store, make_migration):
        old = make_old("tasks")
        old.insert(task("k", at=LATER, resource="user1", max_running=2))
        migration = make_migration(old)
        migration.run(0)
        (row,) = moved(store, "k")
        assert json.loads(row.options) == {"resource": "user1", "max_running": 2}
        assert migration.not_enforced

    def test_what_may_be_running_is_left(self, make_old, migrate, now):
        old = make_old("tasks")
        old.insert(
            task("leased", at=now + LEASE - 9, owner=77),
            # A worker of a version that does not write the owner holds the lease.
            task("old", at=now + LEASE - 9, owner=0),
            task("expired", at=now - 1, owner=78),
        )
        assert migrate(old).running == 2
        assert old.keys == ["leased", "old"]

    def test_one_that_perfectqueue_would_never_run_is_refused(self, make_old, migrate, now):
        old = make_old("tasks")
        old.insert(task("k", at=1_200_000_000), task("good", at=now))
        assert migrate(old).reasons["k"].startswith("timeout: ")


# --- what cannot be moved ------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ("nothing", "there is no table 'nothing'"),
        ("psched", "is psched's own"),
        ("psched_info", "does not have the columns of perfectsched's"),
    ],
)
def test_a_table_of_another_kind_is_refused(database, store, make_migration, table, told):  # noqa: ARG001  # the table is there
    other = OldTable(database.url, table)
    with contextlib.closing(other), pytest.raises(SchemaError, match=told):
        make_migration(other)


def test_without_a_table_of_psched_s_it_says_what_to_do(database, make_old):
    make_old()
    settings = config.from_mapping({"url": database.url})
    with (
        pytest.raises(SchemaError, match="psched init"),
        migration_of("schedules", settings),
    ):
        pass


# --- what dies on the way ------------------------------------------------------------


class Killed(BaseException):
    """Raised in place of a kill of the process."""


STEPS = [
    (part, step, when)
    for part, step in [
        ("_destination", "insert"),
        ("_source", "mark"),
        ("_destination", "activate"),
        ("_source", "delete_marked"),
    ]
    for when in ("before", "after")
]
MARKED = ("_source", "mark", "after")


def break_off(migration, place, error):
    """Make a step raise an error once, before or after the step has been applied."""
    part, step, when = place
    home = getattr(migration, part)
    work, failures = getattr(home, step), [error]

    def broken(argument):
        if not argument:
            return work(argument)
        if failures and when == "before":
            raise failures.pop()
        done = work(argument)
        if failures:
            raise failures.pop()
        return done

    setattr(home, step, broken)


@pytest.fixture
def killed(make_migration):
    """A function that migrates until a given step kills the migration."""

    def killed(old, place):
        migration = make_migration(old)
        break_off(migration, place, Killed())
        with pytest.raises(Killed):
            migration.run(0)

    return killed


def test_killed_at_any_step_and_run_again_it_is_complete(old, store, killed, migrate, now):
    for place in STEPS:
        keys = ["-".join([*place, str(number)]) for number in range(3)]
        old.insert(*(schedule(key, at=now - 60 * n) for n, key in enumerate(keys)))
        killed(old, place)
        due_in_old = {key for key, row in old.rows.items() if row["timeout"] <= now}
        due_in_new = {row.key for row in store.rows() if row.next_run_time is not None}
        assert not due_in_old & due_in_new, "never would both run it"
        assert migrate(old).remaining == 0
        assert old.keys == []
        assert [row.next_run_time for row in moved(store, *keys)] == [now, now - 60, now - 120]


def test_what_old_workers_do_before_the_next_run_is_not_done_again(
    old, store, killed, migrate, now
):
    start = now - now % 60 - 600
    for place in STEPS:
        deleted, run = ("-".join([*place, what]) for what in ("deleted", "run"))
        old.insert(schedule(deleted, at=start), schedule(run, at=start))
        killed(old, place)
        ran = [row["id"] for row in (old.claim(now), old.claim(now)) if row and not old.finish(row)]
        assert not ran
        still = old.rows.get(run, {}).get("next_time", 0) == start + 60
        if still:
            old("DELETE FROM schedules WHERE id = :id", id=deleted)
        assert migrate(old).remaining == 0
        rows = store.look([deleted, run])
        assert rows[run].next_run_time == (start + 60 if still else start), place
        assert (deleted in rows) is not still, place


def test_a_task_that_others_have_finished_meanwhile_does_not_come_back(
    make_old, store, killed, migrate, now
):
    old = make_old("tasks")
    for place in STEPS:
        key = "-".join(place)
        old.insert(task(key, at=now - 5))
        killed(old, place)
        # A worker claims, finishes and deletes the task, as PerfectQueue 0.8 does.
        claim = "UPDATE tasks SET timeout = :end WHERE 1300000000 < timeout AND timeout <= :now"
        ran = old(claim, end=now + LEASE, now=now)
        old("DELETE FROM tasks WHERE timeout = :end", end=now + LEASE)
        assert migrate(old).remaining == 0
        assert (store.get(key) is None) is (ran == 1), place


def test_an_outage_at_any_step_is_waited_out(old, store, make_migration, now):
    errors = {"before": StoreUnavailableError, "after": UnknownOutcomeError}
    for place in STEPS:
        keys = ["-".join([*place, str(number)]) for number in range(3)]
        old.insert(*(schedule(key, at=now - 60) for key in keys))
        migration = make_migration(old)
        break_off(migration, place, errors[place[2]]("it is away"))
        assert migration.run(0).remaining == 0
        assert old.keys == []
        moved(store, *keys)


def test_a_worker_that_has_lost_its_lease_changes_no_row_that_was_taken(
    old, store, killed, migrate, now
):
    """The worker extends and finishes without knowing that its lease has ended."""
    old.insert(schedule("k", at=now - 60))
    row = old.claim(now)
    old("UPDATE schedules SET timeout = :past", past=now - 1)
    killed(old, MARKED)
    extend = "UPDATE schedules SET timeout = :end WHERE id = 'k' AND next_time = :seen"
    assert old(extend, end=now + LEASE, seen=row["next_time"]) == 0
    assert old.finish(row) == 0
    assert migrate(old).remaining == 0
    moved(store, "k")


def test_what_is_deleted_while_it_is_half_moved_is_deleted(old, store, killed, migrate):
    old.insert(schedule("k", at=LATER))
    killed(old, MARKED)
    old("DELETE FROM schedules")
    assert migrate(old).remaining == 0
    assert store.get("k") is None


@pytest.mark.parametrize("newer", [True, False])
def test_no_worker_of_perfectqueue_changes_a_task_that_was_taken(
    make_old, killed, migrate, now, newer
):
    """The test uses the conditions by which heartbeat, finish, acquire and cleanup find rows.

    If the table has the column ``owner``, these are the conditions of workers that write the
    column; otherwise those of version 0.7 and of older workers.
    """
    old = make_old("tasks", newer=newer)
    old.insert(task("k", at=now - 5))
    killed(old, MARKED)
    conditions = ["id = 'k' AND created_at IS NOT NULL", f"timeout <= {now - 1_000_000_000}"]
    if newer:
        conditions += ["id = 'k' AND 1300000000 < timeout", "1300000000 < timeout"]
    else:
        # A worker of 0.7 deletes a due row without created_at.
        conditions += [f"timeout <= {now}"]
    for condition in conditions:
        assert old(f"UPDATE tasks SET data = '' WHERE {condition}") == 0  # noqa: S608
    assert migrate(old).remaining == 0
    assert old.keys == []


def test_what_an_earlier_psched_has_marked_is_taken(make_old, killed, store, migrate, now):
    old = make_old("tasks", newer=False)
    old.insert(task("k", at=now - 5))
    killed(old, MARKED)
    old("UPDATE tasks SET timeout = 1299999999")
    assert migrate(old).remaining == 0
    assert old.keys == []
    (row,) = moved(store, "k")
    assert (row.status, row.next_time) == ("waiting", now - 5)


def test_what_was_half_moved_from_elsewhere_is_told_and_left_alone(
    old, store, killed, make_migration, make_old
):
    old.insert(schedule("k", at=LATER))
    killed(old, MARKED)
    tasks = make_old("tasks")
    tasks.insert(task("k", at=LATER))
    other = make_migration(tasks)
    left = other.run(0)
    assert left.reasons["k"].startswith("is being moved from elsewhere: table schedules on ")
    assert other.others.total() == 1
    assert store.get("k").status == MIGRATING
    assert make_migration(old).run(0).remaining == 0
    moved(store, "k")


def test_a_row_whose_status_somebody_has_set_is_nobodys_copy(old, store, make_migration):
    store.add([Row(key="k")], nonce="n")
    old("UPDATE psched SET status = :status, next_run_time = NULL", status=MIGRATING)
    migration = make_migration(old)
    migration.run(0)
    assert migration.others.total() == 0
    assert store.get("k").status == MIGRATING


def test_a_second_migration_that_read_earlier_withdraws_no_copy_of_the_first(
    old, store, make_migration, now
):
    """The second migration read the row before a worker ran it; the first one copied it later."""
    start = now - now % 60 - 60
    old.insert(schedule("k", at=start))
    early, late = make_migration(old), make_migration(old)
    pages = [late._source.page(None), []]
    late._source.page = lambda _after: pages.pop(0)
    old.finish(old.claim(now))
    mark = early._source.mark

    def mark_after_the_other(seen):
        early._source.mark = mark
        left = late.run_pass()
        assert (left.changed, store.get("k").status) == (1, MIGRATING)
        return mark(seen)

    early._source.mark = mark_after_the_other
    early.run(0)
    (row,) = moved(store, "k")
    assert row.next_time == start + 60
    assert old.keys == []


# --- other databases -----------------------------------------------------------------


@pytest.mark.parametrize("way", ["out", "in"])
def test_the_tables_may_be_in_two_databases(database, make_migration, tmp_path, now, way):
    file = f"sqlite:///{tmp_path}/other.db"
    theirs, ours = (database.url, file) if way == "out" else (file, database.url)
    target = make_store(ours)
    target.init()
    old = OldTable(theirs)
    with contextlib.closing(old):
        old.create()
        old.insert(*(schedule(f"k{n}", at=now - 60) for n in range(5)))
        migration = make_migration(old, url=ours)
        break_off(migration, MARKED, Killed())
        with pytest.raises(Killed):
            migration.run(0)
        assert make_migration(old, url=ours).run(0).remaining == 0
        assert old.keys == []
        moved(target, *(f"k{n}" for n in range(5)))
    target.disconnect()


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_the_url_of_an_old_database_means_what_it_means_to_sequel(settings, store, now, tmp_path):
    """A path after three slashes is absolute, as in PerfectSched's own configuration."""
    with contextlib.closing(OldTable(f"sqlite:///{tmp_path}/old.db")) as old:
        old.create()
        old.insert(schedule("k", at=now - 60))
        with migration_of("schedules", settings, f"sqlite://{tmp_path}/old.db") as migration:
            assert migration.run(0).remaining == 0
    moved(store, "k")


NO_TLS = {
    "mariadb": ("ssl_disabled=true", "SSL is required but the server doesn't support it"),
    "postgresql": ("sslmode=disable", "server does not support SSL, but SSL was required"),
}
OWN_AUTHORITY = {
    "mariadb": "ssl_ca={}",
    "postgresql": "sslmode=verify-full&sslrootcert={}",
}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=getattr(pytest.mark, kind)) for kind in NO_TLS]
)
def test_an_old_database_is_encrypted_as_ours_unless_its_url_says_otherwise(
    kind, certificates, tmp_path, request
):
    secure = request.getfixturevalue(f"start_{kind}")(certificates=certificates)
    plain = request.getfixturevalue(f"{kind}_server")
    ours, beside, away = (
        server.url(server.create_database()) for server in (secure, secure, plain)
    )
    file = f"sqlite:///{tmp_path}/old.db"
    target = make_store(ours)
    target.init()
    target.disconnect()
    # A claim_strategy for psched's database is not refused because of the old database.
    settings = config.from_mapping(
        {
            "url": ours,
            "ssl_ca": str(certificates.authority),
            "claim_strategy": {"mariadb": "cas", "postgresql": "skip_locked"}[kind],
        }
    )
    for url in (beside, away, file):
        with contextlib.closing(OldTable(url)) as old:
            old.create()
            old.insert(schedule("k", at=LATER))

    def encryption(url):
        with migration_of("schedules", settings, url) as migration:
            assert migration.run_pass(dry=True).ready == 1
            connector = migration._source._connector
            query = connector.dialect.encryption
            return connector.read(lambda c: c.exec_driver_sql(query).one())[-1]

    def is_refused(url, why):
        with (
            pytest.raises(StoreUnavailableError, match=why),
            migration_of("schedules", settings, url),
        ):
            pass

    off, demanded = NO_TLS[kind]
    assert encryption(beside).startswith("TLSv1.")
    is_refused(away, demanded)
    for url in beside, away:
        assert not encryption(f"{url}?{off}")
    own = f"{beside}?{OWN_AUTHORITY[kind]}"
    assert encryption(own.format(certificates.authority)).startswith("TLSv1.")
    is_refused(own.format(certificates.stranger), "certificate verify failed")
    with migration_of("schedules", settings, file) as migration:
        assert migration.run(0).remaining == 0


# --- and back ------------------------------------------------------------------------


MYSQL_WAY = "`CONVERT(data USING utf8mb4)` instead of `data` in the JSON_SET"


@pytest.mark.parametrize(
    ("database", "payload"),
    [
        ("sqlite", "data"),
        ("mariadb", "data"),
        # MySQL accepts only this form.
        ("mariadb", "CONVERT(data USING utf8mb4)"),
    ],
    indirect=["database"],
)
def test_the_way_back_that_is_documented_is_one(old, store, migrate, sql, payload):
    rows = [
        schedule("a", at=LATER, data=b'{"n":1,"type":"t.x"}', timezone="Asia/Tokyo"),
        schedule("b", at=LATER - 60, delay=60, timeout=LATER, data=b'{"type":"b"}'),
    ]
    old.insert(*rows)
    migrate(old)
    moved(store, "a", "b")
    way_back = DOCUMENT.read_text().partition("## Going back")[2].partition("\n## ")[0]
    assert MYSQL_WAY in " ".join(way_back.split())
    code = " ".join(line for line in way_back.splitlines() if line.startswith("    "))
    code = code.replace("(data,", f"({payload},")
    assert payload in code
    for statement in code.split(";")[:-1]:
        sql(statement)
    assert not [*store.rows()]
    for row in rows:
        back = old.rows[row["id"]]
        assert json.loads(back.pop("data")) == json.loads(row.pop("data"))
        assert back == {**row, "timezone": row["timezone"] or "UTC"}


# --- live ----------------------------------------------------------------------------


def test_what_another_migration_moves_between_two_reads_is_not_refused(
    old, store, make_migration, now
):
    old.insert(schedule("k", at=now - 60))
    first, second = make_migration(old), make_migration(old)
    read, others = first._destination.read, [second]

    def read_late(keys):
        if others:
            assert others.pop().run(0).remaining == 0
        return read(keys)

    first._destination.read = read_late
    left = first.run(0)
    assert (left.remaining, left.reasons) == (0, {})
    moved(store, "k")


def move(url, log):
    """Migrate in a separate process while workers run."""
    with migration_of("schedules", config.from_mapping({"url": url})) as migration:
        say("ready")
        wait_until(lambda: Path(log).exists(), what="the first run")
        Path(f"{log}.moving").touch()
        return migration.run(int(HANG_TIMEOUT)).remaining


def test_while_all_workers_run_every_occurrence_runs_once(database, old, tmp_path, now):
    """Every schedule has a backlog, which the workers of both systems run as fast as they can."""
    start = now // 60 * 60 - 20 * 60
    keys = [f"k{n:02}" for n in range(24)]
    old.insert(*(schedule(key, at=start) for key in keys))
    log, end = str(tmp_path / "log"), str(tmp_path / "end")
    with contextlib.ExitStack() as started:
        moves = [started.enter_context(started_isolated(move, database.url, log)) for _ in range(2)]
        for process in moves:
            process.said("ready")
        for worker in new_worker, new_worker, old_worker:
            started.enter_context(started_isolated(worker, database.url, log, end))
        assert [process.result(timeout=HANG_TIMEOUT) for process in moves] == [0, 0]
        last = start + 19 * 60
        wait_until(
            lambda: all(last in runs(log).get(key, ()) for key in keys), what="the last runs"
        )
        (tmp_path / "end").touch()
    assert old.keys == []
    systems = {line.split()[0] for line in (tmp_path / "log").read_text().splitlines()}
    assert systems == {"old", "new"}
    for key, times in runs(log).items():
        assert key in keys
        assert times == [*itertools.islice(itertools.count(start, 60), len(times))]
        assert len(times) >= 20
