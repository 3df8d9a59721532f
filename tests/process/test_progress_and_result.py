"""Progress and results that real runners report to their worker."""

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from psched.application.base import Base
from psched.core.history.records import LARGEST_RESULT
from psched.runner.shared_memory import pack
from support.bench import CLOCK, Bench
from support.isolated import isolated
from support.waiting import has_ended, wait_until


def gated(task):
    """Report what the data say, and wait until the file ``gate`` exists."""
    for each in task.data["reports"]:
        task.progress(*each)
    Path("reported").touch()
    wait_until(Path("gate").exists, what="the gate")


def forks(task):
    task.progress(1, "the parent's")
    child = multiprocessing.get_context("fork").Process(target=task.progress, args=(2, "a child's"))
    child.start()
    child.join()
    Path("reported").touch()
    signal.pause()


def floods(task):
    started = time.process_time()
    for number in range(task.data["times"]):
        task.progress(number % 101, "rows")
    task.result = time.process_time() - started
    task.extend()
    task.progress(100, "done")


def writes_garbage(task):
    task.progress(1, "x")
    valid = pack(1, "x")
    # No byte of the checksum stays what it was, so the bytes are not valid by chance.
    garbage = bytes(each ^ 0xFF for each in valid) + os.urandom(400)
    task._holder._tell_progress(garbage[: task.data["bytes"]])
    Path("reported").touch()
    signal.pause()


def sets(task):
    for each in task.data["values"]:
        task.result = each
    if how := task.data.get("then"):
        {"raise": fail, "retry": task.retry, "finish": task.finish, "die": os.abort}[how]()
    task.result = {"last": task.data["values"]}


def fail():
    raise ValueError("no")


def sets_in_a_child(task):
    child = multiprocessing.get_context("fork").Process(target=sets_refused, args=(task,))
    child.start()
    child.join()
    task.result = child.exitcode


def sets_refused(task):
    try:
        task.result = "a child's"
    except RuntimeError:
        os._exit(7)


def cleans_up(task):
    try:
        Path("reported").touch()
        signal.pause()
    finally:
        task.result = "stopped"


def returns_data(task):
    return task.data["value"]


def returns_a_set(_task):
    return {1, 2}


def returns_much(_task):
    return "x" * LARGEST_RESULT


def sets_and_returns(task):
    task.result = "set"
    return task.data["value"]


class Returns(Base):
    def run(self):
        return self.task.data["value"]


class Performs(Base):
    def perform(self):
        return self.task.data["value"]


HANDLERS = {
    each.__name__: each
    for each in (
        gated, forks, floods, writes_garbage, sets, sets_in_a_child, cleans_up, returns_data,
        returns_a_set, returns_much, sets_and_returns, Returns, Performs,
    )
}  # fmt: skip


def progress_of(task):
    return task.report(CLOCK.monotonic(), CLOCK.boottime())["progress"]


# --- progress ------------------------------------------------------------------------


def reported(type_, data, tasks):
    """What the worker knows while the task runs, and after its end."""
    bench = Bench(HANDLERS, max_tasks_per_child=tasks)
    found = []
    for _ in range(2):
        task = bench.start(type_, **data)
        bench.until(Path("reported").exists)
        found.append(progress_of(task))
        Path("gate").touch()
        bench.until(lambda task=task: task.over)
        found.append(progress_of(task))
        bench.finish(task)
        Path("gate").unlink()
        Path("reported").unlink()
    bench.close()
    return found


@pytest.mark.parametrize("tasks", [1, 5])
def test_the_last_progress_is_known_while_the_task_runs(tasks):
    data = {"reports": [[1, "a longer text"], [40, "rows"]]}
    told = {"percent": 40, "text": "rows"}
    assert isolated(reported, "gated", data, tasks) == [told, None] * 2


def test_a_further_task_of_a_process_begins_without_progress():
    assert isolated(begins_anew) == [{"percent": 1, "text": ""}, None]


def begins_anew():
    bench = Bench(HANDLERS, max_tasks_per_child=2)
    Path("gate").touch()
    first = bench.start("gated", reports=[[1, ""]])
    found = [first.runner.stop_flags]
    bench.finish(first)
    shown = found[0].progress._asdict()
    Path("gate").unlink()
    Path("reported").unlink()
    second = bench.start("gated", reports=[])
    bench.until(Path("reported").exists)
    assert second.runner is first.runner
    return [shown, progress_of(second)]


def test_a_child_that_a_handler_has_forked_reports_progress_too():
    assert isolated(seen, "forks", {}) == {"percent": 2, "text": "a child's"}


def seen(type_, data):
    bench = Bench(HANDLERS)
    task = bench.start(type_, **data)
    bench.until(Path("reported").exists)
    return progress_of(task)


@pytest.mark.parametrize("count", [1, 5, 20, 400])
def test_a_task_that_writes_anything_harms_only_itself(count):
    assert isolated(beside_garbage, count) == [None, {"percent": 7, "text": "beside"}, "Finish()"]


