"""psched.open, and the collection that it returns: adding, reading, changing, deleting."""

import re
from datetime import UTC, datetime
from math import ceil, floor

import pytest

import psched
from psched import (
    AlreadyExistsError,
    ConfigError,
    InvalidError,
    NotFoundError,
    Schedule,
    ScheduleCollection,
    ScheduleMetadata,
    StoreUnavailableError,
)
from psched.base.errors import StoreError
from psched.core.model import Row
from psched.core.store_protocol import Store
from psched.testing.store_contract.bench import payload
from support.stores import make_store

LATER = 4_000_000_000


class TestOpening:
    def test_settings_may_be_a_mapping_a_file_or_a_config(self, settings, schedules, tmp_path):
        schedules.add("k", next_time=LATER)
        file = tmp_path / "psched.yml"
        file.write_text(f"test:\n  url: {settings.url}\n")
        for given, environment in (
            ({"url": settings.url}, None),
            (str(file), "test"),
            (file, "test"),
            (settings, None),
            (lambda: {"url": settings.url}, None),
            (lambda: file, "test"),
        ):
            with psched.open(given, environment=environment) as opened:
                assert isinstance(opened, ScheduleCollection)
                assert opened["k"].exists()

    def test_impossible_settings_are_refused_at_once(self):
        with pytest.raises(ConfigError, match="alive_tim: unknown setting"):
            psched.open({"alive_tim": 5})
        assert issubclass(ConfigError, RuntimeError)

    def test_a_database_without_the_table_is_said_with_the_mend(self, settings):
        with psched.open(settings) as opened, pytest.raises(StoreError, match="`psched init`"):
            opened.add("k")

    def test_a_collection_can_be_used_again_after_it_was_closed(self, schedules):
        schedules.add("k", next_time=LATER)
        schedules.close()
        schedules.close()
        assert schedules["k"].exists()

    def test_the_connection_is_closed_whatever_happens_inside(self, settings, schedules):
        schedules.add("k", next_time=LATER)
        opened = psched.open(settings)
        with pytest.raises(AlreadyExistsError), opened:
            opened.add("k")
        assert opened._store._connector._connection is None


class TestAdding:
    def test_a_schedule_is_added_with_all_that_is_said_of_it(self, schedules):
        added = schedules.add(
            "s1",
            "user_task",
            cron="0 9 * * *",
            delay=30,
            timezone="Asia/Tokyo",
            next_time=LATER,
            data={"k": [1, "é"]},
            catchup="latest",
        )
        assert isinstance(added, Schedule)
        assert added.key == "s1"
        found = added.metadata()
        assert isinstance(found, ScheduleMetadata)
        assert (found.key, found.type, found.data) == ("s1", "user_task", {"k": [1, "é"]})
        assert (found.cron, found.timezone, found.delay) == ("0 9 * * *", "Asia/Tokyo", 30)
        # 2096-10-02T16:06:40 in Tokyo
        assert found.next_time == int(datetime(2096, 10, 3, 0, tzinfo=UTC).timestamp())
        assert found.next_run_time == found.next_time + 30
        assert (found.status, found.reason) == ("waiting", None)

    def test_submit_is_its_older_name(self, schedules):
        schedules.submit("s1", "t", cron="@daily", data={"n": 1})
        assert schedules["s1"].metadata().data == {"n": 1}

    def test_without_a_time_it_starts_now_by_the_stores_clock(self, schedules, now):
        before = now()
        once = schedules.add("once").metadata()
        minutely = schedules.add("minutely", cron="* * * * *").metadata()
        after = now()
        assert floor(before) <= once.next_time <= ceil(after)
        assert once.next_run_time == once.next_time
        assert minutely.next_time % 60 == 0
        assert 0 <= minutely.next_time - before <= 60 + after - before

    def test_times_may_be_numbers_or_datetimes(self, schedules):
        when = datetime(2096, 10, 2, 7, 6, 40, tzinfo=UTC)
        assert when.timestamp() == LATER
        for key, time in {"number": LATER, "datetime": when}.items():
            found = schedules.add(key, next_time=time, next_run_time=time).metadata()
            assert (found.next_time, found.next_run_time) == (LATER, LATER)

    def test_a_key_can_be_taken_once(self, schedules):
        schedules.add("k", "first", next_time=LATER)
        with pytest.raises(AlreadyExistsError, match="'k'"):
            schedules.add("k", "second", next_time=LATER)
        assert schedules["k"].metadata().type == "first"

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("cron", "61 * * * *"),
            ("cron", "0 0 30 2 *"),
            ("timezone", "Mars/Olympus"),
            ("delay", -1),
            ("data", ["no mapping"]),
            ("next_time", datetime(2027, 1, 1)),  # noqa: DTZ001  # the point
            ("catchup", "sometimes"),
            ("colour", "red"),
        ],
    )
    def test_what_makes_no_sense_is_refused_and_nothing_is_added(self, schedules, field, value):
        with pytest.raises(InvalidError) as refused:
            schedules.add("k", **{field: value})
        assert refused.value.field == field
        assert isinstance(refused.value, ValueError)
        assert not schedules["k"].exists()

    def test_two_keys_that_look_alike_are_two(self, schedules):
        for key in ("k", "K", "kk"):
            schedules.add(key, next_time=LATER)
        schedules["K"].delete()
        assert [found.key for found in schedules.list()] == ["k", "kk"]


