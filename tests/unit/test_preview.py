"""Tests of previews of occurrences, and of the effects that clock changes have on them."""

from dataclasses import replace as changed
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psched import config
from psched.base.errors import InvalidError
from psched.cli.shown import overdue
from psched.cli.time_format import format_distance
from psched.core.columns import LATEST_TIME
from psched.core.definition import parse_row
from psched.core.model import FINISHED, QUARANTINED, Row
from psched.core.preview import upcoming_occurrences, upcoming_times
from psched.triggers import trigger
from psched.triggers.cron import LATE, LOST, ONCE, TWICE, clock_change_effects
from psched.triggers.zone import find_zone

SETTINGS = config.from_mapping({"url": "sqlite:///unused.db"})
BERLIN = "Europe/Berlin"
NOON = 1_800_014_400
"""2027-01-15T12:00:00Z."""
MINUTE, HOUR, DAY = 60, 3600, 86_400


def instant(text):
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


def listed(line, zone, after, count, dst_policy="debian"):
    found = upcoming_times(
        trigger.parse(line, zone, dst_policy=dst_policy), zone, instant(after) - 1, count
    )
    return [(each.local, each.run_at is not None, each.note) for each in found]


class TestTimes:
    def test_times_are_shown_as_the_zones_clocks_show_them(self):
        assert listed("0 9 * * *", "Asia/Tokyo", "2027-01-01 00:00", 2) == [
            ("2027-01-01T09:00:00+09:00", True, None),
            ("2027-01-02T09:00:00+09:00", True, None),
        ]

    def test_a_time_that_does_not_exist_runs_right_after(self):
        assert listed("30 2 * * *", BERLIN, "2027-03-27 00:00", 3) == [
            ("2027-03-27T02:30:00+01:00", True, None),
            (
                "2027-03-28T03:00:00+02:00",
                True,
                f"2027-03-28 02:30 does not exist in Europe/Berlin: {LATE}",
            ),
            ("2027-03-29T02:30:00+02:00", True, None),
        ]

    def test_or_is_skipped_and_does_not_count(self):
        note = "2027-03-28 02:30 does not exist in Europe/Berlin: skipped"
        assert listed("30 2 * * *", BERLIN, "2027-03-27 00:00", 2, "wallclock") == [
            ("2027-03-27T02:30:00+01:00", True, None),
            ("2027-03-28T03:00:00+02:00", False, note),
            ("2027-03-29T02:30:00+02:00", True, None),
        ]

    def test_a_time_that_exists_twice_runs_once_or_twice_and_says_which(self):
        note = "2027-10-31 02:30 comes twice: "
        first, second = "2027-10-31T02:30:00+02:00", "2027-10-31T02:30:00+01:00"
        assert listed("30 2 * * *", BERLIN, "2027-10-31 00:00", 2) == [
            (first, True, note + ONCE),
            ("2027-11-01T02:30:00+01:00", True, None),
        ]
        assert listed("30 2 * * *", BERLIN, "2027-10-31 00:00", 2, "wallclock") == [
            (first, True, f"{note}{TWICE}, this is the first"),
            (second, True, f"{note}{TWICE}, this is the second"),
        ]
        # This is true even if the list begins between the two occurrences.
        assert listed("30 2 * * *", BERLIN, "2027-10-31 01:00", 1, "wallclock") == [
            (second, True, f"{note}{TWICE}, this is the second")
        ]

    def test_what_just_goes_on_is_not_odd(self):
        for line in ("* * * * *", "*/15 * * * *", "@hourly", "@every 5400"):
            found = listed(line, BERLIN, "2027-03-28 00:00", 9)
            found += listed(line, BERLIN, "2027-10-31 00:00", 9)
            assert {note for _, _, note in found} == {None}

    def test_a_line_that_knows_no_hours_but_some_loses_them(self):
        [_, lost, _] = listed("*/15 2 * * *", BERLIN, "2027-03-27 01:45", 2)
        assert lost == (
            "2027-03-28T03:00:00+02:00",
            False,
            "2027-03-28 02:00 and more do not exist in Europe/Berlin: skipped",
        )

    def test_a_change_of_three_hours_is_a_correction_if_it_skips_and_not_if_it_repeats(self):
        zone = "Antarctica/Casey"
        [skipped, _] = listed("30 1 * * *", zone, "2016-10-21 04:00", 1)
        assert skipped[1:] == (False, f"2016-10-22 01:30 does not exist in {zone}: {LOST}")
        [repeated] = listed("30 2 * * *", zone, "2018-03-10 04:00", 1)
        assert repeated[1:] == (True, f"2018-03-11 02:30 comes twice: {ONCE}")

    def test_a_trigger_that_comes_to_its_end_has_fewer_times(self):
        assert upcoming_times(trigger.parse("@yearly", "UTC"), "UTC", 253_402_214_400, 3) == []
        assert upcoming_times(None, "UTC", NOON, 3) == []


