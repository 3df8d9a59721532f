"""Tests that payloads which are not JSON objects are wrapped in one and unwrapped unchanged."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psched.application.task import Task
from psched.base.errors import InvalidError
from psched.base.payload import BASE64, TEXT, unwrap, wrap
from psched.config import from_mapping
from psched.core.columns import encode, payload_text, raw_data
from psched.core.declare import declare
from psched.core.definition import parse_row
from psched.core.model import Row
from psched.files.plan import non_defaults, plan

SETTINGS = from_mapping({"url": "sqlite:////none"}, environ={})


@given(st.binary() | st.text().map(lambda text: text.encode(errors="surrogatepass")))
def test_what_is_carried_comes_out_as_it_was(content):
    data, form = wrap(content)
    text = encode("data", data)
    assert unwrap(text, form) == content
    assert "\0" not in text  # PostgreSQL cannot store this text
    # Without the option the object itself is the payload.
    assert unwrap(text, None) == text.encode()


@pytest.mark.parametrize(
    ("form", "data"),
    [
        (TEXT, {"data": 1}),
        (TEXT, {"data": "x", "more": 1}),
        (TEXT, {"data_base64": "AA=="}),
        (BASE64, {"data": "AA=="}),
        (BASE64, {"data_base64": "A"}),
        (BASE64, {"data_base64": "ü"}),
        (BASE64, {}),
    ],
)
def test_an_object_of_another_form_carries_nothing(form, data):
    text = json.dumps(data)
    assert unwrap(text, form) == text.encode()


def test_an_unknown_form_is_refused():
    row = Row("k", data='{"data":"x"}', options='{"payload":"hex"}')
    with pytest.raises(InvalidError, match="payload must be text or base64"):
        parse_row(row, SETTINGS)
    with pytest.raises(InvalidError, match=r"^payload: must be text or base64, not 'hex'"):
        declare("k", {"payload": "hex"}, SETTINGS, lambda: 0)


class Holder:
    """A handler that accepts every payload."""

    def update_data(self, data):
        pass


def task_of(row):
    """The task of a row, as a runner creates it."""
    run = parse_row(row, SETTINGS).assignment(row, 5)
    return Task({**run, "data": payload_text(row.data, SETTINGS.data_limit)}, Holder())


@pytest.mark.parametrize("stored", ['{"data":"a\\u0000b"}', b'{"data":"a\\u0000b"}'])
def test_a_task_has_its_payload_until_it_is_replaced(stored):
    row = Row("k", data=stored, options='{"payload":"text"}', owner="w", next_time=5)
    task = task_of(row)

    assert (task.data, task.raw_data) == ({"data": "a\0b"}, b"a\0b")
    task.data["data"] = "the task's own copy"
    assert task.raw_data == b"a\0b"
    task.update_data({"data": "other text"})
    assert task.raw_data == b"other text"
    task.update_data({"page": 2})
    assert (task.data, task.raw_data) == ({"page": 2}, b'{"page":2}')


def test_an_object_is_given_as_it_was_written():
    written = '{ "n": 1.10,\n "n": 1e2, "é": "\\u00e9" }'
    row = Row("k", data=written, owner="w", next_time=5)
    task = task_of(row)
    assert (task.data, task.raw_data) == ({"n": 100.0, "é": "é"}, written.encode())
    assert raw_data(Row("k")) == b"{}"


def test_files_keep_how_the_payload_is_carried():
    fields = {"cron": "@daily", "data": {"data": "hello"}, "payload": "text"}
    row = declare("k", fields, SETTINGS, lambda: 0)
    exported = non_defaults(row, SETTINGS)
    assert (exported["data"], exported["payload"]) == ({"data": "hello"}, "text")
    again = plan([{"key": "k", **exported}], [row], None, settings=SETTINGS, now=lambda: 0)
    assert [item.key for item in again.unchanged] == ["k"]
    other = plan(
        [{"key": "k", **fields, "payload": None}], [row], None, settings=SETTINGS, now=lambda: 0
    )
    assert [name for item in other.changed for name in item.changes] == ["payload"]
