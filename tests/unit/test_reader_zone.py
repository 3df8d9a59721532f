"""Tests of the reader's zone: all times are shown and read in it."""

import os
import time
from datetime import UTC, datetime

import click
import pytest
from click.testing import CliRunner

from psched.base.errors import InvalidError
from psched.cli import options
from psched.cli.text_table import Column, headings_of
from psched.cli.time_format import (
    format_time,
    local_times,
    parse_since,
    parse_time,
    reader_zone,
    short_time,
    zone_label,
)

NOW = int(datetime(2026, 11, 27, 12, 0, tzinfo=UTC).timestamp())  # a Friday; 21:00 in Tokyo

NIGHT = int(datetime(2026, 11, 26, 17, 30, tzinfo=UTC).timestamp())  # Fri 27 02:30 in Tokyo


@pytest.fixture
def tokyo(set_zone):
    """The reader is in Tokyo."""
    set_zone("Asia/Tokyo")


def read(text, *, is_next=False):
    return parse_time("time", text, NOW, is_next=is_next)


@pytest.mark.usefixtures("tokyo")
@pytest.mark.parametrize(
    "text",
    [
        "Fri 27 02:30",
        "Fri 27 02:30:00",
        "2026-11-27 02:30",
        "2026-11-27 02:30 JST",
        "2026-11-27 02:30:00 JST",
        "2026-11-27T02:30:00+09:00",
        "2026-11-26 17:30:00 UTC",
        "02:30",
        "02:30 JST",
        "today 02:30",
    ],
)
def test_a_time_is_read_as_it_is_shown(text):
    assert read(text) == NIGHT


@pytest.mark.usefixtures("tokyo")
def test_what_is_shown_is_read_as_the_same_time():
    for instant in (NIGHT, NIGHT - 86_400 * 200, NOW + 86_400 * 6 + 1):
        shown = short_time(instant, NOW, seconds=True)
        assert (read(shown), read(format_time(instant))) == (instant, instant)
    columns = [Column(name, str, is_time=name != "KEY") for name in ("KEY", "NEXT", "SINCE")]
    assert headings_of(columns, NOW) == ["KEY", "NEXT (JST)", "SINCE"]


@pytest.mark.usefixtures("tokyo")
def test_stored_texts_are_shown_in_the_zone():
    text = "from 2026-11-26T17:30:00Z until 2026-11-26T18:30+01:00: at 2026-11-26T17:30:00.250Z."
    night = "2026-11-27 02:30:00"
    shown = f"from {night} JST until {night} JST: at {night}.250 JST."
    assert (local_times(text), read(f"{night}.250 JST")) == (shown, NIGHT)


@pytest.mark.parametrize(
    "text",
    [
        "'2026-11-26T17:30:00Z'",
        "k-2026-11-26T17:30:00Z",
        "/x/2026-11-26T17:30Z",
        "2026-13-26T17:30Z",
    ],
)
def test_names_and_what_is_no_time_stay_as_they_are(text):
    assert local_times(text) == text


@pytest.mark.usefixtures("tokyo")
def test_days_are_those_of_the_reader():
    midnight = NIGHT - 9000
    assert (read("today"), read("2026-11-27")) == (midnight, midnight)
    assert (read("yesterday"), parse_since("yesterday", NOW)) == (midnight - 86_400,) * 2
    assert read("tomorrow", is_next=True) == midnight + 86_400
    assert read("02:30", is_next=True) == NIGHT + 86_400
    assert read("+2h", is_next=True) == NOW + 7200
    assert parse_since("2h", NOW) == "2h"


@pytest.mark.usefixtures("tokyo")
@pytest.mark.parametrize(
    "text", ["Thu 27 02:30", "Fri 99 02:30", "02:30 CET", "soon", "27 02:30", "20261127", "", "UTC"]
)
def test_what_is_no_time_in_the_zone_is_refused(text):
    with pytest.raises(InvalidError, match=r"^time: "):
        read(text)


def test_a_repeated_hour_is_told_by_its_name(set_zone):
    set_zone("Europe/Berlin")
    first, second = (read(f"2026-10-25 02:30 {name}") for name in ("CEST", "CET"))
    assert second - first == 3600
    assert zone_label(NOW) == "CET/CEST"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("JST-9", "2026-11-27 02:30:00 JST"),
        (":Asia/Tokyo", "2026-11-27 02:30:00 JST"),
        ("", "2026-11-26 17:30:00 UTC"),
        ("Asia/Kolkata", "2026-11-26 23:00:00 IST"),
    ],
)
def test_the_zone_is_that_of_the_environment(set_zone, name, shown):
    set_zone(name)
    assert format_time(NIGHT) == shown
    assert read(shown) == NIGHT


def test_without_a_variable_it_is_that_of_the_system(set_zone, monkeypatch):
    set_zone("UTC")
    monkeypatch.delenv("TZ")
    time.tzset()
    assert format_time(0) == datetime.fromtimestamp(0).astimezone().strftime("%F %T %Z")


@click.command()
@options.zone("-t")
def shows():
    """Show the zone."""
    click.echo(reader_zone().name)


def test_an_option_selects_the_zone_until_the_command_ends(set_zone):
    set_zone("Asia/Tokyo")
    shown = [CliRunner().invoke(shows, words) for words in ([], ["--utc"], ["-t", "Asia/Kolkata"])]
    assert [each.stdout for each in shown] == ["Asia/Tokyo\n", "UTC\n", "Asia/Kolkata\n"]
    assert os.environ["TZ"] == "Asia/Tokyo"
    for words, text in {
        ("--utc", "--zone", "Asia/Tokyo"): "--utc and --zone exclude each other",
        ("--zone", "Mars"): "'Mars' is not a zone",
        ("--zone", ""): "is not a zone",
    }.items():
        refused = CliRunner().invoke(shows, words)
        assert (refused.exit_code, text in refused.stderr) == (2, True)
