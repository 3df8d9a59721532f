"""Durations and sizes with units: the same forms in settings, schedules, triggers and options."""

import json
from datetime import timedelta

import click
import pytest
from click.testing import CliRunner

from psched.base.errors import ConfigError, InvalidError
from psched.base.quantities import as_bytes, as_seconds, format_duration
from psched.cli.options import duration
from psched.config import SETTINGS, from_mapping
from psched.config.kinds import Number
from psched.core.declare import declare, redeclare
from psched.triggers import trigger

URL = "sqlite:////tmp/none.db"
SETTINGS_HERE = from_mapping({"url": URL})
FORMS = "30s, 5m, 1h, 30d"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("5m", 300), ("1h", 3600), ("30d", 2_592_000), ("1.5h", 5400), ("0.5s", 0.5),
     ("0s", 0), ("1.1h", 3960), ("007m", 420)],
)  # fmt: skip
def test_a_duration_is_a_number_and_a_unit(text, seconds):
    assert as_seconds(text) == seconds
    assert type(as_seconds(text)) is type(seconds)


@pytest.mark.parametrize(
    "text",
    ["", "s", "5", "5 m", "-5m", "+5m", "5M", "5ms", "1h30m", "1e3s", ".5s", "5.s", "٣s", "5w",
     "9" * 13 + "s", "1\n", "5m\n", " 5m"],
)  # fmt: skip
def test_another_text_is_no_duration(text):
    assert as_seconds(text) is text


@pytest.mark.parametrize(
    ("delta", "seconds"),
    [
        (timedelta(hours=1), 3600),
        (timedelta(days=2, seconds=1), 172_801),
        (timedelta(milliseconds=1500), 1.5),
        (timedelta(seconds=-5), -5),
    ],
)
def test_a_timedelta_is_a_duration(delta, seconds):
    assert as_seconds(delta) == seconds
    assert type(as_seconds(delta)) is type(seconds)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"), (0.0004, "0 ms"), (0.012, "12 ms"), (0.9994, "999 ms"), (0.9996, "1.0 s"),
        (1, "1.0 s"), (59.94, "59.9 s"), (59.96, "1.0 min"), (252, "4.2 min"), (3596, "59.9 min"),
        (3599, "1.0 h"), (86_399, "1.0 d"), (90_000, "1.0 d"), (10**9, "11574.1 d"),
        (-0.5, "-500 ms"), (-90, "-1.5 min"),
    ],
)  # fmt: skip
def test_a_measured_duration_is_shown_in_its_largest_unit(seconds, text):
    assert format_duration(seconds) == text


def test_the_units_of_sizes_are_powers_of_1024():
    assert [as_bytes(text) for text in ("1K", "16M", "1G", "1.5K")] == [1024, 2**24, 2**30, 1536]
    assert [as_bytes(text) for text in ("1k", "1KB", "1", "5m")] == ["1k", "1KB", "1", "5m"]


# --- settings ------------------------------------------------------------------------


def of_unit(unit):
    return [
        name
        for name, setting in SETTINGS.items()
        if isinstance(setting.kind, Number) and setting.kind.unit == unit
    ]


def take(**given):
    return from_mapping({"url": URL, **given})


def problem(**given):
    with pytest.raises(ConfigError) as refusal:
        take(**given)
    return str(refusal.value)


@pytest.mark.parametrize("name", of_unit("seconds"))
def test_every_setting_in_seconds_accepts_a_duration(name):
    number = {"database_timeout": 1, "retry_wait": 7}.get(name, 60)
    url = "dynamodb://eu-west-1" if name == "max_clock_offset" else URL
    for written in (f"{number}s", timedelta(seconds=number)):
        config, plain = (take(**{"url": url, name: each}) for each in (written, number))
        assert config == plain
        assert type(getattr(config, name)) is type(getattr(plain, name))


@pytest.mark.parametrize("name", of_unit("bytes"))
def test_every_setting_in_bytes_accepts_a_size(name):
    assert getattr(take(**{name: "64K"}), name) == 2**16


def test_a_reference_can_give_a_duration_or_a_part_of_one():
    def of(text):
        return from_mapping({"url": URL, "retry_wait": text}, environ={"N": "5m", "M": "5"})

    assert of("${N}").retry_wait == of("${M}m").retry_wait == 300


def test_the_settings_of_a_type_can_be_durations():
    config = take(types={"report": {"alive_time": "2m", "kill_timeout": "2h"}})
    assert config.types["report"] == {"alive_time": 120, "kill_timeout": 7200}


def test_the_bounds_apply_to_the_converted_number():
    whole = f"(or with a unit: {FORMS})"
    assert problem(poll_interval="2m") == (
        f"poll_interval: must be a number of seconds above 0 and up to 60 {whole}"
    )
    assert problem(alive_time="6.5s") == (
        f"alive_time: must be a whole number of seconds from 6 to 1000000000 {whole}"
    )
    assert problem(data_limit="1G").endswith("from 1024 to 67108864 (or with a unit: 64K, 16M, 1G)")


@pytest.mark.parametrize("text", ["5 minutes", "60", "5M", "1h30m"])
def test_a_refused_duration_is_told_the_forms(text):
    assert problem(retry_wait=text) == (
        "retry_wait: must be a whole number of seconds from 0 to 1000000000 (or with a unit:"
        f" {FORMS}), not text"
    )


