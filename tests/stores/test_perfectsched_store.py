"""Tests of the store on PerfectSched's table, and of other clients that write to the table."""

import gzip
import itertools
import json
import random
from dataclasses import replace as changed
from functools import partial

import pytest

from psched import config
from psched.app import create_store
from psched.base.clock import SystemClock
from psched.base.errors import (
    ConfigError,
    InvalidError,
    NotFoundError,
    NotSupportedError,
    StoreUnavailableError,
)
from psched.client.collection import ScheduleCollection
from psched.contrib.perfectsched.store.rows import LATEST, NEVER, split_data
from psched.core.catchup import iso
from psched.core.columns import raw_data
from psched.core.declare import redeclare
from psched.core.model import FINISHED, Finish, Release, Retry
from psched.core.policy import Run, after_claim, after_run
from psched.core.settling import Ending
from psched.core.store_protocol import Settled
from psched.testing.store_contract.bench import (
    LEASE,
    LONG_AGO,
    add,
    claim,
    due,
    ending,
    found,
    leased,
    payload,
)
from support.compat import compat_factory
from support.settling import settle

pytestmark = pytest.mark.empty

HOUR = 3600
INSERT = (
    "INSERT INTO {table} (id, timeout, next_time, cron, delay, data, timezone)"
    " VALUES (:id, :timeout, :next_time, :cron, :delay, :data, :timezone)"
)
"""The statement by which PerfectSched inserts a schedule."""


@pytest.fixture
def open_store(database):
    with compat_factory(database.url) as factory:
        factory().init()
        yield factory


@pytest.fixture
def settings(database):
    return config.from_mapping({"url": database.url, "type": "rdb_compat", "table": "psched"})


@pytest.fixture
def collection(settings):
    """A function that creates a `ScheduleCollection` on a store."""
    return lambda store: ScheduleCollection(
        store, settings, clock=SystemClock(), draw_nonce=lambda: "n"
    )


@pytest.fixture
def row(sql):
    """A function that reads the row with the key ``k``."""

    def read():
        (stored,) = sql("SELECT timeout, next_time, cron, delay, data FROM {table} WHERE id = 'k'")
        return stored

    return read


def insert(sql, key="k", **columns):
    values = {
        "id": key,
        "timeout": LONG_AGO,
        "next_time": LONG_AGO,
        "cron": "* * * * *",
        "delay": 0,
        "data": b'{"type":"t","n":1}',
        "timezone": None,
    }
    sql(INSERT, **{**values, **columns})


def extended(store, row):
    return store.extend({row.key: row.token}, alive_time=LEASE, shortest=1) == {row.key}


# --- the table ---------------------------------------------------------------------------


def test_a_row_of_perfectscheds_is_read_as_perfectsched_meant_it(store, sql):
    insert(sql, "report.daily", delay=30, data=b'{"n":1}', timeout=LONG_AGO + 30)
    (held,) = claim(store, "w.1").rows
    assert (held.key, held.type, payload(held.data)) == ("report.daily", "report", '{"n":1}')
    assert (held.cron, held.timezone, held.delay) == ("* * * * *", "UTC", 30)
    assert (held.next_time, held.attempt) == (LONG_AGO, 1)


def test_what_is_added_is_as_perfectsched_would_have_added_it(store, row):
    store.add([due("k", type="t", data='{"n":1}', timezone="Asia/Tokyo", delay=5)], nonce="n")
    assert row()[:4] == (LONG_AGO, LONG_AGO, "* * * * *", 5)
    assert json.loads(row()[4]) == {"n": 1, "type": "t"}


STORED = {
    "bytes": (b'{"type":"t","a":[1,"\xc3\xa9"]}', "t", '{"a":[1,"é"]}'),
    "text": ('{"type":"t"}', "t", "{}"),
    "no type": (b'{"a":1}', "report", '{"a":1}'),
    "empty type": (b'{"type":"","a":1}', "report", '{"a":1}'),
    "null for a type": (b'{"type":null}', "report", "{}"),
    "number for a type": (b'{"type":7}', "report", "{}"),
    "gzip": (gzip.compress(b'{"type":"t","a":1}'), "t", '{"a":1}'),
    "nothing": (b"", "report", "{}"),
    "null": (None, "report", "{}"),
}


@pytest.mark.parametrize(("stored", "kind", "data"), STORED.values(), ids=STORED)
def test_the_type_is_inside_the_data(stored, kind, data):
    assert split_data("report.daily.eu", stored) == (kind, data, None)