ZONES = [
    BERLIN, "America/New_York", "America/Havana", "Africa/Casablanca", "Australia/Lord_Howe",
    "Pacific/Apia", "Asia/Gaza", "Asia/Tokyo", "America/Santiago", "Antarctica/Troll",
]  # fmt: skip


@given(
    zone=st.sampled_from(ZONES),
    minute=st.integers(0, 59),
    hour=st.integers(0, 23),
    policy=st.sampled_from(["debian", "wallclock"]),
    year=st.integers(2006, 2030),
)
@pytest.mark.slow
def test_a_daily_line_is_odd_on_just_those_days_on_which_it_does_not_come_once(
    zone, minute, hour, policy, year
):
    line = trigger.parse(f"{minute} {hour} * * *", zone, dst_policy=policy)
    clock = find_zone(zone)
    start, end = instant(f"{year}-01-02"), instant(f"{year}-12-30")
    expected = {}
    for wall in range(start + hour * HOUR + minute * MINUTE, end, DAY):
        shown = len(clock.instants(wall))
        size = clock.change(wall).size
        if shown == 2:
            expected[wall] = ONCE if policy == "debian" and size <= 3 * HOUR else TWICE
        elif shown == 0:
            expected[wall] = LATE if policy == "debian" and size < 3 * HOUR else LOST
    found = {}
    for odd in clock_change_effects(line, start - DAY, end + DAY):
        wall = line.match_after(odd.change.start - 1)
        if start <= wall < end:
            found[wall] = odd.effect
    assert found == expected


@given(zone=st.sampled_from(ZONES), start=st.integers(0, 4_000_000_000), days=st.integers(0, 900))
def test_the_clock_changes_are_those_at_which_the_offset_differs(zone, start, days):
    clock, end = find_zone(zone), start + days * DAY
    offsets = [clock.wall(at) - at for at in (start, end)]
    for change in clock.changes(start, end):
        assert start < change.instant <= end
        before, after = (clock.wall(at) - at for at in (change.instant - 1, change.instant))
        assert (before, change.size) == (offsets[0], abs(after - before))
        assert len(clock.instants(change.start)) == (2 if after < before else 0)
        offsets[0] = after
    assert offsets[0] == offsets[1]


