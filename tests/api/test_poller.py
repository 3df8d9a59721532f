"""Leasing occurrences without a worker: poll, and the methods of a task."""

import os
import socket

import pytest

import psched
from psched import (
    AlreadyFinishedError,
    InvalidError,
    PreemptedError,
    ScheduleCollection,
    StoreUnavailableError,
    Task,
    UnknownOutcomeError,
)
from psched.core.history.changes import GAP, ranges
from psched.core.history.protocol import RunSelection
from psched.core.model import Occurrence
from support.stores import make_store

HOUR = 3600
LATER = 4_000_000_000


@pytest.fixture
def add(schedules):
    """Adds an hourly schedule whose latest occurrence is due."""

    def add(key="k", type="t", **more):  # noqa: A002  # the word of the API
        schedules.add(
            key, type, **{"cron": "0 * * * *", "next_time": HOUR, "catchup": "latest", **more}
        )
        return schedules[key]

    return add


@pytest.fixture
def take_over(sql, settings):
    """Ends a lease in the store, and leases the row to another worker."""

    def take_over(key="k"):
        sql("UPDATE {table} SET next_run_time = 1 WHERE id = :key", key=key)
        with psched.open(settings) as other:
            return other.poll()

    return take_over


class TestPolling:
    def test_a_task_tells_what_is_to_be_run(self, add, schedules, now):
        add(data={"n": [1]}, delay=5, timezone="Asia/Tokyo")
        task = schedules.poll()
        assert isinstance(task, Task)
        assert (task.key, task.type, task.data) == ("k", "t", {"n": [1]})
        assert (task.cron, task.timezone, task.delay) == ("0 * * * *", "Asia/Tokyo", 5)
        assert (task.attempt, task.fence) == (1, 2)  # the first lease dropped missed ones
        assert task.scheduled_time % HOUR == 0
        assert 0 <= now() - task.scheduled_time < HOUR + 60
        assert task.occurrence == Occurrence("k", task.scheduled_time)
        assert task.idempotency_key == f"k.{task.scheduled_time}"
        assert task.schedules is schedules
        assert repr(task) == f"<Task k.{task.scheduled_time} type='t' attempt=1>"

    def test_its_payload_does_not_show(self, schedules):
        schedules.add("k", next_time=1, data={"password": "hunter2"})
        task = schedules.poll()
        assert "hunter2" not in f"{task!r} {task}"
        assert task.data == {"password": "hunter2"}

    def test_there_may_be_nothing_to_run(self, schedules):
        assert schedules.poll() is None
        schedules.add("k", next_time=LATER)
        assert schedules.poll() is None

    def test_each_occurrence_is_given_to_one(self, schedules, settings):
        for key in "abc":
            schedules.add(key, next_time=1)
        with psched.open(settings) as other:
            tasks = [schedules.poll(), other.poll(), schedules.poll()]
            assert {task.key for task in tasks} == {"a", "b", "c"}
            assert other.poll() is None

    def test_those_due_longest_come_first(self, schedules):
        for key, time in {"b": 20, "a": 30, "c": 10}.items():
            schedules.add(key, next_time=time)
        assert [schedules.poll().key for _ in range(3)] == ["c", "b", "a"]

    def test_what_makes_no_sense_is_passed_over(self, schedules, sql):
        sql("INSERT INTO {table} (id, cron) VALUES ('bad', 'x')")
        schedules.add("good", next_time=1)
        assert schedules.poll().key == "good"
        assert schedules["bad"].metadata().status == "quarantined"

    @pytest.mark.usefixtures("sql")
    def test_after_a_lost_race_it_looks_again(self, schedules, settings):
        schedules.add("a", next_time=1)
        schedules.add("b", next_time=2)
        with psched.open(settings.with_settings(claim_strategy="cas")) as mine:
            claims = mine._store._claim_strategy()._inner._inner
            take = claims._swap

            def late(*args):
                schedules.poll()
                claims._swap = take
                return take(*args)

            claims._swap = late
            assert mine.poll().key == "b"

    def test_a_row_that_is_changed_while_it_is_judged_is_judged_again(self, schedules, sql):
        schedules.add("k", next_time=1)
        sql("UPDATE {table} SET type = ''")
        settle = schedules._store.settle

        def late(settlements):
            sql("UPDATE {table} SET type = 'mended', version = version + 1")
            schedules._store.settle = settle
            return settle(settlements)

        schedules._store.settle = late
        assert schedules.poll().type == "mended"

    @pytest.mark.parametrize("moment", ["before", "after"])
    def test_a_row_that_is_taken_while_it_is_judged_is_left_alone(
        self, schedules, sql, take_over, moment
    ):
        """Before its settlement is refused, or right after."""
        schedules.add("k", next_time=1)
        sql("UPDATE {table} SET type = ''")
        settle = schedules._store.settle

        def late(settlements):
            sql("UPDATE {table} SET type = 'mended', version = version + 1")
            results = settle(settlements) if moment == "after" else None
            assert take_over().type == "mended"
            return results or settle(settlements)

        schedules._store.settle = late
        assert schedules.poll() is None
        found = schedules["k"].metadata()
        assert (found.type, found.row.fence) == ("mended", 2)


