"""Asynchronous handlers: they run in an event loop, and are cancelled when they must stop."""

import asyncio
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from psched.base.errors import ProcessStopError
from psched.process.signals import SignalInbox
from psched.runner.coroutines import run_in_loop
from psched.runner.shared_memory import Reason, StopFlags
from psched.runner.stop import Stop
from support.asynchronous_handlers import HANDLERS, cancelled_many_times
from support.bench import Bench
from support.isolated import isolated, started_isolated
from support.processes import title
from support.waiting import PATIENCE

FAILED = "Retry(wait=None, reason={!r})".format


OUTCOMES = {
    "returns": "Finish()",
    "raises": FAILED("ValueError: no"),
    "retries": "Retry(wait=7, reason='retry asked for by the handler')",
    "cancels_itself": FAILED("CancelledError"),
    "runs_a_program": "Finish()",
    "leaves_work_behind": "Finish()",
    "returns_a_coroutine": "Finish()",
    "partly": "Finish()",
    "callable": "Finish()",
    "Runs": "Finish()",
    "Performs": FAILED("ValueError: no"),
    "Declines": "Finish()",
    "Hides": FAILED(
        "Hides: Hides.perform is a coroutine, but what the class defines is no coroutine function;"
        " make the wrapper of its decorator async def"
    ),
    "returns_a_generator": FAILED(
        "the handler of 'returns_a_generator' has returned a generator, so its code has not run; it"
        " must be a function that returns"
    ),
    "returns_an_asynchronous_generator": FAILED(
        "the handler of 'returns_an_asynchronous_generator' has returned a generator, so its code"
        " has not run; it must be a function that returns"
    ),
}
"""How each handler's lease is settled."""

DATA = {
    "returns": '{"from":"a thread"}',
    "runs_a_program": '{"printed":"it\\n","status":3}',
    "returns_a_coroutine": '{"from":"a thread"}',
    "partly": '{"from":"a thread"}',
    "callable": '{"from":"a thread"}',
    "Runs": '{"from":"a thread"}',
    "Performs": '{"steps":["before","perform"]}',
}
"""What the handlers write."""


def outcomes(tasks):
    bench = Bench(HANDLERS, max_tasks_per_child=tasks)
    return [bench.run(name) for name in OUTCOMES], bench.ledger.data


@pytest.mark.parametrize("tasks", [1, 1000])
def test_an_asynchronous_handler_does_all_that_a_plain_one_does(tasks):
    found, written = isolated(outcomes, tasks)
    assert dict(zip(OUTCOMES, found, strict=True)) == OUTCOMES
    assert written == [*DATA.values()]


def run_one_that_raises():
    return Bench(HANDLERS).run("raises")


def test_the_traceback_in_the_log_begins_in_the_handler():
    with started_isolated(run_one_that_raises) as process:
        process.result()
        files = re.findall(r'File ".*/(\w+)\.py"', process.text)
    assert files == ["asynchronous_handlers"]


def stopped(type_, reason, limit, interval, tasks=1):
    bench = Bench(
        HANDLERS, kill_interval=interval, graceful_kill_limit=limit, max_tasks_per_child=tasks
    )
    task = bench.start(type_, gate="gate")
    bench.until(Path("working").exists)
    bench.tasks.stop(task, Reason[reason])
    return bench.finish(task), task.runner.pid


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [("TIMEOUT", FAILED("stopped at its time limit")), ("SHUTDOWN", "Release()")],
)
def test_it_is_cancelled_once_and_may_clean_up(reason, outcome):
    with started_isolated(stopped, "cleans_up", reason, 1000, 0.02) as process:
        assert process.result()[0] == outcome
        lines = process.text.splitlines()
        assert lines.count("CancelledError") == 1
        assert lines.count("cleaned up") == 1
        assert f"stopped: {reason.lower()}" in process.text


def test_one_that_goes_on_is_killed_at_the_limit():
    with started_isolated(stopped, "clings", "DELETED", 5, 0.1) as process:
        assert process.result()[0] == "Release()"
        assert process.text.splitlines().count("CancelledError") == 1


def test_one_that_blocks_its_loop_is_interrupted_like_a_plain_one():
    with started_isolated(stopped, "computes", "TIMEOUT", 1000, 0.1) as process:
        assert process.result()[0] == FAILED("stopped at its time limit")
        assert process.text.splitlines().count("interrupted for timeout") == 1


