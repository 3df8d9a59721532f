import json
import sys
import time
from calendar import monthrange
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import cache
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, note, reject, settings
from hypothesis import strategies as st

from psched.base.errors import InvalidError
from psched.triggers.cron import DST_POLICIES, excessive_steps, parse_cron
from psched.triggers.trigger import (
    LONGEST_INTERVAL,
    LONGEST_TEXT,
    Every,
    Trigger,
    first,
    in_seconds,
    parse,
)

NEW_YORK = "America/New_York"
VECTORS = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "cron_vectors.jsonl").read_text().splitlines()
]


def instant(text):
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


def runs(cron, *, after, timezone="UTC", times=1, dst_policy="debian"):
    """Return the next times, in UTC, as text."""
    trigger = parse(cron, timezone, dst_policy=dst_policy)
    now, found = instant(after), []
    for _ in range(times):
        now = trigger.next_after(now)
        found.append(datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%d %H:%M"))
    return found


# --- vectors -------------------------------------------------------------------------


@pytest.mark.parametrize("dst_policy", DST_POLICIES)
def test_the_next_time_is_the_known_one(dst_policy):
    vectors = [known for known in VECTORS if "next" in known]

    def is_wrong(vector):
        trigger = parse(vector["cron"], vector["timezone"], dst_policy=dst_policy)
        return trigger.next_after(vector["after"]) != vector.get(dst_policy, vector["next"])

    assert [vector for vector in vectors if is_wrong(vector)] == []


@pytest.mark.parametrize(
    "vector", [known for known in VECTORS if "refused" in known], ids=lambda known: known["why"]
)
def test_what_makes_no_sense_is_refused_when_it_is_read(vector):
    with pytest.raises(InvalidError) as refusal:
        parse(vector["cron"], vector["timezone"])

    assert refusal.value.field == vector["refused"]


# --- clock changes -------------------------------------------------------------------
# New York springs forward on 2025-03-09 at 07:00 UTC and falls back on 2025-11-02 at 06:00 UTC.


def test_a_fixed_time_in_a_skipped_hour_runs_once_right_after_it():
    assert runs("30 2 * * *", timezone=NEW_YORK, after="2025-03-09 00:00", times=2) == [
        "2025-03-09 07:00",
        "2025-03-10 06:30",
    ]


def test_many_fixed_times_in_a_skipped_hour_run_once_together():
    assert runs("0,15,45 2,3 * * *", timezone=NEW_YORK, after="2025-03-09 00:00", times=2) == [
        "2025-03-09 07:00",
        "2025-03-09 07:15",
    ]


def test_a_fixed_time_in_a_repeated_hour_runs_the_first_time_only():
    assert runs("30 1 * * *", timezone=NEW_YORK, after="2025-11-02 00:00", times=2) == [
        "2025-11-02 05:30",
        "2025-11-03 06:30",
    ]


def test_a_fixed_time_later_on_the_day_of_a_change_is_not_moved():
    assert runs("0 9 * * *", timezone=NEW_YORK, after="2025-11-02 06:30") == ["2025-11-02 14:00"]


def test_an_hourly_line_stays_hourly_when_an_hour_is_skipped():
    assert runs("0 * * * *", timezone=NEW_YORK, after="2025-03-09 05:00", times=3) == [
        "2025-03-09 06:00",
        "2025-03-09 07:00",
        "2025-03-09 08:00",
    ]


def test_an_hourly_line_stays_hourly_when_an_hour_is_repeated():
    assert runs("@hourly", timezone=NEW_YORK, after="2025-11-02 04:00", times=3) == [
        "2025-11-02 05:00",
        "2025-11-02 06:00",
        "2025-11-02 07:00",
    ]


def test_a_wildcard_line_makes_nothing_up_for_a_skipped_hour():
    assert runs("*/15 2 * * *", timezone=NEW_YORK, after="2025-03-09 00:00") == ["2025-03-10 06:00"]


def test_a_wildcard_line_that_was_over_for_the_hour_begins_again_when_it_is_repeated():
    assert runs("*/40 1 * * *", timezone=NEW_YORK, after="2025-11-02 05:50", times=2) == [
        "2025-11-02 06:00",
        "2025-11-02 06:40",
    ]


def test_by_the_wall_clock_a_skipped_fixed_time_is_lost():
    assert runs(
        "30 2 * * *", timezone=NEW_YORK, after="2025-03-09 00:00", dst_policy="wallclock"
    ) == ["2025-03-10 06:30"]


def test_by_the_wall_clock_a_repeated_fixed_time_runs_twice():
    assert runs(
        "30 1 * * *", timezone=NEW_YORK, after="2025-11-02 00:00", times=2, dst_policy="wallclock"
    ) == ["2025-11-02 05:30", "2025-11-02 06:30"]


def test_a_day_that_a_zone_left_out_is_not_made_up():
    # West of the date line until 2011-12-30 10:00 UTC, when 31 December began.
    assert runs("30 2 * * *", timezone="Pacific/Apia", after="2011-12-29 13:00") == [
        "2011-12-30 12:30"
    ]


def test_three_hours_forward_are_a_correction():
    # 2020-10-04, from 00:01 to 03:01.
    assert runs("0 1 * * *", timezone="Antarctica/Casey", after="2020-10-03 16:00") == [
        "2020-10-04 14:00"
    ]


def test_three_hours_back_are_not_yet_a_correction():
    # 2018-03-11, from 04:00 to 01:00.
    assert runs("0 2 * * *", timezone="Antarctica/Casey", after="2018-03-10 15:30") == [
        "2018-03-11 18:00"
    ]


def test_a_line_whose_every_time_is_skipped_never_runs():
    second_sunday_of_march = parse("30 2 * 3 SUN#2", NEW_YORK, dst_policy="wallclock")

    assert second_sunday_of_march.next_after(instant("2025-01-01")) is None


def test_skipped_times_are_passed_over_for_years():
    # In 2027 and 2032 that Sunday is the 14th, when summer time begins.
    assert runs(
        "30 2 14,15 3 */7", timezone=NEW_YORK, after="2026-04-01 00:00", dst_policy="wallclock"
    ) == ["2037-03-15 06:30"]


# --- the line ------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["{}", "{}-2", "{}#1", "{}L", "L{}"])
def test_seven_is_sunday_like_zero(form):
    by_seven, by_zero = (f"0 0 * * {form.format(sunday)}" for sunday in (7, 0))

    assert runs(by_seven, after="2025-06-02", times=9) == runs(by_zero, after="2025-06-02", times=9)


def test_a_star_that_does_not_begin_a_day_field_leaves_it_restricted():
    every_day = ["2025-06-03 00:00", "2025-06-04 00:00"]

    assert runs("0 0 1,* * MON", after="2025-06-02", times=2) == every_day
    assert runs("0 0 1-31 * 1,*/2", after="2025-06-02", times=2) == every_day


def test_the_last_hour_of_a_day_is_followed_by_the_next_day_that_matches():
    assert runs("5 * 1 * *", after="2026-01-01 23:04", times=2) == [
        "2026-01-01 23:05",
        "2026-02-01 00:05",
    ]


def test_a_date_that_never_comes_leaves_the_weekdays_beside_it():
    assert runs("0 0 30,31 2 MON", after="2025-06-02") == ["2026-02-02 00:00"]


@pytest.mark.parametrize(
    "line", ["0 0 1 * FRI#3", "0 0 1-31 * 5L", "0 0 15W * MON", "0 0 15W * */2", "0 0 L * 1#1"]
)
def test_a_day_found_by_counting_does_not_go_with_another_day_field(line):
    with pytest.raises(InvalidError, match=r"write \* for one of them"):
        parse(line, "UTC")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("60 * * * *", "cron: minute '60' is not allowed; use 0-59, "),
        ("0 5-x * * *", "cron: hour 'x' is not allowed; use 0-23, "),
        ("0 0 0 * *", "cron: day of month '0' is not allowed; use 1-31, or just L, or just 15W, "),
        ("0 0 1,32 * *", "cron: day of month '32' is not allowed; use 1-31, "),
        ("0 0 1 13 *", "cron: month '13' is not allowed; use 1-12, JAN-DEC, "),
        ("0 0 1 MON *", "cron: month 'MON' is not allowed; use 1-12, JAN-DEC, "),
        ("0 0 * * MO", "cron: day of week 'MO' is not allowed; use 0-7, SUN-SAT, "),
        ("0 0 * * 5L,1", "cron: day of week '5L,1' mixes FRI#3 or 5L with others; use one"),
        ("0 0 31 6 *", "cron: day of month '31' does not come in month '6'; use a day that does"),
        ("x x x x Mox", "cron: day of month 'x' is not allowed; "),
        ("0 0 * Jann *", "cron: month 'Jann' is not allowed; "),
        ("0 0 * * 5l,Mon", "cron: day of week '5l,Mon' mixes FRI#3 or 5L with others; "),
        ("0 0 15w * fri#1", "cron: day of month '15w' and day of week 'fri#1' do not go together"),
        ("@reboot", "cron: '@reboot' is unknown; use one of @yearly, @annually, @monthly, "),
        (
            "@every 90ms",
            "cron: '@every' takes whole seconds, from 1 to 31622400, as in '@every 90'",
        ),
        ("@every 0", "cron: '@every' takes whole seconds, from 1 to 31622400, as in '@every 90'"),
        ("@every", "cron: '@every' takes whole seconds, from 1 to 31622400, as in '@every 90'"),
        ("@DAILY", "cron: '@DAILY' is unknown; use one of @yearly, "),
        ("", "cron: has 0 fields; write five: minute, hour, day of month, month, day of week"),
        ("0 0 0 * * *", "cron: has 6 fields; write five: "),
        ("0", "cron: has 1 field; write five: "),
        ("0 0", "cron: has 2 fields; write five: "),
        ("0 0 * * \u0665", "cron: has characters beyond ASCII; use plain digits, blanks and tabs"),
        ("*" * 20_000, "cron: is too long; use at most 256 characters"),
    ],
)
def test_a_refusal_names_the_field_and_the_mend(line, problem):
    with pytest.raises(InvalidError) as refusal:
        parse(line, "UTC")

    assert str(refusal.value).startswith(problem)