class TestDeciding:
    def test_finish_goes_on_to_the_next_occurrence(self, add, schedules):
        k = add(delay=30)
        task = schedules.poll()
        assert task.finish() is None
        found = k.metadata()
        assert found.next_time == task.scheduled_time + HOUR
        assert found.next_run_time == found.next_time + 30
        assert found.row.attempt == 0

    def test_a_finished_one_shot_rests_and_can_be_seen(self, schedules):
        schedules.add("k", next_time=1)
        schedules.poll().finish()
        found = schedules["k"].metadata()
        assert (found.status, found.next_time, found.next_run_time) == ("finished", 1, None)
        assert schedules.poll() is None

    def test_retry_runs_the_same_occurrence_again_after_retry_wait(self, add, schedules, sql, now):
        k = add()
        task = schedules.poll()
        before = now()
        task.retry()
        found = k.metadata()
        assert found.next_time == task.scheduled_time
        assert before + 299 <= found.next_run_time <= now() + 301
        assert schedules.poll() is None
        sql("UPDATE {table} SET next_run_time = 1")
        again = schedules.poll()
        assert (again.idempotency_key, again.attempt) == (task.idempotency_key, 2)
        assert again.fence > task.fence

    def test_retry_may_name_a_wait(self, add, schedules, now):
        k = add()
        before = now()
        schedules.poll().retry(20.5)
        assert before + 20.5 <= k.metadata().next_run_time <= now() + 22

    @pytest.mark.parametrize(
        "wait", [-1, float("nan"), float("inf"), 1e300, 10**30, "5", True], ids=repr
    )
    def test_a_wait_that_is_none_is_refused_and_nothing_is_decided(self, add, schedules, wait):
        add()
        task = schedules.poll()
        with pytest.raises(InvalidError, match=r"^wait: "):
            task.retry(wait)
        task.finish()

    def test_release_runs_the_same_occurrence_again_at_once(self, add, schedules):
        add()
        task = schedules.poll()
        task.release()
        again = schedules.poll()
        assert (again.idempotency_key, again.attempt) == (task.idempotency_key, 1)

    @pytest.mark.parametrize("first", ["finish", "retry", "release"])
    def test_a_second_decision_is_refused_whatever_it_is(self, add, schedules, first):
        k = add()
        task = schedules.poll()
        getattr(task, first)()
        before = k.metadata()
        for second in (task.finish, task.retry, task.release, task.extend):
            with pytest.raises(AlreadyFinishedError, match=task.idempotency_key):
                second()
        with pytest.raises(AlreadyFinishedError):
            task.update_data({})
        assert k.metadata() == before

    def test_a_definition_changed_meanwhile_decides_what_comes_next(self, add, schedules):
        k = add()
        task = schedules.poll()
        k.modify(cron="30 * * * *", type="u")
        task.finish()
        # The new cron line applies from now on.
        assert k.metadata().next_time % HOUR == HOUR // 2
        assert k.metadata().next_time > task.scheduled_time
        assert k.metadata().type == "u"

    def test_a_time_set_meanwhile_stands(self, add, schedules):
        k = add()
        task = schedules.poll()
        k.modify(next_time=LATER)
        task.retry()
        assert k.metadata().next_time == k.metadata().next_run_time >= LATER

    def test_a_time_set_meanwhile_is_waited_for_also_when_the_task_never_ends(self, schedules, sql):
        """Its host has died: the lease expires."""
        schedules.add("k", next_time=1)
        schedules.poll()
        schedules["k"].modify(next_time=LATER)
        sql("UPDATE {table} SET next_run_time = 1")
        assert schedules.poll() is None
        assert schedules["k"].metadata().next_run_time == LATER