NO_OBJECTS = {
    "cut gzip": gzip.compress(b'{"type":"t"}')[:-9],
    "broken gzip": b"\x1f\x8b no gzip",
    "huge gzip": gzip.compress(b" " * 2**27),
    "half an object": b"{",
    "list": b"[1]",
    "no text": b"\xff\xfe",
    "depth": b"[" * 100_000,
}


@pytest.mark.parametrize("stored", NO_OBJECTS.values(), ids=NO_OBJECTS)
def test_a_payload_that_is_no_object_is_carried_and_kept_when_the_row_is_changed(
    store, sql, stored
):
    insert(sql, "report.eu", data=stored)
    row = store.get("report.eu")
    assert (row.type, raw_data(row)) == ("report", stored)
    assert store.replace(row, changed(row, delay=5))
    row = store.get("report.eu")
    assert (row.delay, raw_data(row)) == (5, stored)
    with pytest.raises(InvalidError, match="type: is kept inside the data"):
        store.replace(row, changed(row, type="other"))
    # A payload that is an object replaces it.
    assert store.replace(row, changed(row, type="other", data='{"n":1}'))
    row = store.get("report.eu")
    assert (row.type, row.data, row.options) == ("other", '{"n":1}', None)


@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
def test_the_table_is_made_as_perfectsched_makes_it(store, sql):
    assert store.init() == []
    columns = sql(
        "SELECT column_name, column_type, is_nullable FROM information_schema.columns"
        " WHERE table_schema = DATABASE() AND table_name = 'psched' ORDER BY ordinal_position"
    )
    assert [tuple(column) for column in columns] == [
        ("id", "varchar(255)", "NO"),
        ("timeout", "int(11)", "NO"),
        ("next_time", "int(11)", "NO"),
        ("cron", "varchar(128)", "NO"),
        ("delay", "int(11)", "NO"),
        ("data", "longblob", "NO"),
        ("timezone", "varchar(255)", "YES"),
    ]
    (index,) = sql("SHOW INDEX FROM {table} WHERE Key_name <> 'PRIMARY'")
    assert (index.Key_name, index.Column_name) == ("index_psched_on_timeout", "timeout")


def test_a_table_that_is_there_keeps_all_but_for_a_missing_index(store, sql, database):
    insert(sql)
    sql("DROP INDEX index_psched_on_timeout" + (" ON {table}" * (database.kind == "mariadb")))
    assert [*store.init()] == ["created index index_psched_on_timeout"]
    assert found(store, "k").type == "t"


def test_a_long_table_is_listed_whole_and_in_order(store, sql):
    with sql.session() as execute:
        execute("BEGIN")
        for number in range(1234):
            insert(execute, f"k{number}", timeout=LONG_AGO + (number > 700))
        execute("COMMIT")
    listed = [(row.next_run_time, row.key) for row in store.rows()]
    assert listed == sorted(listed)
    assert len({key for _, key in listed}) == 1234


@pytest.mark.parametrize(
    ("refused", "field"),
    [
        ({"cron": None}, "cron"),
        ({"alive_time": 60}, "alive_time"),
        ({"options": '{"catchup":"skip"}'}, "catchup"),
    ],
)
def test_what_the_table_has_no_place_for_is_refused_by_name(store, refused, field):
    with pytest.raises(NotSupportedError, match=f"^{field}: "):
        store.add([due("a"), due("b", **refused)], nonce="n")
    assert store.get("a") is None


@pytest.mark.parametrize("column", ["next_time", "next_run_time", "delay"])
def test_a_time_beyond_its_columns_is_refused(store, column):
    with pytest.raises(InvalidError, match=f"^{column}: "):
        store.add([changed(due("a"), **{column: LATEST + 1})], nonce="n")
    store.add([changed(due("a"), **{column: LATEST})], nonce="n")


@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
def test_a_key_that_the_database_takes_for_the_same_is_left_alone(store):
    add(store, "k")
    with pytest.raises(NotFoundError):
        store.delete("K")
    assert store.get("K") is None
    assert store.look(["K", "k"]).keys() == {"k"}


@pytest.mark.parametrize(
    "setting", [{"max_attempts": 3}, {"retry_backoff": "exponential"}], ids=str
)
def test_what_would_need_a_count_of_attempts_is_refused_by_name(store, sql, collection, setting):
    insert(sql)
    (name,) = setting
    for request in (
        partial(collection(store).add, "new", cron="@daily"),
        partial(collection(store).modify, "k"),
    ):
        with pytest.raises(InvalidError, match=f"^{name}: PerfectSched's table does not count"):
            request(**setting)


