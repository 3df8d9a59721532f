"""Tests that psched reads cron lines as PerfectSched's workers read them."""

import contextlib
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psched.base.errors import InvalidError
from psched.config import from_mapping
from psched.core.definition import parse_row
from psched.core.model import Row
from psched.triggers.chrono import rewritten
from psched.triggers.trigger import parse
from support import minute_by_minute

DAY = 1440
ZONES = ("UTC", "Asia/Tokyo", "America/Los_Angeles", "Europe/Berlin", "Australia/Lord_Howe")
CHANGES = [
    int(datetime(*date, tzinfo=UTC).timestamp())
    for date in [(2015, 3, 8), (2015, 11, 1), (2024, 2, 28), (2026, 3, 29), (2026, 4, 4)]
]
"""Instants near clock changes of the zones, and near leap days."""


def read(text, timezone="UTC"):
    return parse(text, timezone, dst_policy="wallclock", reading="perfectsched")


# --- PerfectSched's own cases ------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "before", "expected"),
    [
        ("0 * * * *", 0, 3600),
        ("0,30 * * * *", 0, 1800),
        ("*/7 * * * *", 0, 420),
        ("@hourly", 0, 3600),
        ("@daily", 0, 86_400),
        ("@monthly", 0, 2_678_400),
        (" 0 * * * * ", 0, 3600),
        ("0 0 29 2 *", datetime(2012, 2, 29, tzinfo=UTC), datetime(2016, 2, 29, tzinfo=UTC)),
    ],
)
def test_in_utc_it_answers_as_perfectscheds_specs_say(text, before, expected):
    before, expected = (
        int(at.timestamp()) if isinstance(at, datetime) else at for at in (before, expected)
    )
    assert read(text).next_after(before) == expected


def at(offset, *wall):
    return int(datetime(*wall, tzinfo=timezone(timedelta(hours=offset))).timestamp())


@pytest.mark.parametrize(
    ("text", "zone", "before", "expected"),
    [
        ("0 * * * *", "Asia/Tokyo", at(9, 2015, 12, 3, 1), at(9, 2015, 12, 3, 2)),
        ("0 * * * *", "Asia/Tokyo", at(9, 2015, 12, 3, 1, 59, 59), at(9, 2015, 12, 3, 2)),
        ("0 0 * * 0", "Asia/Tokyo", at(9, 2015, 12, 3), at(9, 2015, 12, 6)),
        # 02:00 does not exist on 8 March, and 01:00 exists twice on 1 November.
        ("0 2 * * *", "America/Los_Angeles", at(-8, 2015, 3, 7, 2), at(-7, 2015, 3, 9, 2)),
        ("0 1 * * *", "America/Los_Angeles", at(-7, 2015, 11, 1, 1), at(-8, 2015, 11, 1, 1)),
    ],
)
def test_in_a_zone_it_answers_as_perfectscheds_specs_say(text, zone, before, expected):
    assert read(text, zone).next_after(before) == expected
    assert minute_by_minute.next_time(text, before, zone) == expected


# --- what differs ------------------------------------------------------------------------

_ODD = "1,3,5,7,9,11,13,15,17,19,21,23,25,27,29,31"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("5/15 * * * *", "5 * * * *"),
        ("0 0 */2 * 1", f"0 0 {_ODD} * 1"),
        ("0 0 1 * */2", "0 0 1 * 0,2,4,6"),
        ("0 0 * * 0-7", "0 0 * * 0"),
        ("0 0 * * */17", "0 0 * * 0"),
        ("0 0 L * 1", "0 0 L * *"),
        ("0 0 1,L * *", "0 0 1 * *"),
        ("1,2, * * * *", "1,2 * * * *"),
        ("0 2* * * *", "0 20,21,22,23 * * *"),
    ],
)
def test_what_psched_would_read_otherwise_is_rewritten(text, meant):
    assert rewritten(text) == meant
    assert read(text).text == text


