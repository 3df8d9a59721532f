"""Tests that the declared fields of a schedule are converted to its row."""

import random
from dataclasses import replace as changed
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from psched import config
from psched.base.errors import InvalidError
from psched.core.declare import declare, declare_all, redeclare, restart
from psched.core.model import CANCELLING, FINISHED, FINISHING, PAUSED, QUARANTINED, WAITING, Row
from psched.core.schedule import ScheduleMetadata
from psched.triggers import trigger as triggers

SETTINGS = config.from_mapping({"url": "sqlite:///unused.db", "timezone": "Asia/Tokyo"})
NOON = 1_800_014_400
"""2027-01-15T12:00:00Z."""
HOUR, DAY = 3600, 86_400


def now():
    return NOON + 1


def never():
    raise AssertionError("the store's clock need not be asked")


class TestDeclaring:
    def test_a_schedule_starts_at_the_first_match_from_now_on(self):
        row = declare("k", {"cron": "0 * * * *"}, SETTINGS, now)
        assert (row.next_time, row.next_run_time) == (NOON + HOUR, NOON + HOUR)
        assert declare("k", {"cron": "0 * * * *"}, SETTINGS, lambda: NOON).next_time == NOON

    @pytest.mark.parametrize(
        "fields",
        [
            {"cron": "0 * * * *", "delay": 7, "jitter": 60},
            {"every": 90},
            {"cron": "@daily", "next_time": NOON + 5 * DAY, "next_run_time": NOON + 6 * DAY},
            {"cron": "@daily", "next_time": None},
            {"at": NOON + HOUR},
            {},
        ],
    )
    def test_a_row_that_was_declared_at_another_time_can_be_started_now(self, fields):
        early = declare("k", fields, SETTINGS, lambda: 0)
        assert restart(early, fields, SETTINGS, now) == declare("k", fields, SETTINGS, now)

    def test_a_one_shot_runs_now(self):
        row = declare("k", {"delay": 5}, SETTINGS, now)
        assert (row.cron, row.next_time, row.next_run_time) == (None, NOON + 1, NOON + 6)

    def test_the_first_occurrence_is_the_first_match_at_or_after_the_start(self):
        for start, first in ((NOON, NOON), (NOON + 1, NOON + HOUR), (0, 0)):
            fields = {"cron": "0 * * * *", "next_time": start, "delay": 30}
            row = declare("k", fields, SETTINGS, never)
            assert (row.next_time, row.next_run_time) == (first, first + 30)

    def test_the_first_run_may_be_at_any_time_from_its_scheduled_time_on(self):
        fields = {"cron": "0 * * * *", "next_time": NOON, "delay": 9}
        for run_at in (NOON, NOON + 1, NOON + DAY):
            row = declare("k", {**fields, "next_run_time": run_at}, SETTINGS, never)
            assert (row.next_time, row.next_run_time) == (NOON, run_at)

    def test_an_occurrence_that_is_due_already_may_have_any_first_run(self):
        fields = {"cron": "0 * * * *", "next_time": NOON, "next_run_time": NOON - DAY}
        assert declare("k", fields, SETTINGS, now).next_run_time == NOON - DAY
        assert declare("k", {"next_run_time": 5}, SETTINGS, now).next_run_time == 5

    @pytest.mark.parametrize(
        "fields",
        [
            {"cron": "0 * * * *"},
            {"cron": "0 * * * *", "next_run_time": NOON + HOUR - 1},
            {"every": 60, "next_time": NOON + DAY},
        ],
    )
    def test_the_first_run_may_be_before_its_scheduled_time(self, fields):
        given = {"type": "t", "next_run_time": NOON + 1, **fields}
        row = declare("k", given, SETTINGS, now)
        assert row.next_time > row.next_run_time == given["next_run_time"]
        (again,) = declare_all([{"key": "k", **given}], SETTINGS, now)
        assert again == row

    @pytest.mark.parametrize("fields", [{"next_time": NOON + DAY}, {"at": NOON + 5}])
    def test_a_task_that_runs_once_has_one_time(self, fields):
        with pytest.raises(InvalidError, match="set next_time instead") as refused:
            declare("k", {"type": "t", "next_run_time": NOON + 1, **fields}, SETTINGS, now)
        assert refused.value.field == "next_run_time"
        assert "is before the scheduled time, 2027-01-1" in refused.value.problem

    def test_an_instant_may_be_a_datetime_of_any_zone(self):
        tokyo = timezone(timedelta(hours=9))
        for when in (
            datetime(2027, 1, 15, 12, tzinfo=UTC),
            datetime(2027, 1, 15, 21, tzinfo=tokyo),
            datetime(2027, 1, 15, 20, 59, 59, 1, tzinfo=tokyo),  # rounded up
        ):
            assert declare("k", {"next_time": when}, SETTINGS, never).next_time == NOON

    def test_the_zone_is_kept_also_when_it_is_the_installations(self):
        """The row contains the zone, because another host can have another default zone."""
        row = declare("k", {"cron": "0 0 * * *", "next_time": NOON}, SETTINGS, never)
        assert row.timezone == "Asia/Tokyo"
        assert row.next_time == NOON + 3 * HOUR
        fields = {"cron": "0 0 * * *", "next_time": NOON, "timezone": "UTC"}
        assert declare("k", fields, SETTINGS, never).next_time == NOON + 12 * HOUR

    def test_everything_that_is_said_is_kept(self):
        fields = {
            "type": "t", "data": {"n": 1}, "delay": 3, "alive_time": 9, "catchup": "latest",
            "catchup_limit": 5, "retry_wait": 7, "next_time": NOON,
        }  # fmt: skip
        row = declare("k", fields, SETTINGS, never)
        assert (row.type, row.data, row.delay, row.alive_time) == ("t", '{"n":1}', 3, 9)
        assert row.options == '{"catchup":"latest","catchup_limit":5,"retry_wait":7}'
        assert (row.status, row.attempt, row.fence, row.version) == (WAITING, 0, 0, 1)

    def test_none_is_the_default(self):
        fields = dict.fromkeys(
            ("type", "data", "cron", "timezone", "delay", "alive_time", "catchup", "next_run_time")
        )
        row = declare("k", {**fields, "next_time": NOON}, SETTINGS, never)
        assert row == declare("k", {"next_time": NOON}, SETTINGS, never)

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("type", ""), ("type", 5), ("cron", "61 * * * *"), ("cron", "0 0 30 2 *"), ("cron", 5),
            ("timezone", "Mars/Olympus"), ("timezone", 5), ("timezone", 0), ("timezone", []),
            ("delay", -1), ("delay", 1.5),
            ("delay", True), ("delay", 10**9), ("data", []), ("data", {"a": {1}}),
            ("data", {1: "one"}), ("data", {"a": [{None: 1}]}),
            ("alive_time", -1),
            ("alive_time", "9"), ("alive_time", 10**9), ("next_time", -1), ("next_time", 1.5),
            ("next_time", 2**62), ("next_time", "2027-01-15"), ("next_run_time", float("nan")),
            ("next_time", datetime(2027, 1, 15, 12)), ("catchup", "sometimes"),  # noqa: DTZ001
            ("catchup_limit", 0), ("catchup_grace", -1), ("dst_policy", "x"), ("retry_wait", "x"),
            ("kill_timeout", float("inf")), ("owner", "me"), ("colour", "red"), ("colour", None),
        ],
    )  # fmt: skip
    def test_what_makes_no_sense_is_refused_with_its_name(self, field, value):
        with pytest.raises(InvalidError) as refused:
            declare("k", {field: value}, SETTINGS, now)
        assert refused.value.field == field
        assert str(refused.value).startswith(f"{field}: ")
        assert str(refused.value).count(f"{field}: ") == 1

    @pytest.mark.parametrize("key", ["", " k", None, 5, "x" * 256, "a\nb"])
    def test_a_key_that_is_none_is_refused(self, key):
        with pytest.raises(InvalidError, match=r"^key: "):
            declare(key, {}, SETTINGS, now)