@pytest.mark.parametrize(
    "line",
    [
        *("0 0 L * *", "0 0 1,L * *", "0 0 15W * *", "0 0 * * FRI#3", "0 0 * * 5L", "0 0 * * L5"),
        *("0 0 1 JAN-MAR,OCT *", "0 0 * * MON-FRI/2", "0 0 ? * SUN"),
    ],
)
def test_capital_and_small_letters_mean_the_same(line):
    written = runs(line, after="2026-01-01 00:00", times=20)
    assert runs(line.lower(), after="2026-01-01 00:00", times=20) == written
    assert runs(line.title(), after="2026-01-01 00:00", times=20) == written


LONG = "minute '10-40/99'", "day of month '*/32'", "month '*/13'", "day of week '*/8'"
NAMED_LONG = "day of month '2-7/40'", "month 'FEB/13'", "day of week 'MON-FRI/9'"


@pytest.mark.parametrize(
    ("line", "same"),
    [
        *(
            ("0 0 * * 7/2", "0 0 * * 0"),
            ("0 0 * * 7/1", "0 0 * * 0"),
            ("0 0 * * 1,7/3", "0 0 * * 0,1"),
        ),
        *(("0 0 * * SUN/2", "0 0 * * 0,2,4,6"), ("0 0 * * 6/2", "0 0 * * 6")),
        *(("0 0 * * 7-2", "0 0 * * 0,1,2"), ("0 0 * * 7-6/3", "0 0 * * 0,3,6")),
        *(
            ("59/2 * * * *", "59 * * * *"),
            ("0 0 1 12/5 *", "0 0 1 12 *"),
            ("0 0 31/2 * *", "0 0 31 * *"),
        ),
        ("*/90 * * * *", "0 * * * *"),
        ("10/10 * * * *", "10,20,30,40,50 * * * *"),
    ],
)
def test_a_step_from_the_last_value_of_a_field_does_not_wrap(line, same):
    written = runs(same, after="2026-01-01 00:00", times=20)
    assert runs(line, after="2026-01-01 00:00", times=20) == written


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        ("*/90 * * * *", {"minute '*/90'": 0}),
        ("5/61,7 */25 * * *", {"minute '5/61'": 5, "hour '*/25'": 0}),
        ("10-40/99 0 */32 */13 */8", dict(zip(LONG, (10, 1, 1, 0), strict=True))),
        ("0 0 2-7/40 FEB/13 MON-FRI/9", dict(zip(NAMED_LONG, (2, 2, 1), strict=True))),
        ("*/60 */24 */31 */12 */7", {}),
        *((line, {}) for line in ("*/45 * * * *", "@daily", "@every 90", "0 0 L * *", "1 2", "")),
    ],
)
def test_steps_that_are_longer_than_their_field_are_found(line, fields):
    found = [*excessive_steps(line)]
    assert found == [
        f"{name} matches only {first}, because its step is longer than the field"
        for name, first in fields.items()
    ]