class TestLease:
    def test_extend_moves_the_end_in_the_store(self, add, schedules, sql):
        add()
        task = schedules.poll()
        before = schedules["k"].metadata()
        sql("UPDATE {table} SET next_run_time = next_run_time - 30")
        task.extend()
        after = schedules["k"].metadata()
        assert after.next_run_time >= before.next_run_time
        assert after.row.token == task.token

    def test_a_lease_that_is_over_by_the_hosts_clock_can_do_nothing(self, schedules, on_host, host):
        """Not even if the store would accept it: another worker may be running the task already."""
        schedules.add("k", next_time=1)
        task = on_host.poll()
        before = schedules["k"].metadata()
        host.suspended = 61
        for request in (task.finish, task.retry, task.release, task.extend, _update(task)):
            with pytest.raises(PreemptedError, match="'k'"):
                request()
        assert schedules["k"].metadata() == before

    def test_extending_in_time_keeps_it(self, schedules, on_host, host):
        schedules.add("k", next_time=1)
        task = on_host.poll()
        for host.suspended in (50, 100, 150):
            task.extend()
        host.suspended = 209
        task.finish()
        assert schedules["k"].metadata().status == "finished"

    def test_a_lease_may_be_as_long_as_its_schedule_says(self, schedules, on_host, host):
        schedules.add("k", next_time=1, alive_time=1000)
        task = on_host.poll()
        host.suspended = 990
        task.extend()
        host.suspended = 2000
        with pytest.raises(PreemptedError):
            task.extend()

    def test_who_was_preempted_can_do_nothing(self, add, schedules, take_over):
        k = add()
        task = schedules.poll()
        taken = take_over()
        assert (taken.idempotency_key, taken.attempt) == (task.idempotency_key, 2)
        before = k.metadata()
        for request in (task.extend, _update(task), task.finish, task.retry, task.release):
            with pytest.raises(PreemptedError):
                request()
        assert k.metadata() == before
        assert task.data == {}

    # Nor if its settlement would delete the row: who has deleted it may have run it, too.
    @pytest.mark.parametrize("own", [{}, {"retention_time": 0}])
    def test_a_task_whose_row_is_gone_is_preempted(self, schedules, sql, own):
        schedules.add("k", next_time=1, **own)
        task = schedules.poll()
        sql("DELETE FROM {table}")
        for request in (task.extend, _update(task), task.finish):
            with pytest.raises(PreemptedError):
                request()

    def test_a_decision_that_could_not_be_written_can_be_tried_again(self, add, schedules):
        k = add()
        task = schedules.poll()
        backend, away = schedules._store, make_store("sqlite:////missing/folder/psched.db")
        schedules._poller.store = away
        with pytest.raises(StoreUnavailableError):
            task.finish()
        schedules._poller.store = backend
        task.finish()
        assert k.metadata().next_time == task.scheduled_time + HOUR


class TestPayload:
    def test_what_is_written_is_what_later_tries_get(self, add, schedules):
        k = add(data={"page": 1})
        task = schedules.poll()
        task.update_data({"page": 2})
        assert task.data == {"page": 2}
        assert k.metadata().data == {"page": 2}
        task.update_data({"page": 3})
        task.release()
        assert schedules.poll().data == {"page": 3}

    def test_writing_does_not_stand_in_the_way_of_the_end(self, add, schedules):
        k = add()
        task = schedules.poll()
        task.update_data({"page": 2})
        task.finish()
        assert k.metadata().next_time == task.scheduled_time + HOUR

    def test_what_json_cannot_hold_is_refused(self, add, schedules):
        add(data={"page": 1})
        task = schedules.poll()
        for data in ([], {"a": {1}}, None):
            with pytest.raises(InvalidError, match=r"^data: "):
                task.update_data(data)
        assert task.data == {"page": 1}
        task.finish()

    def test_a_task_has_a_payload_of_its_own(self, add, schedules, sql):
        add(data={"list": [1]})
        schedules.poll().data["list"].append(2)
        sql("UPDATE {table} SET next_run_time = 1")
        assert schedules.poll().data == {"list": [1]}

    def test_a_change_of_the_definition_keeps_it(self, add, schedules):
        """And what the task writes after that is kept as well."""
        k = add(data={"page": 1})
        task = schedules.poll()
        task.update_data({"page": 2})
        k.modify(type="u")
        assert k.metadata().data == {"page": 2}
        task.update_data({"page": 3})
        task.finish()
        assert (k.metadata().type, k.metadata().data) == ("u", {"page": 3})