class TestReading:
    def test_the_list_is_in_the_order_of_their_runs(self, schedules):
        for key, time in {"late": LATER + 1, "early": LATER - 1, "middle": LATER}.items():
            schedules.add(key, next_time=time)
        schedules.add("done", next_time=1)
        schedules.poll().finish()
        assert [found.key for found in schedules.list()] == ["early", "middle", "late", "done"]
        assert [found.status for found in schedules.list()][-1] == "finished"

    def test_an_empty_store_has_an_empty_list(self, schedules):
        assert [*schedules.list()] == []

    def test_a_list_can_be_narrowed(self, schedules):
        schedules.add("mail-b", "mail", next_time=1, label="me")
        schedules.add("mail-a", "mail", next_time=LATER)
        schedules.add("report", "report", next_time=LATER, label="you")
        schedules["report"].cancel()

        def keys(**conditions):
            return [found.key for found in schedules.list(**conditions)]

        assert keys(type="mail") == ["mail-b", "mail-a"]
        assert keys(type={"mail", "report"}, order="key") == ["mail-a", "mail-b", "report"]
        assert keys(status=["cancelled", "failed"]) == ["report"]
        assert keys(status="running") == []
        assert keys(label="me") == ["mail-b"]
        assert keys(label=("me", "you"), status="cancelled") == ["report"]
        assert keys(prefix="mail-", limit=1) == ["mail-b"]
        assert keys(due=True) == ["mail-b"]
        assert keys(limit=0) == []

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("status", "runing"),
            ("status", []),
            ("status", 5),
            ("type", [7]),
            ("type", [["mail"]]),
            ("label", ()),
            ("prefix", 7),
            ("limit", -1),
            ("limit", "7"),
            ("order", "type"),
        ],
    )
    def test_a_condition_that_makes_no_sense_is_refused_at_once(self, schedules, field, value):
        with pytest.raises(InvalidError) as refused:
            schedules.list(**{field: value})
        assert refused.value.field == field

    @pytest.mark.parametrize("field", ["type", "label", "prefix"])
    @pytest.mark.parametrize("value", ["\0", "\udc80", "a\0", "a\udc80"])
    def test_a_condition_that_no_row_can_fulfil_selects_none(self, schedules, field, value):
        schedules.add("a?", "a?", next_time=1, label="a?")
        assert [*schedules.list(**{field: value})] == []

    def test_a_collection_can_be_asked_iterated_and_counted(self, schedules):
        assert not [*schedules]
        assert len(schedules) == 0
        schedules.add_many({"key": f"k{n}", "next_time": LATER + n} for n in range(30))
        schedules.add("done", next_time=1)
        schedules.poll().finish()
        schedules.add("runs", next_time=1)
        assert schedules.poll() is not None

        assert "k7" in schedules
        assert "K7" not in schedules
        found = [*schedules]
        assert all(isinstance(schedule, Schedule) for schedule in found)
        assert [each.key for each in found] == [each.key for each in schedules.list()]
        assert {each.key for each in found} == {"done", "runs", *(f"k{n}" for n in range(30))}
        assert all(schedule in schedules for schedule in found)
        assert len(schedules) == len(found)

    def test_an_iteration_reads_only_what_is_asked_for(self, schedules):
        schedules.add_many({"key": f"k{n}", "next_time": LATER + n} for n in range(3))
        read = []
        rows = schedules._store.rows

        def counted(*selected):
            return (read.append(row.key) or row for row in rows(*selected))

        schedules._store.rows = counted
        iterator = iter(schedules)
        assert not read
        assert next(iterator).key == "k0"
        assert read == ["k0"]

    @pytest.mark.parametrize("key", [7, None, b"k", ("k",), "a\0", "", object()])
    def test_what_is_no_key_is_in_no_collection(self, schedules, key):
        schedules.add("k", next_time=LATER)
        assert key not in schedules

    def test_an_empty_collection_is_true_and_does_not_ask_the_store(self, schedules, monkeypatch):
        monkeypatch.delattr(type(schedules), "__len__")
        assert schedules

    def test_a_store_that_cannot_count_is_read(self, schedules, monkeypatch):
        class Uncounted(Store):
            def rows(self, *_selected):
                return iter([Row(key="a"), Row(key="b")])

        monkeypatch.setattr(schedules, "_store", Uncounted())
        assert len(schedules) == 2

    def test_a_reference_needs_no_schedule(self, schedules):
        reference = schedules["k"]
        assert not reference.exists()
        with pytest.raises(NotFoundError, match="'k'"):
            reference.metadata()
        schedules.add("k", next_time=LATER)
        assert reference.exists()
        assert reference.metadata().next_time == LATER
        assert "'k'" in repr(reference)

    def test_a_payload_that_cannot_be_read_is_refused_and_the_rest_can_be_read(
        self, schedules, sql
    ):
        sql("INSERT INTO {table} (id, data, next_run_time) VALUES ('k', '[', :later)", later=LATER)
        (found,) = schedules.list()
        assert (found.key, found.next_run_time) == ("k", LATER)
        with pytest.raises(InvalidError, match=r"^data: "):
            _ = found.data