def test_a_setting_that_counts_something_else_has_no_units():
    assert problem(processors="5m") == (
        "processors: must be a whole number of processes from 1 to 1000, or auto, not text"
    )
    assert problem(processors=timedelta(seconds=1)).endswith("not a timedelta")
    assert problem(data_limit="5m").endswith("not text")
    assert problem(data_limit=timedelta(seconds=5000)).endswith("not a timedelta")


# --- schedules -----------------------------------------------------------------------


def row(**fields):
    return declare("k", {"next_time": 1000, **fields}, SETTINGS_HERE, lambda: 0)


@pytest.mark.parametrize("written", ["5m", timedelta(minutes=5), 300])
def test_a_schedule_stores_durations_as_seconds(written):
    made = row(cron="@daily", delay=written, alive_time=written, kill_timeout=written, jitter="1m")
    assert (made.delay, made.alive_time) == (300, 300)
    assert json.loads(made.options) == {"kill_timeout": 300, "jitter": 60}
    assert '"kill_timeout":300' in made.options  # not 300.0, which would be a change for apply


def test_a_change_of_a_schedule_can_be_a_duration():
    changed = redeclare(row(delay=1), {"delay": "2m", "retry_wait": "1h"}, SETTINGS_HERE, lambda: 0)
    assert (changed.delay, json.loads(changed.options)) == (120, {"retry_wait": 3600})


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"delay": "soon"}, f"delay: must be whole seconds, or have a unit ({FORMS}), not 'soon'"),
        ({"delay": "0.5s"}, "delay: must be a whole number, not 0.5"),
        ({"delay": "367d"}, "delay: must be from 0 to 31622400, not 31708800"),
        ({"delay": timedelta(seconds=-1)}, "delay: must be from 0 to 31622400, not -1"),
        (
            {"alive_time": "60"},
            f"alive_time: must be whole seconds, or have a unit ({FORMS}), not '60'",
        ),
        ({"jitter": "2d"}, "jitter: must be a whole number of seconds from 0 to 86400 (or with"),
        ({"kill_timeout": "2 h"}, "kill_timeout: must be a number of seconds from 0 to 1000000000"),
        ({"max_attempts": "5m"}, "max_attempts: must be a whole number of attempts from 0 to"),
        ({"every": "0s"}, "every: must be whole seconds from 1 to 31622400, a text with a unit"),
        ({"every": "1 h"}, "every: must be whole seconds from 1 to 31622400, a text with a unit"),
    ],
)
def test_a_duration_that_a_schedule_cannot_have_is_refused_by_name(fields, error):
    with pytest.raises(InvalidError) as refusal:
        row(**fields)
    assert str(refusal.value).startswith(error)


@pytest.mark.parametrize("written", ["1h", timedelta(hours=1), 3600])
def test_every_takes_a_duration(written):
    assert declare("k", {"every": written, "align": True}, SETTINGS_HERE, lambda: 0).cron == (
        "@every 3600"
    )


# --- triggers ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("@every 5m", "@every 300"),
        ("@every 1h +30s", "@every 3600 +30"),
        ("@every 1h +30", "@every 3600 +30"),
        (" @every\t1.5h ", " @every\t5400 "),
        ("@every 300", "@every 300"),
        ("5 * * * *", "5 * * * *"),
    ],
)
def test_a_trigger_is_stored_in_seconds(text, stored):
    assert row(cron=text).cron == stored
    assert trigger.parse(text, "UTC") == trigger.parse(stored, "UTC")


@pytest.mark.parametrize("text", ["@every 0.5s", "@every 5M", "@every 5mm", "@every 5m 3s"])
def test_a_trigger_that_is_not_whole_seconds_is_refused(text):
    with pytest.raises(InvalidError, match=rf"^cron: '@every' .* as in '@every 5m' \({FORMS}\)"):
        row(cron=text)


def test_a_long_text_that_is_no_trigger_is_refused_soon():
    for text in ("@every " + "1" * 10**6, "@every +" + "+" * 10**6, "@every " + "1 " * 10**6):
        with pytest.raises(InvalidError, match=r"^cron: "):
            row(cron=text)


# --- options -------------------------------------------------------------------------


def given(type_, *words):
    @click.command()
    @click.option("--wait", type=type_, default="0")
    def command(wait):
        click.echo(repr(wait))

    return CliRunner().invoke(command, words).output


@pytest.mark.parametrize(
    ("word", "whole", "other"),
    [("5m", "300", "300.0"), ("300", "300", "300.0"), ("1.5h", "5400", "5400.0")],
)
def test_an_option_takes_a_duration(word, whole, other):
    assert given(duration(whole=True), "--wait", word) == f"{whole}\n"
    assert given(duration(), "--wait", word) == f"{other}\n"


def test_an_option_without_a_unit_keeps_its_meaning():
    assert given(duration(), "--wait", "0.5") == "0.5\n"
    assert given(duration()) == "0.0\n"


@pytest.mark.parametrize(
    ("type_", "word", "error"),
    [
        (duration(whole=True), "0.5s", "'0.5s' is not whole seconds, or a number with a unit: 30s"),
        (duration(whole=True), "7.5", "'7.5' is not whole seconds"),
        (duration(), "soon", f"'soon' is not seconds, or a number with a unit: {FORMS}."),
        (duration(least=1), "0s", "0s is less than 1 seconds."),
        (duration(least=1), "nan", "nan is less than 1 seconds."),
        (duration(whole=True), "9" * 5000, "is not whole seconds"),
    ],
)  # fmt: skip
def test_an_option_that_is_no_duration_is_refused_with_its_name_and_the_forms(type_, word, error):
    output = given(type_, "--wait", word)
    assert "Invalid value for '--wait': " in output
    assert error in output
