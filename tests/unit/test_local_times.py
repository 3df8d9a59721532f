"""Tests of new zone data: one run of an occurrence, at the local time that its trigger names."""

from dataclasses import replace as changed
from datetime import datetime

import pytest

from psched import config
from psched.core.declare import declare, redeclare
from psched.core.definition import parse_row
from psched.core.local_times import continued_from, renewed
from psched.core.model import Finish, ReasonCode, Retry, Row
from psched.core.policy import Run, after_claim, after_run
from support.zone_data import NAME, zone_data

SETTINGS = config.from_mapping({"url": "sqlite:///unused.db"})

DAY = 86_400
NOON = 1_800_014_400  # 2027-01-15T12:00:00Z


@pytest.fixture
def host(monkeypatch):
    """A function that makes this a host with other zone data: an offset in minutes, a release."""
    with zone_data(monkeypatch) as host:
        yield host


def daily(cron="0 12 * * *", **fields):
    return declare("k", {"cron": cron, "timezone": NAME, **fields}, SETTINGS, lambda: NOON - 5)


def claimed(row):
    return changed(row, owner="w.1", fence=row.fence + 1, attempt=row.attempt + 1)


def settled(row, end):
    """The row after a settlement."""
    names = ("next_time", "attempt", "local_time", "reason", "reason_code")
    told = {name: getattr(end, name) for name in names}
    return changed(row, owner=None, next_run_time=end.not_before, **told)


def runs_on(host, row, hosts, *, most=6):
    """The local times of the runs if hosts claim the row by turns, each when it is due."""
    ran = []
    for offset, release in hosts * most:
        host(offset, release)
        now = row.next_run_time
        decided = after_claim(claimed(row), SETTINGS, now)
        if isinstance(decided, Run):
            ran.append(decided.scheduled_time)
            decided = after_run(claimed(row), claimed(row), Finish(), SETTINGS, now)
        row = settled(claimed(row), decided)
    return ran


def test_a_row_says_what_the_clocks_show(host):
    host(90, "2026b")
    row = daily()
    assert row.local_time == "2027-01-16T12:00:00+01:30 2026b"
    assert datetime.fromisoformat(row.local_time.split()[0]).timestamp() == row.next_time
    new = redeclare(row, {"cron": "0 14 * * *"}, SETTINGS, lambda: NOON - 5)
    assert new.local_time == "2027-01-15T14:00:00+01:30 2026b"
    end = after_run(claimed(row), claimed(row), Finish(), SETTINGS, row.next_time)
    assert end.local_time == "2027-01-17T12:00:00+01:30 2026b"
    assert after_run(claimed(row), claimed(row), Retry(), SETTINGS).local_time == row.local_time


@pytest.mark.parametrize("fields", [{"every": "1h"}, {"timezone": "UTC", "cron": "0 12 * * *"}, {}])
def test_other_rows_say_nothing(fields):
    row = declare("k", fields, SETTINGS, lambda: NOON)
    assert row.local_time is None


@pytest.mark.parametrize("offset", [-90, -1, 1, 60])
@pytest.mark.parametrize("line", ["0 12 * * *", "21 19 15 1 *", "30 */6 * * *"])
def test_a_host_with_newer_data_moves_the_occurrence_to_its_local_time(host, offset, line):
    host(0, "2026a")
    row = daily(line)
    host(offset, "2026b")
    definition = parse_row(row, SETTINGS)
    assert renewed(row, definition) == row.next_time - 60 * offset
    end = after_claim(claimed(row), SETTINGS, row.next_time)
    assert (end.next_time, end.attempt) == (row.next_time - 60 * offset, 0)
    assert end.reason_code == ReasonCode.NEW_ZONE_DATA
    assert end.local_time[:19] == row.local_time[:19]
    moved = settled(claimed(row), end)
    assert renewed(moved, definition) is None
    assert isinstance(after_claim(claimed(moved), SETTINGS, moved.next_time), Run)


@pytest.mark.parametrize("offset", [-90, -1, 1, 60])
@pytest.mark.parametrize("order", [["old", "new"], ["new", "old"], ["old", "old", "new"]])
def test_hosts_with_different_data_run_each_local_time_once(host, offset, order):
    host(0, "2026a")
    row = daily()
    data = {"old": (0, "2026a"), "new": (offset, "2026b")}
    ran = runs_on(host, row, [data[name] for name in order])
    assert len(ran) >= 3
    days = [round((time - row.next_time) / DAY) for time in ran]
    assert days == [*range(len(ran))]
    assert all(
        time - row.next_time - day * DAY in {0, -60 * offset}
        for time, day in zip(ran, days, strict=True)
    )


@pytest.mark.parametrize("offset", [-60, 60])
def test_a_time_that_the_trigger_has_with_new_data_too_stays(host, offset):
    """An hourly or minutely schedule neither rests for an hour nor repeats one."""
    host(0, "2026a")
    rows = [daily("0 * * * *"), daily("* * * * *")]
    host(offset, "2026b")
    for row in rows:
        assert renewed(row, parse_row(row, SETTINGS)) is None
        assert continued_from(row, parse_row(row, SETTINGS)) == row.next_time


def test_an_older_host_takes_the_time_as_it_is(host):
    host(-1, "2026b")
    row = daily()
    host(0, "2026a")
    assert isinstance(after_claim(claimed(row), SETTINGS, row.next_time), Run)
    end = after_run(claimed(row), claimed(row), Finish(), SETTINGS, row.next_time)
    assert end.next_time == row.next_time - 60 + DAY


@pytest.mark.parametrize("text", [None, "", "soon 2026a", "2027-01-16T12:00:00 2026a", "9" * 40])
def test_a_text_that_is_none_is_ignored(host, text):
    host(0, "2026a")
    row = changed(daily(), local_time=text)
    host(-1, "2026b")
    assert renewed(row, parse_row(row, SETTINGS)) is None


def test_a_time_that_plain_sql_has_set_stays(host):
    host(0, "2026a")
    row = changed(daily(), next_time=NOON + 7)
    host(-1, "2026b")
    definition = parse_row(row, SETTINGS)
    assert renewed(row, definition) is None
    assert continued_from(row, definition) == NOON + 7
    assert isinstance(after_claim(claimed(row), SETTINGS, NOON + 7), Run)


def test_a_zone_that_plain_sql_has_changed_is_no_new_data(host):
    host(0, "2026a")
    row = daily()
    host(-300, "2026a")
    definition = parse_row(row, SETTINGS)
    assert renewed(row, definition) is None
    end = after_run(claimed(row), claimed(row), Finish(), SETTINGS, row.next_time)
    assert end.next_time == row.next_time + 300 * 60


def test_an_occurrence_that_was_tried_runs_again_where_it_is(host):
    host(0, "2026a")
    row = changed(daily(), attempt=1)
    host(-1, "2026b")
    assert isinstance(after_claim(claimed(row), SETTINGS, row.next_time), Run)
    end = after_run(claimed(row), claimed(row), Finish(), SETTINGS, row.next_time)
    assert end.next_time == row.next_time + 60 + DAY


def test_times_after_all_dates_have_no_local_time(host):
    host(0, "2026a")
    assert parse_row(daily(), SETTINGS).local_time(253_402_214_400) is None
    assert parse_row(Row(key="k"), SETTINGS).local_time(None) is None
