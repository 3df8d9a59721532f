"""Tasks that run once, through the Python API."""

import os
import re
import socket
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from sqlalchemy import create_engine, make_url
from sqlalchemy.orm import Session

import psched
from psched import (
    AlreadyExistsError,
    AlreadyFinishedError,
    InvalidError,
    NotFoundError,
    NotSupportedError,
)
from psched.base.clock import SystemClock
from psched.base.errors import StoreUnavailableError, UnknownOutcomeError
from psched.client.collection import ScheduleCollection
from support.stores import make_store
from support.waiting import wait_until

SOON = {"retry_wait": 0}


@pytest.fixture
def row(schedules):
    """Reads a task."""
    return lambda key: schedules[key].metadata()


class TestPushing:
    def test_a_task_is_due_at_once_and_runs_once(self, schedules, row):
        schedules.push("k", "t", {"n": 1})
        assert row("k").status == "waiting"
        task = schedules.poll()
        assert (task.key, task.type, task.data) == ("k", "t", {"n": 1})
        assert row("k").status == "running"
        task.finish()
        assert row("k").status == "finished"
        assert schedules.poll() is None

    def test_not_before_its_time(self, schedules, row, now):
        later = datetime.now(UTC) + timedelta(hours=1)  # noqa: TID251  # what a user would write
        schedules.push("k", run_at=later)
        assert schedules.poll() is None
        assert row("k").next_run_time - now() > 3500

    def test_without_a_key_each_push_makes_a_task_of_its_own_and_tells_its_key(self, schedules):
        first = schedules.push(type="t", data={"n": 1})
        many = schedules.push_many([{"type": "t"}, {"type": "t", "key": "mine"}])
        assert len({first.key, *(each.key for each in many)}) == 3
        assert many[1].key == "mine"
        assert first.metadata().data == {"n": 1}
        assert re.fullmatch("t-[0-9a-z]{24}", first.key)
        assert first.key[:11] <= schedules.push(type="t").key[:11]  # by their times
        first.cancel()
        assert schedules.wait(first.key) == "cancelled"

    def test_its_times_are_datetimes_in_its_time_zone_too(self, schedules, row):
        schedules.push("k", run_at=1_700_000_000, timezone="Asia/Tokyo")
        read = row("k")
        assert read.next_scheduled_at.isoformat() == "2023-11-15T07:13:20+09:00"
        assert read.next_run_at == read.next_scheduled_at
        task = schedules.poll()
        assert task.scheduled_at.isoformat() == "2023-11-15T07:13:20+09:00"
        assert task.scheduled_at.timestamp() == task.scheduled_time
        task.finish()
        assert read.next_scheduled_at == schedules.wait_for_end("k").run.scheduled_at
        assert next(schedules.runs("k")).scheduled_at == task.scheduled_at

    @pytest.mark.parametrize("end", ["waiting", "running", "finished", "cancelled"])
    def test_its_key_is_taken_whatever_became_of_it(self, schedules, end):
        schedules.push("k")
        if end in ("running", "finished"):
            task = schedules.poll()
            if end == "finished":
                task.finish()
        if end == "cancelled":
            schedules["k"].cancel()
        with pytest.raises(AlreadyExistsError, match="'k'"):
            schedules.push("k")

    def test_an_ended_task_is_purged_after_its_time_and_its_key_is_free(self, schedules, row):
        schedules.push("k", retention_time=1)
        schedules.push("kept")
        for _ in range(2):
            schedules.poll().finish()
        wait_until(lambda: schedules._store.purge(10), what="the end of its time")
        assert not schedules["k"].exists()
        assert row("kept").status == "finished"
        schedules.push("k")

    @pytest.mark.parametrize("leased", [False, True])
    @pytest.mark.parametrize("end", ["finish", "cancel", "force_finish", "expire"])
    def test_a_task_that_is_not_retained_frees_its_key_as_it_ends(
        self, schedules, sql, row, end, leased
    ):
        schedules.push("k", retention_time=0, expire=60)
        schedules.push("kept", run_at=4_000_000_000)
        task = schedules.poll() if leased else None
        if end == "expire":
            sql(
                "UPDATE {table} SET created_at = created_at - 61, next_time = next_time - 61,"
                " next_run_time = 0 WHERE id = 'k'"
            )
            assert schedules.poll() is None
        elif end == "finish":
            (task or schedules.poll()).finish()
        else:
            assert getattr(schedules["k"], end)() is not leased
            if leased:
                task.release()
        assert not schedules["k"].exists()
        schedules.push("k")
        assert (row("k").status, row("k").row.fence) == ("waiting", 0)
        assert schedules["kept"].exists()

    @pytest.mark.usefixtures("schedules")
    def test_a_type_and_the_setting_can_say_that_nothing_is_retained(self, settings):
        for own in (
            settings.with_settings(retention_time=0),
            settings.with_settings(types={"t": {"retention_time": 0}}),
        ):
            with psched.open(own) as mine:
                mine.push("k", "t")
                mine.poll().finish()
                assert not mine["k"].exists()
                mine.push("k", "t")
                mine["k"].cancel()
                assert not mine["k"].exists()

    def test_ten_thousand_are_one_call(self, schedules):
        pushed = schedules.push_many({"key": f"k{n}", "data": {"n": n}} for n in range(10_000))
        assert len(pushed) == 10_000
        assert schedules["k9999"].metadata().data == {"n": 9999}

    def test_a_lease_of_its_own_length(self, schedules, row):
        schedules.push("k", timeout=600)
        assert row("k").row.alive_time == 600

    def test_nonsense_is_refused_by_name(self, schedules):
        with pytest.raises(InvalidError, match=r"^max_attempts: "):
            schedules.push("k", max_attempts=-1)
        with pytest.raises(
            InvalidError, match=r"^cron: is for schedules, which run repeatedly; call add, not push"
        ):
            schedules.push("k", cron="@daily")
        with pytest.raises(InvalidError, match=r"^run_at: and next_time say the same; leave one"):
            schedules.push_many([{"key": "k", "run_at": 5, "next_time": 6}])
        with pytest.raises(InvalidError, match=r"^run_at: must be a whole number"):
            schedules.push("k", run_at="tomorrow")
        with pytest.raises(InvalidError, match=r"^timeout: "):
            schedules.push("k", timeout="x")
        with pytest.raises(InvalidError, match=r"^alive_time: "):
            schedules.push("k", alive_time="x")
        with pytest.raises(InvalidError, match=r"^schedules\[1\]\.run_at: "):
            schedules.push_many([{"key": "k"}, {"key": "m", "run_at": "tomorrow"}])
        with pytest.raises(InvalidError, match=r"^schedules\[0\]\.next_time: "):
            schedules.push_many([{"key": "k", "next_time": "tomorrow"}])
        with pytest.raises(NotFoundError, match="no schedule has the key 5"):
            schedules[5].cancel()
        assert not schedules["k"].exists()
        with pytest.raises(InvalidError, match=r"^schedules\[1\]: must be a mapping, not str"):
            schedules.push_many([{"key": "k"}, "other"])