class TestChanging:
    def test_what_is_named_changes_and_the_rest_stays(self, schedules):
        schedules.add("k", "t", cron="@daily", next_time=LATER, data={"n": 1}, catchup="latest")
        before = schedules["k"].metadata()
        schedules["k"].modify(delay=60, retry_wait=5)
        after = schedules["k"].metadata()
        assert (after.delay, after.next_time) == (60, before.next_time)
        assert after.next_run_time == before.next_time + 60
        assert (after.type, after.data, after.cron) == ("t", {"n": 1}, "@daily")
        assert '"catchup":"latest"' in payload(after.row.options)
        assert '"retry_wait":5' in payload(after.row.options)

    def test_a_new_trigger_starts_from_now_on(self, schedules, now):
        schedules.add("k", cron="@daily", next_time=LATER)
        schedules.modify("k", cron="* * * * *")
        assert 0 <= schedules["k"].metadata().next_time - now() <= 61

    def test_the_next_occurrence_cannot_be_run_now_and_so_is_not_lost(self, schedules, now):
        schedules.add("k", "backup", cron="30 2 * * *", next_time=LATER, data={"n": 1})
        before = schedules["k"].metadata()
        with pytest.raises(InvalidError, match=r"call trigger \(psched trigger KEY\)") as refused:
            schedules["k"].modify(next_run_time=floor(now()))
        assert refused.value.field == "next_run_time"
        assert schedules["k"].metadata() == before

        extra = schedules["k"].trigger()  # the call that the error names
        task = schedules.poll()
        assert (task.key, task.data) == (extra.key, before.data)
        task.finish()
        assert schedules["k"].metadata().next_run_time == before.next_run_time
        schedules["k"].modify(next_run_time=before.next_time + 5)
        assert schedules["k"].metadata().next_run_time == before.next_time + 5

    def test_the_first_run_can_be_before_its_scheduled_time_and_takes_its_place(
        self, schedules, now
    ):
        schedules.add("k", cron="30 2 * * *", next_time=LATER, next_run_time=floor(now()))
        first = schedules["k"].metadata().next_time
        task = schedules.poll()
        assert (task.key, task.scheduled_time) == ("k", first)
        task.finish()
        after = schedules["k"].metadata()
        assert after.next_time == after.next_run_time == first + 86_400
        (run,) = schedules.runs("k")
        assert (run.scheduled_time, run.fate) == (first, "finished")
        answer = schedules.why("k")
        assert (answer.code, answer.time) == ("ran", first)
        assert re.search(r"ran at .*, .* before its scheduled time,? ", answer.sentence)

    def test_a_task_that_runs_once_is_moved_by_its_scheduled_time(self, schedules, now):
        schedules.push("k", "t", run_at=LATER)
        with pytest.raises(InvalidError, match="set next_time instead"):
            schedules["k"].modify(next_run_time=floor(now()))
        schedules["k"].modify(next_time=floor(now()))
        assert schedules.poll().key == "k"

    def test_a_time_that_plain_sql_has_set_early_is_left_alone(self, schedules, sql):
        schedules.add("k", "t", cron="@yearly", next_time=LATER)
        sql("UPDATE {table} SET next_run_time = 1 WHERE id = 'k'")
        schedules["k"].modify(data={"n": 1})
        assert schedules["k"].metadata().next_run_time == 1
        assert schedules.poll().data == {"n": 1}

    def test_a_missing_schedule_cannot_be_changed(self, schedules):
        with pytest.raises(NotFoundError, match="'k'"):
            schedules["k"].modify(delay=1)

    def test_what_makes_no_sense_is_refused_and_nothing_changes(self, schedules):
        schedules.add("k", cron="@daily", next_time=LATER)
        before = schedules["k"].metadata()
        with pytest.raises(InvalidError, match=r"^cron: "):
            schedules["k"].modify(cron="x", delay=5)
        assert schedules["k"].metadata() == before

    def test_a_quarantined_schedule_is_mended_and_has_lost_nothing(self, schedules, sql):
        schedules.add("k", cron="0 * * * *", next_time=7200, catchup_limit=10_000)
        sql("UPDATE {table} SET delay = -1")
        assert schedules.poll() is None
        found = schedules["k"].metadata()
        assert (found.status, found.next_run_time) == ("quarantined", None)
        assert found.reason == "delay: must be from 0 to 31622400, not -1"
        schedules["k"].modify(delay=0, catchup_limit=None, catchup="all")
        found = schedules["k"].metadata()
        assert (found.status, found.reason, found.next_time) == ("waiting", None, 7200)

    def test_a_change_that_meets_another_is_made_after_it(self, schedules, settings):
        """Somebody else writes between its read and its write."""
        schedules.add("k", "t", next_time=LATER)
        others = iter([{"delay": 1}, {"type": "u"}])
        replace = schedules._store.replace

        def late(seen, new):
            for change in others:
                with psched.open(settings) as other:
                    other.modify("k", **change)
                break
            return replace(seen, new)

        schedules._store.replace = late
        schedules.modify("k", data={"n": 1})
        found = schedules["k"].metadata()
        assert (found.delay, found.type, found.data) == (1, "u", {"n": 1})