def test_a_line_may_be_as_long_as_the_longest():
    line = "0,".ljust(LONGEST_TEXT - len(" 0 * * *"), "0") + " 0 * * *"

    assert len(line) == LONGEST_TEXT
    assert runs(line, after="2025-06-02") == ["2025-06-03 00:00"]


@pytest.mark.parametrize("field", ["cron", "timezone", "dst_policy"])
@pytest.mark.parametrize("value", [None, 5, ["@daily"], b"UTC"])
def test_what_is_not_text_is_refused(field, value):
    fields = {"cron": "@daily", "timezone": "UTC", "dst_policy": "debian", field: value}

    with pytest.raises(InvalidError, match=f"^{field}: must be text") as refusal:
        parse(fields["cron"], fields["timezone"], dst_policy=fields["dst_policy"])

    assert refusal.value.field == field


def test_an_unknown_policy_is_refused_with_the_known_ones():
    with pytest.raises(InvalidError, match="not one of debian, wallclock") as refusal:
        parse("@daily", "UTC", dst_policy="skip")

    assert refusal.value.field == "dst_policy"


@settings(max_examples=500)
@given(st.lists(st.text("0123456789*/,-#?LWSUN", min_size=1, max_size=5), min_size=5, max_size=5))
@pytest.mark.slow
def test_a_line_is_refused_when_it_is_read_or_never(fields):
    line = " ".join(fields)
    try:
        trigger = parse(line, NEW_YORK)
    except InvalidError as refusal:
        assert refusal.field == "cron"  # noqa: PT017 - most lines are refused, not all.
    else:
        answer = trigger.next_after(0)
        assert answer is None or answer > 0


