"""`psched.testing.Schedules`: a real store, whose time a test moves, and the runs of its tasks."""

import sqlite3
import threading
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import psched
from psched.application import Dispatch
from psched.base.errors import InvalidError, LoadError, NotFoundError
from psched.testing import Schedules

NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
def app():
    return psched.App(url="sqlite:////nowhere/psched.db")


def at(moment):
    return datetime.fromtimestamp(moment, UTC).strftime("%d %H:%M:%S")


def test_schedules_run_at_their_times_in_order():
    seen = []

    def note(task):
        seen.append((task.key, at(task.scheduled_time), at(schedules.clock.wall())))

    with Schedules({"note": note}, timezone="Asia/Tokyo") as schedules:
        schedules.add("nightly", "note", cron="30 2 * * *")
        schedules.add("often", "note", every="10h", next_time=NOW)
        assert schedules.now() == NOW.timestamp()
        runs = schedules.run_due(NOW + timedelta(hours=20))
        assert schedules.now() == (NOW + timedelta(hours=20)).timestamp()
        assert schedules.run_due() == []
        assert [run.outcome for run in schedules.run_due(timedelta(days=1))] == ["finished"] * 3

    assert len(runs) == 4
    assert {scheduled == ran for _, scheduled, ran in seen} == {True}
    assert [(key, ran) for key, _, ran in seen] == [
        ("often", "01 00:00:00"),
        ("often", "01 10:00:00"),
        ("nightly", "01 17:30:00"),
        ("often", "01 20:00:00"),
        ("often", "02 06:00:00"),
        ("often", "02 16:00:00"),
        ("nightly", "02 17:30:00"),
    ]


def test_what_tasks_push_is_run_too(app):
    sent = []

    @app.task("mail")
    def mail(to):
        sent.append((to, at(schedules.now())))

    @app.task("report")
    def report(names):
        for name in names:
            mail.options(delay="1m").push(to=name)

    with Schedules(app) as schedules:
        report.push(["ann", "bob"])
        assert [each.data for each in schedules.pushed()] == [{"names": ["ann", "bob"]}]
        assert schedules.pushed("mail") == []
        [run] = schedules.run_due()
        assert run.task.type == "report"
        assert [each.data["to"] for each in schedules.pushed("mail")] == ["ann", "bob"]
        assert sent == []
        schedules.run_due(timedelta(seconds=59))
        assert sent == []
        schedules.run_due(timedelta(seconds=1))
        assert sorted(sent) == [("ann", "01 00:01:00"), ("bob", "01 00:01:00")]
        assert len(schedules.pushed("mail")) == 2  # those that have run, too


def test_a_failure_is_raised_or_tried_again_by_the_usual_policy(app):
    attempts = []

    @app.task("fails", max_attempts=3, retry_wait="10m")
    def fails(task):
        attempts.append((task.attempt, at(schedules.now())))
        raise ValueError("no")

    with Schedules(app) as schedules:
        task = fails.push()
        with pytest.raises(ValueError, match="no"):
            schedules.run_due()
        assert task.metadata().row.status == "waiting"
        runs = schedules.run_due(timedelta(hours=1), catch_exceptions=True)
        assert [type(run.error) for run in runs] == [ValueError, ValueError]
        end = task.wait_for_end()
        assert (end.status, end.reason) == ("failed", "gave up after 3 attempts: ValueError: no")
        history = [(run.attempt, run.outcome) for run in task.runs()]
        assert sorted(history) == [(1, "failed"), (2, "failed"), (3, "failed")]
    assert [attempt for attempt, _ in attempts] == [1, 2, 3]
    assert attempts[0][1] == "01 00:00:00"
    assert "01 00:10:00" <= attempts[1][1] < "01 00:10:02"


def test_a_decision_of_the_task_is_carried_out_when_its_handler_has_ended():
    def decides(task):
        if task.attempt == 1:
            task.retry(5)
        elif task.data.get("stage") != 2:
            task.update_data({"stage": 2})
            task.release()
            assert task.schedules["k"].metadata().status == "running"
        else:
            task.finish()
            task.result = {"stage": task.data["stage"]}  # is kept, as in a worker
            task.schedules.push("next", "other")

    with Schedules({"t": decides, "other": lambda: None}) as schedules:
        task = schedules.push("k", "t")
        runs = schedules.run_due(timedelta(minutes=1))
        assert [(run.task.key, run.outcome) for run in runs] == [
            *(("k", "failed"), ("k", "released"), ("k", "finished"), ("next", "finished"))
        ]
        assert task.wait_for_end().result == {"stage": 2}
        assert task.metadata().data == {"stage": 2}


def test_a_wait_runs_what_is_due_until_the_task_has_ended(app):
    @app.task("slow")
    def slow():
        return 7

    with Schedules(app, result="return") as schedules:
        schedules.add("every", "slow", every="1m")
        task = slow.options(delay="1h").push()
        with pytest.raises(TimeoutError):
            task.wait(timeout=60)
        assert task.wait_for_end().result == 7
        assert schedules.now() == (NOW + timedelta(hours=1)).timestamp()
        with pytest.raises(InvalidError, match="never ends"):
            schedules["every"].wait()
        with pytest.raises(NotFoundError):
            schedules["none"].wait()
        paused = slow.push()
        paused.pause()
        with pytest.raises(TimeoutError, match="still paused"):
            paused.wait()