def test_a_url_that_cannot_be_used_is_refused_by_name():
    """The error names the setting, although psched creates this store by its import path."""
    url = "mysql://db/x?read_timeout=soon"
    settings = config.from_mapping({"url": url, "type": "rdb_compat", "table": "psched"})
    with pytest.raises(ConfigError, match=r"^url: "):
        create_store(settings, clock=SystemClock(), rng=random.Random())  # noqa: S311  # jitter


def test_no_folder_is_made_for_a_database_that_is_somewhere_else(tmp_path):
    with (
        compat_factory(f"sqlite:///{tmp_path}/elsewhere/sched.db") as open_store,
        pytest.raises(StoreUnavailableError, match="no database at "),
    ):
        open_store().init()
    assert not [*tmp_path.iterdir()]


# --- the next occurrence -----------------------------------------------------------------


def test_no_timeout_comes_back_with_another_occurrence(store, sql, row):
    """Otherwise, a worker that has read the row before a settle could claim it after the settle."""
    insert(sql)
    times = []
    for number in range(1, 6):
        times.append(tuple(row()[:2]))
        (held,) = claim(store, f"w.{number}").rows
        following = LONG_AGO + number * 60
        end = ending(held, next_time=following, not_before=following)
        assert store.settle([end]) == {"k": Settled.DONE}
    assert times == [(LONG_AGO + n * 60,) * 2 for n in range(5)]
    for timeout, _ in times:
        # PerfectSched's workers claim by this condition.
        sql("UPDATE {table} SET timeout = 7 WHERE id = 'k' AND timeout = :seen", seen=timeout)
    assert row()[0] == LONG_AGO + 300


def test_only_an_occurrence_that_nobody_has_had_is_judged_by_the_catch_up_policy(
    store, sql, settings
):
    skipping = settings.with_settings(catchup="skip")
    insert(sql, "fresh")
    insert(sql, "tried", timeout=LONG_AGO + 300)
    fresh, tried = sorted(claim(store, "w.1").rows, key=lambda held: held.key)
    now = store.now()
    assert not isinstance(after_claim(fresh, skipping, now), Run)
    assert isinstance(after_claim(tried, skipping, now), Run)
    # After a retry or a release, every worker can tell that the occurrence was leased before.
    for decision in Retry(0), Release():
        store.settle([after_run(tried, tried, decision, settings)])
        sql("UPDATE {table} SET timeout = timeout - 400 WHERE id = 'tried'")
        (tried,) = [held for held in claim(store, "w.2").rows if held.key == "tried"]
        assert isinstance(after_claim(tried, skipping, now), Run)


def test_each_claim_has_a_greater_fence(store, sql):
    insert(sql)
    fences = []
    for number in range(4):
        (held,) = claim(store, f"w.{number}").rows
        fences.append(held.fence)
        following = LONG_AGO + (number + 1) * 60
        store.settle([ending(held, next_time=following, not_before=following)])
    assert fences == sorted(set(fences))


def test_what_goes_beyond_the_end_of_its_columns_rests(store, sql, row, caplog):
    insert(sql)
    (held,) = claim(store, "w.1").rows
    end = ending(held, next_time=LATEST + 60, not_before=LATEST + 60)
    assert store.settle([end]) == {"k": Settled.DONE}
    assert row()[:2] == (NEVER, LONG_AGO)
    resting = found(store, "k")
    assert (resting.status, resting.next_run_time) == (FINISHED, None)
    assert "k: is put at rest: the table holds no time after January 2038" in caplog.text


# --- beside others -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "theirs",
    [
        # Another worker has claimed the row, or extends a lease that it has lost.
        "UPDATE {table} SET timeout = timeout + 7",
        # Another worker has finished the occurrence.
        "UPDATE {table} SET timeout = next_time + 60, next_time = next_time + 60",
        "UPDATE {table} SET next_time = next_time + 60",
    ],
)
def test_whatever_another_worker_has_written_is_a_lost_lease(store, sql, row, theirs):
    insert(sql)
    (held,) = claim(store, "w.1").rows
    sql(theirs)
    before = row()
    assert not store.held("w.1", ["k"])
    assert not store.update_data("k", held.token, "{}")
    assert store.settle([ending(held)]) == {"k": Settled.PREEMPTED}
    assert not extended(store, held)
    assert row() == before


