"""What a running task has printed so far is told when somebody asks for it, and never otherwise."""

import os
import signal
from pathlib import Path

import pytest

from support.bench import Bench
from support.isolated import isolated
from support.processes import kill
from support.waiting import wait_until


def steps(task):
    for name, text in task.data["steps"]:
        wait_until(lambda name=name: Path(name).exists(), what=f"the file {name}")
        os.write(1, text.encode())


def make(**settings):
    service = os.open("service", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(service, 1)
    return Bench({"steps": steps}, log_file="log", **{"output": "both", **settings})


class Said:
    """Counts the messages from the worker to its collector."""

    def __init__(self, bench):
        self.messages = []
        say = bench.output._say

        def counted(message, descriptors=()):
            self.messages.append(next(iter(message)))
            say(message, descriptors)

        bench.output._say = counted


def forwarded(bench, text):
    """Wait until the collector has read a text."""
    bench.until(lambda: text in Path("service").read_text())


def peek(bench, task):
    """What a task has printed so far."""
    found = []

    def answered():
        found.extend([each.row.key, *told(output)] for each, output in bench.tasks.peeked())
        return found

    bench.tasks.peek(task)
    bench.until(answered)
    return found


def told(output):
    return [output.tail.decode(), output.dropped]


def several_times(settings):
    bench = make(**settings)
    task = bench.start("steps", "k", steps=[["a", "one\n"], ["b", "two\n"], ["c", ""]])
    found = [*peek(bench, task)]
    for gate, text in (("a", "one"), ("b", "two")):
        Path(gate).touch()
        forwarded(bench, text)
        found += peek(bench, task)
        found += peek(bench, task)
    Path("c").touch()
    outcome = bench.finish(task)
    return found, outcome, told(task.output), [*bench.tasks.peeked()]


@pytest.mark.parametrize("limit", [65536, 6])
def test_what_a_task_has_printed_so_far_is_told_and_the_end_is_complete(limit):
    found, outcome, output, rest = isolated(several_times, {"output_limit": limit})
    both = ["one\ntwo\n", 0] if limit > 8 else ["e\ntwo\n", 2]
    assert found == [
        ["k", "", 0],
        ["k", "one\n", 0],
        ["k", "one\n", 0],
        ["k", *both],
        ["k", *both],
    ]
    assert (outcome, output, rest) == ("Finish()", both, [])


def messages_of_silent_tasks():
    bench = make(max_tasks_per_child=1000)
    bench.run("steps", "first", steps=[])
    said = Said(bench)
    for number in range(5):
        bench.run("steps", f"silent{number}", steps=[])
    Path("a").touch()
    silent = [*said.messages]
    task = bench.start("steps", "k", steps=[["a", "one\n"], ["b", ""]])
    forwarded(bench, "one")
    unread = [*said.messages]
    bench.tasks.peek(task)
    bench.tasks.peek(task)
    Path("b").touch()
    bench.finish(task)
    return silent, unread, said.messages


def test_a_task_causes_no_further_message_unless_somebody_asks():
    silent, unread, every = isolated(messages_of_silent_tasks)
    assert silent == []
    assert unread == ["whose"]
    assert every == ["whose", "peek", "end"]  # one question at a time


def ended_meanwhile():
    bench = make(max_tasks_per_child=1000)
    Path("a").touch()
    task = bench.start("steps", "first", steps=[["a", "one\n"], ["b", "two\n"]])
    forwarded(bench, "one")
    kill(bench.collector, signal.SIGSTOP)
    bench.tasks.peek(task)
    Path("b").touch()
    bench.until(lambda: task.awaits_output)
    kill(bench.collector, signal.SIGCONT)
    bench.finish(task)
    second = bench.start("steps", "second", steps=[["c", ""]])
    late = [[each.row.key, *told(output)] for each, output in bench.tasks.peeked()]
    found = peek(bench, second)
    Path("c").touch()
    bench.finish(second)
    return told(task.output), late, found


def test_an_answer_is_never_that_of_another_task():
    assert isolated(ended_meanwhile) == [["one\ntwo\n", 0], [], [["second", "", 0]]]


def killed_collector():
    bench = make()
    Path("a").touch()
    task = bench.start("steps", "k", steps=[["a", "one\n"], ["b", "two\n"], ["c", ""]])
    forwarded(bench, "one")
    first = bench.collector
    kill(first, signal.SIGSTOP)
    bench.tasks.peek(task)
    kill(first, signal.SIGKILL)
    bench.until(lambda: "the collector of output died" in Path("log").read_text())
    bench.until(lambda: first not in bench.collectors != [])
    found = peek(bench, task)
    Path("b").touch()
    forwarded(bench, "two")
    found += peek(bench, task)
    Path("c").touch()
    return found, bench.finish(task), told(task.output)


def test_the_death_of_a_collector_is_told():
    found, *end = isolated(killed_collector)
    assert found == [["k", "", None], ["k", "two\n", None]]
    assert end == ["Finish()", ["two\n", None]]


def leave_no_descriptors():
    bench = make()
    Path("a").touch()
    task = bench.start("steps", "k", steps=[["a", "one\n"], ["b", ""]])
    forwarded(bench, "one")

    def count():
        both = os.getpid(), bench.collector
        return [len([*Path(f"/proc/{pid}/fd").iterdir()]) for pid in both]

    before = count()
    for _ in range(50):
        peek(bench, task)
    after = count()
    Path("b").touch()
    bench.finish(task)
    return before, after


def test_questions_leave_no_descriptor_open():
    before, after = isolated(leave_no_descriptors)
    assert before == after
