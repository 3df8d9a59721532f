"""Tests that an expression of another program is refused with the line to write instead."""

import re
from datetime import UTC, datetime

import pytest

from psched.base.errors import InvalidError
from psched.triggers.trigger import parse

SECONDS = "if the first field is seconds, it is "
YEAR = "if the last field is a year, it is "
TRAP = "5 is Friday here, Thursday in Quartz and AWS, Saturday in APScheduler"
BEGIN = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp())  # a Thursday


def refusal(text):
    with pytest.raises(InvalidError) as refused:
        parse(text, "UTC")
    assert refused.value.field == "cron"
    return refused.value.problem


def proposed(text):
    """The lines that the refusal of a text names."""
    named = re.findall(r"(?:it is|write|form of|choose one, as in) '(.*?)'", refusal(text))
    for line in named:
        parse(line, "UTC")
    return named


def times(line, count=3):
    trigger, now, found = parse(line, "UTC"), BEGIN - 1, []
    for _ in range(count):
        now = trigger.next_after(now)
        found.append(datetime.fromtimestamp(now, UTC).strftime("%m-%d %H:%M:%S"))
    return found


@pytest.mark.parametrize(
    ("text", "line"),
    [
        # Quartz, Spring and others: seconds in front
        ("0 0 12 * * ?", "0 12 * * *"),
        ("0 15 10 ? * MON-FRI", "15 10 * * MON-FRI"),
        ("0 15 10 L * ?", "15 10 L * *"),
        ("0 15 10 15W * ? *", "15 10 15W * *"),
        ("0 0/5 14,18 * * ?", "0/5 14,18 * * *"),
        ("0 30 4 * * 1", "30 4 * * 1"),
        # a year at the end, without AWS's parentheses
        ("0 18 ? * 2-6 *", "0 18 * * MON-FRI"),
        ("0 12 * * * 2026", "0 12 * * *"),
        # AWS
        ("cron(0 18 ? * 2-6 *)", "0 18 * * MON-FRI"),
        ("cron(0 18 ? * MON-FRI *)", "0 18 * * MON-FRI"),
        ("cron(0/15 * * * ? *)", "0/15 * * * *"),
        ("cron(0 8 L * ? *)", "0 8 L * *"),
        ("cron(0 9 ? * 2#1 *)", "0 9 * * MON#1"),
        ("cron(0 9 ? * 6L *)", "0 9 * * FRIL"),
        ("cron(0 9 ? * L *)", "0 9 * * SAT"),
        ("cron(0 9 ? * 7-2/2,4 *)", "0 9 * * SAT-MON/2,WED"),
        # intervals
        ("rate(5 minutes)", "@every 5m"),
        ("rate(1 hour)", "@every 1h"),
        ("rate(7 days)", "@every 7d"),
        ("5 minutes", "@every 5m"),
        ("every 2 hours", "@every 2h"),
        ("Every minute", "@every 1m"),
        ("1h30m", "@every 90m"),
        ("@every 1h30m", "@every 90m"),
        ("@every 1h0m30s", "@every 3630s"),
        ("@every 1w", "@every 7d"),
        ("@every 5 minutes", "@every 5m"),
        ("@EVERY 5m", "@every 5m"),
        ("*/10 * * * * ?", "@every 10s"),
        # systemd
        ("daily", "0 0 * * *"),
        ("weekly", "0 0 * * MON"),
        ("@minutely", "* * * * *"),
        ("Quarterly", "0 0 1 */3 *"),
        ("semi-annually", "0 0 1 */6 *"),
        ("Mon *-*-* 03:00", "0 3 * * MON"),
        ("Mon..Fri *-*-* 08:00:00", "0 8 * * MON-FRI"),
        ("Monday, Wednesday, Sat 12:30", "30 12 * * MON,WED,SAT"),
        ("Sunday", "0 0 * * SUN"),
        ("03:07", "7 3 * * *"),
        ("*:0/15", "*/15 * * * *"),
        ("*-*-* 9..17:00", "0 9-17 * * *"),
        ("*-*-*", "0 0 * * *"),
        ("*-*-01 04:00", "0 4 1 * *"),
        ("*-01,07-01", "0 0 1 */6 *"),
        ("*-*~01 23:00", "0 23 L * *"),
        ("Sat *-*-1..7 18:00", "0 18 * * SAT#1"),
        ("Mon *-*~07/1 10:00", "0 10 * * 1L"),
        ("*-*-* *:*:00/10", "@every 10"),
        ("OnCalendar=daily", "0 0 * * *"),
        ("OnCalendar = Mon *-*-* 03:00", "0 3 * * MON"),
        # names, blanks and quotation marks
        ("0 0 * * monday", "0 0 * * MON"),
        ("every 5 minutes", "@every 5m"),
        ("0 0 * * Wednesday-Thursday,saturday", "0 0 * * WED-THU,SAT"),
        ("0 0 1 january,September,DECEMBER,may *", "0 0 1 JAN,SEP,DEC,MAY *"),
        ("@Weekly", "@weekly"),
        ('"0 3 * * *"', "0 3 * * *"),
        ("0 3 * * *\n", "0 3 * * *"),
        ("0\N{NO-BREAK SPACE}3 * * *", "0 3 * * *"),
        ("0, 30 9 * * *", "0,30 9 * * *"),
        # a line of a crontab
        ("0 3 * * * /usr/bin/backup 5", "0 3 * * *"),
        ("@daily backup", "@daily"),
    ],
)
def test_the_line_to_write_is_named(text, line):
    assert proposed(text) == [line]


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("cron(0 18 ? * 2-6 *)", ["01-01 18:00:00", "01-02 18:00:00", "01-05 18:00:00"]),
        ("cron(0 9 ? * 6#2 *)", ["01-09 09:00:00", "02-13 09:00:00", "03-13 09:00:00"]),
        ("cron(0 9 ? * 3/2 *)", ["01-01 09:00:00", "01-03 09:00:00", "01-06 09:00:00"]),
        ("0 15 10 ? * SUN-TUE", ["01-04 10:15:00", "01-05 10:15:00", "01-06 10:15:00"]),
        ("weekly", ["01-05 00:00:00", "01-12 00:00:00", "01-19 00:00:00"]),
        ("Fri *-*-8..14 18:00", ["01-09 18:00:00", "02-13 18:00:00", "03-13 18:00:00"]),
        ("Sun *-*~07/1 10:00", ["01-25 10:00:00", "02-22 10:00:00", "03-29 10:00:00"]),
        ("*/20 * * * * ?", ["01-01 00:00:00", "01-01 00:00:20", "01-01 00:00:40"]),
        ("@every 30m15m", ["01-01 00:00:00", "01-01 00:45:00", "01-01 01:30:00"]),
    ],
)
def test_the_line_means_what_the_expression_means(text, known):
    [line] = proposed(text)
    assert times(line) == known