def test_a_trigger_that_is_changed_under_a_running_task_goes_on_from_now(schedules, settings):
    now = int(make_store(settings.url).now())
    schedules.add("k", cron="@hourly", next_time=now - 3 * 3600)
    task = schedules.poll()
    schedules["k"].modify(cron="*/5 * * * *")
    task.finish()
    assert schedules["k"].metadata().next_time >= now


class TestDeleting:
    def test_a_deleted_schedule_is_gone(self, schedules):
        schedules.add("k", next_time=LATER)
        assert schedules["k"].delete() is True
        assert not schedules["k"].exists()
        with pytest.raises(NotFoundError, match="'k'"):
            schedules["k"].delete()
        schedules.add("k", next_time=LATER)

    def test_a_schedule_that_runs_is_marked_and_goes_when_its_task_ends(self, schedules):
        schedules.add("k", cron="@hourly", next_time=3600, catchup="latest")
        task = schedules.poll()
        assert schedules["k"].delete() is False
        assert schedules["k"].delete() is False
        assert schedules["k"].metadata().status == "deleting"
        with pytest.raises(AlreadyExistsError):
            schedules.add("k")
        with pytest.raises(NotFoundError, match="being deleted"):
            schedules["k"].modify(delay=1)
        task.finish()
        assert not schedules["k"].exists()
        schedules.add("k", next_time=LATER)


class TestAbsence:
    """Requests are repeated for a few seconds while the store is away."""

    def test_a_request_is_repeated_with_growing_pauses(self, on_host, host):
        away = iter([True, True, True, False])
        get = on_host._store.get

        def sometimes(key):
            if next(away):
                raise StoreUnavailableError("not now")
            return get(key)

        on_host._store.get = sometimes
        assert not on_host["k"].exists()
        assert host.slept == sorted(host.slept)
        assert len(host.slept) == 3

    def test_a_store_that_stays_away_is_said(self, settings, host):
        store = make_store("mysql+pymysql://u@127.0.0.1:1/x")  # nothing listens there
        with (
            ScheduleCollection(store, settings, clock=host, draw_nonce=str) as collection,
            pytest.raises(StoreUnavailableError, match=r"127\.0\.0\.1:1"),
        ):
            collection.add("k", next_time=LATER)
        assert 1 <= sum(host.slept) < 10

    def test_what_is_refused_is_not_repeated(self, on_host, host):
        with pytest.raises(NotFoundError):
            on_host.delete("k")
        with pytest.raises(InvalidError):
            on_host.add("k", cron="x")
        assert host.slept == []


@pytest.mark.parametrize("key", ["a\udc80", "a\0"])
def test_a_key_that_cannot_be_stored_is_not_there(schedules, key):
    schedule = schedules[key]
    assert not schedule.exists()
    for request in (schedule.metadata, schedule.delete, lambda: schedule.modify(type="t")):
        with pytest.raises(psched.NotFoundError, match=r"udc80|x00"):
            request()