def test_a_thread_that_it_has_left_does_not_hold_it_up():
    """The end of a loop waits for its threads; the second TERM interrupts that."""
    with started_isolated(stopped, "waits_for_a_thread", "TIMEOUT", 1000, 0.1) as process:
        assert process.result()[0] == FAILED("stopped at its time limit")
        assert process.text.splitlines().count("cancelled") == 1


def test_its_own_kill_is_called_instead():
    with started_isolated(stopped, "Listens", "SHUTDOWN", 1000, 0.02) as process:
        assert process.result()[0] == "Finish()"
        assert process.text.splitlines().count(" ".join(["shutdown"] * 5)) == 1


def stopped_while_asking(times):
    bench = Bench(HANDLERS, kill_interval=0.005, graceful_kill_limit=1000)
    found = set()
    for _ in range(times):
        task = bench.start("asks")
        asked = bench.ledger.extended
        bench.until(lambda asked=asked: bench.ledger.extended > asked + 20)
        bench.tasks.stop(task, Reason.SHUTDOWN)
        found.add(bench.finish(task))
    return [*found]


def test_a_cancellation_in_the_middle_of_a_question_loses_no_answer():
    decided = "Retry(wait=7, reason='retry asked for by the handler')"
    assert isolated(stopped_while_asking, 30) == [decided]


def shown_before_and_after(times):
    """What a process shows before and after other tasks, for so many uses of the same process.

    A process in which a thread ends late is not used again: the kernel can list a thread for a
    moment after it was joined.
    """
    bench = Bench(HANDLERS, kill_interval=1000, max_tasks_per_child=1000)

    def shown():
        bench.run("shows_itself")
        return json.loads(bench.ledger.data[-1])

    found = []
    before = shown()
    while len(found) < times:
        bench.run("returns")
        task = bench.start("cleans_up", gate="never")
        bench.until(lambda task=task: title(task.runner.pid).endswith("attempt 1"))
        bench.tasks.stop(task, Reason.TIMEOUT)
        bench.finish(task)
        after = shown()
        if after["pid"] == before["pid"]:
            found.append([before["open"], after["open"]])
        before = after
    return found


def test_it_leaves_nothing_open_in_a_process_that_is_used_again():
    for before, after in isolated(shown_before_and_after, 3):
        assert before == after


def shown_after_one_that_restores_term():
    bench = Bench(HANDLERS, max_tasks_per_child=1000)
    bench.run("restores_term")
    bench.run("shows_itself")
    return [json.loads(data)["pid"] for data in bench.ledger.data]


def test_a_process_that_does_not_receive_term_any_more_is_not_used_again():
    first, second = isolated(shown_after_one_that_restores_term)
    assert first != second


def test_a_cancellation_harms_no_other_task_of_the_loop():
    assert isolated(cancelled_many_times, 1500) == [None]


LOADS = """
import sys
from psched.application import Dispatch

class Plain(Dispatch):
    routes = {"t": lambda task: None}

Plain()
assert "asyncio" not in sys.modules

async def handler(task):
    pass

class Asynchronous(Dispatch):
    routes = {"t": handler}

Asynchronous()
assert "asyncio" in sys.modules
"""


def test_only_an_asynchronous_handler_has_asyncio_loaded_and_that_before_any_task():
    subprocess.run([sys.executable, "-c", LOADS], check=True)


def loops_left_open():
    """TERM arrives while an event loop is made: why the task stops; whether the loop is closed."""
    flags, stop, made = StopFlags(), Stop(), []
    inbox = SignalInbox([signal.SIGTERM])
    stop.receive(flags)
    new_event_loop = asyncio.new_event_loop

    def interrupted():
        made.append(new_event_loop())
        signal.raise_signal(signal.SIGTERM)
        return made[0]

    asyncio.runners.events.new_event_loop = interrupted
    coroutine = asyncio.sleep(PATIENCE)
    stop.begin()
    flags.write(Reason.TIMEOUT)
    try:
        run_in_loop(coroutine, stop)
    except ProcessStopError as error:
        return [str(error), [loop.is_closed() for loop in made], sorted(inbox.take())]
    finally:
        coroutine.close()


def test_a_stop_while_the_event_loop_is_made_leaves_nothing_open():
    assert isolated(loops_left_open) == ["timeout", [True], []]