def shut(connection):
    """Break a connection, as a network may."""
    driver = connection.connection.dbapi_connection
    its_file = driver if hasattr(driver, "fileno") else driver._sock
    line = socket.socket(fileno=os.dup(its_file.fileno()))
    with line:
        line.shutdown(socket.SHUT_RDWR)


@pytest.mark.usefixtures("sql")
class TestWithinATransaction:
    @pytest.fixture
    def connect(self, settings, schedules):
        schedules.close()
        engine = create_engine(settings.url)
        yield engine.connect
        engine.dispose()

    def test_a_task_is_there_when_its_callers_transaction_is(self, schedules, connect):
        with connect() as mine, mine.begin() as transaction:
            schedules.push("k", connection=mine)
            transaction.rollback()
        assert not schedules["k"].exists()
        schedules.close()
        with connect() as mine, mine.begin():
            schedules.push("k", connection=mine)
        assert schedules.poll().key == "k"

    def test_a_key_that_is_taken_leaves_the_transaction_as_it_was(self, schedules, connect):
        schedules.push("k")
        schedules.close()
        with connect() as mine, mine.begin():
            schedules.push("other", connection=mine)
            with pytest.raises(AlreadyExistsError):
                schedules.push("k", connection=mine)
        assert schedules["other"].exists()

    def test_a_connection_may_commit_each_statement(self, schedules, connect):
        schedules.push("taken")
        schedules.close()
        with connect().execution_options(isolation_level="AUTOCOMMIT") as mine:
            schedules.push("before", connection=mine)
            with pytest.raises(AlreadyExistsError):
                schedules.push("taken", connection=mine)
            schedules.push("after", connection=mine)
        assert schedules["before"].exists()
        assert schedules["after"].exists()

    def test_it_needs_no_other_connection_and_waits_for_nothing(
        self, schedules, settings, host, connect
    ):
        """The caller's transaction may hold locks that others wait for."""
        here = make_url(settings.url)
        nowhere = here.set(port=1) if here.host else here.set(database="/missing/folder/psched.db")
        store = make_store(nowhere.render_as_string(hide_password=False))
        with (
            ScheduleCollection(store, settings, clock=host, draw_nonce=lambda: "n") as elsewhere,
            connect() as mine,
            mine.begin(),
        ):
            elsewhere.push("now", connection=mine)
            elsewhere.push("later", run_at=4_000_000_000, connection=mine)
            with pytest.raises(AlreadyExistsError):
                elsewhere.push("now", connection=mine)
        assert host.slept == []
        assert 0 <= schedules.now() - schedules["now"].metadata().next_time < 60
        assert schedules["later"].exists()

    def test_a_transaction_that_breaks_is_not_waited_for(
        self, schedules, settings, host, database, connect
    ):
        if database.kind == "sqlite":
            return  # it has no connection that could break
        store = make_store(settings.url)
        with (
            ScheduleCollection(store, settings, clock=host, draw_nonce=lambda: "n") as others,
            connect() as mine,
        ):
            mine.exec_driver_sql("SELECT 1")
            shut(mine)
            with pytest.raises(psched.TransientStoreError):
                others.push("k", connection=mine)
            mine.invalidate()
        assert host.slept == []
        assert not schedules["k"].exists()

    def test_what_is_no_connection_is_refused(self, schedules, settings):
        engine = create_engine(settings.url)
        for other in (engine, Session(engine)):
            with pytest.raises(InvalidError, match=r"^connection: .*session\.connection\(\)"):
                schedules.push("k", connection=other)
        assert not schedules["k"].exists()

    def test_psycopgs_own_transaction_goes_on_after_a_taken_key(
        self, schedules, settings, database
    ):
        if database.kind != "postgresql":
            return
        schedules.push("taken")
        url = make_url(settings.url)
        _, arguments = url.get_dialect()().create_connect_args(url)
        with psycopg.connect(**arguments, autocommit=True) as mine:
            with mine.transaction():
                with pytest.raises(AlreadyExistsError):
                    schedules.push("taken", connection=mine)
                schedules.push("after", connection=mine)
            assert schedules["after"].exists()
            with pytest.raises(AlreadyExistsError):
                schedules.push("taken", connection=mine)

    def test_a_connection_that_cannot_be_used_is_refused(self, schedules, connect, database):
        mine = connect()
        mine.close()
        with pytest.raises(psched.StoreError, match=r"^connection: .*closed"):
            schedules.push("k", connection=mine)
        if database.kind == "postgresql":
            theirs = object.__new__(psycopg.AsyncConnection)
            with pytest.raises(InvalidError, match=r"not psycopg\.AsyncConnection"):
                schedules.push("k", connection=theirs)

    def test_a_connection_to_another_kind_of_database_is_refused(self, schedules, database):
        if database.kind == "sqlite":
            return  # each of the other kinds has its own driver
        other = create_engine("sqlite://")
        with (
            other.connect() as theirs,
            pytest.raises(InvalidError, match=r"^connection: is to sqlite, but"),
        ):
            schedules.push("k", connection=theirs)
        other.dispose()