# --- triggers as values --------------------------------------------------------------


def test_a_line_is_read_once():
    assert parse("5 4 * * *", NEW_YORK) is parse("5 4 * * *", NEW_YORK)


def test_a_cron_is_its_line_and_its_zone_and_its_policy():
    cron = parse("@daily", NEW_YORK)

    assert repr(cron) == ("Cron(text='@daily', timezone='America/New_York', dst_policy='debian')")
    assert cron != parse("@daily", "UTC")
    assert cron != parse("@daily", NEW_YORK, dst_policy="wallclock")
    assert cron == parse_cron("@daily", NEW_YORK, "debian") is not cron


def test_an_interval_comes_at_whole_multiples_since_1970_whatever_was_asked_before():
    trigger = parse("@every 90", "UTC")
    assert [trigger.next_after(instant) for instant in (0, 1, 89, 90, 91)] == [90, 90, 90, 180, 180]
    assert first(trigger, 180) == 180


def test_an_interval_may_lie_beside_whole_multiples():
    trigger = parse("@every 90  +17", "UTC")
    assert [trigger.next_after(instant) for instant in (-80, 0, 16, 17, 106)] == [
        -73, 17, 17, 107, 107,
    ]  # fmt: skip
    assert parse("@every 90 +0", "UTC") == parse("@every 90", "UTC")
    for text in ("@every 90 +90", "@every 90 17", "@every 90 -1", "@every 90+17", "@every +1"):
        with pytest.raises(InvalidError, match=r"^cron: '@every"):
            parse(text, "UTC")