@pytest.mark.parametrize(
    "text",
    [
        "* * * * *",
        "*/5 0-6/2,12 1-15 JAN-mar,12 *",
        "0 0 */2 * *",
        "0 0 * * */2",
        "0 0 1 1 7",
        "0 0 1 * sun,Tue-6",
        "\t0  0 * * * ",
        "@weekly",
    ],
)
def test_what_both_read_alike_stays_as_it_is(text):
    assert rewritten(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "22-2 * * * *",
        "0 0 * * 5-7",
        "0 0 * * 1-7",
        "0 0 * * FRI-MON",
        "0 0 ? * *",
        "0 0 15W * *",
        "0 0 * * FRI#3",
        "0 0 * * 5L",
        "0 0 l * *",
        "*/0 * * * *",
        "1, * * * *",
        ",1 * * * *",
        "0 0 * * 1,2,",
        "1-2-3 * * * *",
        "0 0 * 0 *",
        "0 0 * * 8",
        "0 0 * *",
        "0 0 * * * *",
        "@midnight",
        "@every 90",
        " @daily",
        "٣ * * * *",
        "0 0 * * *\n",
        "",
        "9" * 5000 + " * * * *",
    ],
)
def test_what_perfectsched_refuses_is_refused(text):
    with pytest.raises(InvalidError) as refused:
        read(text)
    assert refused.value.field == "cron"


def test_only_on_perfectscheds_table_lines_are_read_in_this_way():
    row = Row(key="k", cron="5/15 * * * *", next_time=0)
    for kind, expected in {"rdb": 20 * 60, "rdb_compat": 65 * 60}.items():
        settings = from_mapping({"url": "sqlite:///unused.db", "type": kind, "table": "psched"})
        definition = parse_row(row, settings)
        assert definition.trigger.next_after(5 * 60) == expected
        assert definition.cron == "5/15 * * * *"


def test_perfectscheds_clock_changes_are_the_default_on_its_table_alone():
    url = {"url": "sqlite:///unused.db", "table": "psched"}
    assert from_mapping(url).dst_policy == "debian"
    assert from_mapping({**url, "type": "rdb_compat"}).dst_policy == "wallclock"
    chosen = from_mapping({**url, "type": "rdb_compat", "dst_policy": "debian"})
    assert chosen.dst_policy == "debian"
    assert chosen.with_settings(catchup="skip").dst_policy == "debian"


# --- against the walker ------------------------------------------------------------------


def _number(low, high):
    return st.integers(low, high).map(str)


def _fields(low, high, *more):
    number = _number(low, high)
    # Some of the drawn ranges run backwards.
    pair = st.lists(st.integers(low, high), min_size=2, max_size=2)
    ranges = st.one_of(pair.map(sorted), pair.map(sorted), pair.map(sorted), pair)
    span = ranges.map(lambda ends: f"{ends[0]}-{ends[1]}")
    step = st.sampled_from(["", "/1", "/2", "/3", "/7", "/15"])
    item = st.tuples(st.one_of(st.just("*"), number, span, *map(st.just, more)), step)
    return st.lists(item.map("".join), min_size=1, max_size=3).map(",".join)


_LINES = st.tuples(
    _fields(0, 59),
    st.one_of(st.just("*"), _fields(0, 23)),
    # A field with L twice is left out, because psched refuses it.
    st.one_of(
        st.just("*"),
        st.just("L"),
        _fields(1, 31, "L").filter(lambda days: {*days.split(",")} != {"L"}),
    ),
    st.one_of(st.just("*"), _fields(1, 12, "jan", "FEB-mar")),
    st.one_of(st.just("*"), _fields(0, 7, "sun", "MON-fri", "sat-sun")),
).map(" ".join)


@pytest.mark.slow
@settings(max_examples=300)
@given(
    text=_LINES,
    zone=st.sampled_from(ZONES),
    change=st.sampled_from(CHANGES),
    since=st.integers(-2 * DAY * 60, 2 * DAY * 60),
)
def test_the_next_times_are_those_found_by_walking(text, zone, change, since):
    start = change + since
    try:
        expected = minute_by_minute.next_time(text, start, zone, minutes=5 * DAY)
    except ValueError:
        with pytest.raises(InvalidError):
            read(text, zone)
        return
    if expected is None:
        # The line is refused, or it has no run within five days.
        with contextlib.suppress(InvalidError):
            following = read(text, zone).next_after(start)
            assert following is None or following >= start + 5 * DAY * 60
        return
    trigger = read(text, zone)
    for _ in range(3):
        assert trigger.next_after(start) == expected
        start, expected = expected, minute_by_minute.next_time(text, expected, zone, minutes=DAY)
        if expected is None:
            break