@pytest.mark.redis
def test_redis_has_no_transaction_to_push_in(open_database):
    with open_database("redis") as database, psched.open({"url": database.url}) as schedules:
        schedules._store.init()
        with pytest.raises(NotSupportedError, match=r"^connection: this store cannot join"):
            schedules.push("k", "t", connection=object())
        assert not schedules["k"].exists()


class TestEnding:
    def test_a_cancelled_task_is_never_delivered(self, schedules, row):
        schedules.push("k")
        assert schedules["k"].cancel() is True
        assert row("k").status == "cancelled"
        assert schedules.poll() is None

    def test_a_running_task_is_marked_and_ends_with_its_attempt(self, schedules, row):
        schedules.push("k", **SOON)
        task = schedules.poll()
        assert schedules["k"].cancel() is False
        assert schedules["k"].cancel() is False
        assert row("k").status == "cancelling"
        task.retry()
        assert row("k").status == "cancelled"
        assert schedules.poll() is None

    def test_a_task_that_completes_before_it_is_stopped_has_finished(self, schedules, row):
        schedules.push("k")
        task = schedules.poll()
        schedules["k"].cancel()
        task.finish()
        assert row("k").status == "finished"

    def test_a_cancelled_schedule_runs_no_more(self, schedules, row):
        schedules.add("k", cron="@hourly", next_time=3600)
        task = schedules.poll()
        schedules["k"].cancel()
        task.finish()
        assert (row("k").status, row("k").row.retain_until) == ("cancelled", None)

    def test_a_task_can_be_finished_by_force(self, schedules, row):
        schedules.push("waits")
        assert schedules["waits"].force_finish() is True
        schedules.push("runs")
        task = schedules.poll()
        assert schedules["runs"].force_finish() is False
        task.release()
        assert {row(key).status for key in ("waits", "runs")} == {"finished"}
        for key in "waits", "runs":
            answer = schedules[key].why()
            assert (answer.code, answer.state) == ("marked_finished", "did not run")

    def test_what_has_ended_cannot_end_again(self, schedules):
        schedules.push("k")
        schedules["k"].cancel()
        for end in (schedules["k"].cancel, schedules["k"].force_finish):
            with pytest.raises(
                AlreadyFinishedError, match="'k' has ended already: it is cancelled"
            ):
                end()

    def test_a_missing_task_cannot_end(self, schedules):
        with pytest.raises(NotFoundError):
            schedules["k"].cancel()

    def test_after_its_last_attempt_it_has_failed_and_is_kept(self, schedules, row):
        schedules.push("k", max_attempts=2, retention_time=0, **SOON)
        for _ in range(2):
            schedules.poll().retry()
        assert row("k").status == "failed"
        assert row("k").reason.startswith("gave up after 2 attempts: ")
        assert schedules._store.purge(10) == 0

    def test_what_has_not_succeeded_in_time_has_expired(self, schedules, row, sql):
        schedules.push("k", expire=60)
        sql("UPDATE {table} SET created_at = created_at - 61, next_time = next_time - 61")
        assert schedules.poll() is None
        assert row("k").status == "expired"

    def test_a_task_that_is_to_run_later_does_not_expire_before(self, schedules, row, now):
        schedules.push("k", expire=1, run_at=int(now()) - 1)
        schedules.push("later", expire=1, run_at=int(now()) + 3600)
        assert row("later").status == "waiting"