def test_an_interval_never_reaches_the_last_day_of_the_calendar():
    assert parse("@every 31622400", "UTC").next_after(253_402_214_399) is None
    daily, last_day = parse("@every 86400", "UTC"), instant("9999-12-31")
    assert daily.next_after(last_day - 2 * DAY) == last_day - DAY
    assert daily.next_after(last_day - DAY) is None


def test_an_interval_may_have_units_and_is_stored_in_seconds():
    assert in_seconds("@every 5m") == "@every 300"
    assert in_seconds("@every 1h  +90s") == "@every 3600  +90"
    assert in_seconds("@call m:T 5m") == "@call m:T 5m"
    assert parse("@every 5m", "UTC") == parse("@every 300", "UTC") == Every(300)


def test_an_interval_in_an_unknown_zone_is_refused():
    with pytest.raises(InvalidError, match="Europe/Berln"):
        parse("@every 90", "Europe/Berln")


@given(seconds=st.integers(1, LONGEST_INTERVAL), instant=st.integers(0, 4_000_000_000))
def test_two_times_of_an_interval_are_exactly_the_interval_apart(seconds, instant):
    trigger = parse(f"@every {seconds}", "UTC")
    following = trigger.next_after(instant)
    assert instant < following <= instant + seconds
    assert trigger.next_after(following) == following + seconds


def test_the_first_time_may_be_the_start_itself():
    noon = instant("2025-06-02 12:00")

    assert first(parse("0 12 * * *", "UTC"), noon) == noon
    assert first(parse("0 12 * * *", "UTC"), noon + 1) == noon + 86400


@pytest.mark.parametrize("timezone", ["UTC", "Pacific/Kiritimati", "Etc/GMT+12"])
def test_nothing_runs_on_the_last_day_of_the_calendar(timezone):
    trigger, last_day = parse("* * * * *", timezone), instant("9999-12-31")

    assert trigger.next_after(last_day - 90_000) == last_day - 90_000 + 60
    assert trigger.next_after(last_day - 60) is None
    assert trigger.next_after(last_day + 86_400) is None
    assert trigger.next_after(10**30) is None
    assert parse("@yearly", timezone).next_after(last_day - 90_000) is None


def test_nothing_runs_where_the_last_day_begins_earlier():
    trigger, there = parse("* * * * *", "Pacific/Kiritimati"), instant("9999-12-31") - 14 * 3600

    assert trigger.next_after(there - 120) == there - 60
    assert trigger.next_after(there - 60) is None


def test_a_line_for_croniter_has_times_in_every_century():
    assert runs("0 0 L * *", after="2500-02-15", times=2) == [
        "2500-02-28 00:00",
        "2500-03-31 00:00",
    ]


