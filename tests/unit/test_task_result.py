"""What a task can set as its result, and what it can report as its progress."""

import json
from math import inf, nan

import pytest

from psched.application.task import Task
from psched.base.errors import InvalidError
from psched.config import from_mapping
from psched.core.definition import parse_row
from psched.core.history.records import LARGEST_RESULT, RunRecord
from psched.core.history.run import Run
from psched.core.model import Row
from psched.process.link import packed
from psched.runner.messages import FROM_RUNNER
from psched.runner.runner import _USUAL

SETTINGS = from_mapping({"url": "memory:"})


class Holder:
    """Keeps what a task reports."""

    def __init__(self):
        self.results, self.reported = [], []

    def keep_result(self, result):
        self.results.append(result)

    def progress(self, percent, text):
        self.reported.append((percent, text))


@pytest.fixture
def holder():
    return Holder()


@pytest.fixture
def task(holder):
    row = Row("k", data="{}", owner="w", next_time=5)
    return Task({**parse_row(row, SETTINGS).assignment(row, 5), "data": "{}"}, holder)


@pytest.mark.parametrize(
    "value", [{"rows": 3, "é": ["\0", "\U0001f600"]}, [], [1.5, None, True], "text", 0, False]
)
def test_a_result_is_any_json(task, holder, value):
    assert task.result is None
    task.result = value
    assert task.result == value
    [text] = holder.results
    assert json.loads(text) == value
    assert "\0" not in text
    task.result = None
    assert (task.result, holder.results) == (None, [text, None])


def test_a_result_is_copied_when_it_is_set(task, holder):
    value = {"rows": [1]}
    task.result = value
    value["rows"].append(2)
    assert holder.results == ['{"rows":[1]}']


def test_a_change_of_what_was_read_does_not_seem_to_change_the_result(task, holder):
    task.result = {"rows": [1]}
    task.result["more"] = 1
    task.result["rows"].append(2)
    assert task.result == {"rows": [1]}
    assert holder.results == ['{"rows":[1]}']


@pytest.mark.parametrize(
    "value",
    [{1, 2}, b"x", object(), nan, [inf], "\ud800", {("a",): 1}, json.loads("[" * 200 + "]" * 200)],
)
def test_what_json_cannot_represent_is_refused(task, holder, value):
    task.result = "before"
    with pytest.raises(InvalidError, match=r"^result: ") as refused:
        task.result = value
    assert refused.value.field == "result"
    assert (task.result, holder.results) == ("before", ['"before"'])


@pytest.mark.parametrize("character", ["x", "é", '"', "\U0001f600", "\x7f"])
def test_the_largest_result_reaches_the_worker(task, holder, character):
    size = len(json.dumps(character, ensure_ascii=False).encode()) - 2
    most = (LARGEST_RESULT - 2) // size
    task.result = character * most
    with pytest.raises(InvalidError, match=rf"^result: has {most * size + size + 2} bytes as JSON"):
        task.result = character * (most + 1)
    error = "\U0001f600" * 8192
    message = {
        **_USUAL[0],
        "done": "\U0001f600" * 2000,
        "error": error,
        "result": holder.results[0],
    }
    message["exit"] = [None, None]
    assert FROM_RUNNER.fault(message) is None
    assert len(packed(message)) < FROM_RUNNER.longest


def test_a_stored_result_that_is_no_json_is_told():
    for stored in "{", "[" * 100_000:
        record = RunRecord(
            key="k", type="t", scheduled_time=1, owner="w.1", fence=1, ended=1, result=stored
        )
        run = Run(record)
        with pytest.raises(InvalidError, match=r"^result: is not JSON"):
            assert run.result


def test_a_progress_has_a_percent_a_text_or_both(task, holder):
    task.progress(40, "rows")
    task.progress(0.5)
    task.progress(text="loading")
    task.progress()
    assert holder.reported == [(40, "rows"), (0.5, ""), (None, "loading"), (None, "")]


@pytest.mark.parametrize(
    ("percent", "reported"), [(-1, 0), (-0.001, 0), (100.00000000000001, 100), (1e300, 100)]
)
def test_a_percent_out_of_range_counts_as_the_nearer_end(task, holder, percent, reported):
    task.progress(percent)
    assert holder.reported == [(reported, "")]


@pytest.mark.parametrize("percent", [nan, inf, -inf, True, "40"])
def test_a_percent_is_a_finite_number(task, holder, percent):
    with pytest.raises(InvalidError, match=r"^percent: must be a number from 0 to 100, not "):
        task.progress(percent)
    assert holder.reported == []


@pytest.mark.parametrize("text", [None, 1, b"rows"])
def test_the_text_of_a_progress_is_a_text(task, text):
    with pytest.raises(InvalidError, match=r"^text: must be a text, not "):
        task.progress(1, text)