class TestRequeueing:
    @pytest.mark.parametrize("end", ["cancel", "force_finish"])
    def test_what_has_ended_runs_again(self, schedules, row, end):
        schedules.push("k")
        getattr(schedules["k"], end)()
        schedules["k"].requeue()
        assert (row("k").status, row("k").row.retain_until) == ("waiting", None)
        assert schedules.poll().attempt == 1

    def test_what_waits_is_not_requeued(self, schedules):
        schedules.push("k")
        with pytest.raises(AlreadyExistsError, match="it is waiting"):
            schedules["k"].requeue()

    def test_what_was_quarantined_goes_on_where_it_stood(self, schedules, row, sql, now):
        missed = int(now()) // 3600 * 3600 - 5 * 3600
        schedules.add("k", cron="@hourly", next_time=missed)
        sql("UPDATE {table} SET data = '['")
        assert schedules.poll() is None
        sql("UPDATE {table} SET data = '{}'")
        schedules["k"].requeue()
        assert row("k").next_time == missed
        assert schedules.poll().scheduled_time == missed

    def test_a_recurring_schedule_goes_on_at_its_next_scheduled_time(self, schedules, row, now):
        schedules.add("k", cron="@hourly")
        schedules["k"].cancel()
        schedules["k"].requeue(run_at=int(now()) + 1)
        assert row("k").next_run_time == row("k").next_time > now()
        assert row("k").next_time % 3600 == 0

    def test_it_can_be_put_off(self, schedules, row, now):
        schedules.push("k")
        schedules["k"].cancel()
        schedules["k"].requeue(run_at=int(now()) + 3600)
        assert schedules.poll() is None
        assert row("k").status == "waiting"


