"""From a stored row to a definition one can act on; payloads to JSON and back."""

import contextlib
import gzip
import json
import time

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psched import config
from psched.base.compression import in_base64
from psched.base.errors import InvalidError
from psched.core.definition import (
    DEEPEST,
    LARGEST_OPTIONS,
    LATEST_TIME,
    LONGEST_KEY,
    MOST_VALUES,
    check_name,
    check_number,
    decode,
    encode,
    parse_payload,
    parse_row,
)
from psched.core.model import Row

SETTINGS = config.from_mapping({"url": "sqlite:///unused.db", "timezone": "Asia/Tokyo"})


def nested(depth):
    value = {}
    for _ in range(depth - 1):
        value = {"a": value}
    return value


class TestPayloads:
    @hypothesis.settings(max_examples=40)  # each is large
    @given(
        st.dictionaries(
            st.text(),
            st.recursive(
                st.none()
                | st.booleans()
                | st.integers(-(2**200), 2**200)
                | st.floats(allow_nan=False, allow_infinity=False)
                | st.text(),
                lambda values: st.lists(values) | st.dictionaries(st.text(), values),
                max_leaves=10,
            ),
        )
    )
    def test_what_is_declared_is_what_is_read(self, data):
        stored = encode("data", data)
        assert decode("data", stored) == data
        assert decode("data", stored.encode()) == data
        # It can also be handed to another process.
        assert json.loads(json.dumps(decode("data", stored))) == data

    @given(st.binary(max_size=50) | st.text(max_size=50))
    def test_whatever_is_stored_is_an_object_or_refused(self, stored):
        try:
            value = decode("data", stored)
        except InvalidError:
            return
        assert isinstance(value, dict)
        assert decode("data", encode("data", value)) == value

    def test_text_is_kept_readable(self):
        assert encode("data", {"é": "鍵"}) == '{"é":"鍵"}'

    @pytest.mark.parametrize(
        "value",
        [
            None, [], "text", 5, {1, 2}, {"a": {1}}, {"a": b"x"}, {"a": object()},
            {"a": float("nan")}, {"a": [float("inf")]}, {"a": "\ud800"}, {"\udfff": 1},
            {(1, 2): 3}, nested(DEEPEST + 1),
        ],
    )  # fmt: skip
    def test_what_json_cannot_hold_is_refused(self, value):
        with pytest.raises(InvalidError, match=r"^data: ") as refused:
            encode("data", value)
        assert refused.value.field == "data"

    def test_a_payload_without_an_end_in_sight_is_refused(self):
        with pytest.raises(InvalidError, match=r"^data: "):
            encode("data", nested(100_000))

    def test_a_payload_that_holds_itself_is_refused(self):
        value = {}
        value["a"] = value
        with pytest.raises(InvalidError, match=r"^data: "):
            encode("data", value)

    def test_a_payload_may_be_this_deep_and_no_deeper(self):
        assert decode("data", encode("data", nested(DEEPEST))) == nested(DEEPEST)
        for text in (
            json.dumps(nested(DEEPEST + 1)),
            '{"a":' + "[" * DEEPEST + "]" * DEEPEST + "}",
        ):
            with pytest.raises(InvalidError, match="deep"):
                decode("data", text)

    def test_brackets_in_text_and_many_neighbours_are_not_deep(self):
        data = {"text": "[{" * 1000, "list": [{"a": [n]} for n in range(1000)]}
        assert decode("data", encode("data", data)) == data

    def test_surrogates_in_pairs_are_characters(self):
        assert decode("data", r'{"key": "\ud83d\udddd"}') == {"key": "🗝"}
        for text in (r'{"a": "\ud83d"}', r'{"a": "\uDDDD"}', r'{"a": "\udddd\ud83d"}'):
            with pytest.raises(InvalidError, match="data: is not JSON"):
                decode("data", text)


class TestUnderstanding:
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
        assert definition.trigger.next_after(1_800_014_400) == 1_800_054_000  # 23:00Z
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
"""15 MB, which take a parser a second or two."""

WORST = {
    "data": {"data": MANY},
    "compressed data": {"data": gzip.compress(MANY.encode())},
    "too much data": {"data": MANY * 5},
    "options": {"options": MANY[: LARGEST_OPTIONS - 2] + "]}"},
    "too many options": {"options": MANY},
    "compressed options": {"options": gzip.compress(MANY.encode())},
    "options in base64": {"options": in_base64(gzip.compress(MANY.encode()))},
    "deep options": {"options": '{"a":' + "[" * 30_000 + "]" * 30_000 + "}"},
    "cron": {"cron": "*" * 10_000_000},
    "cron of many parts": {"cron": ",".join(["0-59"] * 390) + " * * * *"},
    "timezone": {"timezone": "A/" * 1_000_000},
    "type": {"type": "t" * 10_000_000},
}


def test_a_key_that_is_too_long_for_messages_between_processes_is_not_understood():
    parse_row(Row("k" * LONGEST_KEY), SETTINGS)
    with pytest.raises(InvalidError, match="key: has 1001 characters, and may have 1000"):
        parse_row(Row("k" * (LONGEST_KEY + 1)), SETTINGS)


class TestCosts:
    @pytest.mark.parametrize("columns", WORST.values(), ids=WORST)
    def test_no_row_costs_a_worker_more_than_a_moment(self, columns):
        row = Row(**({"key": "k"} | columns))
        began = time.process_time()
        with contextlib.suppress(InvalidError):
            parse_row(row, SETTINGS)
        # Ten times what its docstring says.
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


class TestNamesAndNumbers:
    @pytest.mark.parametrize("name", ["k", "a b", "Ünï/cødé", "鍵", "x" * 255, "%", "'; DROP"])
    def test_a_name_is_any_printable_text(self, name):
        assert check_name("key", name) == name

    @pytest.mark.parametrize(
        "name", ["", " ", " k", "k\t", "a\nb", "\x00", "\u200b", "\ud800", chr(0xFFFD), "x" * 256]
    )
    def test_a_name_that_stores_or_people_would_take_for_another_is_refused(self, name):
        with pytest.raises(InvalidError, match=r"^key: "):
            check_name("key", name)

    @pytest.mark.parametrize("number", [0, 1, LATEST_TIME])
    def test_a_number_within_its_bounds_is_taken(self, number):
        assert check_number("next_time", number, LATEST_TIME) == number

    @pytest.mark.parametrize("number", [-1, LATEST_TIME + 1, 1.0, "1", None, True, 2**100])
    def test_any_other_number_is_refused(self, number):
        with pytest.raises(InvalidError, match=r"^next_time: "):
            check_number("next_time", number, LATEST_TIME)