@pytest.mark.parametrize(
    ("hour", "hourly"), [("*", True), ("*/1", True), ("0-23", True), ("*/2", False), ("5", False)]
)
def test_a_line_is_hourly_if_its_hour_is_every_hour(hour, hourly):
    assert parse(f"30 {hour} * * *", "UTC").hourly is hourly


def test_an_instant_before_1900_is_answered_as_the_first_of_1900():
    assert parse("@yearly", "UTC").next_after(-(10**30)) == instant("1901-01-01")


@pytest.mark.quiet
@pytest.mark.parametrize(
    ("line", "timezone", "after"),
    [
        ("* * 30 12 *", "Pacific/Apia", "2011-12-29"),  # The day is left out.
        ("0 0 29 2 */7", "UTC", "2088-03-01"),  # In 40 years.
        ("0 0 * 2 MON#5", "UTC", "2088-03-01"),
        ("0 0 31 4,6,9,11 MON", "UTC", "2025-01-01"),  # No such date, but Mondays.
        ("*/15 2 8-14 3 */7", NEW_YORK, "2025-01-01"),  # Skipped, every year.
        (",".join(["*/1"] * 60) + " * * * *", NEW_YORK, "2025-01-01"),
    ],
)
def test_no_line_takes_long(line, timezone, after):
    began = time.process_time()
    parse(line, timezone).next_after(instant(after))

    assert time.process_time() - began < 0.25  # Ten times the time on a slow machine.


# --- against brute force -------------------------------------------------------------
# A walk through real minutes, or days, with the standard library alone. Each field is drawn
# together with the numbers that it stands for, so that nothing here has to read one.

DAY = 86_400
MINUTE = timedelta(minutes=1)
MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
WEEKDAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
ZONES = files("tzdata").joinpath("zones").read_text().replace("Factory", "").split()


@dataclass(frozen=True)
class Field:
    text: str
    numbers: frozenset[int]

    @property
    def starred(self):
        return self.text.startswith("*")


@st.composite
def fields(draw, low, last, *, near=None, names=()):
    """Draw a field for the numbers from ``low`` to ``last``; ranges end at numbers in ``near``."""
    whole = range(low, last + 1)
    if draw(st.booleans()):
        return Field("*", frozenset(whole))
    ends = st.sampled_from(near or [*whole, 7 if names is WEEKDAYS else last])
    items = []
    for _ in range(draw(st.integers(1, 3))):
        begin, end = draw(ends), draw(ends)
        first, final = (
            draw(st.sampled_from([str(end), f"{end:02}", *names[end - low :][:1]]))
            for end in (begin, end)
        )
        step = draw(st.sampled_from([1, 2, 3, 5, 7, 15, 100]))
        between = [*range(begin, end + 1)]
        if end < begin:
            between = [*range(begin, last + 1), *range(low, end + 1)]
        forms = [
            (first, [begin]),
            (f"{first}-{final}", between),
            (f"{first}-{final}/{step}", between[::step]),
            (f"{first}/{step}", range(begin if begin <= last else low, last + 1, step)),
            (f"*/{step}", whole[::step]),
            ("*", whole),
        ]
        items.append(draw(st.sampled_from(forms)))
    text = ",".join(item for item, _ in items)
    numbers = (number for _, numbers in items for number in numbers)
    return Field(text, frozenset(number if number <= last else low for number in numbers))


@dataclass(frozen=True)
class Days:
    """The three day fields of a cron line; ``last`` means that a month's last day also matches."""

    day: Field
    month: Field
    weekday: Field
    last: bool = False

    def __str__(self):
        return f"{self.day.text} {self.month.text} {self.weekday.text}"

    def match(self, day):
        by_date = day.day in self.day.numbers or (self.last and is_last(day))
        by_weekday = day.isoweekday() % 7 in self.weekday.numbers
        both = self.day.starred or self.weekday.starred
        return day.month in self.month.numbers and (
            by_date and by_weekday if both else by_date or by_weekday
        )