def test_a_task_may_use_the_schedules_it_came_from(schedules):
    schedules.add("k", next_time=1)
    task = schedules.poll()
    assert isinstance(task.schedules, ScheduleCollection)
    task.schedules.add("follower", next_time=LATER)
    task.finish()
    assert schedules["follower"].exists()


def test_a_poll_that_meets_an_absent_store_is_repeated(on_host, schedules, host):
    schedules.add("k", next_time=1)
    claim, away = on_host._store.claim, iter([True, False])

    def sometimes(*args, **more):
        if next(away):
            raise StoreUnavailableError("not now")
        return claim(*args, **more)

    on_host._store.claim = sometimes
    assert on_host.poll().key == "k"
    assert len(host.slept) == 1


def test_the_lease_counts_from_the_claim_that_was_applied(on_host, schedules, host):
    schedules.add("k", next_time=1)
    claim, away = on_host._store.claim, iter([True, False])

    def late(*args, **more):
        if next(away):
            host.suspended += 61
            raise StoreUnavailableError("not now")
        return claim(*args, **more)

    on_host._store.claim = late
    assert on_host.poll().finish() is None


@pytest.mark.parametrize(("seconds", "keys"), [(30, ["k"]), (61, [])])
def test_a_claim_without_an_answer_gives_a_task_only_while_its_lease_lasts(
    on_host, schedules, host, seconds, keys
):
    schedules.add("k", next_time=1)
    claim = on_host._store.claim

    def unanswered(*args, **more):
        claim(*args, **more)
        host.suspended += seconds
        on_host._store.claim = claim
        raise UnknownOutcomeError("lost")

    on_host._store.claim = unanswered
    task = on_host.poll()
    assert [task.key for task in [task] if task is not None] == keys
    assert schedules["k"].metadata().row.fence == 1
    if task is not None:
        task.finish()


def _update(task):
    return lambda: task.update_data({"stale": True})


def test_a_payload_that_is_none_is_quarantined_by_who_polls_it(schedules, sql):
    sql("INSERT INTO {table} (id, next_time, data) VALUES ('bad', 1, '[1]'), ('good', 2, '{}')")
    task = schedules.poll()
    if task.key == "bad":
        pytest.fail("it was run on guessed data")
    assert (task.key, task.data) == ("good", {})
    task.finish()
    assert schedules.poll() is None
    bad = schedules["bad"].metadata()
    assert (bad.status, bad.reason) == ("quarantined", "data: must be a JSON object, not list")


class TestRecords:
    """Tests of what the run history says about tasks that programs run themselves."""

    @pytest.fixture
    def records(self, schedules, sql):  # noqa: ARG002  # not on Redis
        return lambda: [*schedules._store.history.runs(RunSelection(key="k"))][::-1]

    def test_one_that_is_refused_is_noted_and_written_with_the_next(self, schedules, records, sql):
        for key in "kl":
            schedules.push(key, "t", at=HOUR)
        task, other = schedules.poll(), schedules.poll()
        sql("ALTER TABLE {table}_runs RENAME TO {table}_away")
        task.finish()
        sql("ALTER TABLE {table}_away RENAME TO {table}_runs")
        assert records() == []
        gaps = [change for change in schedules.audit("") if change.action == GAP]
        assert ranges(gaps, (), 0) == [(task.scheduled_time, task.scheduled_time)]
        other.finish()
        [record] = records()
        assert record.outcome == "finished"

    @pytest.mark.parametrize(
        ("end", "expected"),
        [
            ("finish", ("finished", "finished")),
            ("release", ("released", None)),
            ("retry", ("failed", None)),
        ],
    )
    def test_an_attempt_is_recorded(self, add, schedules, records, end, expected):
        add(cron=None)
        getattr(schedules.poll(), end)()
        [record] = records()
        assert (record.outcome, record.fate) == expected
        assert (record.pid, record.host) == (os.getpid(), socket.gethostname())
        assert (record.generation, record.attempt) == (None, 1)
        assert HOUR * 1000 == record.due <= record.started <= record.ended
        assert abs(record.ended - schedules._store.now() * 1000) < 60_000

    def test_what_was_dropped_is_recorded(self, add, schedules, records):
        add()
        schedules.poll().finish()
        dropped, finished = records()
        assert (dropped.fate, dropped.outcome, dropped.scheduled_time) == ("coalesced", None, HOUR)
        assert dropped.until < finished.scheduled_time

    def test_an_attempt_that_is_taken_over_is_recorded_by_whoever_knows_most(
        self, add, schedules, records, take_over
    ):
        add(cron=None)
        task = schedules.poll()
        second = take_over()
        [lost] = records()
        assert (lost.outcome, lost.attempt, lost.fence) == ("lost", 1, 1)
        assert (second.attempt, second.fence) == (2, 2)
        with pytest.raises(PreemptedError):
            task.finish()
        [preempted] = records()
        assert (preempted.outcome, preempted.fate, preempted.fence) == ("preempted", None, 1)
        assert preempted.pid == os.getpid()

    def test_no_history_means_no_records(self, add, schedules, records):
        add(cron=None, history="none")
        schedules.poll().finish()
        assert records() == []