def test_a_definition_that_perfectsched_modifies_is_found_out_at_the_settle(store, sql, row):
    insert(sql)
    (held,) = claim(store, "w.1").rows
    sql("UPDATE {table} SET cron = '0 * * * *' WHERE id = 'k'")
    assert extended(store, held)
    end = ending(held, next_time=LONG_AGO + 60)
    assert store.settle([end]) == {"k": Settled.REDEFINED}
    now = found(store, "k")
    assert (now.token, now.cron) == (held.token, "0 * * * *")
    assert store.settle([ending(now, next_time=3600)]) == {"k": Settled.DONE}
    assert row()[1] == 3600


def test_a_row_that_is_deleted_while_it_is_held_is_gone_at_once(open_store):
    worker, person = open_store(), open_store()
    held = leased(worker, "k")
    assert person.delete("k")
    assert not extended(worker, held)
    assert worker.settle([ending(held)]) == {"k": Settled.PREEMPTED}


def test_another_instance_knows_nothing_of_a_lease(open_store):
    held = leased(open_store(), "k")
    other = open_store()
    assert not extended(other, held)
    assert not other.held("worker.1", ["k"])
    assert other.recover("worker", alive_time=LEASE, retry_wait=1) == ()
    assert found(other, "k").owner is None


def test_a_payload_is_replaced_and_the_type_stays(store, sql, row):
    insert(sql)
    (held,) = claim(store, "w.1").rows
    assert store.update_data("k", held.token, '{"n":2,"type":"another"}')
    assert json.loads(row()[4]) == {"n": 2, "type": "t"}


def test_a_definition_is_changed_under_a_lease_but_its_times_are_not(open_store, row):
    worker, person = open_store(), open_store()
    held = leased(worker, "k")
    times = row()[:2]
    seen = found(person, "k")
    moved = changed(seen, cron="@daily", next_time=LONG_AGO + 60, next_run_time=LONG_AGO + 60)
    assert person.replace(seen, moved)
    assert (row()[:2], row()[2]) == (times, "@daily")
    assert extended(worker, held)
    seen = found(person, "k")
    with pytest.raises(NotSupportedError, match=r"^next_time: 'k' may be running"):
        person.replace(seen, changed(seen, next_time=LONG_AGO + 60))


WAITING = {
    "its time is still to come, and it runs later": {"next_time": 40, "timeout": 100},
    "it was put off by a day": {"next_time": -HOUR, "timeout": 24 * HOUR},
    "PerfectSched has made its delay longer": {"next_time": 40, "timeout": 40, "delay": 600},
}
"""By description, the times of a row that nobody has leased, in seconds from now."""


@pytest.mark.parametrize("waits", WAITING.values(), ids=WAITING)
def test_a_row_that_waits_is_not_taken_for_one_that_runs(store, sql, row, collection, waits):
    now = int(store.now())
    delay = waits.get("delay", 0)
    times = {"next_time": now + waits["next_time"], "timeout": now + waits["timeout"]}
    insert(sql, **times, delay=delay)
    collection(store).modify("k", cron="0 0 1 1 *")
    timeout, next_time = row()[:2]
    assert next_time > now + waits["next_time"]
    assert timeout == next_time + delay
    sql("UPDATE {table} SET next_time = :next_time, timeout = :timeout", **times)
    collection(store).modify("k", cron="* * * * *", next_time=LONG_AGO)
    assert row()[1] == LONG_AGO + 20  # the first minute after the change
    sql("UPDATE {table} SET next_time = :next_time, timeout = :timeout", **times)
    collection(store).modify("k", next_time=LONG_AGO + 60)
    assert row()[:2] == (LONG_AGO + 80 + delay, LONG_AGO + 80)


def test_the_next_occurrence_cannot_be_run_before_its_time(store, sql, row, collection):
    now = int(store.now())
    insert(sql, next_time=now + HOUR, timeout=now + HOUR)
    with pytest.raises(InvalidError, match="take the place of the scheduled run"):
        collection(store).modify("k", next_run_time=now)
    assert row()[:2] == (now + HOUR, now + HOUR)


def test_a_first_run_that_was_added_with_an_earlier_time_takes_its_place(
    open_store, row, collection
):
    worker, person = open_store(), open_store()
    now = int(worker.now())
    schedules = collection(person)
    schedules.add("k", "t", cron="0 0 1 1 *", next_time=now + 2 * HOUR, next_run_time=now)
    timeout, first = row()[:2]
    assert timeout == now < first
    (held,) = claim(worker, "w.1").rows
    assert held.next_time == first
    with pytest.raises(NotSupportedError, match=r"^next_time: 'k' may be running"):
        schedules.modify("k", next_time=first + HOUR)
    assert extended(worker, held)