DAYS = st.builds(Days, fields(1, 31), fields(1, 12, names=MONTHS), fields(0, 6, names=WEEKDAYS))


@cache
def zone_info(name):
    with files("tzdata").joinpath("zoneinfo", name).open("rb") as file:
        return ZoneInfo.from_file(file)


def wall_time(zone, moment):
    return datetime.fromtimestamp(moment, zone_info(zone)).replace(tzinfo=UTC)


@cache
def clock_changes(zone):
    """Return the instants from 1970 to 2040 at which a zone's clock is changed, if any."""

    def offset(moment):
        return int(wall_time(zone, moment).timestamp()) - moment

    found, offsets = [], [offset(begin) for begin in range(0, 70 * 365 * DAY, 5 * DAY)]
    for index, (old, new) in enumerate(pairwise(offsets)):
        if old != new:
            begin, end = index * 5 * DAY, (index + 1) * 5 * DAY
            while begin + 1 < end:
                middle = (begin + end) // 2
                begin, end = (middle, end) if offset(middle) == old else (begin, middle)
            found.append(end)
    # The walk is in whole minutes, which Monrovia's clock did not show until 1972.
    return [change for change in found if offset(change - 1) % 60 == 0] or [12_000 * DAY]


def walk(zone, begin, end, *, once, match):
    """Yield the real minutes at which a line is due whose wall times ``match`` describes.

    If ``once``, a wall time that a clock change skips is due right after the change, and a wall
    time that a change repeats is due only the first time. This rule does not apply to larger
    changes, which are corrections of the clock.
    """
    newest = wall_time(zone, begin - 60)
    for moment in range(begin, end, 60):
        wall = wall_time(zone, moment)
        skipped = (wall - newest) // MINUTE - 1  # In minutes; negative if minutes repeat.
        if once and -180 <= skipped < 0:
            continue
        newest = wall
        due = range(skipped + 1) if once and 0 < skipped < 180 else [0]
        if any(match(wall - ago * MINUTE) for ago in due):
            yield moment


@dataclass(frozen=True)
class Night:
    """A line's trigger, and the times at which it fires in the hours around a clock change."""

    trigger: Trigger
    begin: int
    end: int
    times: list[int]


@st.composite
def nights(draw):
    zone = draw(st.sampled_from(ZONES))
    change = draw(st.sampled_from(clock_changes(zone)))
    begin, end = change - 4 * 3600, change + DAY + 3600
    shown = wall_time(zone, change).hour
    hours = [(shown + hour) % 24 for hour in range(-4, 5)]
    minute, days = draw(fields(0, 59)), draw(DAYS)
    hour = draw(fields(0, 23, near=draw(st.sampled_from([hours, None]))))
    policy = draw(st.sampled_from(DST_POLICIES))
    line = f"{minute.text} {hour.text} {days}"
    try:
        trigger = parse(line, zone, dst_policy=policy)
    except InvalidError:
        reject()  # The line's date never comes, so `parse` refuses the line.
    once = policy == "debian" and not (minute.starred or hour.starred)

    def match(wall):
        return wall.minute in minute.numbers and wall.hour in hour.numbers and days.match(wall)

    note(f"{line!r} in {zone} by {policy}, from {begin}")
    return Night(trigger, begin, end, [*walk(zone, begin, end, once=once, match=match)])


@pytest.mark.slow
@settings(max_examples=200)
@given(nights(), st.data())
def test_around_a_clock_change_nothing_is_skipped_and_nothing_is_extra_in_any_order(night, data):
    seconds = st.integers(night.begin, night.end - 1)
    for now in data.draw(st.lists(seconds, min_size=1, max_size=20)):
        answer = night.trigger.next_after(now)
        expected = [time for time in night.times if time > now]

        assert answer is None or answer > now
        assert answer == expected[0] if expected else answer is None or answer >= night.end

    times, now = [], night.begin - 1
    while (now := night.trigger.next_after(now)) is not None and now < night.end:
        times.append(now)

    assert times == night.times


