"""Tests of parsing a stored row into a definition."""

import contextlib
import gzip
import json
import time

import pytest

from psched import config
from psched.base.compression import in_base64
from psched.base.errors import InvalidError
from psched.core.columns import (
    LARGEST_OPTIONS,
    MOST_VALUES,
    decode,
    parse_payload,
)
from psched.core.definition import LONGEST_KEY, parse_row
from psched.core.model import Row

SETTINGS = config.from_mapping({"url": "sqlite:///unused.db", "timezone": "Asia/Tokyo"})


class TestParsing:
    def test_an_empty_row_has_the_installations_defaults(self):
        definition = parse_row(Row(key="k"), SETTINGS)
        assert (definition.key, definition.type) == ("k", "default")
        assert (definition.cron, definition.trigger, definition.delay) == (None, None, 0)
        assert definition.timezone == "Asia/Tokyo"
        assert definition.settings == SETTINGS

    def test_a_row_is_read_in_its_own_zone_and_with_its_own_settings(self):
        row = Row(
            key="k",
            type="t",
            cron="0 0 * * *",
            timezone="Europe/Paris",
            delay=5,
            options='{"catchup":"skip","dst_policy":"wallclock","kill_timeout":7}',
        )
        definition = parse_row(row, SETTINGS)
        assert definition.trigger.next_after(1_800_014_400) == 1_800_054_000  # 23:00 UTC
        assert definition.trigger.dst_policy == "wallclock"
        assert definition.settings.catchup == "skip"
        assert definition.settings.kill_timeout == 7
        assert definition.settings.retry_wait == SETTINGS.retry_wait

    def test_a_types_settings_are_between_the_installations_and_the_rows_own(self):
        own = {"retry_wait": 7, "kill_timeout": 70, "max_attempts": 3, "dst_policy": "wallclock"}
        settings = SETTINGS.with_settings(types={"report": own, "mail": {"retry_wait": 9}})
        row = Row(key="k", type="report", cron="@daily", options='{"retry_wait":8,"expire":5}')
        definition = parse_row(row, settings)
        assert definition.trigger.dst_policy == "wallclock"
        own = definition.settings
        assert (own.retry_wait, own.kill_timeout, own.max_attempts, own.expire) == (8, 70, 3, 5)
        assert own.kill_interval == SETTINGS.kill_interval
        assert parse_row(Row(key="k", type="mail"), settings).settings.retry_wait == 9
        assert parse_row(Row(key="k"), settings).settings == settings

    def test_an_option_of_a_newer_psched_is_left_to_that(self):
        row = Row(key="k", options='{"overlap":"queue","catchup":"latest"}')
        assert parse_row(row, SETTINGS).settings.catchup == "latest"

    def test_a_setting_that_is_no_override_cannot_be_changed_by_a_row(self):
        row = Row(key="k", options='{"url":"sqlite:///other.db","alive_time":7}')
        assert parse_row(row, SETTINGS).settings == SETTINGS

    @pytest.mark.parametrize(
        ("column", "value"),
        [
            ("type", ""), ("type", "\ufffd"), ("type", b"t"), ("cron", "x"), ("cron", b"* * * * *"),
            ("cron", ""), ("timezone", "x"), ("timezone", b"UTC"), ("delay", -1), ("delay", "5"),
            ("options", "x"),
            ("cron", "*" * 5000), ("key", "a\u202eb"), ("options", '{"catchup":"x"}'),
        ],
    )  # fmt: skip
    def test_what_makes_no_sense_is_refused_with_the_columns_name(self, column, value):
        with pytest.raises(InvalidError) as refused:
            parse_row(Row(**({"key": "k"} | {column: value})), SETTINGS)
        assert refused.value.field == column
        assert str(refused.value).startswith(f"{column}: ")


MANY = '{"a":[' + ",".join(["[]"] * 5_000_000) + "]}"
"""A payload of 15 MB; parsing it takes a second or two."""

WORST = {
    "data": lambda: {"data": MANY},
    "compressed data": lambda: {"data": gzip.compress(MANY.encode())},
    "too much data": lambda: {"data": MANY * 5},
    "options": lambda: {"options": MANY[: LARGEST_OPTIONS - 2] + "]}"},
    "too many options": lambda: {"options": MANY},
    "compressed options": lambda: {"options": gzip.compress(MANY.encode())},
    "options in base64": lambda: {"options": in_base64(gzip.compress(MANY.encode()))},
    "deep options": lambda: {"options": '{"a":' + "[" * 30_000 + "]" * 30_000 + "}"},
    "cron": lambda: {"cron": "*" * 10_000_000},
    "cron of many parts": lambda: {"cron": ",".join(["0-59"] * 390) + " * * * *"},
    "timezone": lambda: {"timezone": "A/" * 1_000_000},
    "type": lambda: {"type": "t" * 10_000_000},
}


def test_a_key_that_is_too_long_for_messages_between_processes_is_refused():
    parse_row(Row("k" * LONGEST_KEY), SETTINGS)
    with pytest.raises(InvalidError, match="key: has 1001 characters, and may have 1000"):
        parse_row(Row("k" * (LONGEST_KEY + 1)), SETTINGS)


class TestCosts:
    @pytest.mark.quiet
    @pytest.mark.parametrize("columns", WORST.values(), ids=WORST)
    def test_no_row_costs_a_worker_more_than_a_moment(self, columns):
        row = Row(**({"key": "k"} | columns()))
        began = time.process_time()
        with contextlib.suppress(InvalidError):
            parse_row(row, SETTINGS)
        # The limit is ten times the duration that the docstring states.
        assert time.process_time() - began < 0.5

    @pytest.mark.parametrize("form", [bytes, in_base64])
    def test_options_have_a_limit_of_their_own_however_they_are_stored(self, form):
        text = json.dumps({"note": "x" * LARGEST_OPTIONS})
        for stored in text, form(gzip.compress(text.encode())):
            with pytest.raises(InvalidError, match=r"options: .*65536"):
                parse_row(Row(key="k", options=stored), SETTINGS)
        fits = json.dumps({"note": "x" * (LARGEST_OPTIONS - 100)})
        assert parse_row(Row(key="k", options=form(gzip.compress(fits.encode()))), SETTINGS)

    def test_what_has_too_many_values_is_read_by_a_task_alone(self):
        text = '{"a":[' + ",".join(["1"] * (MOST_VALUES + 1)) + "]}"
        with pytest.raises(InvalidError, match="data: holds more than 1000000 values"):
            decode("data", text)
        assert len(parse_payload(text, 1024)["a"]) == MOST_VALUES + 1

    def test_a_payload_is_measured_before_it_is_read(self):
        for text in "x" * (16 * 2**20 + 1), '{"a":"' + "x" * 16 * 2**20 + '"}':
            with pytest.raises(InvalidError, match=r"data: has .* bytes, and may have 16777216"):
                parse_row(Row(key="k", data=text), SETTINGS)