class TestOfASchedule:
    def shown(self, row, now, count=3, **settings):
        definition = parse_row(row, SETTINGS.with_settings(**settings))
        return upcoming_occurrences(row, definition, count, now)

    @pytest.mark.parametrize("number", [0, -1, 1001])
    def test_a_number_that_is_none_or_too_large_is_refused(self, number):
        row = Row(key="k", cron="@hourly", next_time=NOON, next_run_time=NOON)
        with pytest.raises(InvalidError, match=r"^number: must be from [01] to 1000, not "):
            self.shown(row, NOON, number)

    def test_the_first_is_the_rows_own_and_the_rest_follow_with_delay_and_jitter(self):
        row = Row(
            key="k", cron="@hourly", delay=5, next_time=NOON, next_run_time=NOON + 7, attempt=0
        )
        found = self.shown(row, NOON - 9, jitter=60)
        definition = parse_row(row, SETTINGS.with_settings(jitter=60))
        assert [each.time for each in found] == [NOON, NOON + HOUR, NOON + 2 * HOUR]
        assert found[0].run_at == NOON + 7
        assert found[1].run_at == definition.first_run(NOON + HOUR)

    def test_one_that_is_running_says_so(self):
        row = Row(key="k", cron="@hourly", next_time=NOON, next_run_time=NOON + 300, owner="w")
        found = self.shown(row, NOON + 9)
        assert [each.note for each in found] == ["runs now", None, None]
        assert found[0].run_at == NOON

    def test_what_will_be_dropped_is_not_shown_but_said(self):
        row = Row(key="k", cron="@hourly", next_time=NOON, next_run_time=NOON)
        found = self.shown(row, NOON + 5 * HOUR, catchup="skip")
        assert [each.time for each in found] == [NOON + (5 + n) * HOUR for n in range(3)]
        assert found[0].note == (
            "catch-up (skip) dropped the occurrences from 2027-01-15T12:00:00Z"
            " to before 2027-01-15T17:00:00Z"
        )
        # A missed occurrence that is not dropped is the first one.
        row = changed(row, next_time=NOON - DAY)
        assert [each.time for each in self.shown(row, NOON)][:2] == [NOON - DAY, NOON - DAY + HOUR]

    def test_what_runs_once_has_one_and_what_rests_none(self):
        row = Row(key="k", next_time=NOON, next_run_time=NOON + 5, delay=5)
        assert [(each.time, each.run_at) for each in self.shown(row, NOON)] == [(NOON, NOON + 5)]
        for status in (FINISHED, QUARANTINED):
            rests = changed(row, status=status, next_run_time=None)
            assert self.shown(rests, NOON) == []

    @pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati"])
    def test_the_end_of_the_calendar_is_no_error(self, zone):
        row = Row(key="k", cron="0 1 * * *", timezone=zone, next_time=LATEST_TIME, next_run_time=0)
        [found] = self.shown(row, NOON)
        assert found.local == str(LATEST_TIME)

    def test_a_time_that_is_none_is_refused(self):
        with pytest.raises(InvalidError, match=r"^next_time: "):
            self.shown(Row(key="k", cron="@daily", next_time=-1, next_run_time=0), NOON)

    def test_a_row_without_a_time_continues_after_what_is_decided(self):
        row = Row(
            key="k", cron="0 * * * *", timezone="UTC", next_run_time=0, decided_until=NOON - 7200
        )
        found = self.shown(row, NOON + 1, 2)
        assert [each.time for each in found] == [NOON - 3600, NOON]

    def test_a_row_without_a_time_is_given_one(self):
        row = Row(key="k", cron="@hourly", next_run_time=0)
        assert self.shown(row, NOON + 0.5, 1)[0].time == NOON + HOUR


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "now"), (0.4, "now"), (1, "in 1 s"), (-61, "1 min 1 s ago"), (3600, "in 1 h"),
        (90_061, "in 1 d 1 h"), (86_460, "in 1 d"), (-172_800, "2 d ago"),
    ],
)  # fmt: skip
def test_how_far_away_is_said_in_two_units(seconds, words):
    assert format_distance(seconds) == words


@pytest.mark.parametrize(
    ("columns", "now", "text"),
    [
        ({}, NOON - 1, None),
        ({}, NOON + 0.4, "now"),
        ({}, NOON + 58, "due for 58 s"),
        ({}, NOON + 2 * HOUR + 60, "due for 2 h 1 min"),
        ({"next_run_time": NOON + 30}, NOON + 29, None),
        ({"next_run_time": NOON + 30}, NOON + 58, "due for 28 s"),
        ({"next_run_time": 0}, NOON + 58, "now"),
        ({"owner": "w.1", "next_run_time": NOON + 300}, NOON + 58, None),
    ],
)
def test_a_run_that_is_overdue_is_due_for_some_time(columns, now, text):
    row = Row(key="k", cron="@hourly", **{"next_time": NOON, "next_run_time": NOON, **columns})
    first, *_ = upcoming_occurrences(row, parse_row(row, SETTINGS), 2, now)
    assert overdue(first, row, now) == text


def test_a_lease_that_no_date_ends_is_no_search_without_end():
    row = Row(key="k", cron="0 0 * * *", next_time=NOON, next_run_time=2**63 - 1)
    first, *_ = upcoming_occurrences(row, parse_row(row, SETTINGS), 2, NOON)
    assert first.time <= LATEST_TIME


def test_a_time_that_a_clock_change_skips_is_never_due():
    row = Row(
        key="k", cron="30 2 * * *", timezone="Europe/Paris", options='{"dst_policy": "wallclock"}',
        next_time=instant("2030-03-30T01:30"), next_run_time=instant("2030-03-30T01:30"),
    )  # fmt: skip
    now = instant("2030-04-01T00:31")
    listed = upcoming_occurrences(row, parse_row(row, SETTINGS), 3, now)
    assert [overdue(each, row, now) for each in listed] == [
        "due for 1 d 23 h", None, "due for 1 min", None,
    ]  # fmt: skip
