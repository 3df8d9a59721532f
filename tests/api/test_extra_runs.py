"""Extra runs of schedules, beside the regular ones: trigger and backfill."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace as changed
from datetime import UTC, datetime
from functools import partial

import pytest

import psched
from psched import (
    AlreadyFinishedError,
    InvalidError,
    NotFoundError,
    NotSupportedError,
    StoreUnavailableError,
    UnknownOutcomeError,
)
from psched.client.verifier import Verifier
from psched.core.history.records import Fate, Outcome, RunRecord
from psched.core.model import Row
from psched.core.operations.backfills import MOST_INSTANTS, STAYS, Backfill, Stagger
from psched.core.operations.extra_runs import needed_schedule, schedule_of
from psched.reports.verify import CHANGED
from psched.testing import ManualClock
from support.stores import make_store

DAY = 86_400
LATER = 4_000_000_000
START = 1_700_006_400  # 2023-11-15T00:00:00Z
PARALLEL = {"overlap": "parallel"}


@pytest.fixture
def report(schedules):
    """A schedule that does not run by itself during the tests."""
    return schedules.add(
        "report", "mail", cron="@daily", next_time=LATER, data={"to": "ann"}, alive_time=77,
        label="team", max_attempts=3, expire=60,
    )  # fmt: skip


@pytest.fixture
def hourly(schedules):
    return schedules.add("hourly", "mail", cron="0 * * * *", next_time=LATER)


def options(schedule):
    return json.loads(schedule.metadata().row.options)


def finish(schedules, key, *times, fate=Fate.FINISHED):
    """Write records, as a worker does that has run a schedule at some times."""
    schedules._store.history.record(
        [
            RunRecord(
                key=key, type="mail", scheduled_time=time, owner=f"w.{time}.{key}", fence=1,
                ended=int(schedules.now() * 1000), started=time * 1000, attempt=1,
                outcome=Outcome.FINISHED, fate=fate,
            )
            for time in times
        ]
    )  # fmt: skip


class TestTriggering:
    def test_the_extra_run_has_the_definition_of_the_schedule_and_is_due_now(
        self, schedules, report, now
    ):
        before, begun = report.metadata().row, now()
        extra = report.trigger(**PARALLEL)

        assert schedule_of(extra.key) == "report"
        row, own = extra.metadata().row, extra.metadata()
        assert (row.type, own.data, row.alive_time, row.timezone, row.label) == (
            "mail", {"to": "ann"}, 77, before.timezone, "team",
        )  # fmt: skip
        assert (row.cron, row.status, row.delay) == (None, "waiting", 0)
        assert int(begun) <= row.next_time == row.next_run_time <= now()
        assert options(extra) == {
            "max_attempts": 3, "expire": 0, "schedule": "report", "overlap": "parallel",
        }  # fmt: skip
        assert report.metadata().row == before
        task = schedules.poll()
        assert (task.key, task.schedule_key, task.data) == (extra.key, "report", {"to": "ann"})
        assert task.idempotency_key == f"{extra.key}.{row.next_time}"
        task.finish()
        assert extra.wait(5) == "finished"
        assert extra.metadata().row.retain_until is not None

    def test_data_and_the_earliest_start_can_be_given(self, report):
        extra = report.trigger({"to": "bob"}, run_at=LATER, **PARALLEL)
        row = extra.metadata().row
        assert (json.loads(row.data), row.next_time, row.next_run_time) == (
            {"to": "bob"}, LATER, LATER,
        )  # fmt: skip
        assert report.metadata().data == {"to": "ann"}

    def test_a_payload_that_is_no_object_is_copied_byte_by_byte(self, schedules):
        schedules.add("raw", cron="@daily", next_time=LATER, data={"data": "text"}, payload="text")
        schedules["raw"].trigger(**PARALLEL)
        assert schedules.poll().raw_data == b"text"
        schedules["raw"].trigger({"k": 1}, **PARALLEL)
        assert json.loads(schedules.poll().raw_data) == {"k": 1}

    def test_compressed_data_are_copied(self, schedules, settings):
        schedules.add("big", cron="@daily", next_time=LATER, data={"text": "x" * 100_000})
        with psched.open(settings.with_settings(compress_above=1000)) as compressing:
            compressing.modify("big", data={"text": "y" * 100_000})
            stored = make_store(settings.url).get("big").data
            assert len(stored) < 10_000
            extra = compressing.trigger("big", **PARALLEL)
            assert len(make_store(settings.url).get(extra.key).data) < 10_000
        assert extra.metadata().data == {"text": "y" * 100_000}

    def test_keys_are_sorted_by_time_and_never_equal(self, schedules, report):
        keys = [report.trigger(**PARALLEL).key for _ in range(20)]
        assert len({*keys}) == 20
        times = [key[: len("report!") + 9] for key in keys]
        assert times == sorted(times)
        assert keys[0] == keys[0].lower()
        assert {each.key for each in schedules.list(prefix="report!")} == {*keys}
        assert {each.key for each in schedules.list(prefix="report")} == {"report", *keys}

    def test_a_paused_schedule_can_be_triggered(self, schedules, report):
        store = schedules._store
        seen = store.get("report")
        assert store.replace(seen, changed(seen, status="paused", next_run_time=None))
        extra = report.trigger(**PARALLEL)
        assert schedules.poll().key == extra.key
        assert report.metadata().status == "paused"

    def test_a_task_that_waits_can_be_triggered_too_and_keeps_its_age_limit(self, schedules):
        schedules.push("once", "mail", {"n": 1}, run_at=LATER, expire=60)
        extra = schedules["once"].trigger(**PARALLEL)
        assert options(extra)["expire"] == 60
        assert schedules.poll().key == extra.key

    def test_invalid_values_are_refused_as_in_push(self, schedules, settings, report):
        for field, arguments in (
            ("overlap", {"overlap": "never"}),
            ("overlap", {"overlap": None}),
            ("data", {"data": {1, 2}, **PARALLEL}),
            ("data", {"data": {"x": float("nan")}, **PARALLEL}),
            ("run_at", {"run_at": "now", **PARALLEL}),
            ("run_at", {"run_at": datetime(2026, 1, 1), **PARALLEL}),  # noqa: DTZ001
        ):
            with pytest.raises(InvalidError) as raised:
                report.trigger(**arguments)
            assert raised.value.field == field
        with (
            psched.open(settings.with_settings(data_limit=1024)) as limited,
            pytest.raises(InvalidError, match="data_limit"),
        ):
            limited["report"].trigger({"text": "x" * 2000}, **PARALLEL)
        schedules.add("run", "exec", cron="@daily", next_time=LATER, data={"command": ["x"]})
        with pytest.raises(InvalidError, match="command"):
            schedules["run"].trigger({"command": "x"}, **PARALLEL)
        assert len([*schedules.list(prefix="report!")]) == 0

    def test_what_cannot_run_is_refused_with_a_reason(self, schedules, report):
        with pytest.raises(NotFoundError):
            schedules.trigger("none", **PARALLEL)
        extra = report.trigger(**PARALLEL)
        with pytest.raises(InvalidError, match="is an extra run of 'report'"):
            extra.trigger(**PARALLEL)
        schedules.push("done", run_at=LATER).cancel()
        with pytest.raises(AlreadyFinishedError, match="requeue"):
            schedules["done"].trigger(**PARALLEL)
        store = schedules._store
        seen = store.get("report")
        bad = changed(seen, status="quarantined", reason="cron: bad", next_run_time=None)
        assert store.replace(seen, bad)
        with pytest.raises(InvalidError, match="quarantined: cron: bad"):
            report.trigger(**PARALLEL)

    def test_a_key_that_leaves_no_room_is_refused(self, schedules):
        key = "x" * 239
        schedules.add(key, cron="@daily", next_time=LATER)
        with pytest.raises(InvalidError, match="has 239 characters"):
            schedules.trigger(key, **PARALLEL)

    @pytest.mark.parametrize("add", ["add", "push"])
    def test_nobody_else_can_take_such_a_key(self, schedules, add):
        key = "report!" + "x" * 16
        with pytest.raises(InvalidError, match="extra run") as raised:
            getattr(schedules, add)(key)
        assert raised.value.field == "key"
        with pytest.raises(InvalidError, match="extra run"):
            getattr(schedules, f"{add}_many")([{"key": key}])
        for free in "report!", "report!short", "report!" + "x" * 17, "!" + "x" * 16:
            getattr(schedules, add)(free, **({"next_time": LATER} if add == "add" else {}))

    def test_runs_of_a_schedule_include_those_of_its_extra_runs(self, schedules, report):
        extra = report.trigger(**PARALLEL)
        schedules.poll().finish()
        finish(schedules, "report", START)
        assert [run.key for run in report.runs()] == ["report", extra.key]
        assert [run.key for run in report.runs(limit=1)] == ["report"]
        assert [run.key for run in report.runs(extra_runs=False)] == ["report"]
        assert [run.key for run in extra.runs()] == [extra.key]
        end = extra.wait_for_end(1)
        assert (end.status, end.run.key) == ("finished", extra.key)

    def test_a_lost_answer_adds_one_extra_run(self, settings, schedules, report, host):
        store = make_store(settings.url)
        add, lost = store.add, []

        def add_without_answer(rows, *, nonce):
            add(rows, nonce=nonce)
            if not lost:
                lost.append(nonce)
                raise UnknownOutcomeError("the answer was lost")

        store.add = add_without_answer
        with psched.ScheduleCollection(
            store, settings, clock=host, draw_nonce=iter(["id", "insert", "more"]).__next__
        ) as collection:
            extra = collection["report"].trigger(**PARALLEL)
        assert lost
        assert [each.key for each in schedules.list(prefix="report!")] == [extra.key]
        assert report.exists()


class TestAuditing:
    def test_who_has_triggered_a_schedule_is_known_by_its_key(self, schedules, report):
        with schedules.audited("ticket 42"):
            extra = report.trigger({"to": "bob"}, run_at=LATER, **PARALLEL)
        record, added = schedules.audit("report")
        assert (record.action, record.note, added.action) == ("trigger", "ticket 42", "add")
        assert json.loads(record.before) == {}
        assert json.loads(record.after) == {
            "extra_run": extra.key, "overlap": "parallel", "run_at": LATER,
            "data": {"to": "bob"},
        }  # fmt: skip
        assert [*schedules.audit(extra.key)] == []

    def test_a_backfill_is_one_record(self, schedules, hourly):
        with schedules.audited("the network was down"):
            hourly.backfill(START, START + 3 * 3600, **PARALLEL)
        record = next(schedules.audit("hourly"))
        assert (record.action, record.note) == ("backfill", "the network was down")
        assert json.loads(record.after) == {
            "first": START, "last": START + 3 * 3600, "extra_runs": 4, "overlap": "parallel",
        }  # fmt: skip


class TestSelected:
    def test_what_can_run_is_triggered_and_extra_runs_are_not(self, schedules, report, hourly):
        extra = report.trigger(**PARALLEL)
        schedules.add("old", cron="@daily", next_time=LATER).cancel()
        seen = []
        result = schedules.select(every=True).trigger(**PARALLEL, report=lambda *a: seen.append(a))
        assert result.changed == ["hourly", "report"]
        assert seen == [*result.extra_runs.items()]
        assert {schedule_of(key) for key in result.extra_runs.values()} == {"hourly", "report"}
        assert extra.key not in result.extra_runs.values()
        assert hourly.exists()

    def test_a_preview_changes_nothing(self, schedules, report):
        result = schedules.select("rep*").trigger(dry_run=True, **PARALLEL)
        assert (result.changed, result.extra_runs) == (["report"], {})
        assert [each.key for each in schedules.list()] == ["report"]
        assert report.exists()

    def test_the_rate_is_kept(self, settings, schedules, report):
        schedules.add("second", cron="@daily", next_time=LATER)
        clock = ManualClock()
        collection = psched.ScheduleCollection(
            make_store(settings.url), settings, clock=clock, draw_nonce=iter("abcdefgh").__next__
        )
        begun = clock.monotonic()
        collection.select(every=True).trigger(rate="1/m", **PARALLEL)
        assert clock.monotonic() - begun == 60
        assert report.exists()

    def test_what_was_cancelled_meanwhile_is_skipped(self, schedules, report):
        def cancel(_keys):
            return report.cancel()

        result = schedules.select("rep*").trigger(confirm=cancel, **PARALLEL)
        assert ([*result.skipped], result.changed) == (["report"], [])

    @pytest.mark.parametrize("status", ["cancelled", "quarantined", "deleting"])
    def test_a_status_that_cannot_run_is_refused(self, schedules, status):
        with pytest.raises(InvalidError, match="cannot be triggered"):
            schedules.select(status=status).trigger(**PARALLEL)

    def test_several_schedules_are_backfilled_at_one_rate(self, schedules, hourly, report):
        schedules.push("once", run_at=LATER)
        period = START, START + 2 * 3600
        preview = schedules.select(every=True).backfill(
            *period, rate="1/m", dry_run=True, **PARALLEL
        )
        done = schedules.select(every=True).backfill(*period, rate="1/m", **PARALLEL)
        assert done.backfills == preview.backfills
        # As with the command, what runs only once is left out.
        assert (done.failed, "once" in done.backfills) == ({}, False)
        assert {key: len(each.runs) for key, each in done.backfills.items()} == {
            "hourly": 3, "report": 1,
        }  # fmt: skip
        starts = sorted(each.next_run_time for each in schedules.list(prefix="")
                        if schedule_of(each.key))  # fmt: skip
        # The clock is read once for each schedule.
        assert [(each - starts[0]) // 10 for each in starts] == [0, 6, 12, 18]
        assert hourly.exists()
        assert report.exists()


class TestBackfilling:
    def test_each_instant_gets_a_run_both_ends_included(self, schedules, hourly, now):
        begun = now()
        done = hourly.backfill(START, START + 3 * 3600, **PARALLEL)

        times = [START + n * 3600 for n in range(4)]
        assert done == Backfill(
            key="hourly",
            runs=[f"hourly!20231115T0{n}0000Z" for n in range(4)],
            first=times[0],
            last=times[-1],
        )
        rows = schedules.read_many(done.runs)
        assert [rows[key].next_time for key in done.runs] == times
        assert all(int(begun) <= each.next_run_time <= now() for each in rows.values())
        for time in times:
            task = schedules.poll()
            assert (task.schedule_key, task.scheduled_time) == ("hourly", time)
            task.finish()
        assert schedules.poll() is None
        assert hourly.metadata().next_time == 4_000_003_200

    @pytest.mark.parametrize(
        ("start", "end", "number"), [(1, 3599, 0), (1, 3600, 1), (0, 3599, 1), (0, 0, 1), (1, 1, 0)]
    )
    def test_ends_between_instants(self, hourly, start, end, number):
        done = hourly.backfill(START + start, START + end, dry_run=True, **PARALLEL)
        assert len(done.runs) == number
        assert (done.first is None) == (number == 0)

    def test_the_zone_of_the_schedule_decides(self, schedules):
        paris = schedules.add("p", cron="30 2 * * *", timezone="Europe/Paris", next_time=LATER)
        # On 2026-03-29, 02:30 does not exist, so the run comes right after the clock change.
        since, until = datetime(2025, 3, 29, tzinfo=UTC), datetime(2025, 3, 31, 12, tzinfo=UTC)
        done = paris.backfill(since, until, dry_run=True, **PARALLEL)
        assert done.runs == [f"p!202503{each}Z" for each in (
            "29T013000", "30T010000", "31T003000",
        )]  # fmt: skip

    @pytest.mark.parametrize(
        "trigger",
        [
            {"every": "90m"},
            {"trigger": ("tests.api.test_triggers:Tides", {"gap": 3000})},
            {"cron": "7 * * * *"},
        ],
    )
    def test_every_kind_of_trigger(self, schedules, trigger):
        key = "other"
        other = schedules.add(key, next_time=LATER, **trigger)
        instants = {each.time for each in other.next(3)}
        done = other.backfill(START, START + 21 * DAY, dry_run=True, **PARALLEL)
        assert done.runs
        assert instants

    def test_a_command_that_is_repeated_adds_nothing(self, schedules, hourly):
        period = START, START + 3 * 3600
        first = hourly.backfill(*period, **PARALLEL)
        schedules.poll().finish()
        again = hourly.backfill(START - 3600, *period[1:], **PARALLEL)
        assert len(first.runs) == 4
        finished = again.finished
        assert (len(again.runs), finished + again.existing) == (1, 4)
        assert finished == 1

    def test_instants_that_have_finished_are_left_out(self, schedules, hourly):
        finish(schedules, "hourly", START, START + 3600)
        finish(schedules, "hourly", START + 2 * 3600, fate=Fate.GAVE_UP)
        finish(schedules, "hourly!" + "x" * 16, START + 3 * 3600)
        finish(schedules, "other", START + 4 * 3600)
        done = hourly.backfill(START, START + 4 * 3600, **PARALLEL)
        assert (done.finished, done.runs) == (
            3, ["hourly!20231115T020000Z", "hourly!20231115T040000Z"],
        )  # fmt: skip

    def test_without_a_history_a_finished_instant_is_known_by_its_row(self, schedules, settings):
        with psched.open(settings.with_settings(history="none", retention_time=0)) as silent:
            silent.add("s", cron="@daily", next_time=LATER)
            done = silent["s"].backfill(START, START + DAY, rate="1/h", **PARALLEL)
            silent.poll().finish()
            row = silent[done.runs[0]].metadata().row
            assert row.retain_until - silent.now() > STAYS + 2 * 3600 - 60
            assert [*silent.runs("s")] == []
            repeated = silent["s"].backfill(START, START + DAY, **PARALLEL)
        assert (repeated.runs, repeated.existing) == ([], 2)
        assert options(schedules[done.runs[0]])["retention_time"] == STAYS + 2 * 3600

    def test_a_longer_retention_of_the_schedule_stays(self, schedules):
        schedules.add("s", cron="@daily", next_time=LATER, retention_time="400d")
        done = schedules["s"].backfill(START, START, **PARALLEL)
        assert options(schedules[done.runs[0]])["retention_time"] == 400 * DAY

    def test_again_runs_what_has_ended_but_not_what_still_waits(self, schedules, hourly):
        period = START, START + 2 * 3600
        finish(schedules, "hourly", START)
        assert len(hourly.backfill(*period, **PARALLEL).runs) == 2
        again = hourly.backfill(*period, again=True, **PARALLEL)
        assert (again.runs, again.existing) == (["hourly!20231115T000000Z"], 2)
        for _ in range(3):
            schedules.poll().finish()
        third = hourly.backfill(*period, again=True, **PARALLEL)
        assert len(third.runs) == 3
        assert third.runs == sorted(third.runs)
        assert {*third.runs}.isdisjoint({*again.runs})
        rows = schedules.read_many(third.runs)
        assert [rows[key].next_time for key in third.runs] == [START, START + 3600, period[1]]
        assert (hourly.backfill(*period, again=True, **PARALLEL).runs) == []

    def test_why_tells_what_a_backfill_has_made_up_for(self, schedules, hourly):
        assert schedules["hourly"].why(START).state == "did not run"
        hourly.backfill(START, START + 3600, **PARALLEL)
        assert "backfill" not in schedules["hourly"].why(START).sentence
        keys = {}
        for end in "finish", "release":
            task = schedules.poll()
            keys[task.scheduled_time] = end, task.key
            getattr(task, end)()
        for instant, (end, key) in keys.items():
            answer = schedules["hourly"].why(instant)
            text = "ran it" if end == "finish" else "of it was interrupted"
            assert f"; a backfill {text} at " in answer.sentence
            assert (answer.state, answer.details["backfill"]) == ("did not run", key)

    def test_the_schedule_itself_runs_what_is_still_due(self, schedules, now):
        first = int(now()) // 3600 * 3600 - 2 * 3600
        schedules.add("due", cron="0 * * * *", next_time=first)
        done = schedules["due"].backfill(first - 3600, first + 2 * 3600, **PARALLEL)
        assert (done.regular, len(done.runs)) == (3, 1)

    def test_a_rate_spreads_the_starts(self, schedules, hourly, now):
        begun = now()
        done = hourly.backfill(START, START + 5 * 3600, rate="10/m", **PARALLEL)
        rows = schedules.read_many(done.runs)
        starts = [rows[key].next_run_time for key in done.runs]
        assert [each - starts[0] for each in starts] == [0, 6, 12, 18, 24, 30]
        assert int(begun) <= starts[0] <= now()

    def test_runs_that_wait_for_each_other_become_due_as_the_last_ones_end(self, schedules, hourly):
        now = int(schedules.now())

        def took(number, seconds):
            record = RunRecord(
                key="hourly", type="mail", scheduled_time=number, owner=f"w.{number}", fence=number,
                started=(now - 100) * 1000, ended=(now - 100) * 1000 + int(seconds * 1000),
                attempt=1, outcome=Outcome.FINISHED, fate=Fate.FINISHED,
            )  # fmt: skip
            schedules._store.history.record([record])

        period = START, START + 2 * 3600
        assert hourly.backfill(*period, overlap="queue", dry_run=True).within == 2
        took(1, 0.1)
        assert hourly.backfill(*period, overlap="queue", dry_run=True).within == 2
        took(2, 50)
        took(3, 7)
        assert hourly.backfill(*period, overlap="parallel", dry_run=True).within == 0
        assert hourly.backfill(*period, overlap="queue", rate="1/s", dry_run=True).within == 2
        done = hourly.backfill(*period)
        rows = schedules.read_many(done.runs)
        starts = [rows[key].next_run_time for key in done.runs]
        assert [each - starts[0] for each in starts] == [0, 7, 14]
        assert options(schedules[done.runs[0]])["overlap"] == "queue"
        assert options(schedules[done.runs[0]])["retention_time"] == STAYS + 3 * 7

    def test_a_preview_changes_nothing(self, schedules, hourly):
        finish(schedules, "hourly", START)
        preview = hourly.backfill(START, START + 2 * 3600, dry_run=True, **PARALLEL)
        assert [each.key for each in schedules.list()] == ["hourly"]
        assert hourly.backfill(START, START + 2 * 3600, **PARALLEL) == preview
        assert [each.action for each in schedules.audit("hourly")] == ["backfill", "add"]

    def test_two_operators_at_once_run_no_instant_twice(self, settings, schedules, hourly):
        end = START + 1500 * 3600

        def run(_number):
            with psched.open(settings) as own:
                return own["hourly"].backfill(START, end, **PARALLEL)

        with ThreadPoolExecutor(3) as pool:
            done = [*pool.map(run, range(3))]
        added = [key for each in done for key in each.runs]
        assert len(added) == len({*added}) == 1501
        assert all(len(each.runs) + each.existing == 1501 for each in done)
        assert {each.key for each in schedules.list(prefix="hourly!")} == {*added}
        assert hourly.exists()

    def test_an_interrupted_backfill_is_completed_by_the_same_call(
        self, settings, schedules, hourly, host
    ):
        store = make_store(settings.url)
        add, calls = store.add, []

        def add_once(rows, *, nonce):
            calls.append(nonce)
            if len(calls) > 1:
                raise StoreUnavailableError("gone")
            add(rows, nonce=nonce)

        store.add = add_once
        collection = partial(psched.ScheduleCollection, settings=settings, clock=host)
        nonces = map(str, range(100))
        seen = []
        with (
            collection(store, draw_nonce=nonces.__next__) as broken,
            pytest.raises(StoreUnavailableError),
        ):
            broken.backfill("hourly", START, START + 999 * 3600, report=seen.append, **PARALLEL)
        assert [len(each.runs) for each in seen] == [500]
        again = hourly.backfill(START, START + 999 * 3600, **PARALLEL)
        assert (len(again.runs), again.existing) == (500, 500)
        assert len([*schedules.list(prefix="hourly!")]) == 1000
        assert [each.action for each in schedules.audit("hourly")] == [
            "backfill",
            "backfill",
            "add",
        ]

    @pytest.mark.parametrize(
        ("field", "arguments"),
        [
            ("end", {"end": LATER}),
            ("end", {"end": START - 1}),
            ("start", {"start": "yesterday"}),
            ("rate", {"rate": "often"}),
            ("overlap", {"overlap": "skip"}),
            ("overlap", {"overlap": "x"}),
        ],
    )
    def test_invalid_values_are_refused(self, hourly, field, arguments):
        with pytest.raises(InvalidError) as raised:
            hourly.backfill(**{"start": START, "end": START, **PARALLEL, **arguments})
        assert raised.value.field == field

    def test_too_many_instants_are_refused_with_the_end_that_is_possible(self, schedules):
        each = schedules.add("each", every="1s", next_time=LATER)
        with pytest.raises(InvalidError, match="2023-11-15T02:46:39Z is the last one"):
            each.backfill(START, START + 300 * DAY, dry_run=True, **PARALLEL)
        done = each.backfill(START, START + MOST_INSTANTS - 1, dry_run=True, **PARALLEL)
        assert len(done.runs) == MOST_INSTANTS

    def test_what_runs_once_has_missed_nothing(self, schedules):
        schedules.push("once", run_at=LATER)
        with pytest.raises(InvalidError, match="runs only once"):
            schedules["once"].backfill(START, START, **PARALLEL)

    def test_the_shared_stagger_of_several_calls(self, schedules, hourly):
        stagger = Stagger("1/s")
        first = schedules.backfill("hourly", START, START + 3600, rate=stagger, **PARALLEL)
        more = schedules.backfill("hourly", START + 7200, START + 7200, rate=stagger, **PARALLEL)
        rows = schedules.read_many([*first.runs, *more.runs])
        starts = sorted(each.next_run_time for each in rows.values())
        assert starts[2] - starts[0] in {2, 3}
        assert hourly.exists()


def test_a_store_that_holds_no_schedules_allows_only_parallel_runs(
    settings, schedules, report, host
):
    class Limited:
        """A store that lacks the capability."""

        def __init__(self, store):
            self._store = store

        def __getattr__(self, name):
            return None if name == "holds" else getattr(self._store, name)

    with psched.ScheduleCollection(
        Limited(make_store(settings.url)), settings, clock=host, draw_nonce=lambda: "x"
    ) as limited:
        for act in (
            partial(limited.trigger, "report"),
            partial(limited.backfill, "report", START, START),
        ):
            with pytest.raises(NotSupportedError, match="only parallel"):
                act()
        extra = limited.trigger("report", **PARALLEL)
    assert needed_schedule(schedules[extra.key].metadata().row) is None
    assert report.exists()


class TestVerifying:
    def run(self, schedules, key, start, end):
        record = RunRecord(
            key=key, type="mail", scheduled_time=int(start), owner=f"w.{key}", fence=1,
            started=int(start * 1000), ended=int(end * 1000), attempt=1, outcome=Outcome.FINISHED,
            fate=Fate.FINISHED,
        )  # fmt: skip
        schedules._store.history.record([record])

    def verified(self, settings, *keys):
        return Verifier(make_store(settings.url), settings).verify(DAY, keys)

    @pytest.mark.parametrize("overlap", ["queue", "parallel"])
    def test_an_overlap_is_found_unless_it_was_allowed(self, settings, schedules, report, overlap):
        began = schedules.now() - 3600
        extra = schedules.trigger("report", overlap=overlap)
        self.run(schedules, "report", began, began + 60)
        self.run(schedules, extra.key, began + 30, began + 90)
        for keys in (), ("report",):
            found = self.verified(settings, *keys)
            assert [(each.kind, each.key) for each in found.violations] == (
                [("overlap", extra.key)] if overlap == "queue" else []
            )
        assert self.verified(settings, extra.key).violations == []
        assert report.exists()

    def test_the_runs_of_a_deleted_schedule_are_checked_too(self, settings, schedules, report):
        began = schedules.now() - 3600
        first, second = (schedules.trigger("report", overlap="queue").key for _ in range(2))
        report.delete()
        self.run(schedules, first, began, began + 60)
        self.run(schedules, second, began + 30, began + 90)
        [violation] = self.verified(settings).violations
        assert violation.key == second

    def test_extra_runs_explain_no_second_run(self, settings, schedules):
        """The records of who has triggered a schedule are no changes of its definition."""
        store, now = schedules._store, int(schedules.now())
        store.add([Row(key="s", cron="@daily", next_time=LATER, next_run_time=LATER)], nonce="n")
        seen = store.get("s")
        assert store.replace(seen, changed(seen, created_at=now - 7200))
        self.run(schedules, "s", now - 3600, now - 3540)
        again = RunRecord(
            key="s", type="mail", scheduled_time=now - 3600, owner="w.again", fence=2,
            started=(now - 3500) * 1000, ended=(now + 60) * 1000, attempt=1,
            outcome=Outcome.FINISHED, fate=Fate.FINISHED,
        )  # fmt: skip
        store.history.record([again])
        before = self.verified(settings, "s")
        assert (before.violations, before.unknown[CHANGED]) == ([], 1)
        schedules["s"].trigger(**PARALLEL)
        schedules["s"].backfill(START, START + DAY, **PARALLEL)
        assert self.verified(settings, "s") == before