class TestStatusesBySql:
    """Only plain SQL sets a status without a new version."""

    def test_a_running_task_that_is_cancelled_is_not_tried_again(self, schedules, row, sql):
        schedules.push("k", retry_wait=0)
        task = schedules.poll()
        sql("UPDATE {table} SET status = 'cancelled'")
        with pytest.raises(TimeoutError, match="'k' is still cancelled"):
            schedules["k"].wait(timeout=0.1)  # it is still running
        task.retry()
        assert schedules["k"].wait(timeout=1) == "cancelled"
        assert schedules.poll() is None
        assert (row("k").next_run_time, row("k").row.owner) == (None, None)
        schedules["k"].requeue()
        assert schedules.poll().attempt == 1

    @pytest.mark.parametrize("leased", [False, True])
    def test_one_that_is_paused_rests_until_it_is_requeued(self, schedules, row, sql, now, leased):
        missed = int(now()) // 3600 * 3600 - 5 * 3600
        schedules.add("k", cron="@hourly", next_time=missed)
        task = schedules.poll() if leased else None
        sql("UPDATE {table} SET status = 'paused'")
        if leased:
            task.finish()
        assert schedules.poll() is None
        schedules["k"].modify(data={"n": 1})
        assert (row("k").status, row("k").next_run_time) == ("paused", None)
        assert schedules["k"].next() == []
        schedules["k"].requeue()
        assert row("k").next_time == missed + 3600 * leased
        assert schedules.poll().data == {"n": 1}