def test_who_may_not_be_changed_is_told_until_when(open_store, row, collection):
    worker, person = open_store(), open_store()
    leased(worker, "k")
    until = iso(row()[0])
    with pytest.raises(NotSupportedError, match=f"^next_time: 'k' may be running until {until}, "):
        collection(person).modify("k", next_time=LONG_AGO)
    collection(person).modify("k", cron="@daily")
    assert (row()[1], row()[2]) == (LONG_AGO, "@daily")


def test_what_ends_later_than_any_lease_is_none(database, sql, collection):
    with compat_factory(database.url, alive_time=HOUR) as factory:
        patient = factory()
        patient.init()
        insert(sql, timeout=int(patient.now()) + HOUR)
        with pytest.raises(NotSupportedError, match=r"^next_time: 'k' may be running"):
            collection(patient).modify("k", next_time=LONG_AGO)
    with compat_factory(database.url, alive_time=6) as factory:
        collection(factory()).modify("k", next_time=LONG_AGO)


def test_a_trigger_that_perfectsched_modifies_under_a_task_drops_no_backlog(
    store, sql, row, settings, caplog
):
    insert(sql, cron="*/10 * * * *", timeout=LONG_AGO + 200, next_time=LONG_AGO + 200)
    (held,) = claim(store, "w.1").rows
    sql("UPDATE {table} SET cron = '*/15 * * * *'")
    # The old trigger's next occurrence also runs, because it can have been due before the change.
    assert settle(store, [Ending(held, Finish())], settings) == {"k": Settled.DONE}
    assert row()[:3] == (LONG_AGO + 800, LONG_AGO + 800, "*/15 * * * *")
    assert "k: while 2001-09-09T01:50:00Z ran, its trigger was changed from '*/10" in caplog.text
    assert "it goes on with 2001-09-09T02:00:00Z" in caplog.text


# --- what cannot be understood -------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        ({"cron": "61 * * * *"}, "cron: minute '61' is refused by PerfectSched's workers"),
        ({"cron": "0 0 * * 5-7"}, "cron: day of week '5-7' is refused"),
        ({"timezone": "Mars/Olympus"}, "timezone: "),
        ({"delay": -5}, "delay: "),
    ],
)
def test_a_row_that_makes_no_sense_is_put_off_by_an_hour(store, sql, settings, caplog, wrong):
    columns, reason = wrong
    insert(sql, **columns)
    (held,) = claim(store, "w.1").rows
    before = store.now()
    assert store.settle([after_claim(held, settings, before)]) == {"k": Settled.DONE}
    kept = found(store, "k")
    assert before - 1 + HOUR < kept.next_run_time <= store.now() + HOUR
    assert kept.next_time == LONG_AGO
    assert f"k: put off by an hour: {reason}" in caplog.text


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_time_that_is_no_number_is_put_off_too(store, sql, row, settings):
    insert(sql, next_time="tomorrow")
    insert(sql, "good")
    rows = {held.key: held for held in claim(store, "w.1").rows}
    verdicts = {key: after_claim(held, settings, 60) for key, held in rows.items()}
    assert isinstance(verdicts["good"], Run)
    assert store.settle([verdicts["k"]]) == {"k": Settled.DONE}
    assert row()[1] == "tomorrow"


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_rows_whose_names_are_no_text_do_not_stand_in_the_way(store, sql):
    nameless = "INSERT INTO {table} VALUES (CAST(:id AS TEXT), 0, 0, '@daily', 0, '', NULL)"
    for number in range(3):
        sql(nameless, id=bytes([255, number]))
    insert(sql, "good")
    taken = itertools.chain.from_iterable(claim(store, f"w.{n}", limit=1).rows for n in range(3))
    assert [held.key for held in taken] == ["good"]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_timeout_that_is_no_number_is_nobodys_and_can_be_mended(sql, store, settings):
    held = leased(store, "k")
    sql("UPDATE {table} SET timeout = 'soon'")
    assert store.held("worker.1", ["k"]) == []
    assert store.settle([ending(held)]) == {"k": Settled.PREEMPTED}
    seen = found(store, "k")
    assert not claim(store, "w.2").rows
    new = redeclare(seen, {"next_run_time": LONG_AGO}, settings, lambda: LONG_AGO)
    assert store.replace(seen, new)
    assert len(claim(store, "w.3").rows) == 1