class TestResults:
    def test_the_result_of_a_polled_task_is_in_its_record(self, schedules):
        schedules.push("k", "t", {})
        task = schedules.poll()
        task.progress(40, "rows")  # nobody can ask this program
        task.result = 1
        task.result = {"rows": [1, "é"]}
        task.finish()

        [run] = schedules["k"].runs()
        assert (run.outcome, run.result) == ("finished", {"rows": [1, "é"]})
        with pytest.raises(AlreadyFinishedError):
            task.result = 2
        assert task.result == {"rows": [1, "é"]}

    def test_waiting_for_the_end_returns_status_and_result(self, schedules, settings):
        schedules.push("k", "t", {})
        task = schedules.poll()
        task.result = "tried"
        task.retry(0)
        assert [run.result for run in schedules["k"].runs()] == ["tried"]
        task = schedules.poll()
        task.result = [3]
        task.finish()

        end = schedules["k"].wait_for_end(timeout=0)

        assert isinstance(end, psched.TaskEnd)
        assert (end.status, end.reason, end.result) == ("finished", None, [3])
        assert (end.run.attempt, end.run.fate) == (2, "finished")
        assert schedules["k"].wait() == "finished"
        with psched.open(settings.with_settings(history="none")) as other:
            assert other["k"].wait_for_end().result == [3]

    def test_a_task_that_never_ran_has_no_run_of_a_former_task_with_its_key(self, schedules):
        schedules.push("k", "t", {})
        task = schedules.poll()
        task.result = "of the former"
        task.finish()
        schedules["k"].delete()
        schedules.push("k", "t", {})
        schedules["k"].cancel()

        end = schedules["k"].wait_for_end()

        assert (end.status, end.run, end.result) == ("cancelled", None, None)

    def test_a_cancelled_task_has_the_result_of_its_last_attempt(self, schedules):
        schedules.push("k", "t", {})
        task = schedules.poll()
        task.result = "partial"
        task.retry()
        schedules["k"].cancel()

        end = schedules["k"].wait_for_end()

        assert (end.status, end.run.outcome, end.result) == ("cancelled", "failed", "partial")

    @pytest.mark.usefixtures("schedules")
    def test_without_a_history_the_result_is_not_kept(self, settings):
        with psched.open(settings.with_settings(history="none")) as schedules:
            schedules.push("k", "t", {})
            task = schedules.poll()
            task.result = 1
            task.finish()
            end = schedules["k"].wait_for_end()
            assert (end.status, end.run, end.result) == ("finished", None, None)

    @pytest.mark.usefixtures("schedules")
    def test_without_the_tables_of_the_history_the_result_is_not_kept(self, settings, sql):
        sql("DROP TABLE {table}_runs")
        with psched.open(settings) as schedules:
            schedules.push("k", "t", {})
            task = schedules.poll()
            task.result = 1
            task.finish()
            assert schedules["k"].wait_for_end().run is None

    def test_waiting_for_the_end_has_the_limits_of_waiting(self, add, schedules):
        schedules.push("k", "t", {}, run_at=LATER)
        with pytest.raises(TimeoutError):
            schedules["k"].wait_for_end(timeout=0)
        add("repeats")
        with pytest.raises(InvalidError, match="has a trigger"):
            schedules["repeats"].wait_for_end()