def test_a_pause_that_ends_within_the_span_is_over(app):
    @app.task("a")
    def a():
        pass

    with Schedules(app) as schedules:
        schedules.add("k", "a", cron="*/10 * * * *")
        task = a.push()
        schedules["k"].pause(until=timedelta(minutes=25))
        task.pause(until=timedelta(minutes=5))
        runs = schedules.run_due(timedelta(minutes=30))
        assert [(run.task.key, run.task.scheduled_time - NOW.timestamp()) for run in runs] == [
            (task.key, 0),
            ("k", 1800),
        ]


def test_what_the_pause_of_a_type_has_held_runs_when_it_ends(app):
    @app.task("a")
    def a():
        pass

    with Schedules(app) as schedules:
        now = int(schedules.now())
        schedules.add("k", "a", cron="* * * * *", next_time=now)
        schedules.pause_type("a", until=now + 1)
        assert schedules.next("k", 1)[0].run_at == now + 1
        [run] = schedules.run_due(timedelta(seconds=1))
        assert (run.task.scheduled_time, schedules.now()) == (now, now + 1)


def test_paused_types_do_not_run_and_do_not_stop_others(app):
    ran = []

    @app.task("a")
    def a():
        ran.append("a")

    @app.task("b")
    def b():
        ran.append("b")

    with Schedules(app) as schedules:
        schedules.pause_type("a")
        a.push()
        b.options(delay=5).push()
        schedules.run_due(timedelta(minutes=1))
        assert ran == ["b"]
        schedules.resume_type("a")
        schedules.run_due()
        assert ran == ["b", "a"]


def test_expired_tasks_do_not_run(app):
    @app.task("late", expire="1h")
    def late():
        raise AssertionError

    with Schedules(app) as schedules:
        task = late.push()
        schedules.clock.advance(7200)
        assert schedules.run_due() == []
        assert task.wait() == "expired"


def test_handlers_are_a_dispatch_or_a_mapping_and_a_type_without_one_is_an_error():
    class Routes(Dispatch):
        routes = {"t": lambda task: task.key}  # noqa: RUF012

    for handlers in Routes, Routes(), {"t": lambda task: task.key}:
        with Schedules(handlers) as schedules:
            schedules.push("k", "t")
            assert [run.returned for run in schedules.run_due()] == ["k"]
            task = schedules.push("other", "nobody")
            with pytest.raises(LoadError, match="no handler for the type 'nobody'"):
                schedules.run_due(catch_exceptions=True)
            assert "no handler" in task.metadata().row.reason
    for wrong in {"t": 7}, object():
        with pytest.raises(LoadError):
            Schedules(wrong)
    with Schedules() as schedules:
        schedules.add("fan", "push", cron="@daily", data={"type": "t"})
        with pytest.raises(LoadError):  # it has pushed, and the pushed task has no handler
            schedules.run_due(timedelta(days=1))
        assert [each.type for each in schedules.pushed()] == ["t"]


@pytest.mark.slow
def test_a_task_that_is_released_for_ever_is_an_error():
    with Schedules({"t": lambda task: task.release()}) as schedules:
        schedules.push("k", "t")
        with pytest.raises(RuntimeError, match="1000 tasks were run at one instant"):
            schedules.run_due()


def test_an_app_pushes_from_other_threads_too_and_to_its_own_store_afterwards(app):
    @app.task("mail")
    def mail(to): ...

    found = []

    def serve():
        found.append(mail.push(to="ann").exists())

    with Schedules(app) as schedules:
        folder = Path(schedules._store._connector.url.database).parent
        threads = [threading.Thread(target=serve) for _ in range(3)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert found == [True] * 3
        assert len(schedules.pushed("mail")) == len(schedules) == 3
        assert len(schedules.run_due()) == 3
    assert not folder.exists()
    with pytest.raises(psched.StoreUnavailableError):
        app.schedules["any"].exists()


def test_a_lock_of_another_thread_is_waited_for_and_the_time_of_the_test_stands_still():
    with Schedules() as schedules:
        url = schedules._store._connector.url
        with closing(sqlite3.connect(url.database, check_same_thread=False)) as other:
            other.execute("BEGIN IMMEDIATE")
            # The push cannot succeed before, and does not give up until then.
            timer = threading.Timer(0.2, other.rollback)
            timer.start()
            schedules.push("k", "t")
            timer.join()
        assert schedules.now() == NOW.timestamp()


def test_wrong_arguments_are_refused():
    with pytest.raises(InvalidError, match="now"):
        Schedules(now="yesterday")
    with pytest.raises(psched.ConfigError, match="retry_weight"):
        Schedules(retry_weight=1)
    with closing(Schedules(now=1_900_000_000)) as schedules:
        assert schedules.now() == 1_900_000_000
        with pytest.raises(InvalidError, match="until"):
            schedules.run_due("tomorrow")
        with pytest.raises(InvalidError, match="until"):
            schedules.run_due(datetime(2030, 1, 1))  # noqa: DTZ001