class TestWaiting:
    def test_the_outcome_is_told(self, schedules):
        schedules.push("k")
        schedules.poll().finish()
        assert schedules["k"].wait(timeout=1) == "finished"

    def test_it_is_waited_for_no_longer_than_asked(self, schedules):
        schedules.push("k")
        with pytest.raises(TimeoutError, match="'k' is still waiting"):
            schedules["k"].wait(timeout=0.1)

    @pytest.mark.parametrize("timeout", [0, 0.1, "0.1s", timedelta(milliseconds=100), -1])
    def test_a_duration_can_have_a_unit(self, schedules, timeout):
        schedules.push("k")
        for wait in schedules["k"].wait, schedules["k"].wait_for_end:
            with pytest.raises(TimeoutError):
                wait(timeout)

    @pytest.mark.parametrize("timeout", [float("nan"), "soon", True, [1]])
    def test_what_is_no_duration_is_refused(self, schedules, timeout):
        schedules.push("k")
        for wait in schedules["k"].wait, schedules["k"].wait_for_end:
            with pytest.raises(InvalidError, match=r"^timeout: must be a number of seconds, or"):
                wait(timeout)

    def test_a_task_that_is_not_retained_leaves_nobody_waiting(self, settings, schedules):
        class Hurried(SystemClock):
            def sleep(self, _seconds):
                schedules.poll().finish()

        schedules.push("k", retention_time=0)
        store = make_store(settings.url)
        with (
            ScheduleCollection(store, settings, clock=Hurried(), draw_nonce=str) as mine,
            pytest.raises(NotFoundError, match="its retention_time is 0"),
        ):
            mine["k"].wait()

    def test_a_store_that_goes_away_meanwhile_is_waited_for(self, settings, schedules):
        store = make_store(settings.url)
        get, looks = store.get, []

        def away_for_a_while(key):
            looks.append(key)
            if 1 < len(looks) < 20:
                raise StoreUnavailableError("the server restarts")
            if len(looks) == 20:
                schedules.poll().finish()
            return get(key)

        class Hurried(SystemClock):
            def sleep(self, _seconds):
                pass

        store.get = away_for_a_while
        schedules.push("k")
        with ScheduleCollection(store, settings, clock=Hurried(), draw_nonce=str) as mine:
            assert mine["k"].wait() == "finished"

    def test_a_schedule_comes_to_no_end(self, schedules):
        schedules.add("k", cron="@daily")
        with pytest.raises(InvalidError, match="never ends"):
            schedules["k"].wait(timeout=0.1)


class TestAnswersThatAreLost:
    """A write whose answer was lost is not made twice."""

    @pytest.fixture
    def unanswered(self, settings, schedules):
        """A collection whose first change is applied but not answered; then something happens."""

        def make(meanwhile):
            store = make_store(settings.url)
            replace, said, happened = store.replace, [], []

            def lost(seen, new):
                done = replace(seen, new)
                if not said:
                    said.append(done)
                    raise UnknownOutcomeError("the answer was lost")
                return done

            store.replace = lost

            class Meanwhile(SystemClock):
                def sleep(self, seconds):
                    # It can also wait because the server is slow.
                    if said and not happened:
                        happened.append(meanwhile(schedules))
                    else:
                        super().sleep(seconds)

            return ScheduleCollection(store, settings, clock=Meanwhile(), draw_nonce=lambda: "n")

        return make

    @pytest.mark.parametrize("end", ["finish", "retry"])
    def test_what_was_requeued_and_has_run_by_now_runs_no_second_time(
        self, schedules, row, unanswered, end
    ):
        schedules.push("k", max_attempts=1)
        schedules.poll().retry()
        with unanswered(lambda others: getattr(others.poll(), end)()) as mine:
            mine["k"].requeue()
        assert row("k").status == {"finish": "finished", "retry": "failed"}[end]
        assert schedules.poll() is None

    def test_what_was_cancelled_and_not_retained_is_gone(self, settings, schedules):
        store = make_store(settings.url)
        delete, said = store.delete, []

        def lost(key):
            said.append(delete(key))
            raise UnknownOutcomeError("the answer was lost")

        store.delete = lost
        schedules.push("k", retention_time=0)
        with ScheduleCollection(store, settings, clock=SystemClock(), draw_nonce=str) as mine:
            assert mine["k"].cancel() is True
        assert said == [True]
        assert not schedules["k"].exists()

    def test_what_was_cancelled_stays_so(self, row, schedules, unanswered):
        schedules.push("k")
        with unanswered(lambda _: None) as mine:
            assert mine["k"].cancel() is True
        assert row("k").status == "cancelled"

    def test_what_was_requeued_and_then_cancelled_stays_cancelled(self, schedules, row, unanswered):
        schedules.push("k")
        schedules["k"].cancel()
        with unanswered(lambda others: others["k"].cancel()) as mine:
            mine["k"].requeue()
        assert row("k").status == "cancelled"