def stored(**columns):
    columns = {"cron": "0 * * * *", "timezone": "UTC", "next_time": NOON, **columns}
    return Row(**{"key": "k", "next_run_time": NOON + 30, "delay": 30, "version": 3, **columns})


class TestRedeclaring:
    @pytest.mark.parametrize(
        "fields", [{"type": "t"}, {"data": {"n": 2}}, {"retry_wait": 5}, {"alive_time": 9}, {}]
    )
    def test_what_does_not_touch_the_trigger_leaves_the_times(self, fields):
        seen = stored(attempt=2, next_run_time=NOON + 333)
        row = redeclare(seen, fields, SETTINGS, never)
        assert (row.next_time, row.next_run_time, row.attempt) == (NOON, NOON + 333, 2)

    @pytest.mark.parametrize(
        ("fields", "first"),
        [
            ({"cron": "30 * * * *"}, NOON + HOUR // 2),
            ({"timezone": "Asia/Kolkata"}, NOON + HOUR // 2),
            ({"dst_policy": "wallclock"}, NOON + HOUR),
        ],
    )
    def test_a_new_trigger_starts_from_now_on(self, fields, first):
        row = redeclare(stored(attempt=2, next_time=NOON - DAY), fields, SETTINGS, now)
        assert (row.next_time, row.next_run_time, row.attempt) == (first, first + 30, 0)

    def test_a_new_delay_moves_the_next_run(self):
        row = redeclare(stored(), {"delay": 5}, SETTINGS, never)
        assert (row.next_time, row.next_run_time) == (NOON, NOON + 5)

    def test_a_new_start_is_a_start(self):
        row = redeclare(stored(attempt=2), {"next_time": NOON + 1}, SETTINGS, never)
        assert (row.next_time, row.next_run_time) == (NOON + HOUR, NOON + HOUR + 30)
        assert row.attempt == 0

    @pytest.mark.parametrize("run_at", [NOON, NOON + 1, NOON + DAY])
    def test_the_next_run_may_be_set_alone(self, run_at):
        row = redeclare(stored(attempt=1), {"next_run_time": run_at}, SETTINGS, never)
        assert (row.next_time, row.next_run_time, row.attempt) == (NOON, run_at, 1)

    def test_a_further_attempt_may_be_made_at_once(self):
        seen = stored(attempt=1, next_run_time=NOON + DAY)
        row = redeclare(seen, {"next_run_time": NOON - 5}, SETTINGS, now)
        assert (row.next_time, row.next_run_time, row.attempt) == (NOON, NOON - 5, 1)

    @pytest.mark.parametrize("fields", [{}, {"delay": 0}, {"cron": "30 2 * * *"}, {"every": 600}])
    def test_a_run_before_the_scheduled_time_is_refused(self, fields):
        seen = stored(type="backup", next_time=NOON + HOUR, next_run_time=NOON + HOUR)
        with pytest.raises(InvalidError, match="call trigger") as refused:
            redeclare(seen, {"next_run_time": NOON + 1, **fields}, SETTINGS, now)
        assert refused.value.field == "next_run_time"

    def test_without_extra_runs_another_way_is_named(self):
        shared = config.from_mapping(
            {"type": "rdb_compat", "url": "sqlite:////unused.db", "table": "schedules"}
        )
        seen = stored(type="backup", next_time=NOON + HOUR, next_run_time=NOON + HOUR)
        with pytest.raises(InvalidError, match="delete it and add it with this time") as refused:
            redeclare(seen, {"next_run_time": NOON + 1}, shared, now)
        assert "trigger" not in refused.value.problem

    def test_a_task_that_runs_once_is_moved_by_its_scheduled_time(self):
        seen = stored(cron=None, next_time=NOON + HOUR, delay=0)
        with pytest.raises(InvalidError, match="set next_time instead"):
            redeclare(seen, {"next_run_time": NOON + 1}, SETTINGS, now)
        row = redeclare(seen, {"next_time": NOON + 1}, SETTINGS, never)
        assert (row.next_time, row.next_run_time) == (NOON + 1, NOON + 1)

    @pytest.mark.parametrize("status", [FINISHED, PAUSED])
    def test_a_schedule_at_rest_cannot_run_early_either(self, status):
        seen = stored(status=status, next_time=NOON - DAY, next_run_time=None)
        with pytest.raises(InvalidError, match="scheduled time, 2027-01-15T13:00:00Z"):
            redeclare(seen, {"next_run_time": NOON + 1}, SETTINGS, now)

    def test_a_next_run_that_sql_has_set_early_is_left_as_it_is(self):
        seen = stored(next_time=NOON + HOUR, next_run_time=NOON)
        row = redeclare(seen, {"data": {"n": 2}}, SETTINGS, never)
        assert (row.next_time, row.next_run_time) == (NOON + HOUR, NOON)

    def test_overrides_are_changed_one_by_one_and_taken_back_with_none(self):
        seen = stored(options='{"catchup":"skip","of a newer psched":[1]}')
        row = redeclare(seen, {"retry_wait": 5}, SETTINGS, never)
        assert row.options == '{"catchup":"skip","of a newer psched":[1],"retry_wait":5}'
        row = redeclare(row, {"catchup": None}, SETTINGS, never)
        assert row.options == '{"of a newer psched":[1],"retry_wait":5}'
        assert redeclare(
            stored(options='{"catchup":"skip"}'), {"catchup": None}, SETTINGS, never
        ).options is None  # fmt: skip

    def test_what_makes_no_sense_is_refused(self):
        for field, value in {"cron": "x", "type": "", "data": None, "catchup": 5, "x": 1}.items():
            with pytest.raises(InvalidError) as refused:
                redeclare(stored(), {field: value}, SETTINGS, now)
            assert refused.value.field == field


class TestRedeclaringUnderALease:
    SEEN = stored(owner="w.1", fence=4, attempt=2, next_run_time=NOON + 300)

    def test_the_running_occurrence_stays(self):
        row = redeclare(self.SEEN, {"cron": "30 * * * *", "type": "t"}, SETTINGS, never)
        assert (row.next_time, row.attempt) == (NOON, 2)
        assert (row.cron, row.type) == ("30 * * * *", "t")

    def test_a_next_time_that_is_set_counts_as_never_tried(self):
        """If the worker of the running task dies now, the next run must not be at once."""
        row = redeclare(self.SEEN, {"next_time": NOON + DAY}, SETTINGS, now)
        assert row.next_time == NOON + DAY
        assert (row.attempt, row.moved_at, row.is_tried) == (0, NOON + 1, False)


class TestRedeclaringAtRest:
    def test_a_quarantined_schedule_goes_on_where_it_stood(self):
        """``next_time`` is not changed, because only the catch-up policy drops occurrences."""
        seen = stored(status=QUARANTINED, reason="data: …", next_run_time=None, attempt=2**63 - 1)
        row = redeclare(changed(seen, data="{"), {"data": {}}, SETTINGS, never)
        assert (row.status, row.reason) == (WAITING, None)
        assert (row.next_time, row.next_run_time, row.attempt) == (NOON, NOON + 30, 0)

    @pytest.mark.parametrize("next_time", [None, -1, 2**62])
    def test_a_quarantined_schedule_without_a_time_starts_from_now_on(self, next_time):
        seen = stored(status=QUARANTINED, next_time=next_time, next_run_time=None)
        row = redeclare(seen, {"type": "t"}, SETTINGS, now)
        assert (row.next_time, row.next_run_time) == (NOON + HOUR, NOON + HOUR + 30)

    def test_a_schedule_continues_after_what_is_decided(self):
        """A host that could not load the trigger has settled it; see `psched.core.attempts`."""
        seen = stored(next_time=None, decided_until=NOON - 2 * HOUR)
        row = redeclare(seen, {"data": {"a": 1}}, SETTINGS, never)
        assert (row.next_time, row.decided_until) == (NOON - HOUR, None)
        again = redeclare(changed(seen, status=QUARANTINED), {}, SETTINGS, never)
        assert again.next_time == NOON - HOUR
        assert redeclare(seen, {"cron": "0 * * * *"}, SETTINGS, now).next_time >= NOON

    def test_a_schedule_that_is_still_not_understood_stays_quarantined(self):
        seen = stored(status=QUARANTINED, cron="x", next_run_time=None)
        with pytest.raises(InvalidError, match=r"^cron: "):
            redeclare(seen, {"type": "t"}, SETTINGS, now)

    @pytest.mark.parametrize("fields", [{"data": {"n": 1}}, {"type": "t"}, {"delay": 1}, {}])
    def test_a_finished_schedule_does_not_run_again_by_the_way(self, fields):
        seen = stored(cron=None, status=FINISHED, next_run_time=None)
        row = redeclare(seen, fields, SETTINGS, never)
        assert (row.status, row.next_time, row.next_run_time) == (FINISHED, NOON, None)

    @pytest.mark.parametrize("status", [CANCELLING, FINISHING])
    def test_what_is_about_to_end_ends_unless_it_gets_a_time_or_a_trigger(self, status):
        seen = stored(status=status, owner="w.1", next_run_time=NOON + 300)
        assert redeclare(seen, {"note": "x"}, SETTINGS, never).status == status
        assert redeclare(seen, {"cron": "30 * * * *"}, SETTINGS, never).status == WAITING

    @pytest.mark.parametrize(
        ("fields", "first", "run"),
        [
            ({"next_time": NOON + 7}, NOON + 7, NOON + 37),
            ({"next_run_time": NOON + 7}, NOON + 1, NOON + 7),
            ({"cron": "0 * * * *"}, NOON + HOUR, NOON + HOUR + 30),
        ],
    )
    def test_a_finished_schedule_runs_again_when_it_gets_a_time_or_a_trigger(
        self, fields, first, run
    ):
        seen = stored(cron=None, status=FINISHED, next_run_time=None, next_time=NOON - DAY)
        row = redeclare(seen, fields, SETTINGS, now)
        assert (row.status, row.next_time, row.next_run_time) == (WAITING, first, run)
        assert row.created_at == NOON + 1

    def test_what_has_not_ended_keeps_the_time_of_its_creation(self):
        for status in WAITING, QUARANTINED, PAUSED:
            seen = stored(status=status, created_at=7)
            row = redeclare(seen, {"cron": "0 * * * *"}, SETTINGS, now)
            assert row.created_at == 7


class TestTypes:
    """A row contains the ``alive_time`` of its type, because a claim reads no settings of types."""

    SETTINGS = SETTINGS.with_settings(
        types={"report": {"alive_time": 60, "retry_wait": 5}, "mail": {"alive_time": 90}}
    )

    def test_the_lease_of_a_type_stands_in_its_rows(self):
        for fields, lease in (
            ({"type": "report"}, 60),
            ({"type": "report", "alive_time": 30}, 30),
            ({"type": "other"}, None),
            ({}, None),
        ):
            row = declare("k", fields, self.SETTINGS, now)
            assert (row.alive_time, row.options) == (lease, None)

    def test_what_came_from_a_type_goes_with_it(self):
        report = declare("k", {"type": "report"}, self.SETTINGS, now)
        for seen, fields, lease in (
            (report, {"type": "mail"}, 90),
            (report, {"type": "other"}, None),
            (report, {"data": {}}, 60),
            (report, {"alive_time": 30}, 30),
            (changed(report, alive_time=30), {"type": "mail"}, 30),
            (changed(report, alive_time=30), {"alive_time": None}, 60),
            (changed(report, alive_time=30), {"alive_time": None, "type": "other"}, None),
        ):
            assert redeclare(seen, fields, self.SETTINGS, now).alive_time == lease

    def test_data_that_are_too_large_are_refused(self):
        settings = SETTINGS.with_settings(data_limit=1024)
        declare("k", {"data": {"a": "x" * 1000}}, settings, now)
        with pytest.raises(InvalidError, match=r"^data: has 1108 bytes as JSON, and data_limit is"):
            declare("k", {"data": {"a": "x" * 1100}}, settings, now)


class TestLabelsAndNotes:
    def test_they_are_kept_beside_the_settings_and_can_be_changed_and_taken_away(self):
        row = declare("k", {"label": "a", "note": "b\n\tc", "catchup": "skip"}, SETTINGS, now)
        assert ScheduleMetadata(row).label == "a"
        assert ScheduleMetadata(row).note == "b\n\tc"
        row = redeclare(row, {"label": None, "note": "d"}, SETTINGS, never)
        assert (ScheduleMetadata(row).label, ScheduleMetadata(row).note) == (None, "d")
        assert row.options == '{"catchup":"skip","note":"d"}'
        assert ScheduleMetadata(Row(key="k", options='{"label": 5')).label is None
        assert ScheduleMetadata(Row(key="k", options='{"label": 5}')).label is None

    def test_a_new_label_leaves_times_alone(self):
        row = declare("k", {"cron": "@daily"}, SETTINGS, now)
        new = redeclare(changed(row, owner="w", next_run_time=5), {"label": "a"}, SETTINGS, never)
        assert (new.next_time, new.next_run_time) == (row.next_time, 5)

    @pytest.mark.parametrize("name", ["label", "note"])
    @pytest.mark.parametrize("value", ["", " ", 5, "a\0", "a\x1b[2J", "x" * 5000, ["a"], "\ud800"])
    def test_they_are_texts_that_can_be_shown(self, name, value):
        with pytest.raises(InvalidError) as refused:
            declare("k", {name: value}, SETTINGS, now)
        assert refused.value.field == name


VALUES = {
    "type": ["a", "b", None],
    "cron": ["0 * * * *", "@daily", None],
    "every": ["1h", 90, timedelta(minutes=5), None],
    "align": [True, None],
    "at": [NOON + DAY, None],
    "next_time": [NOON + HOUR, 5, None],
    "next_run_time": [NOON + DAY, 0, None],
    "delay": [0, 1, 1.0, True, "5m", None],
    "jitter": [0, "10m", None],
    "timezone": ["UTC", "Europe/Paris", None],
    "alive_time": [60, "1m", None],
    "label": ["ours", None],
    "max_attempts": [3, None],
    "data": [{}, {"a": [1]}, [], {"a": {1}}, None],
}
"""Some values of each field; not all of them are valid."""


class TestDeclaringMany:
    """Schedules that differ only in key and data are checked together."""

    @pytest.mark.parametrize("seed", range(40))
    def test_each_becomes_what_it_becomes_by_itself(self, seed):
        rng = random.Random(seed)  # noqa: S311  # test data
        names = rng.sample([*VALUES], 4)
        schedules = [
            {"key": f"k{n}", **{name: rng.choice(VALUES[name]) for name in names}}
            for n in range(60)
        ]
        for schedule in schedules:
            alone = declared(schedule)
            if isinstance(alone, Row):
                alike = [{**schedule, "key": key} for key in ("a", "b", schedule["key"])]
                assert declare_all(alike, SETTINGS, now)[2] == alone
        valid = [each for each in schedules if isinstance(declared(each), Row)]
        rows = declare_all(valid, SETTINGS, now)
        assert rows == [declared(each) for each in valid]

    @pytest.mark.parametrize(
        ("first", "second"),
        [({"delay": 1}, {"delay": True}), ({"delay": 1}, {"delay": 1.0}), ({}, {"delay": 1.0})],
        ids=str,
    )
    def test_equal_values_of_other_types_are_refused_all_the_same(self, first, second):
        with pytest.raises(InvalidError, match=r"^schedules\[1\]\.delay: must be a whole number"):
            declare_all([{"key": "a", **first}, {"key": "b", **second}], SETTINGS, now)

    def test_times_that_are_equal_but_for_their_fold_stay_different(self):
        paris = ZoneInfo("Europe/Paris")
        twice = datetime(2027, 10, 31, 2, 30, tzinfo=paris)
        early, late = declare_all(
            [{"key": "a", "at": twice}, {"key": "b", "at": twice.replace(fold=1)}], SETTINGS, now
        )
        assert late.next_time - early.next_time == HOUR

    @pytest.mark.parametrize(
        ("wrong", "field"),
        [
            ({"key": " b"}, "key"),
            ({"key": "b!0123456789abcdef"}, "key"),
            ({"key": 5}, "key"),
            ({}, "key"),
            ({"key": "b", "data": []}, "data"),
            ({"key": "b", "data": {"n": "x" * 2**24}}, "data"),
            ({"key": "b", "data": {"n": float("nan")}}, "data"),
            ({"key": "a"}, "key"),
        ],
        ids=lambda each: str(each)[:40],
    )
    def test_one_that_is_like_the_first_is_refused_for_its_own_fault(self, wrong, field):
        alone = {"type": "t", "cron": "@daily"}
        with pytest.raises(InvalidError) as refused:
            declare_all([{"key": "a", **alone}, {**alone, **wrong}], SETTINGS, now)
        assert refused.value.field == f"schedules[1].{field}"

    def test_a_command_without_a_program_is_refused_after_one_that_has_it(self):
        good = {"key": "a", "type": "exec", "data": {"command": ["true"]}}
        with pytest.raises(InvalidError, match=r"^schedules\[1\]\."):
            declare_all([good, {**good, "key": "b", "data": {"command": 5}}], SETTINGS, now)

    def test_a_trigger_is_parsed_once_for_many(self, monkeypatch):
        parsed = []
        parse = triggers.parse
        monkeypatch.setattr(triggers, "parse", lambda *a, **k: parsed.append(a) or parse(*a, **k))
        declare_all([{"key": f"k{n}", "cron": "5 4 * * *"} for n in range(50)], SETTINGS, now)
        assert len(parsed) == 1


def declared(schedule):
    """The row of one schedule, or why there is none."""
    fields = dict(schedule)
    try:
        return declare(fields.pop("key"), fields, SETTINGS, now)
    except InvalidError as error:
        return str(error)