def beside_garbage(count):
    bench = Bench(HANDLERS, concurrency=2)
    beside = bench.start("gated", key="beside", reports=[[7, "beside"]])
    bench.until(Path("reported").exists)
    Path("reported").unlink()
    garbage = bench.start("writes_garbage", bytes=count)
    bench.until(Path("reported").exists)
    found = [progress_of(garbage), progress_of(beside)]
    Path("gate").touch()
    return [*found, bench.finish(beside)]


@pytest.mark.extended
def test_a_million_reports_are_cheap_and_send_no_message():
    seconds, messages, conclusion = isolated(flooded, 1_000_000)
    assert (messages, conclusion) == (["extend", "done"], "Finish()")
    assert seconds < 30  # of CPU; it is about 2


def flooded(times):
    bench = Bench(HANDLERS)
    task = bench.start("floods", times=times)
    messages, receive = [], task.runner.link.receive

    def received(**limits):
        found = receive(**limits)
        messages.extend(next(iter(each)) for each in found)
        return found

    task.runner.link.receive = received
    conclusion = bench.finish(task)
    return [float(task.attempt.result), messages, conclusion]


# --- the result ----------------------------------------------------------------------


def attempts(cases, settings):
    bench = Bench(HANDLERS, log_file="log", **settings)
    found = []
    for type_, data in cases:
        task = bench.start(type_, **data)
        bench.finish(task)
        found.append([task.attempt.outcome, task.attempt.result])
    bench.close()
    return found, Path("log").read_text()


def ended(*cases, **settings):
    return isolated(attempts, cases, settings)


LARGEST = "x" * (LARGEST_RESULT - 2)


@pytest.mark.parametrize("tasks", [1, 20])
def test_the_last_value_that_was_set_is_kept_however_the_attempt_ends(tasks):
    values = [1, {"rows": "é"}]
    kept = '{"rows":"é"}'
    found, _log = ended(
        ["sets", {"values": values, "then": "raise"}],
        ["sets", {"values": [], "then": "raise"}],
        ["sets", {"values": values, "then": "retry"}],
        ["sets", {"values": [1], "then": "finish"}],
        ["sets", {"values": [1, None], "then": "raise"}],
        ["sets", {"values": [LARGEST], "then": "raise"}],
        ["sets", {"values": values, "then": "die"}],
        ["sets_in_a_child", {}],
        max_tasks_per_child=tasks,
    )
    assert found == [
        ["failed", kept],
        ["failed", None],
        ["failed", '{"last":[1,{"rows":"é"}]}'],
        ["finished", '{"last":[1]}'],
        ["failed", None],
        ["failed", f'"{LARGEST}"'],
        ["failed", None],
        ["finished", "7"],
    ]


def test_a_task_that_is_stopped_keeps_the_result_of_its_cleanup():
    assert isolated(stopped) == ["timed_out", '"stopped"']


def stopped():
    bench = Bench(HANDLERS, kill_timeout=5)
    task = bench.start("cleans_up")
    bench.finish(task)
    assert has_ended(task.runner.pid)
    return [task.attempt.outcome, task.attempt.result]


RETURNS = [
    ["returns_data", {"value": {"rows": [1, "é"]}}],
    ["Returns", {"value": [1]}],
    ["Performs", {"value": 0}],
    ["returns_data", {"value": None}],
    ["sets_and_returns", {"value": 5}],
    ["sets_and_returns", {"value": None}],
]


def test_what_a_handler_returns_is_the_result_if_the_setting_says_so():
    found, log = ended(*RETURNS, result="return")
    assert [result for _, result in found] == [
        '{"rows":[1,"é"]}', "[1]", "0", None, "5", '"set"',
    ]  # fmt: skip
    assert "WARN" not in log


def test_what_a_handler_returns_is_not_the_result_by_default():
    found, _log = ended(*RETURNS)
    assert [result for _, result in found] == [None, None, None, None, '"set"', '"set"']


def test_a_return_value_that_is_no_json_is_told_and_the_task_has_finished():
    found, log = ended(["returns_a_set", {}], ["returns_much", {}], result="return")
    assert found == [["finished", None]] * 2
    assert "not kept as the result: cannot be written as JSON: Object of type set" in log
    assert "not kept as the result: has 65538 bytes as JSON, and may have 65536" in log


def test_the_setting_of_a_type_applies():
    types = {"returns_data": {"result": "return"}}
    found, _log = ended(["returns_data", {"value": 1}], ["Returns", {"value": 1}], types=types)
    assert [result for _, result in found] == ["1", None]


def test_a_return_value_is_kept_if_a_handler_must_finish_and_does_not():
    found, _log = ended(["Returns", {"value": 1}], result="return", on_return="retry")
    assert found == [["failed", "1"]]