@st.composite
def calendars(draw):
    """Draw day fields, ``L``, ``W`` and ``#`` included, and a function that matches their days."""
    days = draw(DAYS)
    number, nth = draw(st.integers(1, 31)), draw(st.integers(1, 5))
    weekday = draw(st.integers(0, 6))
    name = draw(st.sampled_from([WEEKDAYS[weekday], str(weekday), str(weekday or 7)]))
    month = days.month.text
    text, match = draw(
        st.sampled_from(
            [
                (str(days), days.match),
                (str(days), days.match),
                (f"{days.day.text},L {month} {days.weekday.text}", replace(days, last=True).match),
                (f"L {month} *", is_last),
                (f"{number}W {month} ?", lambda day: is_nearest(day, number)),
                (f"* {month} {name}#{nth}", lambda day: is_nth(day, weekday, nth)),
                (f"? {month} {name}L", lambda day: is_nth(day, weekday, -1)),
                (
                    f"* {month} L{name},{name}#{nth}",
                    lambda day: is_nth(day, weekday, nth) or is_nth(day, weekday, -1),
                ),
            ]
        )
    )
    return text, lambda day: day.month in days.month.numbers and match(day)


def is_last(day):
    return (day + timedelta(days=1)).month != day.month


def is_nth(day, weekday, nth):
    """Return whether a day is the nth such weekday in its month; -1 means the last."""
    if day.isoweekday() % 7 != weekday:
        return False
    same_weekday = range(day.day % 7 or 7, monthrange(day.year, day.month)[1] + 1, 7)
    return day.day in same_weekday[nth - 1 : nth] if nth > 0 else day.day == same_weekday[-1]


def is_nearest(day, number):
    """Return whether a day is the working day nearest to the date ``number`` in its month."""
    last = monthrange(day.year, day.month)[1]
    working = [n for n in range(1, last + 1) if day.replace(day=n).isoweekday() <= 5]
    return day.day == min(working, key=lambda n: abs(n - min(number, last)))


@pytest.mark.slow
@settings(max_examples=500)
@given(calendars(), st.dates(date(1970, 1, 1), date(9950, 1, 1)))
def test_the_next_day_is_the_one_in_the_calendar_and_a_line_without_one_is_refused(days, start):
    text, match = days
    later = (start + timedelta(days=n) for n in range(1, 41 * 366))
    expected = next(filter(match, later), None)

    if expected is None:
        with pytest.raises(InvalidError, match="does not come in month"):
            parse(f"0 0 {text}", "UTC")
    else:
        now = instant(f"{start} 00:00")
        assert parse(f"0 0 {text}", "UTC").next_after(now) == instant(f"{expected} 00:00")


# --- threads -------------------------------------------------------------------------


def give_way(*_):
    """Let other threads run; set as a profile function, this is called at every call and return."""
    time.sleep(0)  # noqa: TID251  # waits for nothing


def test_threads_that_share_a_line_do_not_disturb_each_other():
    start = instant("2025-01-01 00:00")

    def ask(begin, profile=give_way):
        sys.setprofile(profile)
        # Each call parses the line again, as threads do that add schedules; equal lines share a
        # trigger.
        return [
            parse("17 3 * * *", "UTC").next_after(start + (begin + 4 * n) * 40_000)
            for n in range(20)
        ]

    alone = [ask(begin, profile=None) for begin in range(4)]
    with ThreadPoolExecutor(4) as threads:
        assert [*threads.map(ask, range(4))] == alone


# --- blanks --------------------------------------------------------------------------


@pytest.mark.parametrize("text", [" @every 90", "@every 90\t", "\t @every \t90 "])
def test_blanks_around_an_interval_mean_nothing(text):
    assert parse(text, "UTC") == parse("@every 90", "UTC")
