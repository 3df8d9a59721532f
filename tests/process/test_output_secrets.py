"""Secrets of psched's own configuration are hidden wherever captured output is shown."""

import os
import signal
from pathlib import Path

import pytest

from support.bench import Bench
from support.isolated import isolated
from support.processes import kill
from support.waiting import wait_until

SECRET = "hunter2-and-more"

CHUNK = 2**16
"""The collector reads at most so many bytes at a time."""


def pieces(task):
    """Write the pieces, each when the file of its number exists."""
    for number, piece in enumerate(task.data["pieces"]):
        wait_until(lambda n=number: n == 0 or Path(f"go{n}").exists(), what="its turn")
        text = piece.encode()
        while text:
            text = text[os.write(1, text) :]


def later(_task):
    """Have this process print when its task has ended."""

    def say(*_arguments):
        os.write(1, f"later: {SECRET[:7]}".encode())
        os.write(1, f"{SECRET[7:]} was said\n".encode())

    signal.signal(signal.SIGALRM, say)  # noqa: TID251  # as a task can
    signal.setitimer(signal.ITIMER_REAL, 0.2)


HANDLERS = {"pieces": pieces, "later": later}


def make(**settings):
    """A worker whose service's output is a file."""
    service = os.open("service", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(service, 1)
    given = {"output": "both", "output_limit": 2**20, **settings}
    return Bench(HANDLERS, log_file="log", secrets=[SECRET], **given)


def service():
    return Path("service").read_text()


def written(texts):
    bench = make()
    task = bench.start("pieces", "key", pieces=texts)
    for number in range(1, len(texts)):
        # The collector has read what precedes.
        bench.until(lambda: task.runner.pipe.prints)
        Path(f"go{number}").touch()
    bench.finish(task)
    bench.output.stop()
    return task.output.tail.decode(), service()


@pytest.mark.parametrize(
    "texts",
    [
        pytest.param([SECRET[:5], SECRET[5:] + "\nend\n"], id="two writes"),
        pytest.param([*SECRET, "\nend\n"], id="a write for each byte"),
        *(
            pytest.param(
                [("." * 99 + "\n") * 655 + "." * (30 - at) + SECRET + "\nend\n"], id=f"{at}"
            )
            for at in range(5)
        ),
        pytest.param(["x" * (CHUNK - 7) + SECRET], id="two chunks, and the end"),
        pytest.param(["x" * (2900 - 7) + SECRET + "\n"], id="two pieces of a line"),
        pytest.param([f"last {SECRET}"], id="the end"),
        pytest.param([SECRET * 3], id="nothing else"),
    ],
)
def test_a_secret_is_hidden_however_it_is_split(texts):
    kept, forwarded = isolated(written, texts)
    whole = "".join(texts)
    assert kept == whole.replace(SECRET, "***")
    for each in kept, forwarded:
        assert SECRET not in each.replace("\n", "")
        assert "***" in each
        assert SECRET[:7] not in each
        assert SECRET[7:] not in each


def lived():
    bench = make()
    task = bench.start("pieces", "key", pieces=[f"a {SECRET} b {SECRET[:7]}", f"{SECRET[7:]} c\n"])
    bench.until(lambda: task.runner.pipe.prints)
    assert bench.tasks.follow("key", 1) is task
    seen = []

    def look():
        outputs, _ = bench.tasks.live_output()
        seen.extend(outputs)
        bench.tasks.go_on()
        return b"".join(each.output for each in outputs)

    bench.until(look)
    before = b"".join(each.output for each in seen).decode()
    Path("go1").touch()
    while not task.empty:
        bench.turn()
        look()
    look()
    return before, b"".join(each.output for each in seen).decode()


def test_a_secret_is_hidden_from_who_reads_while_the_task_runs():
    before, whole = isolated(lived)
    assert before == "a *** b "
    assert whole == "a *** b *** c\n"


def between_tasks():
    bench = make(max_tasks_per_child=1000)
    first = bench.start("later", "first")
    bench.finish(first)
    bench.until(lambda: "was said" in service())
    second = bench.start("pieces", "second", pieces=["next\n"])
    bench.finish(second)
    same = first.runner is second.runner
    return same, second.output.tail.decode(), service()


def test_a_secret_is_hidden_in_what_a_process_prints_between_its_tasks():
    same, output, forwarded = isolated(between_tasks)
    assert same, "the tasks have run in one process"
    # The collector can read the next task's output before it is told of the task.
    assert output == "later: *** was said\nnext\n"
    assert " runner: later: *** was said\n" in forwarded


def salvaged():
    bench = make()
    kill(bench.collector, signal.SIGSTOP)
    task = bench.start("pieces", "key", pieces=[f"a {SECRET}\n"])
    bench.finish(task)
    return task.output.tail.decode()


def test_a_secret_is_hidden_in_output_that_no_collector_has_read():
    assert isolated(salvaged) == "a ***\n"
