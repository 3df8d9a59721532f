"""Tests of the values that a row's columns accept, and of converting payloads to JSON and back."""

import json

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psched.base.errors import InvalidError
from psched.core.columns import (
    DEEPEST,
    LATEST_TIME,
    check_name,
    check_number,
    decode,
    encode,
)


def nested(depth):
    value = {}
    for _ in range(depth - 1):
        value = {"a": value}
    return value


class TestPayloads:
    @pytest.mark.slow
    @hypothesis.settings(max_examples=40)  # each item is large
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