def test_where_a_text_can_mean_two_things_both_are_named():
    assert proposed("0 0 3 * * *") == ["0 3 * * *", "0 0 3 * *"]
    told = refusal("0 0 3 * * *")
    assert told.startswith("has 6 fields; write five: minute, ")
    assert told.endswith(f"{SECONDS}'0 3 * * *'; {YEAR}'0 0 3 * *'")
    assert proposed("* * * * * *") == ["@every 1s", "* * * * *"]
    assert refusal("0 3 * * * 0").endswith(
        f"{SECONDS}'3 * * * 0'; if the last field is seconds, it is '0 3 * * *'; as a day of the"
        f" week, {TRAP}"
    )
    assert refusal("0 0 9 ? * 6").endswith(f"{SECONDS}'0 9 * * FRI'; as a day of the week, {TRAP}")


@pytest.mark.parametrize("text", ["cron(0 18 ? * 2-6 *)", "0 30 4 * * 1", "0 15 10 ? * 6L"])
def test_a_number_as_the_day_of_the_week_is_warned_of(text):
    assert refusal(text).count(TRAP) == 1


@pytest.mark.parametrize("text", ["cron(0 18 ? * MON-FRI *)", "0 0 12 * * ?", "0 0 * * monday"])
def test_where_no_weekday_is_a_number_nothing_is_said_of_them(text):
    assert TRAP not in refusal(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("30 0 12 * * ?", "'0 12 * * *' with the delay 30s"),
        ("*-*-* 12:00:30", "'0 12 * * *' with the delay 30s"),
        ("cron(0 12 * * ? 2026-2030)", "'0 12 * * *', but in every year"),
        ("0 0 0 13 * 5", "'0 0 13 * 5', on each day that matches one of the two day fields"),
        ("*-*-* 03:00 Europe/Paris", "'0 3 * * *', with Europe/Paris in the option or field timez"),
    ],
)
def test_what_a_line_cannot_say_is_told(text, told):
    assert told in refusal(text)


@pytest.mark.parametrize("name", ["TZ", "CRON_TZ"])
@pytest.mark.parametrize(
    ("rest", "line"),
    [("0 3 * * *", "0 3 * * *"), ("@every 1h30m", "@every 90m"), ("0 0 12 * * ?", "0 12 * * *")],
)
def test_a_time_zone_in_front_belongs_into_its_option(name, rest, line):
    text = f"{name}=Asia/Tokyo {rest}"
    assert proposed(text) == [line]
    assert "Asia/Tokyo belongs into the option or field timezone" in refusal(text)
    assert proposed(text.replace(" ", "\n", 1)) == [line]  # as Jenkins has it


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("H H * * *", r"\d+ \d+ \* \* \*"),
        ("H(0-29) 3 H * THU", r"[12]?\d 3 [12]?\d \* THU"),
        ("H/15 * * * *", r"(\d|1[0-4])-59/15 \* \* \* \*"),
        ("0~30 5 * * *", r"([12]?\d|30) 5 \* \* \*"),
        ("~ 1~ * * 1~5", r"\d+ \d+ \* \* [1-5]"),
    ],
)
def test_a_number_that_another_program_chooses_is_chosen(text, pattern):
    [line] = proposed(text)
    assert re.fullmatch(pattern, line)
    assert proposed(text) == [line]


@pytest.mark.parametrize(
    "text",
    [
        *("0 0 L-3 * *", "0 0 LW * *", "0 0 12 LW * ?", "@reboot", "a b", "cron(0 18 ? * 0 *)"),
        *("Fri *-*-13 00:00", "2026-01-01 03:00", "@every 90ms", "@every 1000d", "* * * *"),
        *("cron(", "cron()", "TZ=", "rate()", "H", "~", "every", "*:*:*:*", "Mon Tue"),
    ],
)
def test_where_no_line_is_equal_none_is_named(text):
    assert not proposed(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Fri *-*-13", "a weekday and a day of the month: in a cron line one of them is enough"),
        ("2026-01-01 00:00", "a year: cron lines have none; write * for the year, or for one run"),
        ("OnCalendar=*-*~03", "days from the end of a month: cron lines know the last day"),
        ("TZ=UTC *:00:0/10", "several seconds of a minute: cron lines have none"),
    ],
)
def test_why_a_calendar_event_has_no_line_is_told(text, told):
    assert f"as a calendar event of systemd, it has {told}" in refusal(text)


def test_fields_are_counted_in_plain_english():
    assert refusal("a").startswith("has 1 field; write five: ")
    assert refusal("a b").startswith("has 2 fields; write five: ")
